//go:build helm

package chart

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/quell-dev/quell/internal/agent/config"
)

var update = flag.Bool("update", false, "accept what the chart renders")

// object is an object of Kubernetes.
type object = map[string]any

// kubeVersion is that of the programs in kube/go.mod.
const kubeVersion = "1.34.4"

// helm runs helm. The programs of these tests are in PATH: make test-helm builds them.
func helm(args ...string) (string, error) {
	var out, said bytes.Buffer
	cmd := exec.Command("helm", args...)
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	if err != nil {
		err = errors.New(err.Error() + ": " + said.String())
	}
	return out.String(), err
}

// render is what the chart makes of values (files of testdata, or settings with "=").
func render(values ...string) (string, error) {
	args := []string{"template", "quell", folder, "--namespace", "quell", "--kube-version", kubeVersion}
	for _, v := range values {
		if strings.Contains(v, "=") {
			args = append(args, "--set-json", v)
		} else {
			args = append(args, "--values", v)
		}
	}
	return helm(args...)
}

func rendered(t *testing.T, values ...string) string {
	t.Helper()
	text, err := render(values...)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// objects are the objects of rendered YAML by kind and name: "DaemonSet/quell-agent".
func objects(t *testing.T, text string) map[string]object {
	t.Helper()
	all := map[string]object{}
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var o object
		err := d.Decode(&o)
		if errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if o != nil {
			all[o["kind"].(string)+"/"+at(o, "metadata", "name").(string)] = o
		}
	}
}

// at is a field of an object.
func at(o any, path ...string) any {
	for _, key := range path {
		m, _ := o.(object)
		o = m[key]
	}
	return o
}

func TestLint(t *testing.T) {
	for _, values := range []string{"testdata/default.yaml", "testdata/full.yaml"} {
		if out, err := helm("lint", "--strict", folder, "--values", values); err != nil {
			t.Errorf("%s: %v: %s", values, err, out)
		}
	}
}

// TestRendered compares what the chart makes of values with what was reviewed.
func TestRendered(t *testing.T) {
	for _, name := range []string{"default", "full"} {
		got, golden := rendered(t, "testdata/"+name+".yaml"), "testdata/"+name+".golden.yaml"
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(golden); err != nil || string(want) != got {
			t.Errorf("%s differs (%v); if that is meant: go test -tags helm -run TestRendered ./internal/testkit/chart -update", golden, err)
		}
	}
}

// Names that YAML takes for numbers are texts: the API server refuses a number as a namespace or a label.
func TestNamesOfDigits(t *testing.T) {
	text, err := helm("template", "1234", folder, "--namespace", "5678", "--kube-version", kubeVersion, "--values", "testdata/full.yaml",
		"--set-json", `nameOverride="9"`, "--set-json", `fullnameOverride="1234"`, "--set-json", `image.pullSecrets=["12"]`, "--set-json", `server.storage.className="13"`, "--set-json", `server.tls.secret="14"`)
	if err != nil {
		t.Fatal(err)
	}
	all := objects(t, text)
	for name, o := range all {
		if space := at(o, "metadata", "namespace"); space != nil && space != "5678" {
			t.Errorf("%s: the namespace is %v", name, space)
		}
		for _, path := range [][]string{{"metadata", "labels"}, {"spec", "selector", "matchLabels"}, {"spec", "template", "metadata", "labels"}} {
			labels, _ := at(o, path...).(object)
			for key, v := range labels {
				if _, is := v.(string); !is {
					t.Errorf("%s: the label %s is %v", name, key, v)
				}
			}
		}
	}
	pod := at(all["StatefulSet/1234-server"], "spec", "template", "spec")
	if got := fmt.Sprintf("%#v", at(pod, "imagePullSecrets")); !strings.Contains(got, `"name":"12"`) {
		t.Errorf("secrets for the registry: %s", got)
	}
}

// The programs accept the configurations that the chart writes, and act by them.
func TestConfigurationsAreValid(t *testing.T) {
	file := func(o object, key string) string {
		name := filepath.Join(t.TempDir(), key)
		if err := os.WriteFile(name, []byte(at(o, "data", key).(string)), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for values, want := range map[string]string{
		"agent.mode=\"advise\"": "advise", "agent.mode=\"on\"": "on", "agent.mode=true": "on", "agent.mode=false": "off", // YAML reads a bare "off" as false
		"testdata/full.yaml": "on",
	} {
		all := objects(t, rendered(t, values))
		c, err := config.Load(file(all["ConfigMap/quell-agent"], "agent.yaml"), nil, nil)
		if err != nil {
			t.Errorf("%s: %v", values, err)
			continue
		}
		if fmt.Sprint(c.Enforce.Mode) != want || c.StateDir != "/var/lib/quell" || c.Listen != ":9780" {
			t.Errorf("%s: mode %s, state_dir %s, listen %s", values, c.Enforce.Mode, c.StateDir, c.Listen)
		}
	}
	own := objects(t, rendered(t, `agent.server.url="tls://h:4222"`, `agent.config={"server": {"spool": {"max_mb": 2000}}}`))
	if c, err := config.Load(file(own["ConfigMap/quell-agent"], "agent.yaml"), nil, nil); err != nil || c.Server.Spool.MaxMB != 2000 || c.Server.URL != "tls://h:4222" {
		t.Errorf("the size of the spool: %+v, %v", own["ConfigMap/quell-agent"], err)
	}
	all := objects(t, rendered(t, "testdata/full.yaml"))
	c, err := config.LoadServer(file(all["ConfigMap/quell-server"], "server.yaml"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p := c.Validate(); len(p) > 0 || c.Bus.Listen != ":4222" || c.Query.Rows != 5_000_000 {
		t.Errorf("%v, bus.listen %s, query.rows %d", p, c.Bus.Listen, c.Query.Rows)
	}
}

// A priority class of the system's has a quota, without which GKE refuses the agents' pods; another class has none.
func TestQuotaOfPriorityClass(t *testing.T) {
	for class, want := range map[string]bool{"system-node-critical": true, "platform": false} {
		all := objects(t, rendered(t, fmt.Sprintf("agent.priorityClassName=%q", class)))
		quota, got := all["ResourceQuota/quell-agent"]
		if got != want {
			t.Errorf("%s: a quota: %v", class, got)
		}
		if text := fmt.Sprint(at(quota, "spec", "scopeSelector")); got && !strings.Contains(text, class) {
			t.Errorf("the quota is for %s, not for %s", text, class)
		}
	}
}

// What undoes a dead agent's caps may write to other users' cgroups if the agent may: it would fail otherwise, and the
// agent would not start.
func TestRestoreWritesWhatTheAgentMay(t *testing.T) {
	for capability, want := range map[string]bool{"SYS_ADMIN": false, "DAC_OVERRIDE": true} {
		all := objects(t, rendered(t, fmt.Sprintf("agent.capabilities=[\"BPF\", %q]", capability)))
		first := at(all["DaemonSet/quell-agent"], "spec", "template", "spec", "initContainers").([]any)[0]
		if got := fmt.Sprint(at(first, "securityContext", "capabilities")); strings.Contains(got, "DAC_OVERRIDE") != want || !strings.Contains(got, "ALL") {
			t.Errorf("with %s the first container has %s", capability, got)
		}
	}
}

// Values that could not work are refused, with the reason.
func TestRefused(t *testing.T) {
	for values, want := range map[string]string{
		`agent.mode="yes"`:                              "agent/mode",
		`agent.config={"state_dir": "/data"}`:           "state_dir",
		`agent.config={"enforce": {"mode": "on"}}`:      "mode",
		`agent.config={"server": {"url": "tls://h:1"}}`: "url",
		`agent.capabilities=["ALL"]`:                    "capabilities",
		`agent.privileged=true`:                         "privileged",
		`agent.server.url="nats://h:4222"`:              "url",
		`server.enabled=true`:                           "server.tls.secret",
		`server.config={"listen": ":80"}`:               "listen",
		`serviceMonitor.enabled=true`:                   "networkPolicy.metricsFrom",
		`server={"enabled":true,"tls":{"secret":"a"}}`:  "server.tokens.secret",
	} {
		if _, err := render(values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", values, err, want)
		}
	}
}
