//go:build linux

package counter

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/quelltest"
	"github.com/quell-dev/quell/internal/sample"
	"golang.org/x/sys/unix"
)

// cpu is a CPU by the events that it has and how many it counts at once.
type cpu struct {
	lacks string // names of events
	err   error  // what it says then
	room  int    // counters; 0: enough
}

func (c cpu) refuse(a *unix.PerfEventAttr, _, size int) error {
	all := append(append(cpiCycles[:], instructions, taskClock), llcMisses()...)
	for _, e := range all {
		if a.Type == e.kind && a.Config == e.config && strings.Contains(" "+c.lacks+" ", " "+e.name+" ") {
			return c.err
		}
	}
	if c.room > 0 && size > c.room {
		return unix.EINVAL
	}
	return nil
}

func TestOpenCPI(t *testing.T) {
	noLLC := "cache-misses LLC-load-misses"
	for _, tc := range []struct {
		name    string
		cpu     cpu
		variant string
		events  int
		missing string // of Missing, joined by ", "
		refused string // in the NotSupportedError's text
	}{
		{name: "everything", variant: "ref-cycles", events: 3},
		{name: "no reference cycles (AMD)", cpu: cpu{lacks: "ref-cycles", err: unix.ENOENT},
			variant: "core-cycles", events: 3, missing: "event ref-cycles"},
		{name: "no cache events", cpu: cpu{lacks: noLLC, err: unix.ENOENT},
			variant: "ref-cycles", events: 2, missing: "event cache-misses, event LLC-load-misses"},
		{name: "no reference cycles nor cache events", cpu: cpu{lacks: "ref-cycles " + noLLC, err: unix.EOPNOTSUPP},
			variant: "core-cycles", events: 2, missing: "event ref-cycles, event cache-misses, event LLC-load-misses"},
		{name: "two counters", cpu: cpu{room: 2},
			variant: "ref-cycles", events: 2,
			missing: "ref-cycles, instructions and cache-misses in one group, ref-cycles, instructions and LLC-load-misses in one group"},
		{name: "one counter", cpu: cpu{room: 1}, refused: "cycles and instructions in one group"},
		{name: "no instructions (emulated arm64)", cpu: cpu{lacks: "instructions", err: unix.ENOENT}, refused: "ENOENT"},
		{name: "no cycles", cpu: cpu{lacks: "ref-cycles core-cycles", err: unix.ENXIO}, refused: "ENXIO"},
		{name: "no PMU", cpu: cpu{lacks: "ref-cycles core-cycles instructions " + noLLC, err: unix.ENOENT}, refused: "ENOENT"},
		{name: "no perf at all", cpu: cpu{lacks: "task-clock ref-cycles core-cycles instructions " + noLLC, err: unix.ENOSYS}, refused: "ENOSYS"},
		{name: "not permitted", cpu: cpu{lacks: "task-clock ref-cycles core-cycles instructions " + noLLC, err: unix.EACCES}, refused: "EACCES"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFake(t) // it fails the test if an event is left open
			f.refuse = tc.cpu.refuse
			p, err := openCPI(f, sample.SetOf(0, 1), t.TempDir())
			var e *NotSupportedError
			if tc.refused != "" {
				if !errors.As(err, &e) || !strings.Contains(err.Error(), tc.refused) {
					t.Fatalf("error %v: want a NotSupportedError with %q", err, tc.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var missing []string
			for _, m := range p.Missing() {
				if !errors.As(m, &e) {
					t.Fatalf("missing %v: want a NotSupportedError", m)
				}
				missing = append(missing, e.What)
			}
			want := tc.missing
			if len(llcMisses()) == 1 { // arm64
				want = strings.NewReplacer("event cache-misses, ", "", "ref-cycles, instructions and cache-misses in one group, ", "").Replace(want)
			}
			if got := strings.Join(missing, ", "); got != want {
				t.Errorf("missing %q, want %q", got, want)
			}
			if p.Variant() != tc.variant || len(p.groups.events) != tc.events {
				t.Errorf("variant %s with %d events, want %s with %d", p.Variant(), len(p.groups.events), tc.variant, tc.events)
			}
		})
	}
}

// TestOpenCPITransient gets an answer that says nothing about the machine.
func TestOpenCPITransient(t *testing.T) {
	for _, event := range []string{"instructions", "ref-cycles", "cache-misses LLC-load-misses"} {
		f := newFake(t)
		f.refuse = cpu{lacks: event, err: unix.ENOMEM}.refuse
		_, err := openCPI(f, sample.SetOf(0), t.TempDir())
		if !errors.Is(err, unix.ENOMEM) || unsupported(err) {
			t.Errorf("ENOMEM for %s: %v, want it passed on, not a NotSupportedError", event, err)
		}
	}
}

func TestOpenWithoutCPUs(t *testing.T) {
	if _, err := OpenCPI(nil, t.TempDir()); err == nil {
		t.Error("no error")
	}
}

// TestCPIHere asks the machine that the test runs on, whether it has a PMU.
func TestCPIHere(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2, quelltest.PerfSoftware)
	root := cgroup2(t)
	p, err := OpenCPI(onlineCPUs(t), root)
	if why := quelltest.Probe(quelltest.PMU); why != nil {
		var e *NotSupportedError
		if !errors.As(err, &e) || e.Remedy == "" {
			t.Fatalf("there is no PMU (%v), but the error is %v", why, err)
		}
		var errno unix.Errno
		if !errors.As(why, &errno) || !strings.Contains(e.Reason, unix.ErrnoName(errno)) {
			t.Errorf("reason %q does not name the kernel's answer: %v", e.Reason, why)
		}
		return
	}
	needCPI(t, err)
	defer p.Close()
	dir := cgroup(t, root)
	w := work(t, dir)
	if err := p.Add(Target{Key: key(1), PerfDir: dir}); err != nil {
		t.Fatal(err)
	}
	start(t, p)
	w.do("burn", 50_000_000)
	r := stopped(t, p, nil)[key(1)]
	cpi, _ := sample.LookupSignal(sample.CPI)
	if !cpi.Sane(r.Cost) || r.Coverage < leastCoverage {
		t.Errorf("reading %+v", r)
	}
	t.Logf("%s per instruction: %v, coverage %v", p.Variant(), r.Cost, r.Coverage)
}

// needCPI skips where the PMU counts cycles but not instructions, as the one
// that QEMU emulates for arm64 without -icount.
func needCPI(t *testing.T, err error) {
	t.Helper()
	if unsupported(err) {
		quelltest.Skip(t, "pmu-instructions", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestCPIMultiplexed follows one task with more and more groups, in the end
// more than the PMU has counters for: they take turns, and what is counted is
// scaled up to the same.
func TestCPIMultiplexed(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2, quelltest.PerfSoftware, quelltest.PMU)
	root := cgroup2(t)
	dir := cgroup(t, root)
	w := work(t, dir)
	var all []*Perf
	least, scaled := 1.0, 0
	for n := range 12 {
		p, err := OpenCPI(onlineCPUs(t), root)
		needCPI(t, err)
		defer p.Close()
		if err := p.Add(Target{Key: key(1), PerfDir: dir}); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
		for _, p := range all {
			start(t, p)
		}
		w.do("burn", 100_000_000)
		var coverage, cycles []float64
		for _, p := range all {
			r := stopped(t, p, nil)[key(1)]
			coverage = append(coverage, r.Coverage)
			c, ok := r.Extras.Get(sample.Cycles)
			if ok != (r.Coverage >= leastCoverage) {
				t.Errorf("coverage %v with cycles: %v", r.Coverage, ok)
			}
			if ok {
				cycles = append(cycles, c)
			}
			if ok && r.Coverage < 0.9 {
				scaled++
			}
		}
		t.Logf("%d groups: coverage %.2v, cycles %.4v", n+1, coverage, cycles)
		least = min(least, slices.Min(coverage))
		if len(cycles) > 0 && slices.Max(cycles) > 1.1*slices.Min(cycles) {
			t.Errorf("cycles %v: want them scaled to within 10 %%", cycles)
		}
	}
	if least > leastCoverage {
		t.Errorf("coverage %v at least: the groups have not taken turns", least)
	}
	t.Logf("%d readings were scaled up", scaled)
}
