package counter

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
	"golang.org/x/sys/unix"
)

// fakeCPI is a CPI source over a fake with two CPUs, following one task.
func fakeCPI(t *testing.T) (*fake, *Perf, uint64) {
	t.Helper()
	f := newFake(t)
	p, err := openCPI(f, sample.SetOf(0, 1), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	dir := t.TempDir()
	if err := p.Add(Target{Key: key(1), PerfDir: dir}); err != nil {
		t.Fatal(err)
	}
	return f, p, inodeOf(t, dir)
}

func start(t *testing.T, s Source) {
	t.Helper()
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
}

func TestWindow(t *testing.T) {
	nan := math.NaN()
	for _, tc := range []struct {
		name           string
		cpu0, cpu1     tick
		prepare        func(*fake)
		cost, coverage float64
		flags          sample.Flags
		cycles         float64 // NaN: no extras
	}{
		{name: "sums over CPUs before it divides",
			cpu0: tick{100, 100, [3]uint64{1000, 1000, 5}}, cpu1: tick{300, 300, [3]uint64{5000, 1000, 7}},
			cost: 3, coverage: 1, cycles: 6000},
		{name: "scales each CPU by its own times",
			cpu0: tick{100, 100, [3]uint64{1000, 500, 0}}, cpu1: tick{100, 50, [3]uint64{1000, 250, 0}},
			cost: 3, coverage: 0.75, cycles: 3000},
		{name: "a CPU that the task did not run on is idle",
			cpu0: tick{100, 100, [3]uint64{1200, 1000, 0}},
			cost: 1.2, coverage: 1, cycles: 1200},
		{name: "a task that did not run has no cost and full coverage",
			cost: nan, coverage: 1, cycles: 0},
		{name: "enabled but never running is not counted",
			cpu0: tick{100, 0, [3]uint64{}}, cpu1: tick{100, 0, [3]uint64{}},
			cost: nan, coverage: 0, cycles: nan},
		{name: "a hypervisor without counters lets them stand still",
			cpu0: tick{100, 100, [3]uint64{}}, cost: nan, coverage: 1, cycles: 0},
		{name: "one CPU never running takes its share of the coverage and the extras",
			cpu0: tick{100, 100, [3]uint64{2000, 1000, 0}}, cpu1: tick{100, 0, [3]uint64{}},
			cost: 2, coverage: 0.5, cycles: nan},
		{name: "under half the coverage there is no cost",
			cpu0: tick{100, 49, [3]uint64{2000, 1000, 0}}, cpu1: tick{100, 49, [3]uint64{2000, 1000, 0}},
			cost: nan, coverage: 0.49, cycles: nan},
		{name: "a read that fails loses its CPU",
			cpu0: tick{100, 100, [3]uint64{2000, 1000, 0}}, cpu1: tick{100, 100, [3]uint64{9000, 1000, 0}},
			prepare: func(f *fake) { f.readError[1] = unix.EIO },
			cost:    2, coverage: 0.5, cycles: nan},
		{name: "a short read loses its CPU",
			cpu0: tick{100, 100, [3]uint64{2000, 1000, 0}}, cpu1: tick{100, 100, [3]uint64{9000, 1000, 0}},
			prepare: func(f *fake) { f.shorten[1] = 8 },
			cost:    2, coverage: 0.5, cycles: nan},
		{name: "an empty read loses its CPU",
			cpu0: tick{100, 100, [3]uint64{2000, 1000, 0}}, cpu1: tick{100, 100, [3]uint64{9000, 1000, 0}},
			prepare: func(f *fake) { f.shorten[1] = 48 },
			cost:    2, coverage: 0.5, cycles: nan},
		{name: "nothing can be read",
			cpu0: tick{100, 100, [3]uint64{2000, 1000, 0}}, cpu1: tick{100, 100, [3]uint64{9000, 1000, 0}},
			prepare: func(f *fake) { f.readError[0], f.readError[1] = unix.EIO, unix.EIO },
			cost:    nan, coverage: 0, cycles: nan},
		{name: "a group that lost its members loses its CPU",
			cpu0: tick{100, 100, [3]uint64{2000, 1000, 0}}, cpu1: tick{100, 100, [3]uint64{9000, 1000, 0}},
			prepare: func(f *fake) {
				for _, e := range f.events {
					if e.cpu == 1 && len(e.members) > 0 {
						e.members = e.members[:1]
					}
				}
			},
			cost: 2, coverage: 0.5, cycles: nan},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, p, inode := fakeCPI(t)
			// An earlier window with other multiplexing must not affect the result.
			start(t, p)
			f.run(inode, 0, tick{1000, 10, [3]uint64{70, 7, 1}})
			f.run(inode, 1, tick{1000, 900, [3]uint64{70, 7, 1}})
			stopped(t, p, nil)
			// Events between windows must not affect it either.
			f.run(inode, 0, tick{1000, 1000, [3]uint64{1e9, 1, 1}})

			start(t, p)
			f.run(inode, 0, tc.cpu0)
			f.run(inode, 1, tc.cpu1)
			if tc.prepare != nil {
				tc.prepare(f)
			}
			r, ok := stopped(t, p, nil)[key(1)]
			if !ok {
				t.Fatal("no reading")
			}
			cycles, has := r.Extras.Get(sample.Cycles)
			if !has {
				cycles = nan
			}
			if !same(r.Cost, tc.cost) || !same(r.Coverage, tc.coverage) || r.Flags != tc.flags || !same(cycles, tc.cycles) {
				t.Errorf("cost %v coverage %v flags %q cycles %v, want %v %v %q %v",
					r.Cost, r.Coverage, r.Flags, cycles, tc.cost, tc.coverage, tc.flags, tc.cycles)
			}
			if r.Coverage == 0 && r.Extras.Len() > 0 {
				t.Error("extras of what was not counted")
			}
			if lacked := tc.prepare == nil && tc.cpu0.enabled > 0 && math.IsNaN(tc.cost); errors.Is(r.Err, ErrNoCounters) != lacked {
				t.Errorf("reason %v, want that there were no counters: %v", r.Err, lacked)
			}
			// The next window counts again, whatever failed.
			clear(f.readError)
			clear(f.shorten)
			start(t, p)
			f.run(inode, 0, tick{100, 100, [3]uint64{300, 100, 0}})
			f.run(inode, 1, tick{100, 100, [3]uint64{300, 100, 0}})
			if r := stopped(t, p, nil)[key(1)]; r.Cost != 3 || r.Coverage != 1 {
				t.Errorf("the next window: cost %v coverage %v, want 3 and 1", r.Cost, r.Coverage)
			}
		})
	}
}

func same(a, b float64) bool {
	return math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) <= 1e-9*max(1, math.Abs(b))
}

func TestWindowBackwards(t *testing.T) {
	f, p, inode := fakeCPI(t)
	start(t, p)
	f.run(inode, 0, tick{100, 100, [3]uint64{2000, 1000, 0}})
	stopped(t, p, nil)
	start(t, p)
	for _, e := range f.events {
		if e.cpu == 0 {
			e.value = 10 // cycles, instructions and misses alike
		}
	}
	r := stopped(t, p, nil)[key(1)]
	if r.Flags != sample.Restarted || r.Cost != 1 {
		t.Errorf("flags %q cost %v, want restarted and the 10/10 since then", r.Flags, r.Cost)
	}
}

// TestWindowNaive compares many random windows with the sums as the paper writes them,
// computed from a ledger instead of from counters.
func TestWindowNaive(t *testing.T) {
	f, p, inode := fakeCPI(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		start(t, p)
		var cycles, instr, enabled, running float64
		for cpu := range 2 {
			did := tick{values: [3]uint64{rnd.Uint64N(1e6), rnd.Uint64N(1e6), rnd.Uint64N(1e3)}}
			switch rnd.IntN(4) {
			case 0: // idle
				did = tick{}
			case 1: // never running
				did = tick{enabled: 1 + rnd.Uint64N(1e3)}
			default:
				did.running = 1 + rnd.Uint64N(1e6)
				did.enabled = did.running + rnd.Uint64N(1e6)
				scale := float64(did.enabled) / float64(did.running)
				cycles += float64(did.values[0]) * scale
				instr += float64(did.values[1]) * scale
			}
			enabled += float64(did.enabled)
			running += float64(did.running)
			f.run(inode, cpu, did)
		}
		coverage, cost := 1.0, cycles/instr
		if enabled > 0 {
			coverage = running / enabled
		}
		if coverage < leastCoverage || instr == 0 {
			cost = math.NaN()
		}
		r := stopped(t, p, nil)[key(1)]
		if !same(r.Cost, cost) || !same(r.Coverage, coverage) {
			t.Fatalf("cost %v coverage %v, want %v %v", r.Cost, r.Coverage, cost, coverage)
		}
	}
}

func TestGroupShape(t *testing.T) {
	f, p, _ := fakeCPI(t)
	f.reads = 0
	on := func() (n int) {
		for _, e := range f.events {
			if e.on {
				n++
			}
		}
		return n
	}
	start(t, p)
	if on() != 6 {
		t.Errorf("%d events are on in a window, want all 6", on())
	}
	stopped(t, p, nil)
	if on() > 0 {
		t.Errorf("%d events are on between windows: each makes context switches expensive", on())
	}
	if f.reads != 2 {
		t.Errorf("%d reads for 2 CPUs, want one each", f.reads)
	}
	const format = unix.PERF_FORMAT_GROUP | unix.PERF_FORMAT_TOTAL_TIME_ENABLED | unix.PERF_FORMAT_TOTAL_TIME_RUNNING
	leaders := 0
	for fd, e := range f.events {
		if e.leader == fd {
			leaders++
		}
		if e.attr.Bits != unix.PerfBitDisabled {
			t.Errorf("event %d of type %d: bits %#x, want disabled and no exclude bit", e.attr.Config, e.attr.Type, e.attr.Bits)
		}
		if e.attr.Read_format != format {
			t.Errorf("read format %#x, want %#x", e.attr.Read_format, format)
		}
	}
	if leaders != 2 || len(f.events) != 6 {
		t.Errorf("%d groups of %d events, want 2 of 6", leaders, len(f.events))
	}
}

func TestAddErrors(t *testing.T) {
	root := t.TempDir()
	software := func(a *unix.PerfEventAttr) bool { return a.Type == unix.PERF_TYPE_SOFTWARE }
	gone := func(t *testing.T, dir string) {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	}
	for _, tc := range []struct {
		name   string
		refuse func(t *testing.T, dir string) func(a *unix.PerfEventAttr, cpu, size int) error
		v1     string // of /proc/cgroups
		is     error
		what   string // of the NotSupportedError
		says   string
	}{
		{name: "removed while it was opened",
			refuse: func(t *testing.T, dir string) func(*unix.PerfEventAttr, int, int) error {
				return func(_ *unix.PerfEventAttr, cpu, _ int) error {
					if cpu == 1 {
						if _, err := os.Stat(dir); err == nil {
							gone(t, dir)
						}
						return unix.ENOENT
					}
					return nil
				}
			}, is: host.ErrGone},
		{name: "perf sees no cgroup below the root",
			refuse: func(*testing.T, string) func(*unix.PerfEventAttr, int, int) error {
				return func(*unix.PerfEventAttr, int, int) error { return unix.ENOENT }
			}, what: "perf in cgroup mode", says: "cgroup.subtree_control"},
		{name: "the event went away",
			refuse: func(*testing.T, string) func(*unix.PerfEventAttr, int, int) error {
				return func(a *unix.PerfEventAttr, _, _ int) error {
					if software(a) {
						return nil
					}
					return unix.ENOENT
				}
			}, what: "event group", says: "ENOENT"},
		{name: "perf_event is a v1 hierarchy", v1: "cpu\t0\t70\t1\nperf_event\t9\t70\t1\n",
			refuse: func(*testing.T, string) func(*unix.PerfEventAttr, int, int) error {
				return func(*unix.PerfEventAttr, int, int) error { return unix.ENOENT }
			}, what: "perf in cgroup mode", says: "v1"},
		{name: "perf_event is in cgroup2", v1: "cpu\t9\t70\t1\nperf_event\t0\t70\t1\n",
			refuse: func(*testing.T, string) func(*unix.PerfEventAttr, int, int) error {
				return func(*unix.PerfEventAttr, int, int) error { return unix.ENOENT }
			}, what: "perf in cgroup mode", says: "cgroup.subtree_control"},
		{name: "not permitted",
			refuse: func(*testing.T, string) func(*unix.PerfEventAttr, int, int) error {
				return func(*unix.PerfEventAttr, int, int) error { return unix.EACCES }
			}, what: "perf in cgroup mode", says: "EACCES"},
		{name: "no memory says nothing about the machine",
			refuse: func(*testing.T, string) func(*unix.PerfEventAttr, int, int) error {
				return func(*unix.PerfEventAttr, int, int) error { return unix.ENOMEM }
			}, is: unix.ENOMEM},
		{name: "no CPU is there",
			refuse: func(*testing.T, string) func(*unix.PerfEventAttr, int, int) error {
				return func(*unix.PerfEventAttr, int, int) error { return unix.ENODEV }
			}, what: "perf in cgroup mode", says: "ENODEV"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFake(t)
			p, err := openCPI(f, sample.SetOf(0, 1), root)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			p.groups.cgroups = t.TempDir() + "/cgroups"
			if err := os.WriteFile(p.groups.cgroups, []byte(tc.v1), 0o600); err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			f.refuse = tc.refuse(t, dir)
			err = p.Add(Target{Key: key(1), PerfDir: dir})
			if tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("error %v, want %v", err, tc.is)
			}
			var e *NotSupportedError
			if got := errors.As(err, &e); got != (tc.what != "") {
				t.Fatalf("error %v: NotSupportedError is %v", err, got)
			}
			if tc.what != "" && (e.What != tc.what || !strings.Contains(e.Reason, tc.says)) {
				t.Errorf("error %q: want %q for a reason with %q", err, tc.what, tc.says)
			}
			if len(f.events) > 0 {
				t.Errorf("%d events left open by a failed Add", len(f.events))
			}
			// It left nothing behind: the same task can be added afterwards.
			f.refuse = func(*unix.PerfEventAttr, int, int) error { return nil }
			if err := p.Add(Target{Key: key(1), PerfDir: root}); err != nil {
				t.Errorf("add again: %v", err)
			}
		})
	}
}

func TestAddContract(t *testing.T) {
	_, p, _ := fakeCPI(t)
	if err := p.Add(Target{Key: key(1), PerfDir: t.TempDir()}); err == nil {
		t.Error("the same key twice gave no error")
	}
	if err := p.Add(Target{Key: key(2)}); !errors.Is(err, ErrNoPerfDir) {
		t.Errorf("no directory: %v, want ErrNoPerfDir", err)
	}
	if err := p.Add(Target{Key: key(3), PerfDir: t.TempDir() + "/none"}); !errors.Is(err, host.ErrGone) {
		t.Errorf("no such directory: %v, want ErrGone", err)
	}
}

func TestFDLimit(t *testing.T) {
	f, p, _ := fakeCPI(t)
	for left := range 6 {
		allowed := f.opened + left
		f.refuse = func(*unix.PerfEventAttr, int, int) error {
			if f.opened >= allowed {
				return unix.EMFILE
			}
			return nil
		}
		err := p.Add(Target{Key: key(2), PerfDir: t.TempDir()})
		var e *FDLimitError
		if !errors.As(err, &e) || !errors.Is(err, unix.EMFILE) {
			t.Fatalf("with %d descriptors left: %v, want a FDLimitError", left, err)
		}
		if e.Need != 7 || e.Held != 6 || e.Limit == 0 {
			t.Errorf("needs %d holds %d limit %d, want 7, 6 and a limit", e.Need, e.Held, e.Limit)
		}
		if len(f.events) != 6 {
			t.Fatalf("with %d descriptors left: %d events are open, want the other task's 6", left, len(f.events))
		}
	}
	if p.Remove(key(1), 0); len(f.events) != 0 {
		t.Errorf("%d events left open by Remove", len(f.events))
	}
}

func TestWindowOrder(t *testing.T) {
	_, p, _ := fakeCPI(t)
	if err := p.Stop(WindowEnd{}, nil); err == nil {
		t.Error("Stop without a window gave no error")
	}
	start(t, p)
	if err := p.Start(); err == nil {
		t.Error("Start in a window gave no error")
	}
	if n := len(stopped(t, p, nil)); n != 1 {
		t.Errorf("%d readings, want 1", n)
	}
}

func TestAddInWindow(t *testing.T) {
	f, p, _ := fakeCPI(t)
	start(t, p)
	dir := t.TempDir()
	if err := p.Add(Target{Key: key(2), PerfDir: dir}); err != nil {
		t.Fatal(err)
	}
	f.run(inodeOf(t, dir), 0, tick{100, 100, [3]uint64{500, 100, 0}})
	if _, ok := stopped(t, p, nil)[key(2)]; ok {
		t.Error("a task that was added in the window was counted in it")
	}
	start(t, p)
	f.run(inodeOf(t, dir), 0, tick{100, 100, [3]uint64{400, 100, 0}})
	if r := stopped(t, p, nil)[key(2)]; r.Cost != 4 {
		t.Errorf("the next window: cost %v, want 4", r.Cost)
	}
}

func TestRemoveInWindow(t *testing.T) {
	f, p, inode := fakeCPI(t)
	start(t, p)
	f.run(inode, 1, tick{100, 100, [3]uint64{700, 100, 0}})
	r, ok := p.Remove(key(1), time.Second)
	if !ok || r.Cost != 7 {
		t.Errorf("reading %v, %v, want the last difference of cost 7", r.Cost, ok)
	}
	if len(f.events) > 0 {
		t.Errorf("%d events left open", len(f.events))
	}
	if n := len(stopped(t, p, nil)); n != 0 {
		t.Errorf("%d readings after Remove, want none", n)
	}
	if _, ok := p.Remove(key(1), 0); ok {
		t.Error("Remove of an unknown task gave a reading")
	}
}

func TestRemoveBetweenWindows(t *testing.T) {
	_, p, _ := fakeCPI(t)
	if _, ok := p.Remove(key(1), 0); ok {
		t.Error("a reading without a window")
	}
}

func TestStartThatFails(t *testing.T) {
	f, p, inode := fakeCPI(t)
	f.refuseOn = unix.EIO
	start(t, p)
	r, ok := stopped(t, p, nil)[key(1)]
	if !ok || r.Coverage != 0 || !math.IsNaN(r.Cost) {
		t.Errorf("reading %+v %v, want one that was not counted", r, ok)
	}
	f.refuseOn = nil
	start(t, p)
	f.run(inode, 0, tick{100, 100, [3]uint64{200, 100, 0}})
	if r := stopped(t, p, nil)[key(1)]; r.Cost != 2 {
		t.Errorf("the next window: cost %v, want 2", r.Cost)
	}
}

func TestOfflineCPU(t *testing.T) {
	f := newFake(t)
	p, err := openCPI(f, sample.SetOf(0, 1), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	tried, offline := 0, true
	f.refuse = func(_ *unix.PerfEventAttr, cpu, _ int) error {
		if cpu == 1 && offline {
			tried++
			return unix.ENODEV
		}
		return nil
	}
	var inodes []uint64
	for n := range 3 {
		dir := t.TempDir()
		inodes = append(inodes, inodeOf(t, dir))
		if err := p.Add(Target{Key: key(uint64(n)), PerfDir: dir}); err != nil {
			t.Fatal(err)
		}
	}
	tried = 0
	start(t, p)
	if tried != 1 {
		t.Errorf("an offline CPU was tried %d times in one Start, want once for all tasks", tried)
	}
	f.run(inodes[0], 0, tick{100, 100, [3]uint64{200, 100, 0}})
	if r := stopped(t, p, nil)[key(0)]; r.Cost != 2 || r.Coverage != 1 || r.Extras.Len() != 3 {
		t.Errorf("reading %+v: an offline CPU is none to be counted", r)
	}
	offline = false
	start(t, p)
	f.run(inodes[0], 1, tick{100, 100, [3]uint64{600, 100, 0}})
	if r := stopped(t, p, nil)[key(0)]; r.Cost != 6 {
		t.Errorf("cost %v, want 6: the CPU is back", r.Cost)
	}
}

// TestReopenOther loses a group and finds another cgroup of the task's name.
func TestReopenOther(t *testing.T) {
	f := newFake(t)
	p, err := openCPI(f, sample.SetOf(0), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	parent := t.TempDir()
	dir := parent + "/task"
	for _, name := range []string{dir, parent + "/other"} {
		if err := os.Mkdir(name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Add(Target{Key: key(1), PerfDir: dir}); err != nil {
		t.Fatal(err)
	}
	f.readError[0] = unix.EIO
	start(t, p)
	stopped(t, p, nil)
	clear(f.readError)
	if err := errors.Join(os.Remove(dir), os.Rename(parent+"/other", dir)); err != nil {
		t.Fatal(err)
	}
	start(t, p)
	f.run(inodeOf(t, dir), 0, tick{100, 100, [3]uint64{600, 100, 0}})
	if r := stopped(t, p, nil)[key(1)]; !math.IsNaN(r.Cost) || r.Coverage != 0 {
		t.Errorf("reading %+v: it is another cgroup's", r)
	}
}
