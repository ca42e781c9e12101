//go:build helm

package chart

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestScheduler: a real scheduler puts a job's pods next to its antagonist, because that node
// has the most room, and no longer with the rule that quell writes.
func TestScheduler(t *testing.T) {
	c := startCluster(t, t.TempDir())
	_, port, err := net.SplitHostPort(quelltest.FreeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	daemon(t, c.dir, "kube-scheduler", exec.Command("kube-scheduler", "--kubeconfig", c.config, "--leader-elect=false", "--bind-address", "127.0.0.1", "--secure-port", port,
		"--cert-dir", c.dir+"/certs-of-scheduler", "--authentication-skip-lookup"))
	for _, name := range []string{"shop", "batch"} {
		c.namespace(name, "privileged")
		c.kubectl("", "-n", name, "create", "serviceaccount", "default") // no controller makes it here
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		c.kubectl(fmt.Sprintf(`{apiVersion: v1, kind: Node, metadata: {name: %s, labels: {kubernetes.io/hostname: %[1]s}},
  status: {capacity: {cpu: 16, memory: 64Gi, pods: 100}, allocatable: {cpu: 16, memory: 64Gi, pods: 100}, conditions: [{type: Ready, status: "True"}]}}`, name), "create", "-f", "-")
	}
	c.kubectl("", "taint", "nodes", "--all", "node.kubernetes.io/not-ready:NoSchedule-")
	// The antagonist is on a and b. Something else, which is large, is on c and d.
	for _, name := range []string{"a", "b"} {
		c.pod("batch", "encode", "1", object{"nodeName": name})
	}
	for _, name := range []string{"c", "d"} {
		c.pod("batch", "index", "8", object{"nodeName": name})
	}
	pairs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/pairs" {
			t.Errorf("asked for %s", r.URL)
		}
		fmt.Fprint(w, `[{"victim_job":"shop/web/app","antagonist_job":"batch/encode/worker","incidents":5,"proven":5,"machines":2,"strength":2.1,"caps":4,"helped":4,"confidence":0.51}]`)
	}))
	defer pairs.Close()
	for _, test := range []struct {
		name string
		args []string // of advise-scheduler; nil: no rule
		on   string
	}{
		{"no rule", nil, "ab"},
		{"preferred", []string{"--yaml"}, "cd"},
		{"required", []string{"--yaml", "--required"}, "cd"},
	} {
		spec := object{}
		if test.args != nil {
			spec["affinity"] = c.advice(pairs.URL, test.args)
		}
		for range 4 {
			c.pod("shop", "web", "100m", spec)
		}
		c.kubectl("", "-n", "shop", "wait", "--for=condition=PodScheduled", "--timeout=60s", "pod", "--all")
		where := strings.Fields(c.kubectl("", "-n", "shop", "get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}"))
		t.Logf("figure: %s: web runs on %s; its antagonist on a and b", test.name, strings.Join(where, " "))
		if len(where) != 4 || strings.Trim(strings.Join(where, ""), test.on) != "" {
			t.Errorf("%s: web runs on %q, want only %q", test.name, where, test.on)
		}
		c.kubectl("", "-n", "shop", "delete", "pods", "--all", "--force", "--grace-period=0")
	}
}

// pod makes a pod of a workload.
func (c *cluster) pod(namespace, workload, cpu string, more object) {
	c.t.Helper()
	spec := object{"automountServiceAccountToken": false, "containers": []object{{"name": "main", "image": "none", "resources": object{"requests": object{"cpu": cpu}}}}}
	for name, value := range more {
		spec[name] = value
	}
	text, err := yaml.Marshal(object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"generateName": workload + "-", "namespace": namespace, "labels": object{"app": workload}}, "spec": spec})
	if err != nil {
		c.t.Fatal(err)
	}
	c.kubectl(string(text), "create", "-f", "-")
}

// advice is the affinity that quell writes for the pods of web.
func (c *cluster) advice(server string, args []string) any {
	c.t.Helper()
	var said bytes.Buffer
	cmd := exec.Command(quelltest.Program(c.t, "quell"), append([]string{"advise-scheduler", "--server", server}, args...)...)
	cmd.Stderr = &said
	text, err := cmd.Output()
	var patch object
	if err == nil {
		err = yaml.Unmarshal(text, &patch)
	}
	if err != nil {
		c.t.Fatalf("%v: %s", err, said.String())
	}
	return at(patch, "spec", "template", "spec", "affinity")
}
