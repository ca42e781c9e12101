package counter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"golang.org/x/sys/unix"
)

// CPT is the Source of CPU time per transaction: Cost is in CPU-s/transaction, Rate in
// transactions/s, the extra is Transactions. The Target says where a task's
// transactions are counted: in a progress file, in a counter that the task offers to
// Prometheus, or by how often it reaches a place in its program.
//
// A task is not counted in a window if its counter could not be read at both ends or
// went back. A task without a progress file is left out.
type CPT struct {
	proc       string
	now        func() time.Time
	tasks      map[sample.TaskKey]*cptTask
	order      []*cptTask
	windowOpen bool
	scraper    *scraper
	probes     *uprobes
	turn       int           // index of the task asked first at a window's end
	wait       time.Duration // for the answers at a window's end
}

// transactions is one way to count a task's transactions.
type transactions interface {
	variant() string
	// start opens the window for the task. ending is called for every task before the
	// first stop, with the time limit that all tasks share.
	start()
	ending(context.Context)
	// stop returns what was counted. ending is not called before it if the task goes.
	stop() (counted, error)
	// abort ends a window without a result.
	abort()
}

// counted is what was counted in a window.
type counted struct {
	done      float64
	span      time.Duration // time in which it was counted; 0: the window
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

// OpenCPT returns the source for a machine whose procfs is at proc, usually "/proc". k
// puts uprobes into the kernel; if it is nil, tasks that ask for a uprobe are refused.
func OpenCPT(proc string, k Prober) (*CPT, error) {
	if _, err := os.Lstat(proc + "/self"); err != nil {
		return nil, &NotSupportedError{What: "progress files", Reason: err.Error(), Remedy: "mount procfs at " + proc, Err: err}
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, proc, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC})
	if err != nil {
		return nil, &NotSupportedError{What: "progress files", Reason: "openat2: " + err.Error(), Remedy: "use Linux 5.6 or later, or allow openat2 in the seccomp profile", Err: err}
	}
	unix.Close(fd)
	return &CPT{proc: proc, now: time.Now, tasks: map[sample.TaskKey]*cptTask{}, scraper: newScraper(proc), probes: newProber(proc, k), wait: scrapeLast}, nil
}

// Info implements Source. A Reading that was counted in another way names its variant.
func (c *CPT) Info() Info { return Info{Signal: sample.CPT, Variant: variantFile} }

// Totals implements Source: there are none.
func (c *CPT) Totals() Totals { return Totals{} }

// SetCPUs implements Source: transactions do not depend on CPUs.
func (c *CPT) SetCPUs(sample.Set) {}

// Add implements Source. Nothing is opened before Start.
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
		task.transactions = &scrapeTask{target: &task.target, scraper: c.scraper}
	case t.Uprobe != nil && c.probes.kernel == nil:
		return fmt.Errorf("add %s: %w", t.Key, &NotSupportedError{What: "uprobes", Reason: "not built into this program"})
	case t.Uprobe != nil:
		task.transactions = &probeTask{target: &task.target, prober: c.probes}
	default:
		task.transactions = &progressTask{proc: c.proc, target: t, seen: map[fileID]bool{}}
	}
	c.tasks[t.Key] = task
	c.order = append(c.order, task)
	return nil
}

// Start implements Source. It finds the tasks' progress files, and starts the other
// queries without waiting for them.
func (c *CPT) Start() error {
	if c.windowOpen {
		return ErrOpen
	}
	c.windowOpen = true
	for _, t := range c.order {
		t.start()
		t.from = c.now()
	}
	c.probes.start()
	return nil
}

// Stop implements Source. A task that has no progress file is left out. Stop waits for
// the tasks that are asked over the network, half a second for all together.
func (c *CPT) Stop(w WindowEnd, yield func(sample.TaskKey, Reading)) error {
	if !c.windowOpen {
		return ErrNotOpen
	}
	c.windowOpen = false
	end := c.now() // when the CPU time was read, before any wait
	ctx, cancel := context.WithTimeout(context.Background(), c.wait)
	defer cancel()
	for i := range c.order {
		c.order[(i+c.turn)%len(c.order)].ending(ctx)
	}
	c.turn++ // so that the last task is not always the same
	c.probes.ending()
	for _, t := range c.order {
		used, ok := w.CPU(t.target.Key)
		if r, ok := c.finish(t, end, used, ok); ok {
			yield(t.target.Key, r)
		}
	}
	c.probes.stop()
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
	if t.from.IsZero() {
		return Reading{}, false
	}
	return c.finish(t, c.now(), cpu, true)
}

// Close implements Source. It waits until nothing is in progress any more.
func (c *CPT) Close() error {
	for _, t := range c.order {
		t.abort()
	}
	clear(c.tasks)
	c.order, c.windowOpen = nil, false
	c.probes.stop()
	c.probes.wait()
	c.scraper.wg.Wait()
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
	w, err := t.stop()
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
	r.Coverage = 1
	if w.span > 0 {
		// Counted over a slightly different time than the CPU time.
		w.done *= float64(window) / float64(w.span)
		r.Coverage = min(1, float64(w.span)/float64(window))
	}
	if r.Coverage < leastCoverage {
		r.Err = fmt.Errorf("counted for only %v of %v", w.span, window)
		return r, true
	}
	r.Extras.Set(sample.Transactions, w.done)
	if known && w.done > 0 {
		r.Cost = cpu.Seconds() / w.done
	}
	return r, true
}
