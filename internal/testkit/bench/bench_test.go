package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// The test binary also runs as the child processes that it starts.
func TestMain(m *testing.M) {
	child := map[string]func([]string) error{"floor": runFloor, "play": runPlay}[os.Args[min(1, len(os.Args)-1)]]
	if child == nil {
		quelltest.Main(m)
	}
	if err := child(os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func TestRowsSumUpRounds(t *testing.T) {
	all := rows([]result{
		{Contender: "b", Cgroups: 1000, Round: 0, Window: 10, CPU: 1, RSS: 5, FDs: 3, Scrapes: []float64{0.1, 0.3}, Bytes: 7},
		{Contender: "a", Cgroups: 10, Window: 10, CPU: 2},
		{Contender: "b", Cgroups: 1000, Round: 1, Window: 20, CPU: 6, RSS: 4, FDs: 4, Scrapes: []float64{0.2}, Bytes: 8},
	})
	if len(all) != 2 || all[0].contender != "a" {
		t.Fatalf("rows %+v", all)
	}
	w := all[1]
	if w.share != 0.2 || w.least != 0.1 || w.most != 0.3 || w.rss != 5 || w.fds != 4 || w.scrape != 0.3 || w.bytes != 8 || w.rounds != 2 {
		t.Errorf("row %+v", w)
	}
	if !math.IsNaN(all[0].scrape) {
		t.Errorf("what is not scraped took %v s", all[0].scrape)
	}
}

// Every target is checked with figures on both sides of it.
func TestPromises(t *testing.T) {
	figures := func(times float64) ([]row, []switchOverhead) {
		return []row{
				{contender: sweepName, cgroups: 100, share: 0.0002, scrape: math.NaN()},
				{contender: defaultName, cgroups: 100, share: times * 0.0002, scrape: math.NaN()},
				{contender: sweepName, cgroups: 1000, share: times * 0.002, rss: int64(times * 30e6), scrape: times * 0.03, bytes: int64(times * 0.7e6)},
				{contender: floorName, cgroups: 1000, share: 0.001},
				{contender: sweepName + awake, cgroups: 1000, share: times * 0.0022},
				{contender: floorName + awake, cgroups: 1000, share: 0.0015},
				{contender: "cAdvisor 1", cgroups: 1000, share: 0.04},
				{contender: "below 1", cgroups: 1000, share: 0.03},
				{contender: sweepName, cgroups: 2000, share: times * 0.004},
				{contender: sweepName, cgroups: most, share: times * 0.02},
				{contender: defaultName, cgroups: most, rss: int64(times * 100e6), fds: int(times * 150)},
			}, []switchOverhead{
				{Signals: "cpi", Off: 1000, Between: 1000 + 100*times, Inner: 150_000, Shipped: 1000 + 900*times},
				{Signals: "cpi + runq", Off: 1000, Between: 1000 + 100*times, Inner: 150_000, Shipped: 1000 + 1500*times},
				{Signals: "cpi + cps", Off: 1000, Between: 1000 + 100*times, Inner: 150_000, Shipped: 1000 + 1500*times},
			}
	}
	for _, c := range []struct {
		times float64
		kept  bool
	}{{1, true}, {2.5, false}} {
		ps := targets(append2(figures(c.times)))
		if len(ps) != 19 {
			t.Errorf("%d targets", len(ps))
		}
		for _, p := range ps {
			if p.kept() != c.kept {
				t.Errorf("costs × %v: %s is %v, at most %v", c.times, p.what, p.value, p.most)
			}
		}
		if kept := printTargets(io.Discard, ps); kept != c.kept {
			t.Errorf("costs × %v: all kept is %v", c.times, kept)
		}
	}
	if ps := targets(nil, nil, 2); len(ps) != 0 {
		t.Errorf("targets without measurements: %v", ps)
	}
}

// Every size measures the sweep in parallel with the floor. The default, which needs
// a window of a minute, is added at 100 and at the full size; rivals, awake tasks
// and rounds of the judged pair at the full size only. An absent rival has no turn.
func TestTurns(t *testing.T) {
	others := []contender{{name: "heavy", heavy: true}, {name: "light"}, {name: "absent", heavy: true, absent: os.ErrNotExist}}
	show := func(n int) string {
		var text []string
		for _, x := range turns(n, 1000, 2, others) {
			var names []string
			for _, c := range x.all {
				names = append(names, c.name)
			}
			text = append(text, fmt.Sprintf("%s round %d short %v awake %v", strings.Join(names, " + "), x.round, x.short, x.awake))
		}
		return strings.Join(text, "\n")
	}
	pair := sweepName + " + " + floorName
	for n, want := range map[int]string{
		most: pair + " round 0 short true awake false\n" + defaultName + " round 0 short false awake false",
		10:   pair + " round 0 short true awake false",
		100:  pair + " round 0 short true awake false\n" + defaultName + " round 0 short false awake false",
		1000: pair + " round 0 short false awake false\nheavy round 0 short false awake false\n" +
			defaultName + " + light round 0 short false awake false\n" + pair + " round 1 short false awake false\n" +
			sweepName + awake + " + " + floorName + awake + " round 0 short true awake true",
	} {
		if got := show(n); got != want {
			t.Errorf("%d cgroups:\n%s\nwant\n%s", n, got, want)
		}
	}
}

// A run goes on with the figures of the same agent only, measured in the same way.
func TestResume(t *testing.T) {
	dir := t.TempDir()
	agent := filepath.Join(dir, "agent")
	same := func(window time.Duration, program string) error {
		t.Helper()
		if err := os.WriteFile(agent, []byte(program), 0o700); err != nil {
			t.Fatal(err)
		}
		r := &run{agent: agent, window: window, keepIn: filepath.Join(dir, "kept.json")}
		of, err := r.identity(1000, 20_000)
		if err != nil {
			t.Fatal(err)
		}
		r.kept.Of = of
		if _, err := os.Stat(r.keepIn); os.IsNotExist(err) {
			r.kept.Results = []result{{Contender: "a"}}
			return r.keep()
		}
		if err := r.resume(); err != nil {
			return err
		}
		if len(r.kept.Results) != 1 {
			t.Errorf("it goes on with %+v", r.kept)
		}
		return nil
	}
	for _, c := range []struct {
		window  time.Duration
		program string
		ok      bool
	}{{time.Minute, "v1", true}, {time.Minute, "v1", true}, {time.Minute, "v2", false}, {20 * time.Second, "v1", false}} {
		if err := same(c.window, c.program); (err == nil) != c.ok {
			t.Errorf("window %s, agent %s: %v", c.window, c.program, err)
		}
	}
}

// What hooks every switch is not measured while others are: its program's time would be theirs.
func TestBpftraceIsAlone(t *testing.T) {
	all := rivals(t.TempDir())
	for i := range all {
		all[i].absent = nil
	}
	for _, x := range turns(1000, 1000, 2, all) {
		for _, c := range x.all {
			if c.name == bpftraceName && len(x.all) > 1 {
				t.Errorf("it is measured with %d others", len(x.all)-1)
			}
		}
	}
}

// Tasks that are kept awake use CPU time; paused ones do not.
func TestKeepAwake(t *testing.T) {
	r := newRun(t)
	if err := r.crowd.grow(2); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(crowdName, podName(1))
	used := func() float64 {
		s, err := r.tree.usage(name)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	asleep := func() bool { // it has started
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.crowd.procs[1].Pid))
		return err == nil && strings.Contains(string(text), "(sleep) S")
	}
	quelltest.Until(t, "the task is paused", asleep)
	before := used()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.crowd.keepAwake(ctx) }()
	quelltest.Until(t, "the task has run", func() bool { return used() > before })
	stop()
	<-done
	quelltest.Until(t, "it is not left stopped", asleep)
	if err := errors.Join(r.crowd.end(), r.tree.remove()); err != nil {
		t.Error(err)
	}
}

func append2(all []row, taxes []switchOverhead) ([]row, []switchOverhead, int) { return all, taxes, 2 }

func newRun(t *testing.T) *run {
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2)
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	r := &run{scratch: t.TempDir(), warmUp: time.Millisecond, window: 20 * time.Millisecond, progress: io.Discard}
	if r.tree, err = newTree(h.Layout().Unified); err != nil {
		t.Fatal(err)
	}
	r.crowd.t = r.tree
	return r
}

// A complete measurement in small, with the floor alone: the crowd, a
// contender, its figures. Nothing is left behind.
func TestFloorOverACrowd(t *testing.T) {
	r := newRun(t)
	const n = 12
	if err := r.crowd.grow(n); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		text, err := os.ReadFile(filepath.Join(r.tree.dir(crowdName), podName(i), "cgroup.procs"))
		if err != nil || len(strings.Fields(string(text))) != 1 {
			t.Errorf("cgroup %d holds %q, %v", i, text, err)
		}
	}
	s, err := r.start(floor(), n)
	if err != nil {
		t.Fatal(err)
	}
	results, err := r.measure(context.Background(), []*started{s}, n, 0, r.window)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.dead(); err != nil {
		t.Error(err)
	}
	// It keeps at least each cgroup's cpu.stat open.
	if x := results[0]; x.FDs < n || x.RSS == 0 || x.Window <= 0 || x.CPU < 0 {
		t.Errorf("result %+v", x)
	}
	s.stop()
	if err := s.dead(); err != nil && !strings.Contains(err.Error(), "has ended") {
		t.Error(err)
	}
	if err := r.crowd.end(); err != nil {
		t.Error(err)
	}
	if err := r.tree.remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(r.tree.dir("")); !os.IsNotExist(err) {
		t.Errorf("the tree is still there: %v", err)
	}
}

// A contender's usage includes that of a child that has ended.
func TestUsageOfWhatHasEnded(t *testing.T) {
	r := newRun(t)
	ended := filepath.Join(r.scratch, "ended")
	spin := contender{name: "spin", commands: func(*run, int) ([][]string, string, error) {
		return [][]string{{"sh", "-c", "(i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done); : > " + ended + "; sleep infinity"}}, "", nil
	}}
	s, err := r.start(spin, 0)
	if err != nil {
		t.Fatal(err)
	}
	quelltest.Until(t, "its child has ended", func() bool { _, err := os.Stat(ended); return err == nil })
	if used, err := r.tree.usage(s.meter); err != nil || used < 0.01 {
		t.Errorf("its child's %v s are not its own, %v", used, err)
	}
	s.stop()
	if err := r.tree.remove(); err != nil { // also with sleep, the shell's child, in it
		t.Error(err)
	}
}

func TestPingPong(t *testing.T) {
	r := newRun(t)
	g, err := r.newPingPong()
	if err != nil {
		t.Fatal(err)
	}
	ns, err := g.best(50)
	if err != nil || !(ns > 0) {
		t.Errorf("a switch takes %v ns, %v", ns, err)
	}
	if err := g.end(); err != nil {
		t.Error(err)
	}
	if err := r.tree.remove(); err != nil {
		t.Error(err)
	}
}

// A rival's process sees cgroup2 at the path it expects; our own mounts do not change.
func TestUnifiedView(t *testing.T) {
	r := newRun(t)
	if r.tree.mount == cgroupRoot {
		quelltest.Skip(t, "cgroup-v1", os.ErrNotExist)
	}
	quelltest.Need(t, "unshare")
	here := filepath.Join(cgroupRoot, r.tree.name)
	out := filepath.Join(r.scratch, "out")
	look := contender{name: "look", unified: true, commands: func(*run, int) ([][]string, string, error) {
		return [][]string{{"sh", "-c", "[ -d " + here + " ] && echo seen > " + out}}, "", nil
	}}
	s, err := r.start(look, 0)
	if err != nil {
		t.Fatal(err)
	}
	quelltest.Until(t, "it has ended", func() bool { return s.dead() != nil })
	if text, err := os.ReadFile(out); string(text) != "seen\n" {
		t.Errorf("it did not see its tree: %v %s", err, s.tail())
	}
	if _, err := os.Stat(here); err == nil {
		t.Error("the mount is seen outside")
	}
	s.stop()
	if err := r.tree.remove(); err != nil {
		t.Error(err)
	}
}

// A killed run leaves its tree. The next run removes it, and does not touch the
// tree of a run that is alive.
func TestSweepTrees(t *testing.T) {
	r := newRun(t)
	dead := filepath.Join(r.tree.mount, treePrefix+"-2147483000-1") // over pid_max
	if err := os.MkdirAll(filepath.Join(dead, "crowd"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := workload.Sweep(treePrefix); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dead); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
	if _, err := os.Stat(r.tree.dir("")); err != nil {
		t.Errorf("our own tree was touched: %v", err)
	}
	if err := r.tree.remove(); err != nil {
		t.Error(err)
	}
}
