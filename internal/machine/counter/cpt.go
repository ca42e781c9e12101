package counter

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// CPT is the Source of CPU time per transaction: Cost is in CPU-s/transaction, Rate in
// transactions/s, the extra is Transactions. The Target says where a task's
// transactions are counted: in a progress file, in a counter that the task offers to
// Prometheus, or by how often it reaches a place in its program.
//
// What a task controls, its files and its answers, is read in other goroutines (reader,
// uprobeWindow). Start, Stop, Remove and Close never wait for it.
//
// A task is not counted in a window if its counter was not read twice in it or went back. A
// task without a progress file is left out.
type CPT struct {
	proc       string
	now        func() time.Time
	tasks      map[sample.TaskKey]*cptTask
	order      []*cptTask
	windowOpen bool
	began      time.Time
	reader     *reader
	probes     *uprobes
}

// transactions is one way to count a task's transactions.
type transactions interface {
	variant() string
	// start opens a window for the task.
	start(at time.Time)
	// stop returns what was counted in the window.
	stop(from, to time.Time) (counted, error)
	// abort ends a window without a result.
	abort()
}

// counted is what was counted in a window.
type counted struct {
	done      float64
	span      time.Duration // time in which it was counted
	cpu       time.Duration // CPU time of the task in the same time
	cpuKnown  bool
	restarted bool
}

type cptTask struct {
	target Target
	transactions
	from time.Time // zero: in no window
}

// The variants of cpt.
const (
	variantFile   = "progress-file"
	variantScrape = "prometheus"
	variantUprobe = "uprobe"
)

// Looks in the length of a window. An answer costs a task more than the reading of a file.
const (
	fileLooks   = 4
	scrapeLooks = 2
)

// OpenCPT returns the source for a machine whose procfs is at proc, usually "/proc". k
// puts uprobes into the kernel; if it is nil, tasks that ask for a uprobe are refused.
func OpenCPT(proc string, k Prober) (*CPT, error) {
	c, err := openCPT(proc, k)
	if err == nil {
		c.reader.start()
	}
	return c, err
}

// openCPT is OpenCPT without a reader that runs.
func openCPT(proc string, k Prober) (*CPT, error) {
	if _, err := os.Lstat(proc + "/self"); err != nil {
		return nil, &NotSupportedError{What: "progress files", Reason: err.Error(), Remedy: "mount procfs at " + proc, Err: err}
	}
	return &CPT{proc: proc, now: time.Now, tasks: map[sample.TaskKey]*cptTask{}, reader: newReader(time.Now), probes: newProber(proc, k)}, nil
}

// Info implements Source. A Reading that was counted in another way names its variant.
func (c *CPT) Info() Info { return Info{Signal: sample.CPT, Variant: variantFile} }

// Totals implements Source: there are none.
func (c *CPT) Totals() Totals { return Totals{} }

// SetCPUs implements Source: transactions do not depend on CPUs.
func (c *CPT) SetCPUs(sample.Set) {}

// Add implements Source. Nothing is opened here.
func (c *CPT) Add(t Target) error {
	if c.tasks[t.Key] != nil {
		return fmt.Errorf("add %s: already monitored", t.Key)
	}
	if t.Members == nil {
		return fmt.Errorf("add %s: no function to list its members", t.Key)
	}
	task := &cptTask{target: t}
	switch {
	case t.Scrape != nil:
		task.transactions = c.report(task, variantScrape, scrapeLooks, &scrape{proc: c.proc, target: &task.target, now: c.now})
	case t.Uprobe != nil && c.probes.kernel == nil:
		return fmt.Errorf("add %s: %w", t.Key, &NotSupportedError{What: "uprobes", Reason: "not built into this program"})
	case t.Uprobe != nil:
		task.transactions = &probeTask{target: &task.target, prober: c.probes}
	default:
		task.transactions = c.report(task, variantFile, fileLooks, &progressFiles{proc: c.proc, target: &task.target, now: c.now})
	}
	c.tasks[t.Key] = task
	c.order = append(c.order, task)
	return nil
}

func (c *CPT) report(task *cptTask, way string, share int, l looker) *reported {
	t := &reported{target: &task.target, way: way, share: share, looker: l}
	c.reader.add(t)
	return t
}

// Start implements Source.
func (c *CPT) Start() error {
	if c.windowOpen {
		return ErrOpen
	}
	c.windowOpen, c.began = true, c.now()
	for _, t := range c.order {
		t.from = c.now()
		t.start(t.from)
	}
	c.probes.start()
	return nil
}

// Stop implements Source. A task that has no progress file is left out.
func (c *CPT) Stop(w WindowEnd, yield func(sample.TaskKey, Reading)) error {
	if !c.windowOpen {
		return ErrNotOpen
	}
	c.windowOpen = false
	end := c.now() // when the CPU time was read
	c.probes.ending()
	for _, t := range c.order {
		used, ok := w.CPU(t.target.Key)
		if l, reports := t.transactions.(*reported); reports && ok {
			c.reader.used(l, used, end.Sub(c.began))
		}
		if r, ok := c.finish(t, end, used, ok); ok {
			yield(t.target.Key, r)
		}
	}
	c.probes.stop()
	c.reader.windowed(end.Sub(c.began))
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
	if l, ok := t.transactions.(*reported); ok {
		c.reader.remove(l)
	}
	if t.from.IsZero() {
		return Reading{}, false
	}
	return c.finish(t, c.now(), cpu, true)
}

// Close implements Source. It waits until nothing is in progress any more, except for looks
// at tasks that hang.
func (c *CPT) Close() error {
	for _, t := range c.order {
		t.abort()
	}
	clear(c.tasks)
	c.order, c.windowOpen = nil, false
	c.probes.stop()
	c.probes.wait()
	c.reader.close()
	return nil
}

// finish ends a task's window. ok is false if the task has no progress file or was in
// no window.
func (c *CPT) finish(t *cptTask, end time.Time, cpu time.Duration, known bool) (r Reading, ok bool) {
	if t.from.IsZero() {
		return Reading{}, false
	}
	window := end.Sub(t.from)
	t.from = time.Time{}
	w, err := t.stop(end.Add(-window), end)
	if errors.Is(err, errNoProgress) {
		return Reading{}, false
	}
	r.Cost, r.Variant = math.NaN(), t.variant()
	if w.restarted {
		r.Flags |= sample.Restarted
	}
	if err != nil || w.restarted || window <= 0 {
		r.Err = err
		return r, true
	}
	// Counted over a slightly different time than the window.
	r.Coverage = min(1, float64(w.span)/float64(window))
	if r.Coverage < leastCoverage {
		r.Err = fmt.Errorf("counted for only %v of %v", w.span, window)
		return r, true
	}
	share := float64(window) / float64(w.span)
	r.Extras.Set(sample.Transactions, w.done*share)
	switch {
	case w.done <= 0:
	case w.cpuKnown:
		r.Cost = w.cpu.Seconds() / w.done
	case known:
		r.Cost = cpu.Seconds() / (w.done * share)
	}
	return r, true
}
