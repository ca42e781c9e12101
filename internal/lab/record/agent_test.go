package record

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestIdentity(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"v2":                        {"0::/user.slice/a\n", "/user.slice/a"},
		"hybrid, in both":           {"3:cpu,cpuacct:/lab/e1\n1:name=systemd:/x\n0::/lab2/e1\n", "/lab2/e1"},
		"hybrid, in cgroup2's root": {"3:cpu,cpuacct:/lab/e1\n0::/\n", "/lab/e1"},
		"v1":                        {"4:cpuset:/s\n3:cpuacct,cpu:/lab/e1\n", "/lab/e1"},
		"nowhere":                   {"4:cpuset:/s\n3:cpu:/\n0::/\n", ""},
		"a colon in the name":       {"0::/a:b\n", "/a:b"},
	} {
		if got := identity(c.text); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// The agent accepts the configuration that is written for it, for any path.
func TestConfigurationIsOne(t *testing.T) {
	text := configuration(`/tmp/a "b"/trace.csv`, study.Recording{Signals: []string{"runq", "cpi"}, Period: 500 * time.Millisecond},
		[]rule{{"/lab: x/e1.victim", "victim", "latency-sensitive"}, {"/lab/e2", "bystander/0", "batch"}})
	file := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Enforce.Mode != "off" || c.Sampling.Duration != c.Sampling.Period || c.Sampling.Period != 500*time.Millisecond || c.Sampling.MaxOverhead != 0 || len(c.Rules) != 2 || c.Rules[1].Job != "bystander/0" {
		t.Errorf("%+v", c)
	}
}

// parts are environments with the given threads; an idle one has none.
type parts struct {
	lab.Environment
	ids []int
}

func (p parts) Threads() ([]int, error) { return p.ids, nil }

// watched is an inner observer that records whether it was closed.
type watched struct {
	lab.Observer
	closed bool
}

func (w *watched) Close([]result.Part) ([]result.Evidence, error) { w.closed = true; return nil, nil }
func (w *watched) Energy(result.Window) (float64, string)         { return 7, "meter" }
func (w *watched) Trips() []map[string]float64 {
	return []map[string]float64{{"0-1": 80}, {"0-1": 300}}
}

// stub is a script in place of the agent.
func stub(t *testing.T, script string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "quell-agent")
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

// process is a thread of the victim, in the test's own /proc.
const process = 123

func recording(t *testing.T, program string) Options {
	t.Helper()
	proc := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(proc, "123"), 0o755),
		os.WriteFile(filepath.Join(proc, "123", "cgroup"), []byte("1:cpu:/\n0::/quell-lab-1/e1.victim\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	return Options{program, proc, study.Recording{Signals: []string{"runq"}, Period: time.Second}}
}

func observed(t *testing.T) lab.Observed {
	t.Helper()
	return lab.Observed{Dir: t.TempDir(), Names: []string{"victim", "idle"}, Cell: &study.Cell{Parts: []study.Part{{Role: "victim", Measure: true}, {Role: "idle"}}},
		Envs: []lab.Environment{parts{ids: []int{99, process}}, parts{}}}
}

func TestAgentIsBesideTheRun(t *testing.T) {
	o := observed(t)
	inner := &watched{}
	program := stub(t, `trap 'cp "$2" "`+o.Dir+`/conf"; exit 0' TERM
echo ready >"`+o.Dir+`/ready"
while :; do sleep 0.01; done`)
	w, err := WithAgent(inner, o, recording(t, program))
	if err != nil {
		t.Fatal(err)
	}
	quelltest.Until(t, "the agent runs", func() bool { _, err := os.Stat(filepath.Join(o.Dir, "ready")); return err == nil })
	if _, err := w.Close(nil); err != nil || !inner.closed {
		t.Fatalf("%v, inner closed %t", err, inner.closed)
	}
	conf, err := os.ReadFile(filepath.Join(o.Dir, "conf"))
	if err != nil || strings.Count(string(conf), "match:") != 1 || !strings.Contains(string(conf), `{match: "/quell-lab-1/e1.victim", job: "victim", class: latency-sensitive}`) {
		t.Errorf("%s, %v", conf, err)
	}
	if j, source := w.Energy(result.Window{}); j != 7 || source != "meter" {
		t.Errorf("energy %g of %q", j, source)
	}
	if flips, err := cacheChanges(filepath.Join(o.Dir, CachesFile)); err != nil || flips != "CPUs 0-1: 80 ns before, 300 ns after" {
		t.Errorf("%q, %v", flips, err)
	}
}

func TestAgentThatFailsFailsTheRun(t *testing.T) {
	for name, script := range map[string]string{"by itself": "echo no such signal >&2\nexit 2\n", "when told to leave": "trap 'echo cannot write >&2; exit 3' TERM\necho >\"$0.ready\"\nwhile :; do sleep 0.01; done"} {
		o := observed(t)
		program := stub(t, script)
		w, err := WithAgent(&watched{}, o, recording(t, program))
		if err != nil {
			t.Fatal(err)
		}
		quelltest.Until(t, "the agent has begun", func() bool {
			_, err := os.Stat(program + ".ready")
			log, _ := os.ReadFile(filepath.Join(o.Dir, logFile))
			return err == nil || len(log) > 0
		})
		if _, err := w.Close(nil); err == nil || !strings.Contains(err.Error(), "no such signal") && !strings.Contains(err.Error(), "cannot write") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := WithAgent(&watched{}, observed(t), recording(t, "/no/such/agent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an agent that is not there: %v", err)
	}
	o := observed(t)
	o.Envs = o.Envs[1:]
	if _, err := WithAgent(&watched{}, o, recording(t, "/bin/true")); err == nil {
		t.Error("a run in which nothing runs is recorded")
	}
}
