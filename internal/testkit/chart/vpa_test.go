//go:build helm

package chart

import (
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// autoscaled has the Vertical Pod Autoscaler resize the pod in mid-cap. The updater is the real one.
// The recommendation is the test's: VPA's recommender would need a metrics server.
func (n *machine) autoscaled(client *api.Client, named string) {
	n.t.Helper()
	n.kubectl("", "apply", "--server-side", "-f", os.Getenv("QUELL_AUTOSCALER")+"/deploy/vpa-v1-crd-gen.yaml")
	n.kubectl("", "wait", "--for=condition=Established", "crd/verticalpodautoscalers.autoscaling.k8s.io")
	// No controller runs that would start pods of it; the pod becomes one of its own.
	uid := n.kubectl(`{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: web, namespace: shop}, spec: {serviceName: web, replicas: 1,
selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: app, image: "localhost/task:1"}]}}}}`, "create", "-f", "-", "-o", "jsonpath={.metadata.uid}")
	n.kubectl("", "-n", "shop", "patch", "pod", "web-0", "--type", "merge", "-p",
		`{"metadata": {"labels": {"app": "web"}, "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "`+uid+`", "controller": true}]}}`)
	n.kubectl(`{apiVersion: autoscaling.k8s.io/v1, kind: VerticalPodAutoscaler, metadata: {name: web, namespace: shop}, spec: {targetRef: {apiVersion: apps/v1, kind: StatefulSet, name: web},
updatePolicy: {updateMode: InPlaceOrRecreate, minReplicas: 1}, resourcePolicy: {containerPolicies: [{containerName: app, controlledResources: [cpu]}]}}}`, "create", "-f", "-")
	_, port, err := net.SplitHostPort(quelltest.FreeAddress(n.t))
	if err != nil {
		n.t.Fatal(err)
	}
	daemon(n.t, n.dir, "vpa-updater", exec.Command("vpa-updater", "--kubeconfig", n.config, "--vpa-object-namespace", "shop", "--updater-interval", "5s",
		"--use-admission-controller-status=false", "--address", "127.0.0.1:"+port, "--v", "4"))

	n.capIt(client, named)
	n.kubectl("", "-n", "shop", "patch", "vpa", "web", "--subresource", "status", "--type", "merge", "-p",
		`{"status": {"recommendation": {"containerRecommendations": [{"containerName": "app", "target": {"cpu": "50m"}, "lowerBound": {"cpu": "40m"}, "upperBound": {"cpu": "60m"}}]}}}`)
	n.overruled(client, named, "15000") // VPA keeps the ratio of limit and request, which is 3
	if said := n.kubectl("", "-n", "shop", "get", "events"); !strings.Contains(said, "InPlaceResizedByVPA") {
		n.t.Errorf("VPA has resized nothing: %s", said)
	}
}

// overruled waits until the kubelet has set its limit over a cap. The limit stays, the cap is
// over, and the agent says so.
func (n *machine) overruled(client *api.Client, named, limit string) {
	n.t.Helper()
	quota := n.quota("shop", "web-0")
	quelltest.Until(n.t, "the kubelet sets its limit", func() bool { return quota() == limit })
	var last api.Overruled
	quelltest.Until(n.t, "the cap is over, and the agent says that another program changed the limit", func() bool {
		s, err := client.Status(n.t.Context())
		if err != nil || len(s.Caps) > 0 || len(s.Overruled) == 0 {
			return false
		}
		last = s.Overruled[len(s.Overruled)-1]
		return strings.Contains(last.Note, `"`+limit+`"`) || n.unified && strings.Contains(last.Note, `"`+limit+` 100000"`)
	})
	if last.Task.String() != named || last.Result != "taken-over" || !strings.Contains(last.Likely, "kubelet") {
		n.t.Errorf("overruled: %+v", last)
	}
	n.t.Logf("%s: %s; %s", last.Task, last.Note, last.Likely)
	entries, err := os.ReadFile(n.dir + "/state/audit.jsonl")
	if lines := strings.Split(string(entries), "\n"); err != nil || !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, last.ID) && strings.Contains(l, "taken-over") }) || quota() != limit {
		n.t.Errorf("quota %s, %v, audit log: %s", quota(), err, entries)
	}
}
