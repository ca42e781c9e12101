package cli

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/people/report"
	"github.com/quell-dev/quell/internal/testkit/clitest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// diagnosis is what doctor says of this machine, with an agent. Each run of doctor loads every
// eBPF program, which takes seconds with the race detector.
type diagnosis struct {
	once   sync.Once
	socket string
	all    report.Diagnosis
}

var doctored diagnosis

func (x *diagnosis) of(t *testing.T) report.Diagnosis {
	t.Helper()
	x.once.Do(func() {
		x.socket = newFake(t).socket
		r := quell(t, clitest.Env(x.socket), "doctor", "--json")
		if r.Code != app.ExitOK {
			t.Fatalf("exit code %d: %s", r.Code, r.Err)
		}
		if err := json.Unmarshal([]byte(r.Out), &x.all); err != nil {
			t.Fatal(err)
		}
	})
	return x.all
}

func TestDoctorSaysOfEverythingWhetherAndWhyNot(t *testing.T) {
	t.Parallel()
	d := doctored.of(t)
	seen := map[string]bool{}
	for _, name := range d.Names() {
		c, _ := d.Lookup(name)
		if !c.OK && c.Reason == "" {
			t.Errorf("%s is missing without a reason", name)
		}
		if seen[name] {
			t.Errorf("%s is there twice", name)
		}
		seen[name] = true
	}
	for _, name := range []string{"cpi", "cpt", "cps", "runq", "caps", "agent", "cgroups", "perf cgroup mode", "run-queue eBPF"} {
		if !seen[name] {
			t.Errorf("%s is not looked for", name)
		}
	}
	if c, _ := d.Lookup("agent"); !c.OK || !strings.Contains(c.Detail, doctored.socket) {
		t.Errorf("agent: %+v", c)
	}
}

func TestDoctorAgreesWithTheTestKit(t *testing.T) {
	t.Parallel()
	quelltest.Need(t, quelltest.Root) // else the probes may count themselves, not cgroups
	d := doctored.of(t)
	for name, capability := range map[string]string{"perf core-cycles": quelltest.PMU, "run-queue eBPF": quelltest.EBPF,
		"perf cgroup mode": quelltest.PerfSoftware, "psi": quelltest.PSI} {
		c, ok := d.Lookup(name)
		if missing := quelltest.Probe(capability); !ok || c.OK != (missing == nil) {
			t.Errorf("%s: %+v; the test kit says: %v", name, c, missing)
		}
	}
}

func TestDoctorRequire(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	r := quell(t, clitest.Env(f.socket), "doctor", "--require", "agent,cpt")
	if r.Code != app.ExitOK || r.Err != "" {
		t.Errorf("what is there: exit code %d, %s", r.Code, r.Err)
	}
	if !strings.Contains(r.Out, "available\n\nnext steps\n  1. ") || strings.Contains(r.Out, "  4. ") {
		t.Errorf("it prints %s", r.Out)
	}
	r = quell(t, clitest.Env("/nowhere"), "doctor", "--require", "cpt,agent")
	if want := "quell: required but missing: agent (reach the agent at /nowhere: connect: no such file or directory)\n" +
		"what to do: start quell-agent, or name its socket with --socket\n"; r.Code != app.ExitNegative || r.Err != want {
		t.Errorf("what is missing: exit code %d, stderr %q", r.Code, r.Err)
	}
	if !strings.Contains(r.Out, "run-queue eBPF") {
		t.Errorf("it does not show the rest: %s", r.Out)
	}
	if err := known(doctored.of(t), []string{"cpt", "gpu"}); err == nil || !strings.HasPrefix(err.Error(), `--require "gpu": unknown capability, want some of cpi, cpt`) {
		t.Errorf("an odd name: %v", err)
	}
}

// machine returns single-threaded cores in last-level caches of the given size.
func machine(cpus, cache int) host.Topology {
	var t host.Topology
	for id := range cpus {
		llc := host.Cache{ID: id / cache}
		for other := range cpus {
			if other/cache == llc.ID {
				llc.CPUs = llc.CPUs.With(other)
			}
		}
		t.CPUs = append(t.CPUs, host.CPU{ID: id, Core: id, Siblings: sample.SetOf(id), LLC: llc})
	}
	return t
}

func TestPairs(t *testing.T) {
	smt := machine(4, 4)
	smt.CPUs[0].Siblings, smt.CPUs[1].Siblings = sample.SetOf(0, 1), sample.SetOf(0, 1)
	unknown := machine(3, 1)
	for i := range unknown.CPUs {
		unknown.CPUs[i].LLC = host.Cache{ID: -1}
	}
	for _, c := range []struct {
		name string
		t    host.Topology
		want string
	}{
		{"two CPUs", machine(2, 2), "0-1"},
		{"one CPU", machine(1, 1), ""},
		{"none", host.Topology{}, ""},
		{"many caches", machine(64, 8), "0-1 0-2 0-3 0-8 0-16 0-24"},
		{"siblings share more", smt, "0-2 0-3"},
		{"nothing known", unknown, "0-1 0-2"},
	} {
		var got []string
		for _, p := range cpuPairs(c.t) {
			got = append(got, sample.SetOf(p[0].ID).String()+"-"+sample.SetOf(p[1].ID).String())
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %s, want %s", c.name, s, c.want)
		}
	}
}

// Doctor ends with what to do next, the most valuable first.
func TestNextSteps(t *testing.T) {
	has := func(name string) host.Capability { return host.Present(name, "") }
	lacks := func(name string) host.Capability { return host.Missing(name, "missing", "mend "+name) }
	for _, c := range []struct {
		name, mode string
		caps       []host.Capability
		want       []string
	}{
		{"no agent", "", []host.Capability{has("caps"), has("runq"), lacks("cpi")}, []string{"`quell init", "`quell demo`", "mend cpi"}},
		{"cannot cap or count", "", []host.Capability{lacks("caps"), lacks("runq"), lacks("cpi")}, []string{"mend caps", "mend runq", "`quell init"}},
		{"advises", "advise", []host.Capability{has("caps"), has("cpi")}, []string{"`quell top`", "read some incidents, then `quell enforcement on", "let a service count"}},
		{"acts", "on", nil, []string{"`quell top`", "let a service count", "`quell ui`"}},
	} {
		got := nextSteps(report.Diagnosis{{Capabilities: c.caps}}, c.mode)
		if len(got) != len(c.want) {
			t.Fatalf("%s: %q", c.name, got)
		}
		for i := range got {
			if !strings.HasPrefix(got[i], c.want[i]) {
				t.Errorf("%s: step %d is %q, want %s…", c.name, i+1, got[i], c.want[i])
			}
		}
	}
}
