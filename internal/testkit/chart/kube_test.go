//go:build helm

package chart

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/quell-dev/quell/internal/agent/child"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// cluster is a kube-apiserver with etcd, and no other part of Kubernetes.
type cluster struct {
	t      *testing.T
	dir    string
	url    string
	http   http.Client
	config string // of kubectl, as administrator
}

const (
	admin = "admin-of-the-test"
	node  = "quell-test-node"
)

// daemon starts a program until the test's end.
func daemon(t *testing.T, dir, name string, cmd *exec.Cmd) *child.Process {
	t.Helper()
	p, err := child.Start(cmd, child.Options{Name: name, Log: filepath.Join(dir, name+".log")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s: %s", name, p.Tail())
		}
		if err := p.Stop(30 * time.Second); err != nil {
			t.Log(err)
		}
	})
	return p
}

// write writes a file for a program.
func (c *cluster) write(name, text string) string {
	c.t.Helper()
	file := filepath.Join(c.dir, name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return file
}

// kubeconfig is a file by which a client with a token connects.
func (c *cluster) kubeconfig(name, token string) string {
	return c.write(name+".kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: test, user: {token: %q}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
current-context: test
`, c.url, token))
}

func startCluster(t *testing.T, dir string) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: dir, http: http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}} // the server made its certificate itself
	etcd, peer := "http://"+quelltest.FreeAddress(t), "http://"+quelltest.FreeAddress(t)
	daemon(t, dir, "etcd", exec.Command("etcd", "--data-dir", dir+"/etcd", "--unsafe-no-fsync", "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer))
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	private := c.write("sa.key", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	tokens := c.write("tokens.csv", fmt.Sprintf("%s,admin,1,system:masters\n%s-token,system:node:%s,2,system:nodes\n", admin, node, node))
	_, port, err := net.SplitHostPort(quelltest.FreeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	c.url = "https://127.0.0.1:" + port
	p := daemon(t, dir, "kube-apiserver", exec.Command("kube-apiserver", "--etcd-servers", etcd, "--bind-address", "127.0.0.1", "--secure-port", port, "--cert-dir", dir+"/certs",
		"--service-account-issuer", "https://test", "--service-account-key-file", private, "--service-account-signing-key-file", private,
		"--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction", "--token-auth-file", tokens, "--service-cluster-ip-range", "10.96.0.0/24", "--allow-privileged"))
	err = p.Until(t.Context(), 3*time.Minute, "be ready", func() (bool, error) {
		_, err := c.get("/readyz")
		return err == nil, nil
	})
	if err != nil {
		t.Fatalf("%v: %s", err, p.Tail())
	}
	c.config = c.kubeconfig("admin", admin)
	return c
}

// get is an answer of the API server.
func (c *cluster) get(path string) ([]byte, error) {
	r, err := http.NewRequest(http.MethodGet, c.url+path, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+admin)
	a, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err == nil && a.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", a.Status, text)
	}
	return text, err
}

// try runs kubectl with an input.
func (c *cluster) try(input string, args ...string) (string, error) {
	var out, said bytes.Buffer
	cmd := exec.CommandContext(context.Background(), "kubectl", append([]string{"--kubeconfig", c.config}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &said
	cmd.Env = append(os.Environ(), "HOME="+c.dir) // its caches
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("kubectl %q: %w: %s", args, err, said.String())
	}
	return strings.TrimSpace(out.String() + said.String()), err
}

func (c *cluster) kubectl(input string, args ...string) string {
	c.t.Helper()
	out, err := c.try(input, args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// namespace makes a namespace with a level of Pod Security.
func (c *cluster) namespace(name, level string) {
	c.t.Helper()
	c.kubectl(fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: {pod-security.kubernetes.io/enforce: %s}}}", name, level), "apply", "-f", "-")
}

// definitions installs the resources of Prometheus' operator.
func (c *cluster) definitions() {
	c.t.Helper()
	dir := os.Getenv("QUELL_PROMETHEUS_OPERATOR")
	for _, kind := range []string{"servicemonitors", "prometheusrules"} {
		c.kubectl("", "apply", "--server-side", "-f", dir+"/example/prometheus-operator-crd/monitoring.coreos.com_"+kind+".yaml")
	}
	c.kubectl("", "wait", "--for=condition=Established", "--all", "crd")
}

// TestAPIServer has a real API server judge what the chart makes.
func TestAPIServer(t *testing.T) {
	c := startCluster(t, t.TempDir())
	c.definitions()
	c.namespace("quell", "privileged")
	t.Run("schemas", func(t *testing.T) { conforms(t, c) })
	// Every default is set, every admission asked, nothing is stored.
	t.Run("dry-run", func(t *testing.T) {
		for _, values := range []string{"testdata/default.yaml", "testdata/full.yaml"} {
			text := rendered(t, values)
			out, err := c.try(text, "-n", "quell", "apply", "--server-side", "--dry-run=server", "-f", "-")
			if n := strings.Count(out, "serverside-applied (server dry run)"); err != nil || n != len(objects(t, text)) || strings.Contains(out, "Warning") {
				t.Errorf("%s: %d objects of %d: %v\n%s", values, n, len(objects(t, text)), err, out)
			}
		}
		if _, err := c.try(strings.ReplaceAll(rendered(t), "hostPID: true", "hostPID: yes-please"), "-n", "quell", "apply", "--server-side", "--dry-run=server", "-f", "-"); err == nil {
			t.Error("a wrong field was accepted: this test shows nothing")
		}
	})
	t.Run("rights", func(t *testing.T) { rights(t, c) })
	t.Run("pod security", func(t *testing.T) { podSecurity(t, c) })
}

// conforms checks with kubeconform, strictly, by schemas of the API server itself.
func conforms(t *testing.T, c *cluster) {
	dir := t.TempDir()
	text, err := c.get("/openapi/v2")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct{ Definitions map[string]object }
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	for _, d := range doc.Definitions {
		closed(d)
	}
	for name, d := range doc.Definitions {
		kinds, _ := d["x-kubernetes-group-version-kind"].([]any)
		if len(kinds) != 1 {
			continue // shared by many, such as DeleteOptions
		}
		kind, group, version := at(kinds[0], "kind").(string), at(kinds[0], "group").(string), at(kinds[0], "version").(string)
		if !strings.Contains(" DaemonSet StatefulSet Service ServiceAccount ConfigMap ResourceQuota NetworkPolicy ClusterRole ClusterRoleBinding ServiceMonitor PrometheusRule ", " "+kind+" ") {
			continue
		}
		suffix := "-" + version
		if group != "" {
			suffix = "-" + strings.Split(group, ".")[0] + suffix
		}
		schema, err := json.Marshal(object{"$ref": "#/definitions/" + name, "definitions": doc.Definitions})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, strings.ToLower(kind)+suffix+".json"), schema, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := func(text string) (string, error) {
		cmd := exec.Command("kubeconform", "-summary", "-strict", "-schema-location", dir+"/{{ .ResourceKind }}{{ .KindSuffix }}.json", "-")
		cmd.Stdin = strings.NewReader(text)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, values := range []string{"testdata/default.yaml", "testdata/full.yaml"} {
		text := rendered(t, values)
		out, err := check(text)
		if want := fmt.Sprintf("%d resources found parsing stdin - Valid: %[1]d, Invalid: 0, Errors: 0, Skipped: 0", len(objects(t, text))); err != nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v: %s", values, err, out)
		}
	}
	if out, err := check(strings.Replace(rendered(t), "hostPID:", "hostPid:", 1)); err == nil {
		t.Errorf("an unknown field was accepted: %s", out)
	}
}

// closed makes a schema of OpenAPI one that refuses unknown fields.
func closed(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			closed(e)
		}
	case object:
		if v["format"] == "int-or-string" {
			delete(v, "type")
			delete(v, "format")
			v["oneOf"] = []any{object{"type": "string"}, object{"type": "integer"}}
		}
		if _, has := v["properties"].(object); has && v["additionalProperties"] == nil && v["x-kubernetes-preserve-unknown-fields"] != true {
			v["additionalProperties"] = false
		}
		for _, e := range v {
			closed(e)
		}
	}
}

// rights: each account may do what its values ask for, and nothing else.
func rights(t *testing.T, c *cluster) {
	may := func(account, request string) bool {
		verb, resource, _ := strings.Cut(request, " ")
		resource, sub, _ := strings.Cut(resource, "/")
		out, err := c.try("", "auth", "can-i", verb, resource, "--subresource", sub, "-n", "quell",
			"--as", "system:serviceaccount:quell:"+account, "--as-group", "system:serviceaccounts", "--as-group", "system:authenticated")
		yes := strings.HasPrefix(out, "yes") // a warning may follow
		if yes != (err == nil) || !yes && !strings.Contains(err.Error(), "exit status 1") {
			t.Fatalf("can-i %s: %q, %v", request, out, err)
		}
		return yes
	}
	requests := []string{"get nodes/pods", "create events.events.k8s.io", "get pods", "create pods/eviction",
		"get secrets", "list secrets", "get configmaps", "list pods", "create pods", "create pods/exec", "patch pods", "delete pods", "get nodes", "get nodes/proxy", "create nodes/proxy",
		"get nodes/log", "patch nodes", "create serviceaccounts/token", "patch daemonsets.apps", "* *", "impersonate users", "escalate clusterroles"}
	for _, v := range []struct {
		name          string
		values        []string
		agent, server string
	}{
		{"least", []string{"agent.kubelet.enabled=false", "server.events=false", `server.evict="off"`}, "", ""},
		{"advice", []string{"server.events=false", `server.evict="advise"`}, "get nodes/pods", "get pods"},
		{"most", nil, "get nodes/pods", "create events.events.k8s.io, get pods, create pods/eviction"},
	} {
		c.kubectl("", "delete", "--ignore-not-found", "clusterrole/quell-agent", "clusterrole/quell-server", "clusterrolebinding/quell-agent", "clusterrolebinding/quell-server")
		c.kubectl(rendered(t, append([]string{"testdata/full.yaml"}, v.values...)...), "apply", "--server-side", "-f", "-")
		for account, want := range map[string]string{"quell-agent": v.agent, "quell-server": v.server} {
			for _, r := range requests {
				if got := may(account, r); got != slices.Contains(strings.Split(want, ", "), r) {
					t.Errorf("%s: %s may %s: %v", v.name, account, r, got)
				}
			}
		}
	}
}

// pod is the pod of a DaemonSet or StatefulSet, as its controller would make it.
func pod(workload object, name, namespace string, change func(spec object)) string {
	template := at(workload, "spec", "template").(object)
	meta := object{"name": name, "namespace": namespace, "labels": at(template, "metadata", "labels"), "annotations": at(template, "metadata", "annotations")}
	spec := template["spec"].(object)
	change(spec)
	text, err := yaml.Marshal(object{"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
	if err != nil {
		panic(err) // it was YAML before
	}
	return string(text)
}

// podSecurity: the server runs in a namespace with the strictest level. The agent needs the
// most permissive, for hostPID and hostPath, and is no privileged container.
func podSecurity(t *testing.T, c *cluster) {
	all := objects(t, rendered(t, "testdata/full.yaml", `server.config={}`))
	for _, level := range []string{"restricted", "baseline", "privileged"} {
		c.namespace("quell-"+level, level)
		for _, account := range []string{"quell-agent", "quell-server"} {
			c.kubectl("", "-n", "quell-"+level, "create", "serviceaccount", account)
		}
		server := pod(all["StatefulSet/quell-server"], "quell-server-0", "quell-"+level, func(spec object) {
			if level == "restricted" { // as the controller does; once, since all levels share the object
				spec["volumes"] = append(spec["volumes"].([]any), object{"name": "state", "persistentVolumeClaim": object{"claimName": "state-quell-server-0"}})
			}
		})
		if out, err := c.try(server, "create", "--dry-run=server", "-f", "-"); err != nil {
			t.Errorf("the server at level %s: %v %s", level, err, out)
		}
		agent := pod(all["DaemonSet/quell-agent"], "quell-agent-x", "quell-"+level, func(object) {})
		out, err := c.try(agent, "create", "--dry-run=server", "-f", "-")
		if level == "privileged" && err != nil {
			t.Errorf("the agent at level %s: %v", level, err)
		}
		if level != "privileged" && (err == nil || !strings.Contains(err.Error(), "hostPath") || strings.Contains(err.Error(), "privileged=true")) {
			t.Errorf("the agent at level %s: %s, %v", level, out, err)
		}
	}
}
