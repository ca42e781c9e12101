package runq

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// checkServed checks any reading against what Served guarantees.
func checkServed(t testing.TB, g *group, r counter.Reading) {
	t.Helper()
	other, _ := r.Extras.Get(sample.WaitOther)
	var sum time.Duration
	for i, s := range r.Served {
		sum += s.Time
		if s.By == g.Key || s.Time <= 0 || i > 0 && s.Time > r.Served[i-1].Time ||
			slices.ContainsFunc(r.Served[:i], func(o counter.Served) bool { return o.By == s.By }) {
			t.Errorf("%s: served %v", g.Dir, r.Served)
		}
	}
	if sum.Seconds() > other*(1+1e-9) {
		t.Errorf("%s: served %v in waits of %v s", g.Dir, sum, other)
	}
	if niced, ok := r.Extras.Get(sample.WaitNiced); ok && niced > other {
		t.Errorf("%s: %v s of threads that are niced, of %v s", g.Dir, niced, other)
	}
}

// by returns the share of a task's waits behind others in which a task was served.
func (m measured) by(key sample.TaskKey) float64 {
	other, _ := m.Extras.Get(sample.WaitOther)
	for _, s := range m.Served {
		if s.By == key {
			return s.Time.Seconds() / other
		}
	}
	return 0
}

// unattributed returns the share in which the served task is not known.
func (m measured) unattributed() float64 {
	other, _ := m.Extras.Get(sample.WaitOther)
	for _, s := range m.Served {
		other -= s.Time.Seconds()
	}
	all, _ := m.Extras.Get(sample.WaitOther)
	if math.Abs(other) < 1e-9 { // of the sum in floating point
		other = 0
	}
	return other / all
}

// niced returns the share of the waits of threads that ask to be served last.
func (m measured) niced() float64 {
	other, _ := m.Extras.Get(sample.WaitOther)
	v, _ := m.Extras.Get(sample.WaitNiced)
	return v / other
}

// outside is the key of what runs outside any task.
var outside sample.TaskKey

func TestServed(t *testing.T) {
	for _, tt := range []struct {
		name   string
		beside burner
		least  float64 // least share of time that a thread next to it waits
	}{
		{"by an ordinary thread", burner{cpu: 1}, 0.4},
		{"by a real-time thread", burner{cpu: 1, policy: unix.SCHED_FIFO}, 0.7}, // which the kernel limits to 95 % or less
	} {
		t.Run(tt.name, func(t *testing.T) {
			quelltest.Need(t, quelltest.TwoCPUs)
			a, b, c := unified(t, "a"), unified(t, "b"), unified(t, "c")
			a.burn(t, burner{cpu: 1})
			c.burn(t, burner{cpu: 0})
			b.burn(t, tt.beside)
			expect(t, program(t, maxTasks, a, b, c), []*group{a, b, c}, nil, func(m []measured) []band {
				return []band{
					{"a's wait", m[0].other, tt.least, 1.1}, {"b's share of it", m[0].by(b.Key), 0.9, 1},
					{"c's, on another CPU", m[0].by(c.Key), 0, 0}, {"unattributed", m[0].unattributed(), 0, 0.1},
					{"niced", m[0].niced(), 0, 0},
				}
			})
		})
	}
}

// For a task that is not followed it is known that it was served, not which task it is.
func TestServedOutsideAnyTask(t *testing.T) {
	a, b := unified(t, "a"), unified(t, "b")
	a.burn(t, burner{cpu: 1})
	b.burn(t, burner{cpu: 1})
	expect(t, program(t, maxTasks, a), []*group{a}, nil, func(m []measured) []band {
		return []band{{"outside's share", m[0].by(outside), 0.9, 1}, {"b's", m[0].by(b.Key), 0, 0}}
	})
}

// What runs in a cgroup below followed ones counts for the nearest of them.
func TestServedFoldsToTheNearestTask(t *testing.T) {
	a, pod := unified(t, "a"), unified(t, "pod")
	inner := newGroup(t, sample.Unified, pod.Dir, "inner")
	deep, side := newGroup(t, sample.Unified, inner.Dir, "deep"), newGroup(t, sample.Unified, pod.Dir, "side")
	pod.Below = func() ([]uint64, error) { return []uint64{inner.Key.Inode, deep.Key.Inode, side.Key.Inode}, nil }
	inner.Below = func() ([]uint64, error) { return []uint64{deep.Key.Inode}, nil }
	a.burn(t, burner{cpu: 1})
	deep.burn(t, burner{cpu: 1})
	side.burn(t, burner{cpu: 1})
	expect(t, program(t, maxTasks, a, pod, inner), []*group{a, pod, inner}, nil, func(m []measured) []band {
		return []band{{"inner's share", m[0].by(inner.Key), 0.35, 0.65}, {"pod's", m[0].by(pod.Key), 0.35, 0.65},
			{"of inner's waits a and pod", m[2].by(a.Key) + m[2].by(pod.Key), 0.9, 1}}
	})
}

// A waiting thread that is moved between two CPUs waits for the task that runs there.
func TestServedAfterMigration(t *testing.T) {
	quelltest.Need(t, quelltest.TwoCPUs)
	a, b, c := unified(t, "a"), unified(t, "b"), unified(t, "c")
	moved := a.burn(t, burner{cpu: 1})
	b.burn(t, burner{cpu: 0})
	c.burn(t, burner{cpu: 1})
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
	expect(t, program(t, maxTasks, a, b, c), []*group{a, b, c}, during, func(m []measured) []band {
		return []band{{"b's share", m[0].by(b.Key), 0.2, 0.8}, {"c's", m[0].by(c.Key), 0.2, 0.8},
			{"unattributed", m[0].unattributed(), 0, 0.1}, {"a's of b's waits", m[1].by(a.Key), 0.7, 1}}
	})
}

// While its own quota is exhausted no task is served in its place.
func TestServedBesideOwnQuota(t *testing.T) {
	for _, marks := range []bool{false, true} {
		t.Run(fmt.Sprintf("marks=%t", marks), func(t *testing.T) {
			a, b := capped(t, "a", 20), unified(t, "b")
			a.burn(t, burner{cpu: 1})
			b.burn(t, burner{cpu: 1})
			expect(t, programWith(t, maxTasks, options{throttled: marks}, a, b), []*group{a, b}, nil, func(m []measured) []band {
				return []band{{"throttled", m[0].throttled, 0.45, 0.85}, {"b's share of what is left", m[0].by(b.Key), 0.8, 1}}
			})
		})
	}
}

// A thread that asks to be served last, in one way or the other.
func TestServedLastByItsOwnWish(t *testing.T) {
	for name, wish := range map[string]burner{"nice": {cpu: 1, nice: 5}, "idle class": {cpu: 1, policy: unix.SCHED_IDLE},
		"real time, though niced": {cpu: 1, nice: 5, policy: unix.SCHED_RR}} {
		t.Run(name, func(t *testing.T) {
			a, b := unified(t, "a"), unified(t, "b")
			want := 1.0
			if wish.policy == unix.SCHED_RR {
				want = 0
				b.burn(t, burner{cpu: 1, policy: unix.SCHED_RR})
			} else {
				b.burn(t, burner{cpu: 1})
			}
			a.burn(t, wish)
			expect(t, program(t, maxTasks, a, b), []*group{a, b}, nil, func(m []measured) []band {
				return []band{{"a's wait", m[0].other, 0.2, 1.1}, {"niced", m[0].niced(), want - 0.01, want + 0.01},
					{"b's share", m[0].by(b.Key), 0.9, 1}}
			})
		})
	}
}

// More pairs than there are places: a pair without a place is counted as refused.
func TestPairsThatHaveNoPlace(t *testing.T) {
	groups := make([]*group, 4)
	for i := range groups {
		groups[i] = unified(t, string(rune('a'+i)))
		groups[i].burn(t, burner{cpu: 1})
	}
	p := programWith(t, maxTasks, options{pairs: 4}, groups...) // of 12 pairs, and more with outside
	before := p.Totals().Unattributed
	expect(t, p, groups, nil, func(m []measured) []band {
		var lost float64
		for _, x := range m {
			lost += x.unattributed() / 4
		}
		return []band{{"unattributed", lost, 0.3, 0.9}, {"refused", float64(p.Totals().PairsDropped), 10, 1e6}}
	})
	if after := p.Totals().Unattributed; after == before || !p.Info().Accounts {
		t.Errorf("%v is unattributed", after)
	}
	p = programWith(t, maxTasks, options{pairs: 32}, groups...)
	expect(t, p, groups, nil, func(m []measured) []band {
		return []band{{"unattributed", m[0].unattributed(), 0, 0.1}, {"refused", float64(p.Totals().PairsDropped), 0, 0}}
	})
}

// Programs that do not report served tasks still count the rest.
func TestWithoutServed(t *testing.T) {
	a, b := unified(t, "a"), unified(t, "b")
	a.burn(t, burner{cpu: 1})
	b.burn(t, burner{cpu: 1})
	p := programWith(t, maxTasks, options{served: true}, a)
	expect(t, p, []*group{a}, nil, func(m []measured) []band {
		if m[0].Served != nil {
			t.Errorf("served %v", m[0].Served)
		}
		return []band{{"a's cost", m[0].Cost, 0.85, 1.2}, whole(m[0], 1)}
	})
	if d := p.Totals().Unattributed; p.Info().Accounts {
		t.Errorf("%v unattributed where nothing is attributed", d)
	}
}

// A task that is removed in an open window is named for what it did until then, by its
// own key, although its slot belongs to another task by the window's end. What that is says
// its own CPU clock: a waits whenever b runs.
func TestServedByOneThatIsGone(t *testing.T) {
	a, b, c := unified(t, "a"), unified(t, "b"), unified(t, "c")
	stays, goes := a.burn(t, burner{cpu: 1}), b.burn(t, burner{cpu: 1})
	p := program(t, 2, a, b)
	bothRun := func() {
		t.Helper()
		x, y := stays.cpuTime(t), goes.cpuTime(t)
		quelltest.Until(t, "both have run", func() bool { return min(stays.cpuTime(t)-x, goes.cpuTime(t)-y) > window/6 })
	}
	before := goes.cpuTime(t)
	var least, most, after time.Duration // of b's CPU time until it was removed, and at least of that after it
	got := measure(t, p, time.Nanosecond, []*group{a}, func(context.Context) {
		from := goes.cpuTime(t)
		bothRun()
		least = goes.cpuTime(t) - from
		last, ok := p.Remove(b.Key, time.Second)
		most = goes.cpuTime(t) - before
		if !ok || last.Served != nil || p.Totals().Unattributed != 0 {
			t.Errorf("b's last reading has %v, %v; %v are unattributed", last.Served, ok, p.Totals().Unattributed)
		}
		if err := p.Add(c.Target); err != nil {
			t.Error(err)
		}
		from = goes.cpuTime(t)
		bothRun()
		after = goes.cpuTime(t) - from
	})
	served := map[sample.TaskKey]time.Duration{}
	for _, s := range got[0].Served {
		served[s.By] = s.Time
	}
	// A kernel may hide switches from programs: then a part is missing, or another's.
	if d := served[b.Key]; d < least/2 || d > most+after/2 || served[outside] < after/2 || served[c.Key] != 0 {
		t.Errorf("a was kept waiting by %v; b ran for %v to %v before it was removed, and for %v after it", got[0].Served, least, most, after)
	}
}

// A kernel that can report served tasks must be asked for it. If it refuses the
// programs they are loaded without, which must not happen unnoticed.
func TestServedIsCounted(t *testing.T) {
	p := program(t, maxTasks)
	if p.k.served == nil {
		t.Error("served tasks are not counted on this kernel")
	}
}

func TestAccount(t *testing.T) {
	const window, pairs = 6, 3
	b := make([]byte, tableSize)
	le := binary.LittleEndian
	le.PutUint64(b, 7)
	first := tableSize - 16*len(runqPairs{}.Pair)
	for i, e := range []struct {
		window uint32
		pair
	}{{window, pair{3, 1, 10}}, {window - 2, pair{3, 1, 1000}}, {window, pair{2, 0, 5}}, {window, pair{3, 0, 40}}, {window, pair{3, 1, 15}}, {window, pair{3, 2, 30}}} {
		w := b[first+16*(i*i*17):] // anywhere
		le.PutUint64(w, uint64(e.window)<<32|uint64(e.waits)<<16|uint64(e.runs))
		le.PutUint64(w[8:], e.time)
	}
	all, refused := decodePairs(nil, b, window)
	if len(all) != 5 || refused != 7 {
		t.Fatalf("decoded %v, refused %d", all, refused)
	}
	keys := []sample.TaskKey{outside, {Inode: 1}, {Inode: 2}, {Inode: 3}}
	var a account
	a.settle(all)
	for _, tt := range []struct {
		slot       uint32
		other, sum uint64
		want       []counter.Served
	}{
		{3, 100, 95, []counter.Served{{By: outside, Time: 40}, {By: keys[2], Time: 30}, {By: keys[1], Time: 25}}},
		{3, 60, 60, []counter.Served{{By: outside, Time: 40}, {By: keys[1], Time: 20}}}, // never more than the wait
		{2, 5, 5, []counter.Served{{By: outside, Time: 5}}},
		{1, 9, 0, []counter.Served{}}, // counted, and no task
	} {
		got, sum := a.servedFor(tt.slot, tt.other, keys)
		if sum != tt.sum || got == nil || !slices.Equal(got, tt.want) {
			t.Errorf("slot %d of %d: %v, sum %d; want %v, %d", tt.slot, tt.other, got, sum, tt.want, tt.sum)
		}
	}
	a.settle(nil)
	if got, _ := a.servedFor(3, 100, keys); len(got) != 0 || got == nil {
		t.Errorf("of an empty account: %v", got)
	}
}

func writeFile(t testing.TB, dir, file, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}
