package runq

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/btf"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/bpftest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

const window = 600 * time.Millisecond

func program(t testing.TB, tasks int, groups ...*group) *Program {
	t.Helper()
	return programWith(t, tasks, options{}, groups...)
}

// kernelTypes are decoded once, not for each of the programs that tests load.
var kernelTypes = btf.NewCache()

func programWith(t testing.TB, tasks int, w options, groups ...*group) *Program {
	t.Helper()
	quelltest.Need(t, quelltest.Root, quelltest.EBPF)
	w.types = kernelTypes
	p, err := openProgram(tasks, w)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, g := range groups {
		if err := p.Add(g.Target); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// band is the range in which a figure must lie.
type band struct {
	what     string
	got      float64
	min, max float64
}

// expect measures until every figure is inside its band, at most five windows: other
// work of the machine can disturb one, a wrong count disturbs all. A window in which a hypervisor
// took CPU time away is not one of the five: a thread neither runs nor waits for others then.
func expect(t *testing.T, src counter.Source, groups []*group, during func(context.Context), bands func([]measured) []band) {
	t.Helper()
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	stolen := func() time.Duration {
		c, err := h.CPUTimes()
		if err != nil {
			t.Fatal(err)
		}
		return c.Total.Steal
	}
	for judged, all := 0, 0; judged < 5 && all < 100; all++ {
		before := stolen()
		got := measure(t, src, window, groups, during)
		var wrong []string
		for _, b := range bands(got) {
			if !(b.got >= b.min && b.got <= b.max) {
				wrong = append(wrong, fmt.Sprintf("%s %.3f, want %.3f..%.3f", b.what, b.got, b.min, b.max))
			}
		}
		for i, m := range got {
			t.Logf("%s: %v", filepath.Base(groups[i].Dir), m)
		}
		if wrong == nil {
			return
		}
		lost := stolen() - before
		t.Logf("%s; %v of CPU time was stolen", strings.Join(wrong, "; "), lost)
		if lost <= window/50 {
			judged++
		}
	}
	t.Error("no window is as it must be")
}

// whole is the total time of n threads that always want to run.
func whole(m measured, n float64) band {
	return band{"cpu and waits together", m.cpu + m.other + m.self + m.throttled, 0.97 * n, 1.03 * n}
}

func TestTwoTasksOnOneCPU(t *testing.T) {
	a, b := unified(t, "a"), unified(t, "b")
	a.burn(t, burner{cpu: 1})
	b.burn(t, burner{cpu: 1})
	p := program(t, maxTasks, a, b)
	groups := []*group{a, b}
	expect(t, p, groups, nil, func(m []measured) []band {
		return []band{
			{"a's cost", m[0].Cost, 0.85, 1.2}, {"b's cost", m[1].Cost, 0.85, 1.2},
			{"a's self", m[0].selfCost(), 0, 0.05}, {"a's throttled", m[0].throttled, 0, 0},
			whole(m[0], 1), whole(m[1], 1),
			// A kernel may hide switches from programs; a wait that ended with one is dropped.
			{"a's coverage", m[0].Coverage, 0.9, 1}, {"b's coverage", m[1].Coverage, 0.9, 1},
		}
	})
}

func TestAlone(t *testing.T) {
	a := unified(t, "a")
	a.burn(t, burner{cpu: 1})
	expect(t, program(t, maxTasks, a), []*group{a}, nil, func(m []measured) []band {
		return []band{{"cost", m[0].Cost, 0, 0.05}, {"cpu", m[0].cpu, 0.9, 1.01}}
	})
}

func TestCappedNeighbour(t *testing.T) {
	a := unified(t, "a")
	b := capped(t, "b", 10)
	a.burn(t, burner{cpu: 1})
	b.burn(t, burner{cpu: 1})
	expect(t, program(t, maxTasks, a, b), []*group{a, b}, nil, func(m []measured) []band {
		return []band{
			{"victim's cost", m[0].Cost, 0.05, 0.25}, {"victim's throttled", m[0].throttled, 0, 0},
			{"neighbour's throttled", m[1].throttled, 0.6, 0.9}, whole(m[0], 1), whole(m[1], 1),
		}
	})
}

func TestOwnThreads(t *testing.T) {
	a := unified(t, "a")
	a.burn(t, burner{cpu: 1})
	a.burn(t, burner{cpu: 1})
	expect(t, program(t, maxTasks, a), []*group{a}, nil, func(m []measured) []band {
		return []band{{"cost", m[0].Cost, 0, 0.05}, {"self", m[0].selfCost(), 0.9, 1.1}, whole(m[0], 2)}
	})
}

// With the kernel's throttled clock, and with the marks that replace it before 6.6.
func TestOwnQuota(t *testing.T) {
	for _, marks := range []bool{false, true} {
		t.Run(fmt.Sprintf("marks=%t", marks), func(t *testing.T) {
			a := capped(t, "a", 20)
			a.burn(t, burner{cpu: 1})
			p := programWith(t, maxTasks, options{throttled: marks}, a)
			var stat float64 // s throttled, as the kernel counts it
			expect(t, p, []*group{a}, func(ctx context.Context) {
				before := throttledTime(t, a)
				<-ctx.Done()
				stat = throttledTime(t, a) - before
			}, func(m []measured) []band {
				// A task that uses the CPU when the quota is back first ends its slice:
				// that is a wait for others, and not for the quota.
				return []band{
					{"other", m[0].other, 0, 0.1}, {"throttled", m[0].throttled, 0.7, 0.85}, whole(m[0], 1),
					{"cpu.stat's throttled ÷ ours", stat / (m[0].throttled * window.Seconds()), 0.8, 1.2},
				}
			})
		})
	}
}

// A task that exhausts its quota next to a neighbour that never stops: the neighbour
// runs while the task is throttled, which is not the neighbour's fault.
func TestOwnQuotaBesideNeighbour(t *testing.T) {
	for _, marks := range []bool{false, true} {
		t.Run(fmt.Sprintf("marks=%t", marks), func(t *testing.T) {
			a := capped(t, "a", 20)
			b := unified(t, "b")
			a.burn(t, burner{cpu: 1})
			b.burn(t, burner{cpu: 1})
			expect(t, programWith(t, maxTasks, options{throttled: marks}, a), []*group{a}, nil, func(m []measured) []band {
				return []band{
					{"cpu", m[0].cpu, 0.15, 0.25}, {"other", m[0].other, 0, 0.32},
					{"throttled", m[0].throttled, 0.45, 0.85}, whole(m[0], 1),
				}
			})
		})
	}
}

// Two threads under one quota: while one runs the other waits for it, and both
// wait for the quota.
func TestQuotaOfTwoThreads(t *testing.T) {
	a := capped(t, "a", 40)
	b := unified(t, "b")
	a.burn(t, burner{cpu: 1})
	a.burn(t, burner{cpu: 1})
	b.burn(t, burner{cpu: 1})
	// Without a throttled clock a wait that includes the quota is all throttled.
	leastSelf := 0.25
	if !throttledClock(t) {
		leastSelf = 0
	}
	expect(t, program(t, maxTasks, a), []*group{a}, nil, func(m []measured) []band {
		return []band{{"cpu", m[0].cpu, 0.3, 0.45}, {"self", m[0].self, leastSelf, 0.5}, whole(m[0], 2)}
	})
}

// throttledClock reports whether the kernel has one: since 6.6.
func throttledClock(t *testing.T) bool {
	t.Helper()
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		t.Fatal(err)
	}
	var q *btf.Struct
	if err := spec.TypeByName("cfs_rq", &q); err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(q.Members, func(m btf.Member) bool { return m.Name == "throttled_clock_self_time" })
}

func TestNestedCgroupsAreOneTask(t *testing.T) {
	for _, h := range []sample.Hierarchy{sample.Unified, sample.V1CPU} {
		t.Run(h.String(), func(t *testing.T) {
			var a *group
			if h == sample.V1CPU {
				a = v1cpu(t, "a")
			} else {
				a = unified(t, "a")
			}
			x, y := newGroup(t, h, a.Dir, "x"), newGroup(t, h, a.Dir, "y")
			x.burn(t, burner{cpu: 1})
			y.burn(t, burner{cpu: 1})
			a.burners = append(x.burners, y.burners...)
			a.Below = func() ([]uint64, error) { return []uint64{x.Key.Inode, y.Key.Inode}, nil }
			expect(t, program(t, maxTasks, a), []*group{a}, nil, func(m []measured) []band {
				return []band{{"cost", m[0].Cost, 0, 0.05}, {"self", m[0].selfCost(), 0.9, 1.1}, whole(m[0], 2)}
			})
		})
	}
}

// A thread that is moved back and forth while it waits, between CPUs that both have
// another task to run, waits no less than one that stays.
func TestMigrationWhileWaiting(t *testing.T) {
	quelltest.Need(t, quelltest.TwoCPUs)
	a, b := unified(t, "a"), unified(t, "b")
	moved := a.burn(t, burner{cpu: 1})
	b.burn(t, burner{cpu: 0})
	b.burn(t, burner{cpu: 1})
	p := program(t, maxTasks, a, b)
	during := func(ctx context.Context) {
		tick := time.NewTicker(3 * time.Millisecond)
		defer tick.Stop()
		for cpu := 0; ; cpu ^= 1 {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				moved.pin(t, cpu)
			}
		}
	}
	expect(t, p, []*group{a, b}, during, func(m []measured) []band {
		return []band{{"other", m[0].other, 0.3, 0.8}, {"self", m[0].self, 0, 0.05}, whole(m[0], 1), whole(m[1], 2)}
	})
}

// A thread that waits before the window, throughout it and after it.
func TestStarved(t *testing.T) {
	a, b := unified(t, "a"), unified(t, "b")
	a.burn(t, burner{cpu: 1, nice: 19})
	// Nice values do not compare across cgroups that have weights.
	if weight := filepath.Join(a.Dir, "cpu.weight"); exists(weight) {
		if err := os.WriteFile(weight, []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
	}
	b.burn(t, burner{cpu: 1})
	expect(t, program(t, maxTasks, a), []*group{a}, nil, func(m []measured) []band {
		return []band{{"other", m[0].other, 0.95, 1.02}, {"cost", m[0].Cost, 20, 1000}, whole(m[0], 1)}
	})
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// A thread that is woken a known number of times next to one that burns.
func TestWakeups(t *testing.T) {
	a, b := unified(t, "a"), unified(t, "b")
	woken := a.burn(t, burner{cpu: 1, echo: true})
	b.burn(t, burner{cpu: 1})
	var written float64
	expect(t, program(t, maxTasks, a), []*group{a}, func(ctx context.Context) {
		written = 0
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				woken.ask()
				written++
			}
		}
	}, func(m []measured) []band {
		n, _ := m[0].Extras.Get(sample.Wakeups)
		return []band{{"wakeups ÷ lines written", n / written, 0.8, 1.02}, {"self", m[0].self, 0, 0.01}, {"throttled", m[0].throttled, 0, 0}}
	})
}

// A task that is not followed is a neighbour, as is one that is no longer followed.
func TestRemove(t *testing.T) {
	a, b := unified(t, "a"), unified(t, "b")
	a.burn(t, burner{cpu: 1})
	b.burn(t, burner{cpu: 1})
	p := program(t, 2, a, b)
	if _, ok := p.Remove(sample.TaskKey{Inode: 1}, 0); ok {
		t.Error("a reading of a task that is not followed")
	}
	if err := p.Add(a.Target); !errors.Is(err, errFollowed) {
		t.Errorf("Add again: %v", err)
	}
	// Until b is removed it waits while a runs, and no longer than there is time for.
	var last counter.Reading
	var least, most time.Duration
	began := time.Now()
	expect(t, p, []*group{a}, func(ctx context.Context) {
		if p.tasks[b.Key] == nil {
			return // an earlier window of this test did it
		}
		ranA, ranB := a.burners[0].cpuTime(t), b.burners[0].cpuTime(t)
		<-ctx.Done()
		least, ranB = a.burners[0].cpuTime(t)-ranA, b.burners[0].cpuTime(t)-ranB
		var ok bool
		if last, ok = p.Remove(b.Key, time.Second); !ok {
			t.Error("no last reading")
		}
		most = time.Since(began) - ranB
	}, func(m []measured) []band {
		return []band{{"a's cost", m[0].Cost, 0.85, 1.2}}
	})
	// Its last wait is not over, and one that ends with a hidden switch is missing. Its cgroup is gone as a rule: what
	// the agent knows of its CPU time was read before the waits.
	if waited, ok := last.Extras.Get(sample.WaitOther); !ok || waited < least.Seconds()/2 || waited > 1.01*most.Seconds() || !math.IsNaN(last.Cost) {
		t.Errorf("b's last reading: it waited %v s, cost %v; a ran for %v, and b may have waited for %v", waited, last.Cost, least, most)
	}
	if _, ok := p.Remove(a.Key, 0); ok {
		t.Error("a reading outside a window")
	}
	if len(p.owned) != 0 {
		t.Errorf("%d cgroups are still owned", len(p.owned))
	}
	var key, n uint64
	var o runqOwner
	for it := p.k.objs.Owners.Iterate(); it.Next(&key, &o); n++ {
	}
	if n != 0 {
		t.Errorf("%d cgroups are left in the map", n)
	}
	// Both slots are free again, and their next users begin from zero.
	for _, g := range []*group{b, a} {
		if err := p.Add(g.Target); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Add(counter.Target{Key: sample.TaskKey{Inode: 1}}); !errors.Is(err, ErrFull) {
		t.Errorf("Add beyond the last place: %v", err)
	}
	expect(t, p, []*group{a, b}, nil, func(m []measured) []band {
		return []band{whole(m[0], 1), whole(m[1], 1)}
	})
}

// What cannot be noted lowers the coverage: here the waits of a thread that is moved
// into a followed cgroup in an open window, half of what the task does.
func TestDroppedIsCoverage(t *testing.T) {
	a, b := unified(t, "a"), unified(t, "b")
	own := a.burn(t, burner{cpu: 1})
	guest := b.burn(t, burner{cpu: 1})
	p := program(t, maxTasks, a)
	before := own.cpuTime(t)
	got := measure(t, p, time.Nanosecond, []*group{a}, func(context.Context) {
		toCgroup(t, a.Dir, guest.PID)
		alone, from := own.cpuTime(t)-before, guest.cpuTime(t)
		quelltest.Until(t, "the guest has run in the task for as long as the task ran without it", func() bool {
			return guest.cpuTime(t)-from > max(alone, window/2)
		})
	})
	if c, lost := got[0].Coverage, p.Totals().Lost; c < 0.4 || c > 0.75 || lost < 10 {
		t.Errorf("coverage %v, %d waits lost; want half or a little more, and the guest's", c, lost)
	}
	// From the next window on the thread belongs to the task.
	a.burners = append(a.burners, guest)
	expect(t, p, []*group{a}, nil, func(m []measured) []band {
		return []band{{"coverage", m[0].Coverage, 1, 1}, {"self", m[0].selfCost(), 0.9, 1.1}, whole(m[0], 2)}
	})
}

func TestTaskWhoseCgroupsDoNotFit(t *testing.T) {
	a, b := unified(t, "a"), unified(t, "b")
	b.Below = func() ([]uint64, error) { return nil, os.ErrPermission }
	p := program(t, maxTasks, a, b)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	var yielded []sample.TaskKey
	err := p.Stop(counter.WindowEnd{CPU: func(sample.TaskKey) (time.Duration, bool) { return 0, true }}, func(k sample.TaskKey, r counter.Reading) {
		yielded = append(yielded, k)
		if !math.IsNaN(r.Cost) {
			t.Errorf("cost %v of a task that did nothing", r.Cost)
		}
	})
	if err != nil || len(yielded) != 1 || yielded[0] != a.Key {
		t.Errorf("Stop yields %v, %v; want a alone", yielded, err)
	}
	if p.Totals().Lost != 1 {
		t.Errorf("dropped %d, want 1", p.Totals().Lost)
	}
}

// A task with more cgroups than there is room for takes no other task's place. It is not
// counted, is named, and may still be served while others wait.
func TestCrowdedTaskLeavesRoom(t *testing.T) {
	a, hostile := unified(t, "a"), unified(t, "hostile")
	hostile.Below = func() (ids []uint64, _ error) {
		for id := range uint64(5000) {
			ids = append(ids, 1<<40+id)
		}
		return ids, nil
	}
	p := program(t, 2, hostile, a)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	if len(p.owned) != 16 || p.owned[a.Key.CgroupID()] == (runqOwner{}) || p.owned[hostile.Key.CgroupID()] == (runqOwner{}) {
		t.Errorf("%d cgroups have an owner, a's %v, the other's %v", len(p.owned), p.owned[a.Key.CgroupID()], p.owned[hostile.Key.CgroupID()])
	}
	var yielded []sample.TaskKey
	err := p.Stop(counter.WindowEnd{CPU: func(sample.TaskKey) (time.Duration, bool) { return 0, true }}, func(k sample.TaskKey, _ counter.Reading) {
		yielded = append(yielded, k)
	})
	if err != nil || len(yielded) != 1 || yielded[0] != a.Key || !slices.Equal(p.Totals().Crowded, []sample.TaskKey{hostile.Key}) {
		t.Errorf("Stop yields %v, %v; crowded %v", yielded, err, p.Totals().Crowded)
	}
	if !slices.Contains(p.keys, hostile.Key) {
		t.Error("the crowded task is not known as one that is served")
	}
}

func TestWindowOrder(t *testing.T) {
	p := program(t, maxTasks)
	if err := p.Stop(counter.WindowEnd{}, nil); !errors.Is(err, counter.ErrNotOpen) {
		t.Errorf("Stop before Start: %v", err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); !errors.Is(err, counter.ErrOpen) {
		t.Errorf("Start again: %v", err)
	}
	if err := p.Stop(counter.WindowEnd{}, nil); err != nil {
		t.Error(err)
	}
}

func throttledTime(t testing.TB, g *group) float64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(g.Dir, "cpu.stat"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name {
		case "throttled_time": // ns, v1
			ns, _ := strconv.ParseFloat(value, 64)
			return ns / 1e9
		case "throttled_usec": // v2
			us, _ := strconv.ParseFloat(value, 64)
			return us / 1e6
		}
	}
	t.Fatalf("no throttled time in %q", text)
	return 0
}

// Where there are fewer records than tasks times CPUs, what has no record is counted as lost. Records
// are given out anew before a window.
func TestRecordsAreGivenOutWhereTasksRun(t *testing.T) {
	quelltest.Need(t, quelltest.TwoCPUs)
	a, b, c := unified(t, "a"), unified(t, "b"), unified(t, "c")
	groups := []*group{a, b, c}
	for _, g := range groups {
		g.burn(t, burner{cpu: 1})
	}
	p := programWith(t, maxTasks, options{records: 3}, groups...) // number 0 is none
	window := func() map[sample.TaskKey]counter.Reading {
		bpftest.Start(t, p)
		<-time.After(200 * time.Millisecond)
		all := map[sample.TaskKey]counter.Reading{}
		err := p.Stop(counter.WindowEnd{CPU: func(sample.TaskKey) (time.Duration, bool) { return time.Second, true }},
			func(k sample.TaskKey, r counter.Reading) { all[k] = r })
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	// On a busy machine fewer than three may run in a window.
	quelltest.Until(t, "three tasks have run, there are records for two, and something is lost", func() bool {
		window()
		return p.k.wanting > 0 && p.Totals().Lost >= p.k.wanting
	})
	p.k.missing()          // what came after the last look, before the window's programs were detached
	wanting := p.k.wanting // not all that is lost: kernels hide some switches
	p.Remove(c.Key, 0)
	quelltest.Until(t, "both tasks have waited in one window", func() bool {
		all := window()
		return bpftest.Count(all[a.Key], sample.WaitOther) > 0.02 && bpftest.Count(all[b.Key], sample.WaitOther) > 0.02
	})
	if n := p.k.wanting - wanting; n != 0 {
		t.Errorf("%d times there was no record for one of two tasks", n)
	}
}

// TestOldestKernel: the kernel that a refusal names has all that the programs do.
func TestOldestKernel(t *testing.T) {
	spec, err := loadRunq()
	if err != nil {
		t.Fatal(err)
	}
	bpftest.RunOn(t, spec, oldest)
}
