package runq

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Schedstat counts with /proc/PID/task/TID/schedstat, read at both ends of a
// window and summed over the threads of a task.
//
// Its cost is all the time in which the threads were runnable and did not run:
// behind other tasks, behind each other, or held back by the task's own quota.
// What a thread did that ended inside the window is lost; Coverage says, by CPU
// time, how much was seen. Rate is the number of times that a thread was put on
// a CPU, per second, which counts those that were preempted as well as those
// that woke.
type Schedstat struct {
	proc    string
	refused string
	tasks   map[sample.TaskKey]*members
	most    int // threads of a task that are read
	open    bool
	began   int64 // host.Monotonic
}

type members struct {
	target counter.Target
	base   map[int]host.Schedstat // by thread id; nil: not counted
	err    error                  // why it is not
}

// mostThreads is how many threads of a task are read at either end of a window: each takes some 20 µs, for which
// everything else waits.
const mostThreads = 8 << 10

var errThreads = errors.New("it has more threads than are read one by one")

// procDir is where procfs is mounted.
const procDir = "/proc"

func openSchedstat(proc string, refused error) (*Schedstat, error) {
	path := filepath.Join(proc, "thread-self", "schedstat")
	own, err := host.ReadSchedstat(path)
	e := &counter.NotSupportedError{What: "run queue by schedstat", Err: err}
	switch {
	case err != nil:
		e.Reason = err.Error()
		e.Remedy = "use a kernel built with CONFIG_SCHED_INFO"
		return nil, e
	case own.Slices == 0: // a thread that reads this has run at least once
		e.Reason = path + " contains only zeros"
		e.Remedy = "sysctl kernel.task_delayacct=1"
		return nil, e
	}
	return &Schedstat{proc: proc, refused: refused.Error(), tasks: map[sample.TaskKey]*members{}, most: mostThreads}, nil
}

// Info implements counter.Source. Fallback says why eBPF does not count.
func (s *Schedstat) Info() counter.Info {
	return counter.Info{Signal: signal, Variant: VariantSchedstat, Fallback: s.refused}
}

// Totals implements counter.Source: there are none.
func (s *Schedstat) Totals() counter.Totals { return counter.Totals{} }

// SetCPUs implements counter.Source: the threads' own counters are read.
func (s *Schedstat) SetCPUs(sample.Set) {}

// Add implements counter.Source.
func (s *Schedstat) Add(t counter.Target) error {
	if s.tasks[t.Key] != nil {
		return fmt.Errorf("%s: %w", t.Dir, errFollowed)
	}
	s.tasks[t.Key] = &members{target: t}
	return nil
}

// Remove implements counter.Source. The threads of a task that ended are gone, and
// their waits with them.
func (s *Schedstat) Remove(key sample.TaskKey, cpu time.Duration) (counter.Reading, bool) {
	t := s.tasks[key]
	if t == nil {
		return counter.Reading{}, false
	}
	delete(s.tasks, key)
	if !s.open {
		return counter.Reading{}, false
	}
	return s.reading(t, cpu, true)
}

// Start implements counter.Source. A task whose processes cannot be listed is
// not counted.
func (s *Schedstat) Start() error {
	if s.open {
		return counter.ErrOpen
	}
	s.open, s.began = true, host.Monotonic()
	for _, t := range s.tasks {
		t.base, t.err = s.threads(t.target)
	}
	return nil
}

// Stop implements counter.Source.
func (s *Schedstat) Stop(w counter.WindowEnd, yield func(sample.TaskKey, counter.Reading)) error {
	if !s.open {
		return counter.ErrNotOpen
	}
	s.open = false
	for key, t := range s.tasks {
		used, known := w.CPU(key)
		if r, ok := s.reading(t, used, known); ok {
			yield(key, r)
		}
		t.base, t.err = nil, nil
	}
	return nil
}

// Close implements counter.Source.
func (s *Schedstat) Close() error { return nil }

func (s *Schedstat) reading(t *members, cpu time.Duration, known bool) (counter.Reading, bool) {
	var cur map[int]host.Schedstat
	err := t.err
	if t.base != nil {
		cur, err = s.threads(t.target)
	}
	switch {
	case errors.Is(err, errThreads):
		return counter.Reading{Cost: math.NaN(), Err: err}, true
	case err != nil || t.base == nil:
		return counter.Reading{}, false
	}
	window := time.Duration(host.Monotonic() - s.began)
	return threadsReading(sumThreads(cur, t.base, window), cpu, known), true
}

// threads reads every thread of a task. Threads that end meanwhile are left out.
func (s *Schedstat) threads(t counter.Target) (map[int]host.Schedstat, error) {
	pids, err := t.Members()
	if err != nil {
		return nil, err
	}
	all := map[int]host.Schedstat{}
	for _, pid := range pids {
		dir := filepath.Join(s.proc, strconv.Itoa(pid), "task")
		entries, err := os.ReadDir(dir)
		if err != nil {
			if gone(err) {
				continue
			}
			return nil, err
		}
		if len(all)+len(entries) > s.most {
			return nil, errThreads
		}
		for _, e := range entries {
			tid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			st, err := host.ReadSchedstat(filepath.Join(dir, e.Name(), "schedstat"))
			if err != nil {
				if gone(err) {
					continue
				}
				return nil, err
			}
			all[tid] = st
		}
	}
	return all, nil
}

func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// sumThreads sums what threads did in a window. A thread that was not there at its
// start counts fully, unless it is older than the window: then it came from another
// cgroup, or took over another thread's id.
func sumThreads(cur, base map[int]host.Schedstat, window time.Duration) host.Schedstat {
	var sum host.Schedstat
	for tid, c := range cur {
		b := base[tid]
		if c.Run < b.Run || c.Wait < b.Wait || c.Slices < b.Slices {
			b = host.Schedstat{} // a new thread with an old id
		}
		if b == (host.Schedstat{}) && (c.Run > uint64(window) || c.Wait > uint64(window)) {
			continue
		}
		sum.Run += c.Run - b.Run
		sum.Wait += c.Wait - b.Wait
		sum.Slices += c.Slices - b.Slices
	}
	return sum
}

func threadsReading(t host.Schedstat, cpu time.Duration, known bool) counter.Reading {
	out := counter.Reading{Cost: math.NaN(), Coverage: 1}
	if known && uint64(cpu)+t.Wait > 0 {
		out.Cost = seconds(t.Wait) / max(cpu, leastCPU).Seconds()
	}
	if known && cpu > 0 {
		out.Coverage = min(1, float64(t.Run)/float64(cpu))
	}
	out.Extras.Set(sample.Wakeups, float64(t.Slices))
	return out
}
