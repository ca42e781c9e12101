package counter

import (
	"errors"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
	"golang.org/x/sys/unix"
)

// fakeProber is a kernel whose probes count what the test says.
type fakeProber struct {
	mu       sync.Mutex
	probes   []*fakeProbe
	finds    int
	findErr  error
	attachTo error
	rate     uint64    // hits that every new probe has at once
	hold     chan bool // if set, Close waits for it
}

type fakeProbe struct {
	*fakeProber
	extra  uint64 // hits that are in the total only
	hits   map[fakeHitter]uint64
	closed bool
}

type fakeHitter struct {
	cgroup  uint64
	process int
}

func (p *fakeProber) Find(io.ReaderAt, *Uprobe) (uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finds++
	return 0x10, p.findErr
}

func (p *fakeProber) Attach(*os.File, uint64) (Probe, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.attachTo != nil {
		return nil, p.attachTo
	}
	probe := &fakeProbe{fakeProber: p, hits: map[fakeHitter]uint64{{0, 0}: p.rate}}
	p.probes = append(p.probes, probe)
	return probe, nil
}

func (p *fakeProbe) Total() (uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := p.extra
	for _, n := range p.hits {
		sum += n
	}
	return sum, nil
}

func (p *fakeProbe) Each(fn func(uint64, int, uint64)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for h, n := range p.hits {
		fn(h.cgroup, h.process, n)
	}
	return nil
}

func (p *fakeProbe) Close() error {
	if p.hold != nil {
		<-p.hold
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	return nil
}

func (p *fakeProber) open() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, probe := range p.probes {
		if !probe.closed {
			n++
		}
	}
	return n
}

// hit adds hits to the newest probe.
func (p *fakeProber) hit(cgroup uint64, process int, n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.probes[len(p.probes)-1].hits[fakeHitter{cgroup, process}] += n
}

// probed returns a CPT over a fake kernel and a fake procfs with process 7, which has
// the program /run/a.
func probed(t *testing.T, k *fakeProber) (*fakeProc, *stillCPT) {
	t.Helper()
	p := newFakeProc(t)
	p.check(os.Mkdir(p.root+"/run", 0o755))
	p.check(os.WriteFile(p.root+"/run/a", []byte("program"), 0o755))
	p.process(7, 1, 1)
	return p, still(t, p.dir, k)
}

func uprobe(id uint64, h sample.Hierarchy, pids ...int) Target {
	return Target{Key: sample.TaskKey{Hierarchy: h, Inode: id, FirstSeen: 1},
		Members: func() ([]int, error) { return append([]int{7}, pids...), nil },
		Below:   func() ([]uint64, error) { return []uint64{100 * id}, nil },
		Uprobe:  &Uprobe{Binary: "/run/a", Symbol: "f", MaxRate: 1000}}
}

// window runs one window; in is called once all probes are attached.
func window(t *testing.T, c *stillCPT, in func()) map[sample.TaskKey]Reading {
	t.Helper()
	start(t, c)
	w := c.probes.window
	quelltest.Until(t, "every task has its place", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.errs) >= len(w.requests)
	})
	in()
	c.clock.at.Add(int64(10 * time.Second))
	all := stopped(t, c, twoSeconds)
	quelltest.Until(t, "all is detached", func() bool {
		select {
		case <-w.gone:
			return true
		default:
			return false
		}
	})
	return all
}

// Tasks that run one program share a probe. Each gets the hits of its cgroups or, if
// the kernel does not report those with a hit, the hits of its processes.
func TestUprobeAttribution(t *testing.T) {
	k := &fakeProber{}
	_, c := probed(t, k)
	one, two, three := uprobe(1, sample.Unified), uprobe(2, sample.Unified), uprobe(3, sample.V1CPU, 30)
	three.Members = func() ([]int, error) { return []int{7, 30}, nil }
	for _, target := range []Target{one, two, three} {
		if err := c.Add(target); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		all := window(t, c, func() {
			k.hit(1, 71, 5)
			k.hit(100, 72, 6) // below task 1
			k.hit(2, 73, 7)
			k.hit(9, 30, 8) // task 3, in a cgroup2 of no task
			k.hit(9, 31, 9) // of no task
		})
		for task, want := range map[sample.TaskKey]float64{one.Key: 11, two.Key: 7, three.Key: 8} {
			r := all[task]
			tx, _ := r.Extras.Get(sample.Transactions)
			if r.Err != nil || r.Variant != "uprobe" || tx != want || r.Coverage != 1 || !same(r.Cost, 2/want) {
				t.Errorf("%v: %+v: %v transactions, want %v", task, r, tx, want)
			}
		}
		if n := k.open(); n != 0 {
			t.Errorf("%d probes are attached between windows", n)
		}
	}
	if len(k.probes) != 3 || k.finds != 1 {
		t.Errorf("%d probes attached and %d searches in 3 windows, want 3 and 1", len(k.probes), k.finds)
	}
}

// Hits of cgroups and processes that are gone at the window's end count too.
func TestUprobeHitsOfTheGone(t *testing.T) {
	k := &fakeProber{}
	_, c := probed(t, k)
	below, members := []uint64{11}, []int{7, 21}
	one, two := uprobe(1, sample.Unified), uprobe(2, sample.V1CPU)
	one.Below = func() ([]uint64, error) { return below, nil }
	two.Members = func() ([]int, error) { return members, nil }
	for _, target := range []Target{one, two} {
		if err := c.Add(target); err != nil {
			t.Fatal(err)
		}
	}
	all := window(t, c, func() {
		below, members = []uint64{12}, []int{7, 22}
		k.hit(11, 1, 2)
		k.hit(12, 1, 3)
		k.hit(90, 21, 4)
		k.hit(90, 22, 5)
	})
	for task, want := range map[sample.TaskKey]float64{one.Key: 5, two.Key: 9} {
		r := all[task]
		if tx, _ := r.Extras.Get(sample.Transactions); tx != want {
			t.Errorf("%v: %+v, want %v transactions", task.Hierarchy, r, want)
		}
	}
}

// TestUprobeInAnotherVersion: a place is looked up again in each version of a file, also if its size and time are the
// former one's: a breakpoint within an instruction would break the program.
func TestUprobeInAnotherVersion(t *testing.T) {
	k := &fakeProber{}
	p, c := probed(t, k)
	if err := c.Add(uprobe(1, sample.Unified)); err != nil {
		t.Fatal(err)
	}
	name, then := p.root+"/run/a", time.Unix(1, 0)
	for finds, text := range []string{"program", "PROGRAM"} {
		p.check(os.WriteFile(name, []byte(text), 0o755))
		p.check(os.Chtimes(name, then, then))
		var before, now unix.Stat_t
		p.check(unix.Stat(name, &before))
		for range 2 {
			if r := window(t, c, func() {})[key(1)]; r.Err != nil && k.finds == 0 {
				t.Fatal(r.Err)
			}
		}
		if k.finds != finds+1 {
			t.Errorf("%d searches in %d versions", k.finds, finds+1)
		}
		// The clock of the file system's times has ticked.
		quelltest.Until(t, "the time of a change is another one", func() bool {
			p.check(os.Chmod(name, 0o755))
			p.check(unix.Stat(name, &now))
			return now.Ctim != before.Ctim
		})
	}
}

// A place that is hit too often, by any process, is removed at once with an error. It
// is not probed for more and more windows, and counted again when hits are rare.
func TestUprobeAboveItsRate(t *testing.T) {
	k := &fakeProber{rate: 1e9}
	_, c := probed(t, k)
	target := uprobe(1, sample.Unified)
	if err := c.Add(target); err != nil {
		t.Fatal(err)
	}
	tried := ""
	for range 16 {
		before := len(k.probes)
		all := window(t, c, func() {
			if n := k.open(); n != 0 {
				t.Error("it is attached still")
			}
		})
		var rate *RateError
		if r := all[target.Key]; !errors.As(r.Err, &rate) || !math.IsNaN(r.Cost) || rate.Max != 1000 || rate.Rate < 1000 ||
			!strings.Contains(rate.Error(), "/run/a:f") || rate.Remedy() == "" {
			t.Fatalf("%+v", r)
		}
		tried += map[bool]string{true: "T", false: "."}[len(k.probes) > before]
	}
	if want := "T.T..T....T....."; tried != want {
		t.Errorf("tried in windows %s, want %s", tried, want)
	}
	k.mu.Lock()
	k.rate = 0
	k.mu.Unlock()
	counted := false
	for range maxProbeBackoff + 1 {
		counted = window(t, c, func() {})[target.Key].Err == nil || counted
	}
	if !counted || len(c.probes.refused) != 0 {
		t.Errorf("counted again: %v, still refused: %v", counted, c.probes.refused)
	}
}

// The rate is checked while the window is open, too.
func TestUprobeRateRisesLater(t *testing.T) {
	k := &fakeProber{}
	_, c := probed(t, k)
	target := uprobe(1, sample.Unified)
	if err := c.Add(target); err != nil {
		t.Fatal(err)
	}
	all := window(t, c, func() {
		k.hit(55, 1, 1e9) // a process outside the task
		quelltest.Until(t, "it is taken out", func() bool { return k.open() == 0 })
	})
	if rate := (*RateError)(nil); !errors.As(all[target.Key].Err, &rate) {
		t.Errorf("%+v", all[target.Key])
	}
}

// The lowest limit of the tasks that share a place applies.
func TestUprobeLowestLimit(t *testing.T) {
	k := &fakeProber{}
	_, c := probed(t, k)
	strict := uprobe(1, sample.Unified)
	strict.Uprobe.MaxRate = 10
	for _, target := range []Target{uprobe(2, sample.Unified), strict} {
		if err := c.Add(target); err != nil {
			t.Fatal(err)
		}
	}
	all := window(t, c, func() {
		k.hit(1, 1, 900)
		quelltest.Until(t, "it is taken out", func() bool { return k.open() == 0 })
	})
	for task, r := range all {
		if rate := (*RateError)(nil); !errors.As(r.Err, &rate) || rate.Max != 10 {
			t.Errorf("%v: %+v", task, r)
		}
	}
}

// Every failure costs one task its reading, with the reason.
func TestUprobeFailures(t *testing.T) {
	for _, tc := range []struct {
		name   string
		k      *fakeProber
		target func(*Target)
		in     func(*fakeProber)
		want   string
	}{
		{name: "no function", k: &fakeProber{findErr: errors.New("function not found")}, want: "uprobe /run/a:f: function not found"},
		{name: "refused by the kernel", k: &fakeProber{attachTo: &NotSupportedError{What: "uprobes", Reason: "EPERM"}}, want: "not supported: EPERM"},
		{name: "no such program", k: &fakeProber{}, target: func(t *Target) { t.Uprobe.Binary = "/run/b" }, want: "no process of the task has the program"},
		{name: "no processes", k: &fakeProber{}, target: func(t *Target) { t.Members = func() ([]int, error) { return nil, nil } }, want: "no process of the task has the program"},
		{name: "members unknown", k: &fakeProber{}, target: func(t *Target) { t.Members = func() ([]int, error) { return nil, errors.New("too many") } }, want: "list members: too many"},
		{name: "cgroups unknown", k: &fakeProber{}, target: func(t *Target) { t.Below = func() ([]uint64, error) { return nil, errors.New("too deep") } }, want: "list cgroups: too deep"},
		{name: "too many processes", k: &fakeProber{}, in: func(k *fakeProber) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.probes[0].extra = 500
		}, want: "too many processes run the program"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, c := probed(t, tc.k)
			target := uprobe(1, sample.Unified)
			if tc.target != nil {
				tc.target(&target)
			}
			if err := c.Add(target); err != nil {
				t.Fatal(err)
			}
			r := window(t, c, func() {
				if tc.in != nil {
					tc.in(tc.k)
				}
			})[target.Key]
			if r.Err == nil || !strings.Contains(r.Err.Error(), tc.want) || !math.IsNaN(r.Cost) {
				t.Errorf("%+v, want %q", r, tc.want)
			}
		})
	}
	_, c := probed(t, nil)
	c.probes.kernel = nil
	if err := c.Add(uprobe(1, sample.Unified)); err == nil {
		t.Error("added although there is no Prober")
	}
}

// A window that begins while the last one's probes are still being removed is not
// counted, and the agent does not wait for it.
func TestUprobeStillDetaching(t *testing.T) {
	k := &fakeProber{hold: make(chan bool)}
	_, c := probed(t, k)
	target := uprobe(1, sample.Unified)
	if err := c.Add(target); err != nil {
		t.Fatal(err)
	}
	start(t, c)
	w := c.probes.window
	quelltest.Until(t, "it is attached", func() bool { return k.open() == 1 })
	c.clock.at.Add(int64(10 * time.Second))
	stopped(t, c, twoSeconds)
	start(t, c)
	c.clock.at.Add(int64(10 * time.Second))
	if r := stopped(t, c, twoSeconds)[target.Key]; !errors.Is(r.Err, errDetaching) {
		t.Errorf("%+v", r)
	}
	close(k.hold)
	<-w.gone
	if r := window(t, c, func() { k.hit(1, 1, 3) })[target.Key]; r.Err != nil {
		t.Errorf("%+v", r)
	}
}

// A task that is removed in the window is read before; the others continue.
func TestUprobeOfATaskThatGoes(t *testing.T) {
	k := &fakeProber{}
	_, c := probed(t, k)
	one, two := uprobe(1, sample.Unified), uprobe(2, sample.Unified)
	for _, target := range []Target{one, two} {
		if err := c.Add(target); err != nil {
			t.Fatal(err)
		}
	}
	var last Reading
	all := window(t, c, func() {
		k.hit(1, 1, 5)
		c.clock.at.Add(int64(5 * time.Second))
		last, _ = c.Remove(one.Key, time.Second)
		k.hit(2, 1, 7)
	})
	if tx, _ := last.Extras.Get(sample.Transactions); last.Err != nil || tx != 5 {
		t.Errorf("its last reading: %+v", last)
	}
	rest := all[two.Key]
	tx, _ := rest.Extras.Get(sample.Transactions)
	if _, ok := all[one.Key]; ok || tx != 7 {
		t.Errorf("%+v", all)
	}
}

// stub returns a fixed count.
type stub struct{ counted }

func (stub) variant() string { return "stub" }
func (stub) start(time.Time) {}
func (stub) abort()          {}

func (s stub) stop(time.Time, time.Time) (counted, error) { return s.counted, nil }

// What was counted in a part of the window is scaled to the whole window, unless the
// part is too small.
func TestCountsAreScaledToTheWindow(t *testing.T) {
	for _, tc := range []struct {
		span               time.Duration
		tx, cost, coverage float64
		err                bool
	}{
		{10 * time.Second, 100, 0.02, 1, false},
		{8 * time.Second, 125, 0.016, 0.8, false},
		{12500 * time.Millisecond, 80, 0.025, 1, false},
		{4 * time.Second, 0, math.NaN(), 0.4, true},
		{0, 0, math.NaN(), 0, true},
	} {
		_, c := probed(t, &fakeProber{})
		task := &cptTask{transactions: stub{counted{done: 100, span: tc.span}}, from: time.Unix(1, 0)}
		r, ok := c.finish(task, task.from.Add(10*time.Second), 2*time.Second, true)
		tx, _ := r.Extras.Get(sample.Transactions)
		if !ok || tx != tc.tx || !same(r.Cost, tc.cost) || r.Coverage != tc.coverage || (r.Err != nil) != tc.err {
			t.Errorf("%v: %+v: %v transactions", tc.span, r, tx)
		}
	}
}
