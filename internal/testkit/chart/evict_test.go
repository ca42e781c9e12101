//go:build helm

package chart

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/cluster/evict"
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
)

// TestEvictions has a real API server evict a persistent antagonist, with the chart's rights of
// the server and no others.
func TestEvictions(t *testing.T) {
	c := startCluster(t, t.TempDir())
	c.namespace("quell", "privileged")
	c.definitions()
	c.kubectl(rendered(t, "testdata/full.yaml", `server.evict="on"`, "server.events=true"),
		"apply", "--server-side", "-f", "-")
	for _, x := range []struct {
		verb, resource, sub string
		may                 bool
	}{
		{"get", "pods", "", true}, {"create", "pods", "eviction", true}, {"create", "events.events.k8s.io", "", true},
		{"delete", "pods", "", false}, {"list", "pods", "", false}, {"create", "pods", "", false}, {"create", "pods", "exec", false}, {"get", "secrets", "", false}, {"get", "nodes", "", false},
	} {
		args := []string{"auth", "can-i", x.verb, x.resource, "-n", "batch", "--as", "system:serviceaccount:quell:quell-server"}
		if x.sub != "" {
			args = append(args, "--subresource", x.sub)
		}
		if out, _ := c.try("", args...); strings.HasSuffix(out, "yes") != x.may {
			t.Errorf("can-i %s %s %s: %s", x.verb, x.resource, x.sub, out)
		}
	}

	c.namespace("batch", "privileged")
	c.kubectl("", "-n", "batch", "create", "serviceaccount", "default")
	c.kubectl("{apiVersion: v1, kind: Node, metadata: {name: m1}}", "create", "-f", "-")
	pod := func(name string, more string) {
		c.kubectl(fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: batch, labels: {app: %[1]s}%s},
  spec: {nodeName: m1, automountServiceAccountToken: false, terminationGracePeriodSeconds: 0, containers: [{name: worker, image: none}]}}`, name, more), "create", "-f", "-")
		c.kubectl("", "-n", "batch", "patch", "pod", name, "--subresource=status", "-p", `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`)
	}
	const owner = `, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: encode, uid: 6d6f0a3e-0000-4000-8000-000000000001, controller: true}]`
	pod("encode", owner)
	pod("guarded", owner)
	pod("bare", "")
	c.kubectl("{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: guarded, namespace: batch}, spec: {minAvailable: 1, selector: {matchLabels: {app: guarded}}}}", "create", "-f", "-")

	conf := config.DefaultServer().Evict
	conf.Mode, conf.Kubernetes.URL, conf.PerHour = "on", c.url, 100
	conf.Kubernetes.CA = c.dir + "/certs/apiserver.crt"
	conf.Kubernetes.TokenFile = c.write("server-token", c.kubectl("", "-n", "quell", "create", "token", "quell-server"))
	e, err := evict.New(evict.Options{Config: conf, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	audit, done := make(chan store.Audit, 10), make(chan struct{})
	go func() { defer close(done); e.Run(ctx, func(a store.Audit) { audit <- a }) }()
	defer func() { cancel(); <-done }()
	for _, x := range []struct{ name, machine, outcome, left string }{
		{"encode", "m2", `refused: Kubernetes says that it runs on "m1", and not on the machine that accuses it`, "encode"},
		{"guarded", "m1", "refused: a disruption budget forbids it now, or the API server is overloaded (429)", "guarded"},
		{"bare", "m1", "refused: it has no controller, so nothing would start it again", "bare"},
		{"other", "m1", "refused: there is no such pod", ""},
		{"encode", "m1", "done by an eviction of its pod", ""},
	} {
		e.Incident(persistent(x.machine, x.name))
		if a := <-audit; a.Outcome != x.outcome {
			t.Errorf("%s, accused by %s: %q, want %q", x.name, x.machine, a.Outcome, x.outcome)
		}
		// Without a kubelet a pod on its way out stays, with a time of deletion.
		left := ""
		for _, f := range strings.Fields(c.kubectl("", "-n", "batch", "get", "pods", "-l", "app="+x.name, "-o", "jsonpath={range .items[*]}{.metadata.name}:{.metadata.deletionTimestamp} {end}")) {
			if name, gone, _ := strings.Cut(f, ":"); gone == "" {
				left += name
			}
		}
		if left != x.left {
			t.Errorf("%s, accused by %s: %q is left, want %q", x.name, x.machine, left, x.left)
		}
	}
}

// persistent is an incident of a machine in which three caps on a pod's container helped.
func persistent(machine, pod string) *incident.Record {
	now := sample.At(time.Now())
	s := sample.Task{Name: sample.TaskName("batch/" + pod + "/worker"), Job: sample.JobName("batch/" + pod + "/" + machine), Class: sample.Batch}
	r := &incident.Record{Incident: plan.Incident{ID: "inc", Machine: machine, Signal: sample.RunQ, Victim: sample.Task{Name: "shop/web/app", Job: "shop/web/app"}, Opened: now, Updated: now,
		Escalation: &plan.Escalation{Do: plan.Restart, Task: s.Name, Job: s.Job},
		Analysis:   plan.Analysis{Result: detect.Result{Kind: detect.Neighbour, Suspects: []detect.Suspect{{Task: s, Grounds: detect.Grounds{Level: detect.Proven}}}, Antagonists: 1}}}}
	for range 3 {
		r.Rounds = append(r.Rounds, &plan.Round{Capped: plan.Capped{Suspect: s}, Outcome: plan.TruePositive})
	}
	return r
}
