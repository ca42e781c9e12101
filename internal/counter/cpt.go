//go:build linux

package counter

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/sample"
	"golang.org/x/sys/unix"
)

// CPT is the Source of CPU time per transaction, by the tasks' progress files:
// Cost is in CPU-s/transaction, Rate in transactions/s, the extra is
// Transactions. A task is not counted in a window in which a file of it was
// truncated or started again from a smaller value, or which found none.
type CPT struct {
	proc   string
	now    func() time.Time
	tasks  map[sample.TaskKey]*cptTask
	order  []*cptTask
	inOpen bool
}

type cptTask struct {
	progressTask
	from time.Time
}

// OpenCPT returns the source for a machine whose procfs is at proc, usually
// "/proc".
func OpenCPT(proc string) (*CPT, error) {
	if _, err := os.Lstat(proc + "/self"); err != nil {
		return nil, &NotSupportedError{What: "progress files", Reason: err.Error(), Remedy: "mount procfs at " + proc, Err: err}
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, proc, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC})
	if err != nil {
		return nil, &NotSupportedError{What: "progress files", Reason: "openat2: " + err.Error(), Remedy: "use Linux 5.6 or later, or allow openat2 in the seccomp profile", Err: err}
	}
	unix.Close(fd)
	return &CPT{proc: proc, now: time.Now, tasks: map[sample.TaskKey]*cptTask{}}, nil
}

// Signal implements Source.
func (c *CPT) Signal() sample.SignalName { return sample.CPT }

// Variant implements Source.
func (c *CPT) Variant() string { return "progress-file" }

// Add implements Source. Nothing is opened before Start.
func (c *CPT) Add(t Target) error {
	if c.tasks[t.Key] != nil {
		return fmt.Errorf("add %s: already followed", t.Key)
	}
	if t.Members == nil {
		return fmt.Errorf("add %s: nobody to list its members", t.Key)
	}
	task := &cptTask{progressTask: progressTask{target: t, seen: map[fileID]bool{}}}
	c.tasks[t.Key] = task
	c.order = append(c.order, task)
	return nil
}

// Start implements Source: it finds the tasks' progress files.
func (c *CPT) Start() error {
	if c.inOpen {
		return errOpen
	}
	c.inOpen = true
	for _, t := range c.order {
		t.open(c.proc)
		t.from = c.now()
	}
	return nil
}

// Stop implements Source. A task that has no progress file is left out.
func (c *CPT) Stop(cpu CPUTime, yield func(sample.TaskKey, Reading)) error {
	if !c.inOpen {
		return errNotOpen
	}
	c.inOpen = false
	for _, t := range c.order {
		used, ok := cpu(t.target.Key)
		if r, counted := c.finish(t, used, ok); counted {
			yield(t.target.Key, r)
		}
	}
	return nil
}

// Remove implements Source.
func (c *CPT) Remove(key sample.TaskKey, cpu time.Duration) (Reading, bool) {
	t := c.tasks[key]
	if t == nil {
		return Reading{}, false
	}
	delete(c.tasks, key)
	c.order = slices.DeleteFunc(c.order, func(o *cptTask) bool { return o == t })
	return c.finish(t, cpu, true)
}

// Close implements Source.
func (c *CPT) Close() error {
	for _, t := range c.order {
		t.close()
	}
	clear(c.tasks)
	c.order, c.inOpen = nil, false
	return nil
}

// finish ends a task's window; counted is false if it has no progress file or
// was in no window.
func (c *CPT) finish(t *cptTask, cpu time.Duration, known bool) (r Reading, counted bool) {
	span := c.now().Sub(t.from)
	done, restarted, err := t.close()
	if errors.Is(err, errNoProgress) {
		return Reading{}, false
	}
	r.Cost = math.NaN()
	if restarted {
		r.Flags |= sample.Restarted
	}
	if err != nil || restarted {
		return r, true
	}
	r.Coverage = 1
	r.Extras.Set(sample.Transactions, float64(done))
	if s := span.Seconds(); s > 0 {
		r.Rate = float64(done) / s
	}
	if known && done > 0 {
		r.Cost = cpu.Seconds() / float64(done)
	}
	return r, true
}
