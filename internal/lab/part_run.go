package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/load"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/lab/study"
)

// partRun is one part of a run while it is played.
type partRun struct {
	part   *study.Part
	env    Environment
	remote bool         // the part is on another host and is not observed
	sets   []sample.Set // nil: the part stays where its environment is
	pinned []string
	free   sample.Set // where it may run, as read back
	job    Job
	out    *output
	files  []*os.File

	// The part's processes, in sequence where it is restarted; process is the current
	// one. Only the engine's goroutine uses these fields.
	process Process
	exit    chan time.Time // receives the time at which the current process ended
	began   time.Time
	ended   time.Time // zero while it runs
	gaps    []result.Window
	died    error
	metric  float64 // the value of the command's own metric

	used0, used Usage // at the start and the end of the window
	datagrams   struct{ received, dropped uint64 }
	seen        Usage // at the last look
	quiet       int   // successive looks without progress
	ready       bool  // it wanted to run at one of these looks

	mu      sync.Mutex
	periods []load.Period // of a held load
	held    chan error
	stop    context.CancelFunc
}

// output collects a part's output: its iterations, its values, and the remaining text
// for its metric.
type output struct {
	mu         sync.Mutex
	clock      func(ns int64) time.Time
	iterations []iteration
	values     map[string]float64
	copy       *os.File
	tail       bytes.Buffer // the remaining text, at most mostOutput
	full       bool         // there was more
	kept       int          // if there was: the executions whose text is complete
}

type iteration struct {
	from, to time.Time
	units    float64
}

// mostOutput is the number of bytes of a command's output that are kept for its parser.
const mostOutput = 16 << 20

func (w *output) line(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = w.copy.WriteString(text + "\n") // where the disk is full the copy has a gap; the figures have none
	if words, ok := strings.CutPrefix(text, role.ValueLine); ok {
		w.value(words)
		return
	}
	if !strings.HasPrefix(text, role.IterationLine) {
		if w.tail.Len() < mostOutput {
			w.tail.WriteString(text + "\n")
		} else if !w.full {
			w.full, w.kept = true, len(w.iterations)
		}
		return
	}
	if from, to, units, ok := role.ParseIteration(text); ok {
		w.iterations = append(w.iterations, iteration{w.clock(from), w.clock(to), units})
	}
}

func (w *output) value(words string) {
	name, number, _ := strings.Cut(words, " ")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return
	}
	w.report(map[string]float64{name: v})
}

// report adds values. The caller holds w.mu.
func (w *output) report(values map[string]float64) {
	if w.values == nil {
		w.values = map[string]float64{}
	}
	maps.Copy(w.values, values)
}

func (w *output) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.iterations)
}

// concluded reports whether the part has reported any value.
func (w *output) concluded() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.values) > 0
}

// prepare starts the part's command and stops it at the barrier.
func (a *partRun) prepare(ctx context.Context, s *execution) error {
	job, err := s.Command(s.cell, a.part)
	if err != nil {
		return fmt.Errorf("prepare %s: %w", a.part.Name(), err)
	}
	name := strings.ReplaceAll(a.part.Name(), "/", ".")
	for _, kind := range []string{".out", ".err"} {
		file, err := s.attempt.Create(name + kind)
		if err != nil {
			return err
		}
		a.files = append(a.files, file)
	}
	a.out = &output{copy: a.files[0], clock: func(ns int64) time.Time {
		if a.process == nil {
			return time.Time{}
		}
		return a.process.Clock(ns)
	}}
	job.Name, job.Stdout, job.Stderr = a.part.Name(), &role.LineWriter{Line: a.out.line, Most: mostOutput}, a.files[1]
	a.job = job
	a.process, err = a.env.Start(ctx, job)
	if err != nil {
		return fmt.Errorf("start %s: %w", a.part.Name(), err)
	}
	a.exit = stamp(a.process)
	return nil
}

// stamp records the time at which a process ends; polling would be too coarse.
func stamp(p Process) chan time.Time {
	exit := make(chan time.Time, 1)
	go func() {
		<-p.Done()
		exit <- time.Now()
	}()
	return exit
}

// busy reports whether the part has a process.
func (a *partRun) busy() bool { return a.process != nil }

// done reports whether the part has a number of iterations to do and has done them.
func (a *partRun) done() bool {
	w := &a.part.Workload
	return w.Iterations > 0 && a.out.count() >= w.Iterations+w.Warmup.Iterations
}

// restart starts the part's command anew and releases it from the barrier at once.
func (a *partRun) restart(ctx context.Context, start time.Time) error {
	p, err := a.env.Start(ctx, a.job)
	if err != nil {
		return fmt.Errorf("start %s again: %w", a.part.Name(), err)
	}
	a.out.mu.Lock()
	a.process = p
	a.out.mu.Unlock()
	a.exit = stamp(p)
	at, _, err := p.Begin()
	if err != nil {
		return fmt.Errorf("start %s again: %w", a.part.Name(), err)
	}
	a.gaps = append(a.gaps, result.Window{From: a.ended.Sub(start), To: at.Sub(start)})
	a.ended = time.Time{}
	return nil
}

// hold keeps the part at its levels of load in the background.
func (a *partRun) hold(ctx context.Context, s *execution, levels []load.Level) {
	ctx, a.stop = context.WithCancel(ctx)
	a.held = make(chan error, 1)
	go func() {
		a.held <- s.Hold(ctx, a.env, a.cpus(), a.part, levels, func(p load.Period) {
			a.mu.Lock()
			a.periods = append(a.periods, p)
			a.mu.Unlock()
		})
	}()
}

// cpus is the number of CPUs that a share of the part's load refers to.
func (a *partRun) cpus() float64 {
	if n := a.part.Environment.CPUs; n > 0 {
		return float64(n)
	}
	var all sample.Set
	for _, s := range a.sets {
		all = all.Union(s)
	}
	if all.Len() == 0 { // on another host, without a list
		all = a.free
	}
	return float64(all.Len())
}

// achieved returns the load between two instants as a share of the part's CPUs, and
// whether the load was unattainable there.
func (a *partRun) achieved(from, to time.Time) (share float64, unattainable bool, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var used, length time.Duration
	for _, p := range a.periods {
		if p.At.After(from) && !p.At.After(to) {
			used += p.Used
			length += p.Length
			unattainable = unattainable || p.Unattainable
		}
	}
	if length == 0 {
		return 0, unattainable, false
	}
	return used.Seconds() / length.Seconds() / a.cpus(), unattainable, true
}

// targetWindow is the time over which a held load is compared with its target.
const targetWindow = 10 * time.Second

// aheadOfTarget reports whether a held part has used at least the CPU time that its present
// target gives it. The lab then keeps the part stopped until it is no longer ahead (at
// 3 % of a CPU one tick too many takes a second or more), so a part that stands still
// is not stalled.
func (a *partRun) aheadOfTarget() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.periods) == 0 {
		return false
	}
	last := &a.periods[len(a.periods)-1]
	var used, due float64
	for _, p := range slices.Backward(a.periods) {
		if p.Target != last.Target || last.At.Sub(p.At) > targetWindow {
			break
		}
		used += p.Used.Seconds()
		due += p.Target * p.Length.Seconds() * a.cpus()
	}
	return used >= due
}

// early is the number of a measured command's executions that were its warm-up: as many as the
// study says, and, where it does not say how many executions count, those of which most was
// before the steady window. The caller holds out.mu.
func (a *partRun) early(window time.Time) int {
	w := &a.part.Workload
	if !a.part.Measure {
		return 0
	}
	n := 0
	for w.Iterations == 0 && n < len(a.out.iterations) {
		it := &a.out.iterations[n]
		if window.Sub(it.from) <= it.to.Sub(window) {
			break
		}
		n++
	}
	return max(n, w.Warmup.Iterations)
}

// unread is an error if the text of executions that count was not kept for the parser: their
// metric would be that of the first ones. The caller holds out.mu.
func (a *partRun) unread(early int) error {
	w := &a.part.Workload
	if !a.part.Measure || !a.out.full || w.Iterations > 0 && a.out.kept >= early+w.Iterations {
		return nil
	}
	return fmt.Errorf("only %d of its %d executions are in the first %d MiB of its output: let it write less, or execute it less often", a.out.kept, len(a.out.iterations), mostOutput>>20)
}

// end stops the part's process; after it no process of the part uses CPU time.
func (a *partRun) end() error {
	var errs []error
	if a.held != nil {
		a.stop()
		if err := <-a.held; err != nil && !errors.Is(err, context.Canceled) {
			errs = append(errs, fmt.Errorf("hold the load of %s: %w", a.part.Name(), err))
		}
		a.held = nil
	}
	if a.process != nil {
		if a.ended.IsZero() {
			a.ended = time.Now()
		}
		errs = append(errs, a.process.Stop())
	}
	for _, f := range a.files {
		errs = append(errs, f.Close())
	}
	a.files = nil
	return errors.Join(errs...)
}

// record returns what the part did, in times relative to start.
func (a *partRun) record(start time.Time) result.Part {
	p := result.Part{Name: a.part.Name(), Role: a.part.Role, Command: strings.Join(a.job.Argv, " "), CPUs: a.pinned, Restarts: a.gaps, Metric: a.metric}
	p.User, p.System = a.used.User-a.used0.User, a.used.System-a.used0.System
	p.CPUTime = p.User + p.System
	if a.out == nil || start.IsZero() {
		return p
	}
	p.Window = result.Window{From: a.began.Sub(start), To: a.ended.Sub(start)}
	a.out.mu.Lock()
	defer a.out.mu.Unlock()
	p.Values = a.out.values
	for _, it := range a.out.iterations {
		p.Iterations = append(p.Iterations, result.Iteration{From: it.from.Sub(start), To: it.to.Sub(start), Units: it.units})
	}
	return p
}
