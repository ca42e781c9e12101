package bpf

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/testkit/bpftest"
)

// work is what a cgroup did, for a made-up signal.
type work struct {
	n, more uint64
	at      [2]uint64
}

func (w *work) Add(more *work)           { w.n += more.n }
func (w *work) Places() ([]uint64, bool) { return w.at[:], w.more > 0 }

func (w *work) Waited() time.Duration { return time.Duration(w.n) }

func (w *work) Reading() counter.Reading { return counter.Reading{Cost: float64(w.n), Coverage: 1} }

// source is windows over a kernel that counts what the test says.
type source struct{ *Windows[work, *work] }

func (s source) Info() counter.Info { return s.InfoOf("work", "told") }

func told(t *testing.T, tasks ...counter.Target) (source, *bpftest.Kernel[work]) {
	t.Helper()
	k := &bpftest.Kernel[work]{}
	w, err := Open[work](k)
	if err != nil {
		t.Fatal(err)
	}
	bpftest.Follow(t, source{w}, tasks...)
	return source{w}, k
}

// at is a task with an inode and the ids below it.
func at(inode uint64, below ...uint64) counter.Target {
	return counter.Target{Key: sample.TaskKey{Inode: inode}, Below: func() ([]uint64, error) { return below, nil }}
}

// A cgroup belongs to the nearest task, a cgroup of no task to the others, and what was
// counted before a window is not counted in it.
func TestWhoseEachCgroupIs(t *testing.T) {
	outer, inner, idle, unknown := at(1, 10, 2, 20), at(2, 20), at(3), at(4)
	unknown.Below = func() ([]uint64, error) { return nil, errors.New("not now") }
	old := at(1)
	old.Key.Hierarchy = sample.V1CPU // an inode of its own, in another hierarchy
	s, k := told(t, outer, inner, idle, unknown, old)
	bpftest.Start(t, s)
	k.Counts = map[uint64]work{1: {n: 1}, 10: {n: 10}, 2: {n: 2}, 20: {n: 20}, 4: {n: 40}, 99: {n: 50}, old.Key.CgroupID(): {n: 7}}
	k.Missed = 5
	late := at(99)
	if err := s.Add(late); err != nil {
		t.Fatal(err)
	}
	want := map[sample.TaskKey]float64{outer.Key: 11, inner.Key: 22, idle.Key: 0, old.Key: 7}
	got := bpftest.Stop(t, s)
	for key, n := range want {
		if r, ok := got[key]; !ok || r.Cost != n || r.Coverage != 1 {
			t.Errorf("%v: %v, %+v; want %v", key, ok, r, n)
		}
	}
	if len(got) != len(want) {
		t.Errorf("readings of %v; want none of tasks that were unknown or came in the window", got)
	}
	if n := s.Totals().Others.Cost; n != 90 || s.Totals().Lost != 5 {
		t.Errorf("others did %v, %d were lost; want 90, 5", n, s.Totals().Lost)
	}

	bpftest.Start(t, s)
	k.Counts[10] = work{n: 3}
	if r, ok := s.Remove(outer.Key, 0); !ok || r.Cost != 3 {
		t.Errorf("removed in an open window: %v, %+v; want 3", ok, r)
	}
	if r, ok := s.Remove(unknown.Key, 0); ok {
		t.Errorf("removed, and not counted: %+v", r)
	}
	if got := bpftest.Stop(t, s); len(got) != 4 || got[late.Key].Cost != 0 {
		t.Errorf("readings %v; want of inner, idle, old and late", got)
	}
	for _, key := range []sample.TaskKey{inner.Key, outer.Key} {
		if r, ok := s.Remove(key, 0); ok {
			t.Errorf("removed between windows, or twice: %+v", r)
		}
	}
}

// The tasks served while a task waited are reported, and add up to no more than the
// wait. That includes tasks that ended meanwhile, and readings of a task that ends.
func TestWhoWasServed(t *testing.T) {
	k := &bpftest.Kernel[work]{Serves: true}
	w, err := Open[work](k)
	if err != nil {
		t.Fatal(err)
	}
	s := source{w}
	web, loud, late, leaves := at(1, 10), at(2), at(3), at(4)
	bpftest.Follow(t, s, web, loud, late, leaves)
	bpftest.Start(t, s)
	k.Counts = map[uint64]work{1: {n: 60}, 10: {n: 40}, 2: {n: 10}, 4: {n: 5}}
	for _, p := range [][3]uint64{{1, 2, 20}, {10, 2, 15}, {1, 10, 7}, {10, 10, 3}, {1, 3, 5}, {10, 0, 4}, {1, 99, 2}, {2, 2, 10}, {4, 2, 9}, {77, 1, 50}} {
		k.Pairs = append(k.Pairs, bpftest.Pair{Waits: p[0], By: p[1], Time: time.Duration(p[2])})
	}
	if r, ok := s.Remove(late.Key, 0); !ok || r.Served == nil || len(r.Served) != 0 {
		t.Errorf("a removed task that waited for no task: %v, %+v", ok, r)
	}
	if r, ok := s.Remove(leaves.Key, 0); !ok || !slices.Equal(r.Served, []counter.Served{{By: loud.Key, Time: 5}}) {
		t.Errorf("it ended in the window: %v, %+v", ok, r)
	}
	all := bpftest.Stop(t, s)
	want := []counter.Served{{By: loud.Key, Time: 35}, {Time: 6}, {By: late.Key, Time: 5}}
	if r := all[web.Key]; !slices.Equal(r.Served, want) || bpftest.Count(r, sample.WaitOther) != 90e-9 {
		t.Errorf("%+v, want %+v of 90 ns", r, want)
	}
	if r := all[loud.Key]; r.Served == nil || len(r.Served) != 0 || bpftest.Count(r, sample.WaitOther) != 0 {
		t.Errorf("it waited for itself only: %+v", r)
	}
	if d := s.Totals().Unattributed; !s.Info().Accounts || d != 90-46 {
		t.Errorf("not known of %d ns, %v", d, s.Info().Accounts)
	}
	bpftest.Start(t, s)
	if r := bpftest.Stop(t, s)[web.Key]; r.Served == nil || len(r.Served) > 0 {
		t.Errorf("a window in which nothing happened: %+v", r)
	}
	k.EachErr = errors.New("no")
	bpftest.Start(t, s)
	if r, _ := s.Remove(web.Key, 0); r.Served != nil {
		t.Errorf("served tasks of a kernel that does not report them: %+v", r)
	}
	if s, _ := told(t, at(1)); s.windows().serves {
		t.Error("a kernel that does not tell")
	}
}

func (s source) windows() *Windows[work, *work] { return s.Windows }

func TestWindowsOpenAndCloseOnce(t *testing.T) {
	s, _ := told(t, at(1))
	if err := s.Stop(counter.WindowEnd{}, nil); err != counter.ErrNotOpen {
		t.Error(err)
	}
	bpftest.Start(t, s)
	if err := s.Start(); err != counter.ErrOpen {
		t.Error(err)
	}
	bpftest.Stop(t, s)
	if err := s.Add(at(1)); err == nil || !strings.Contains(err.Error(), "already monitored") {
		t.Errorf("followed twice: %v", err)
	}
}

// What the kernel refuses is reported, and leaves no window open.
func TestAKernelThatRefuses(t *testing.T) {
	no := errors.New("no")
	k := &bpftest.Kernel[work]{OpenErr: no}
	if _, err := Open[work](k); !errors.Is(err, no) || k.Closed != 1 {
		t.Errorf("does not attach: %v, closed %d times", err, k.Closed)
	}
	s, k := told(t, at(1))
	k.OpenErr = no
	if err := s.Start(); !errors.Is(err, no) {
		t.Errorf("start: %v", err)
	}
	k.OpenErr = nil
	for _, fail := range []*error{&k.DetachErr, &k.EachErr} {
		bpftest.Start(t, s)
		*fail = no
		if err := s.Stop(counter.WindowEnd{}, func(sample.TaskKey, counter.Reading) { t.Error("a reading") }); !errors.Is(err, no) {
			t.Errorf("stop: %v", err)
		}
		*fail = nil
	}
	if err := s.Stop(counter.WindowEnd{}, nil); err != counter.ErrNotOpen {
		t.Errorf("after that: %v", err)
	}
}

// With more places than are distinguished a task reaches everything, with none it
// reaches no task. Places are kept for as long as a task is followed.
func TestReach(t *testing.T) {
	one, two, idle := at(1), at(2), at(3)
	s, k := told(t, one, two, idle)
	window := func(counts map[uint64]work) map[sample.TaskKey]counter.Reading {
		bpftest.Start(t, s)
		k.Counts = counts
		return bpftest.Stop(t, s)
	}
	got := window(map[uint64]work{1: {at: [2]uint64{800, 816}}, 2: {at: [2]uint64{816}}})
	if r := got[idle.Key].Reach; r == nil || r.Len() != 0 {
		t.Errorf("a task that used no place reaches %v", r)
	}
	a, b := got[one.Key].Reach, got[two.Key].Reach
	if a.Len() != 2 || b.Len() != 1 || !a.Intersects(b) {
		t.Errorf("they reach %v and %v", a, b)
	}
	got = window(map[uint64]work{1: {at: [2]uint64{900}}, 2: {at: [2]uint64{700}}})
	if a, b := got[one.Key].Reach, got[two.Key].Reach; a.Len() != 3 || b.Len() != 2 || !a.Intersects(b) {
		t.Errorf("after a second window they reach %v and %v", a, b)
	}
	for _, pair := range [][2]sample.TaskKey{{one.Key, two.Key}, {two.Key, one.Key}} {
		if got := s.Common(pair[0], pair[1]); !slices.Equal(got, []uint64{816}) {
			t.Errorf("both used %v, want 816", got)
		}
	}
	if got := append(s.Common(one.Key, idle.Key), s.Common(sample.TaskKey{Inode: 9}, one.Key)...); len(got) != 0 {
		t.Errorf("places in common with a task that used none, or is not monitored: %v", got)
	}
	got = window(map[uint64]work{1: {more: 1}, 50: {at: [2]uint64{900, 77}}})
	if r := got[one.Key].Reach; r != nil {
		t.Errorf("a task that used more places than are reported reaches %v", r)
	}
	if r := s.Totals().Others.Reach; r.Len() != 1 || r.Intersects(got[two.Key].Reach) {
		t.Errorf("others reach %v; want 900, and not 77, which no task uses", r)
	}
}

// Tasks that are added, use a place of their own and are removed leave nothing behind.
func TestPlacesAreForgotten(t *testing.T) {
	stays := at(1)
	s, k := told(t, stays)
	bpftest.Start(t, s)
	k.Counts = map[uint64]work{1: {at: [2]uint64{5}}}
	bpftest.Stop(t, s)
	for i := range uint64(100) {
		pod := at(10 + i)
		if err := s.Add(pod); err != nil {
			t.Fatal(err)
		}
		bpftest.Start(t, s)
		k.Counts = map[uint64]work{10 + i: {at: [2]uint64{1000 + i, 5}}, 9: {at: [2]uint64{2000 + i, 1000 + i}}}
		got := bpftest.Stop(t, s)
		if a, b := got[pod.Key].Reach, s.Totals().Others.Reach; a.Len() != 2 || !a.Intersects(got[stays.Key].Reach) || b.Len() != 1 || b.Intersects(got[stays.Key].Reach) {
			t.Fatalf("pod %d reaches %v, others %v", i, a, b)
		}
		if got := s.Common(stays.Key, pod.Key); !slices.Equal(got, []uint64{5}) {
			t.Fatalf("pod %d shares %v, want 5", i, got)
		}
		s.Remove(pod.Key, 0)
	}
	if len(s.places) > 5 || len(s.number) > 5 {
		t.Errorf("%d numbers for %d places are kept after 100 pods", len(s.places), len(s.number))
	}
}

// A followed task's cgroups have room in the kernel's map before anything is counted, however
// many cgroups another task makes; that task is named.
func TestRoomForEveryTask(t *testing.T) {
	var many []uint64
	for id := range uint64(2 * MaxCgroups) {
		many = append(many, 1000+id)
	}
	small, hostile := at(1, 10, 11), at(2, many...)
	s, k := told(t, small, hostile)
	bpftest.Start(t, s)
	if len(k.Room) != roomForTasks || len(k.RoomPairs) != 0 {
		t.Errorf("room for %d cgroups and %d pairs, want %d and none", len(k.Room), len(k.RoomPairs), roomForTasks)
	}
	for _, id := range []uint64{1, 10, 11, 2, many[0]} {
		if !slices.Contains(k.Room, id) {
			t.Errorf("no room for %d", id)
		}
	}
	// What finds room nevertheless is still the task's.
	last := many[len(many)-1]
	k.Counts = map[uint64]work{10: {n: 1}, last: {n: 5}}
	got := bpftest.Stop(t, s)
	if got[small.Key].Cost != 1 || got[hostile.Key].Cost != 5 || !slices.Equal(s.Totals().Crowded, []sample.TaskKey{hostile.Key}) {
		t.Errorf("readings %v, crowded %v", got, s.Totals().Crowded)
	}
	s.Remove(hostile.Key, 0)
	bpftest.Start(t, s)
	if bpftest.Stop(t, s); len(k.Room) != 3 || len(s.Totals().Crowded) != 0 {
		t.Errorf("without it: room for %d, crowded %v", len(k.Room), s.Totals().Crowded)
	}
}

// Once pairs had no room, those of followed tasks get some of their own. Empty ones are not
// reported.
func TestRoomForPairsOfTasks(t *testing.T) {
	one, two := at(1, 10), at(2)
	s, k := served(t, one, two)
	bpftest.Start(t, s)
	bpftest.Stop(t, s)
	k.Missed = 7
	bpftest.Start(t, s)
	want := [][2]uint64{{1, 1}, {1, 2}, {2, 1}, {2, 2}}
	if slices.SortFunc(k.RoomPairs, func(a, b [2]uint64) int { return slices.Compare(a[:], b[:]) }); !slices.Equal(k.RoomPairs, want) {
		t.Errorf("room for %v, want %v", k.RoomPairs, want)
	}
	k.Counts = map[uint64]work{1: {n: 9}}
	k.Pairs = []bpftest.Pair{{Waits: 1, By: 2, Time: 4}, {Waits: 2, By: 1}, {Waits: 2, By: 2}, {Waits: 1, By: 1}}
	got := bpftest.Stop(t, s)
	if a, b := got[one.Key].Served, got[two.Key].Served; len(a) != 1 || a[0] != (counter.Served{By: two.Key, Time: 4}) || len(b) != 0 {
		t.Errorf("served %v and %v", a, b)
	}
	// With many tasks half of the room is for pairs, of others at each window.
	for i := range uint64(300) {
		if err := s.Add(at(100 + i)); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[uint64]bool{}
	for range 4 {
		bpftest.Start(t, s)
		if n := len(k.RoomPairs); n > MaxPairs/2 {
			t.Fatalf("room for %d pairs of %d", n, MaxPairs)
		}
		for _, pair := range k.RoomPairs {
			seen[pair[0]] = true
		}
		bpftest.Stop(t, s)
	}
	if len(seen) != 302 {
		t.Errorf("%d of 302 tasks had room for pairs in 4 windows", len(seen))
	}
}

// served is told with a kernel that reports which tasks were served.
func served(t *testing.T, tasks ...counter.Target) (source, *bpftest.Kernel[work]) {
	t.Helper()
	k := &bpftest.Kernel[work]{Serves: true}
	w, err := Open[work](k)
	if err != nil {
		t.Fatal(err)
	}
	bpftest.Follow(t, source{w}, tasks...)
	return source{w}, k
}
