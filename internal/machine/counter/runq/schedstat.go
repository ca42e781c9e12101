package runq

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
	open    bool
	began   int64 // host.Monotonic
}

type members struct {
	target counter.Target
	base   map[int]threadStat // by thread id; nil: not counted
}

// procDir is where procfs is mounted.
const procDir = "/proc"

func openSchedstat(proc string, refused error) (*Schedstat, error) {
	path := filepath.Join(proc, "thread-self", "schedstat")
	own, err := readSchedstat(path)
	e := &counter.NotSupportedError{What: "run queue by schedstat", Err: err}
	switch {
	case err != nil:
		e.Reason = err.Error()
		e.Remedy = "use a kernel built with CONFIG_SCHED_INFO"
		return nil, e
	case own.slices == 0: // a thread that reads this has run at least once
		e.Reason = path + " contains only zeros"
		e.Remedy = "sysctl kernel.task_delayacct=1"
		return nil, e
	}
	return &Schedstat{proc: proc, refused: refused.Error(), tasks: map[sample.TaskKey]*members{}}, nil
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
	if !s.open || t.base == nil {
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
		t.base = nil
		if threads, err := s.threads(t.target); err == nil {
			t.base = threads
		}
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
		if t.base != nil {
			used, known := w.CPU(key)
			if r, ok := s.reading(t, used, known); ok {
				yield(key, r)
			}
			t.base = nil
		}
	}
	return nil
}

// Close implements counter.Source.
func (s *Schedstat) Close() error { return nil }

func (s *Schedstat) reading(t *members, cpu time.Duration, known bool) (counter.Reading, bool) {
	cur, err := s.threads(t.target)
	if err != nil {
		return counter.Reading{}, false
	}
	window := time.Duration(host.Monotonic() - s.began)
	return sumThreads(cur, t.base, window).reading(cpu, known), true
}

// threads reads every thread of a task. Threads that end meanwhile are left out.
func (s *Schedstat) threads(t counter.Target) (map[int]threadStat, error) {
	pids, err := t.Members()
	if err != nil {
		return nil, err
	}
	all := map[int]threadStat{}
	for _, pid := range pids {
		dir := filepath.Join(s.proc, strconv.Itoa(pid), "task")
		entries, err := os.ReadDir(dir)
		if err != nil {
			if gone(err) {
				continue
			}
			return nil, err
		}
		for _, e := range entries {
			tid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			st, err := readSchedstat(filepath.Join(dir, e.Name(), "schedstat"))
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

// threadStat is one line of schedstat, since the thread began: ns on a CPU, ns
// runnable and not running, times put on a CPU
// (Documentation/scheduler/sched-stats.rst).
type threadStat struct {
	run, wait, slices uint64
}

func readSchedstat(path string) (threadStat, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return threadStat{}, err
	}
	st, err := parseSchedstat(string(text))
	if err != nil {
		return threadStat{}, fmt.Errorf("read %s: %w", path, err)
	}
	return st, nil
}

func parseSchedstat(text string) (threadStat, error) {
	f := strings.Fields(text)
	if len(f) != 3 {
		return threadStat{}, fmt.Errorf("parse schedstat %q: want 3 numbers", text)
	}
	var n [3]uint64
	for i := range n {
		v, err := strconv.ParseUint(f[i], 10, 64)
		if err != nil {
			return threadStat{}, fmt.Errorf("parse schedstat %q: %w", text, err)
		}
		n[i] = v
	}
	return threadStat{n[0], n[1], n[2]}, nil
}

// sumThreads sums what threads did in a window. A thread that was not there at its
// start counts fully, unless it is older than the window: then it came from another
// cgroup, or took over another thread's id.
func sumThreads(cur, base map[int]threadStat, window time.Duration) threadStat {
	var sum threadStat
	for tid, c := range cur {
		b := base[tid]
		if c.run < b.run || c.wait < b.wait || c.slices < b.slices {
			b = threadStat{} // a new thread with an old id
		}
		if b == (threadStat{}) && (c.run > uint64(window) || c.wait > uint64(window)) {
			continue
		}
		sum.run += c.run - b.run
		sum.wait += c.wait - b.wait
		sum.slices += c.slices - b.slices
	}
	return sum
}

func (t threadStat) reading(cpu time.Duration, known bool) counter.Reading {
	out := counter.Reading{Cost: math.NaN(), Coverage: 1}
	if known && uint64(cpu)+t.wait > 0 {
		out.Cost = seconds(t.wait) / max(cpu, leastCPU).Seconds()
	}
	if known && cpu > 0 {
		out.Coverage = min(1, float64(t.run)/float64(cpu))
	}
	out.Extras.Set(sample.Wakeups, float64(t.slices))
	return out
}
