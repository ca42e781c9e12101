package runq

import (
	"errors"
	"fmt"
	"math"
	"os"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestSumThreads(t *testing.T) {
	const window = 1000
	st := func(run, wait, slices uint64) host.Schedstat {
		return host.Schedstat{Run: run, Wait: wait, Slices: slices}
	}
	for _, tt := range []struct {
		name      string
		base, cur map[int]host.Schedstat
		want      host.Schedstat
	}{
		{"two threads", map[int]host.Schedstat{1: st(100, 10, 1), 2: st(5000, 50, 5)}, map[int]host.Schedstat{1: st(110, 40, 3), 2: st(5007, 50, 6)},
			st(17, 30, 3)},
		{"one ends", map[int]host.Schedstat{1: st(100, 10, 1), 2: st(1, 1, 1)}, map[int]host.Schedstat{1: st(101, 12, 4)}, st(1, 2, 3)},
		{"one begins", nil, map[int]host.Schedstat{1: st(900, 100, 9)}, st(900, 100, 9)},
		{"an old one comes", nil, map[int]host.Schedstat{1: st(1001, 0, 9), 2: st(0, 1001, 9)}, host.Schedstat{}},
		{"an id used again", map[int]host.Schedstat{1: st(5000, 50, 5)}, map[int]host.Schedstat{1: st(30, 3, 1)}, st(30, 3, 1)},
		{"an id used again by an old one", map[int]host.Schedstat{1: st(5000, 50, 5)}, map[int]host.Schedstat{1: st(4000, 60, 7)}, host.Schedstat{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := sumThreads(tt.cur, tt.base, window); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// withoutBPF is a source that reads the files of threads below proc.
func withoutBPF(t *testing.T, proc string) *Schedstat {
	t.Helper()
	write(t, proc, "thread-self/schedstat", "1 0 1\n")
	src, err := openSchedstat(proc, errNoBPF)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { src.Close() })
	return src
}

// A machine of files: windows in which threads run, start and end.
func TestSchedstatWindows(t *testing.T) {
	proc := t.TempDir()
	src := withoutBPF(t, proc)
	members := []int{10, 20, 99} // 99 is gone already
	var memberErr error
	key := sample.TaskKey{Inode: 7}
	target := counter.Target{Key: key, Members: func() ([]int, error) { return members, memberErr }}
	if err := src.Add(target); err != nil {
		t.Fatal(err)
	}
	if err := src.Add(target); !errors.Is(err, errFollowed) {
		t.Errorf("Add again: %v", err)
	}
	window := func(cpu time.Duration, change func()) (counter.Reading, bool) {
		t.Helper()
		if err := src.Start(); err != nil {
			t.Fatal(err)
		}
		if err := src.Start(); !errors.Is(err, counter.ErrOpen) {
			t.Errorf("Start again: %v", err)
		}
		change()
		var r counter.Reading
		n := 0
		if err := src.Stop(counter.WindowEnd{CPU: func(sample.TaskKey) (time.Duration, bool) { return cpu, true }},
			func(_ sample.TaskKey, got counter.Reading) { r, n = got, n+1 }); err != nil {
			t.Fatal(err)
		}
		return r, n == 1
	}
	write(t, proc, "10/task/10/schedstat", "1000000000 0 1\n")
	write(t, proc, "10/task/11/schedstat", "2000000000 0 1\n")
	write(t, proc, "20/task/20/schedstat", "0 0 0\n")
	r, ok := window(40*time.Millisecond, func() {
		write(t, proc, "10/task/10/schedstat", "1010000000 60000000 2\n") // +10 ms, waited 60 ms
		os.RemoveAll(proc + "/10/task/11")                                // ends, and its counts are lost
	})
	if !ok || r.Cost != 1.5 || r.Coverage != 0.25 || r.Extras.Len() != 1 {
		t.Errorf("reading %+v, %v; want cost 1.5, coverage 0.25, and how often it ran", r, ok)
	}
	if r, ok := window(0, func() {}); !ok || !math.IsNaN(r.Cost) {
		t.Errorf("reading %+v, %v of a task that neither ran nor waited", r, ok)
	}
	memberErr = os.ErrPermission
	if r, ok := window(time.Second, func() {}); ok {
		t.Errorf("reading %+v of a task whose members are unknown", r)
	}
	memberErr = nil
	if _, ok := window(time.Second, func() { write(t, proc, "10/task/10/schedstat", "nonsense") }); ok {
		t.Error("a reading of a file that cannot be read")
	}
	write(t, proc, "10/task/10/schedstat", "1 1 1")
	if _, ok := window(time.Second, func() {
		write(t, proc, "10/task/10/schedstat", "1 2000001 1")
		if r, ok := src.Remove(key, time.Millisecond); !ok || r.Cost != 2 {
			t.Errorf("last reading %+v, %v", r, ok)
		}
	}); ok {
		t.Error("a removed task is read")
	}
	if _, ok := src.Remove(key, 0); ok {
		t.Error("a reading of a task that is not followed")
	}
	if err := src.Stop(counter.WindowEnd{}, nil); !errors.Is(err, counter.ErrNotOpen) {
		t.Errorf("Stop without Start: %v", err)
	}
}

// A task with more threads than are read, in one process or in many, at the beginning of a window or at its end, is not
// counted, and says so.
func TestAttackManyThreads(t *testing.T) {
	for _, c := range []struct {
		name          string
		before, after int
		refused       bool
	}{
		{"enough", 3, 3, false},
		{"at the beginning", 4, 4, true},
		{"at the end", 1, 4, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			proc := t.TempDir()
			src := withoutBPF(t, proc)
			src.most = 3
			threads := func(n int) { // those of a second process; most end while they are read
				for tid := range n - 1 {
					if err := os.MkdirAll(fmt.Sprintf("%s/20/task/%d", proc, 20+tid), 0o755); err != nil {
						t.Fatal(err)
					}
				}
			}
			write(t, proc, "10/task/10/schedstat", "1 0 1\n")
			threads(c.before)
			target := counter.Target{Key: sample.TaskKey{Inode: 7}, Members: func() ([]int, error) { return []int{10, 20}, nil }}
			if err := errors.Join(src.Add(target), src.Start()); err != nil {
				t.Fatal(err)
			}
			threads(c.after)
			write(t, proc, "10/task/10/schedstat", "2 0 2\n")
			n := 0
			end := counter.WindowEnd{CPU: func(sample.TaskKey) (time.Duration, bool) { return time.Second, true }}
			if err := src.Stop(end, func(_ sample.TaskKey, r counter.Reading) {
				if n++; errors.Is(r.Err, errThreads) != c.refused || math.IsNaN(r.Cost) != c.refused {
					t.Errorf("%+v", r)
				}
			}); err != nil || n != 1 {
				t.Errorf("%d readings, %v", n, err)
			}
		})
	}
}

// Both variants over the same windows: schedstat sees the sum of all waits.
func TestVariantsAgree(t *testing.T) {
	quelltest.Need(t, quelltest.Schedstat)
	a, b := unified(t, "a"), unified(t, "b")
	a.burn(t, burner{cpu: 1})
	b.burn(t, burner{cpu: 1})
	b.burn(t, burner{cpu: 1})
	p := program(t, maxTasks, a, b)
	s, err := openSchedstat(procDir, errNoBPF)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, g := range []*group{a, b} {
		if err := s.Add(g.Target); err != nil {
			t.Fatal(err)
		}
	}
	both := both{p, s, map[sample.TaskKey]counter.Reading{}}
	expect(t, both, []*group{a, b}, nil, func(m []measured) []band {
		return []band{
			{"a's cost", m[0].Cost, 0.9, 2.3}, {"a: schedstat ÷ bpf", both.second[a.Key].Cost / m[0].Cost, 0.9, 1.1},
			{"b: schedstat ÷ bpf with self", both.second[b.Key].Cost / (m[1].Cost + m[1].selfCost()), 0.9, 1.1},
			{"schedstat's coverage", both.second[b.Key].Coverage, 0.95, 1},
		}
	})
}

// both runs two sources over the same windows, the second one's just inside, and yields
// the first one's readings.
type both struct {
	*Program
	other  counter.Source
	second map[sample.TaskKey]counter.Reading
}

func (b both) Start() error { return errors.Join(b.Program.Start(), b.other.Start()) }

func (b both) Stop(w counter.WindowEnd, yield func(sample.TaskKey, counter.Reading)) error {
	err := b.other.Stop(w, func(k sample.TaskKey, r counter.Reading) { b.second[k] = r })
	return errors.Join(err, b.Program.Stop(w, yield))
}
