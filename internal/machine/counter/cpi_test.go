package counter

import (
	"errors"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"golang.org/x/sys/unix"
)

// cpu describes a CPU by the events that it has and how many it counts at once.
type cpu struct {
	lacks string // names of events
	err   error  // the error for them
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
			for _, m := range p.Info().Missing {
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
			if p.Info().Variant != tc.variant || len(p.groups.events) != tc.events {
				t.Errorf("variant %s with %d events, want %s with %d", p.Info().Variant, len(p.groups.events), tc.variant, tc.events)
			}
		})
	}
}

// TestOpenCPITransient tests an error that says nothing about the machine.
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

// TestCPIOfCPUs: where perf sees no cgroups, the same events are chosen for whole CPUs.
func TestCPIOfCPUs(t *testing.T) {
	f := newFake(t)
	choose := func() (*Perf, error) {
		return chooseCPI(newGroups(f, sample.SetOf(0, 1)), cgroupDir{fd: anyCgroup})
	}
	f.refuse = cpu{lacks: "ref-cycles", err: unix.ENOENT}.refuse
	p, err := choose()
	if err != nil {
		t.Fatal(err)
	}
	if p.Info().Variant != "core-cycles" || len(p.Events()) != 3 || len(p.Info().Missing) != 1 {
		t.Errorf("events %v, info %+v", p.Events(), p.Info())
	}
	f.refuse = cpu{lacks: "instructions", err: unix.ENOENT}.refuse
	if _, err := choose(); !unsupported(err) || !strings.Contains(err.Error(), "event instructions") {
		t.Errorf("without instructions: %v", err)
	}
}

// TestOpenWithoutCgroup2: on a machine with cgroup v1 alone the error says so.
func TestOpenWithoutCgroup2(t *testing.T) {
	_, err := OpenCPI(sample.SetOf(0), "")
	if !unsupported(err) || Remedy(err) == "" || !strings.Contains(err.Error(), "no cgroup2") {
		t.Errorf("error %v, remedy %q: want a NotSupportedError that names cgroup2", err, Remedy(err))
	}
}

func TestOpenWithoutCPUs(t *testing.T) {
	if _, err := OpenCPI(nil, t.TempDir()); err == nil {
		t.Error("no error")
	}
}
