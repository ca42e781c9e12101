package lab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/load"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Options are the inputs of a study's execution.
type Options struct {
	Study  *study.Study
	Folder *result.Folder
	Maker  Maker
	// Command returns the command of a cell's part and how its iterations' times and its
	// metric are read.
	Command func(c *study.Cell, p *study.Part) (Job, error)
	// Metric reads a command's own metric, and what else its tool reports, from its output, in
	// which the first early executions were its warm-up; nil if no workload has one.
	Metric func(w *study.Workload, output []byte, early int) (metric float64, values map[string]float64, err error)
	// Hold keeps a part at its levels of load until they end or the context does, and
	// reports every period (package load).
	Hold func(ctx context.Context, e Environment, cpus float64, p *study.Part, levels []load.Level, each func(load.Period)) error
	// SetKnobs sets the machine's knobs to a cell's values for the time of the run; nil if
	// no study sets any. A *LackError says that the machine has no such knob: the run
	// is skipped.
	SetKnobs func(knobs map[string]string) (undo func() error, err error)
	// CPUs reads Topology and Allowed again after SetKnobs: smt switches CPUs off and on. nil: they
	// stay.
	CPUs func() (host.Topology, sample.Set, error)
	// Power switches the study's other hosts on and off as a cell wants them; nil if there are
	// none.
	Power func(ctx context.Context, c *study.Cell) error
	// Observe starts the observation of a run; nil for none.
	Observe func(o Observed) (Observer, error)
	// Host reaches another host of the study, to observe runs there; nil for none. Several
	// goroutines call it.
	Host func(ctx context.Context, name string) (Watchable, error)
	// Topology and Allowed are the machine's CPUs and those that roles may use.
	Topology host.Topology
	Allowed  sample.Set
	// Env is the hash of the machine's description, Stamp the conditions that comparisons must
	// not mix. Records with others are another series, and their runs are repeated.
	Env   string
	Stamp []string
	// Only selects the cells whose runs are done, nil for all; the others are left for
	// another time.
	Only func(c *study.Cell) bool
	// Began is when the study's budget began; zero: when Run is called.
	Began    time.Time
	Progress Progress
}

// Observed is what an observer watches.
type Observed struct {
	Cell  *study.Cell
	Names []string // of the parts
	Envs  []Environment
	Start time.Time
	Sets  [][]sample.Set // where they were placed
	Dir   string         // of the run's record, for additional files; "" elsewhere
	// Want and Run are the study's: what to observe, and the bounds of contamination.
	Want study.Observe
	Run  study.Run
}

// Summary counts the verdicts of a study's runs.
type Summary struct {
	Planned  int                    `json:"planned"`
	Existing int                    `json:"there"` // already valid at the start
	Verdicts map[result.Verdict]int `json:"verdicts"`
	Reasons  map[result.Reason]int  `json:"reasons,omitempty"`
	// Left are runs that were not done: out of budget, or stopped.
	Left int `json:"left"`
}

// ErrBudget says that a study's budget ended before its plan.
var ErrBudget = errors.New("the study's budget is used up")

// ErrStopped says that a run was not valid and the study stops then.
var ErrStopped = errors.New("a run was not valid, and on_failure is stop")

// pendingRun is a run that is still to be done.
type pendingRun struct {
	study.Planned
	try  int
	left int // tries after this one
}

// Run does the runs of a study's plan that are not yet done, in plan order. A run that
// is not valid is repeated at the end, as often as the study says. Run returns early
// when the context ends: the current run is ended and leaves no record. Existing
// records are kept, and the next Run continues from them.
func Run(ctx context.Context, o Options) (Summary, error) {
	s := Summary{Verdicts: map[result.Verdict]int{}, Reasons: map[result.Reason]int{}}
	if err := o.Maker.Sweep(); err != nil {
		return s, fmt.Errorf("clean up after an earlier run: %w", err)
	}
	queue, order, err := o.queue(&s)
	if err != nil {
		return s, err
	}
	var takes time.Duration
	for _, d := range queue {
		takes += d.Takes
	}
	o.Progress.Plan(len(queue), takes)
	began := o.Began
	if began.IsZero() {
		began = time.Now()
	}
	for i := 0; len(queue) > 0; i++ {
		d := queue[0]
		s.Left = len(queue)
		if b := o.Study.Design.Budget; b > 0 && time.Since(began)+d.Takes > b {
			return s, fmt.Errorf("%w: %d runs are left after %s of %s; to continue, run it again with a larger budget", ErrBudget, len(queue), time.Since(began).Round(time.Second), b)
		}
		queue = queue[1:]
		o.Progress.Run(i, &d.Planned, d.try)
		r, err := o.attempt(ctx, d, order, s.Planned)
		if err != nil {
			return s, err
		}
		order++
		o.Progress.Done(r)
		s.Left = len(queue)
		s.count(r)
		again := r.Verdict == result.Invalid || r.Verdict == result.Failed
		if again && o.Study.Run.OnFailure == "stop" {
			return s, fmt.Errorf("%w: %s", ErrStopped, r.Evidence[0].Text)
		}
		if again && d.left > 0 {
			queue = append(queue, pendingRun{d.Planned, d.try + 1, d.left - 1})
		}
		if err := pause(ctx, o.cooldown(r)); err != nil {
			return s, err
		}
	}
	s.Left = 0
	return s, nil
}

// After adds what an earlier Run of other cells of the same plan has done.
func (s *Summary) After(first Summary) {
	s.Existing = first.Existing // it counts those of all cells, and s also those that first did
	for v, n := range first.Verdicts {
		s.Verdicts[v] += n
	}
	for r, n := range first.Reasons {
		s.Reasons[r] += n
	}
}

func (o *Options) cooldown(r *result.Run) time.Duration {
	if r.Simulated || r.Verdict == result.Skipped {
		return 0
	}
	return o.Study.Run.Cooldown
}

func (s *Summary) count(r *result.Run) {
	s.Verdicts[r.Verdict]++
	for _, e := range r.Evidence {
		s.Reasons[e.Reason]++
	}
}

// queue returns the rest of the plan, and the position of the next run in the sequence
// of all runs.
func (o *Options) queue(s *Summary) ([]pendingRun, int, error) {
	plan := o.Study.Plan()
	s.Planned = len(plan)
	runs, err := o.Folder.Runs()
	if err != nil {
		return nil, 0, fmt.Errorf("read existing runs: %w", err)
	}
	// What was skipped is tried again: the machine may have it by now.
	done, tries, order := result.Done(runs, o.Env, o.Stamp, result.Valid), map[result.Slot]int{}, 0
	for _, r := range runs {
		tries[r.Slot()] = max(tries[r.Slot()], r.Try+1)
		order = max(order, r.Order+1)
	}
	var queue []pendingRun
	for _, p := range plan {
		k := result.Slot{Cell: p.Key, N: p.N}
		if done[k] {
			s.Existing++
			continue
		}
		if o.Only != nil && !o.Only(&p.Cell) {
			continue
		}
		queue = append(queue, pendingRun{p, tries[k], o.Study.Run.Retries})
	}
	return queue, order, nil
}

// pause waits, or returns the context's error.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
