package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/lab/load"
	"github.com/quell-dev/quell/internal/lab/result"
)

// look is the interval between looks at a run: a role that died or stalled is noticed
// within a second.
const look = 200 * time.Millisecond

// stall is the number of looks without progress after which a role is stalled: the
// fourth is within a second.
const stall = 4

// execute starts all parts at the same time and watches them to the end of the steady
// window.
func (s *execution) execute(ctx context.Context) error {
	if err := s.serve(ctx); err != nil {
		return err
	}
	if err := s.begin(); err != nil {
		return err
	}
	if err := s.openWatchers(ctx); err != nil {
		return err
	}
	for _, a := range s.actors {
		if levels := s.levels(a); levels != nil {
			a.hold(ctx, s, levels)
		}
	}
	if err := s.watch(ctx, "warming up", s.cell.Warmup, s.warm); err != nil {
		return err
	}
	s.run.Window.From = time.Since(s.start)
	if err := s.mark(true); err != nil {
		return err
	}
	err := s.watch(ctx, "measuring", s.length(), s.finished)
	s.run.Window.To = time.Since(s.start)
	if err := errors.Join(err, s.mark(false)); err != nil {
		return err
	}
	if err := s.watch(ctx, "waiting for the last answers", 0, s.concluded); err != nil {
		return err
	}
	s.checkWindow()
	return nil
}

// begin is the barrier: it releases all processes as nearly at once as possible, except
// servers, which already run.
func (s *execution) begin() error {
	var first, last time.Time
	var within time.Duration
	for _, a := range s.actors {
		if !a.busy() || !a.began.IsZero() {
			continue
		}
		at, unsure, err := a.process.Begin()
		if err != nil {
			return fmt.Errorf("begin %s: %w", a.part.Name(), err)
		}
		a.began = at
		within = max(within, unsure)
		if first.IsZero() || at.Before(first) {
			first = at
		}
		if at.After(last) {
			last = at
		}
	}
	if last.IsZero() {
		last, first = time.Now(), time.Now()
	}
	s.start = last
	s.run.Start, s.run.Skew = last, last.Sub(first)+within
	return nil
}

// levels returns the levels of the part's load; nil if its load is not held.
func (s *execution) levels(a *partRun) []load.Level {
	if !a.busy() || a.part.Load.Control != "duty-cycle" {
		return nil
	}
	far := s.start.Add(s.cell.Warmup + s.length() + s.Study.Run.Timeout)
	var levels []load.Level
	for _, step := range s.cell.Steps {
		if step.Role == a.part.Role {
			// The first level is also held in the warm-up.
			levels = append(levels, load.Level{Share: float64(step.Target), Until: s.start.Add(step.To)})
		}
	}
	if levels == nil {
		levels = []load.Level{{Share: float64(a.part.Target), Until: far}}
	}
	return levels
}

// length is the length of the steady window; 0 if the iterations of the measured roles
// determine it.
func (s *execution) length() time.Duration {
	length := s.cell.For
	if n := len(s.cell.Steps); n > 0 {
		length = max(length, s.cell.Steps[n-1].To-s.cell.Warmup)
	}
	for _, a := range s.actors {
		if a.part.Measure {
			length = max(length, a.part.Workload.Time)
		}
	}
	return length
}

// everyMeasured reports whether a condition holds for all measured roles with a process.
func (s *execution) everyMeasured(holds func(a *partRun) bool) bool {
	return !slices.ContainsFunc(s.actors, func(a *partRun) bool { return a.part.Measure && a.busy() && !holds(a) })
}

// warm reports whether every measured role has done its warm-up iterations.
func (s *execution) warm() bool {
	return s.everyMeasured(func(a *partRun) bool { return a.out.count() >= a.part.Workload.Warmup.Iterations })
}

// finished reports whether every measured role that has a number of iterations
// to do has done them.
func (s *execution) finished() bool {
	return s.everyMeasured(func(a *partRun) bool { return a.part.Workload.Iterations == 0 || a.done() || !a.ended.IsZero() })
}

// concluded reports whether every measured role that prints a summary has printed it.
func (s *execution) concluded() bool {
	return s.everyMeasured(func(a *partRun) bool {
		return !a.part.Workload.Concludes() || !a.ended.IsZero() || a.out.concluded()
	})
}

// watch looks at the run until length has passed and enough returns true. An error ends
// the run. Evidence that invalidates the run also ends the watch, without an error,
// since the rest of the run cannot change the verdict.
func (s *execution) watch(ctx context.Context, phase string, length time.Duration, enough func() bool) error {
	began := time.Now()
	seconds := time.Since(s.start) / time.Second
	for {
		passed := time.Since(began)
		if passed >= length && enough() {
			return nil
		}
		s.Progress.Phase(phase, passed, length)
		wait := look
		if left := length - passed; left > 0 {
			wait = min(wait, left)
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
		if err := s.living(ctx); err != nil {
			return err
		}
		if err := s.follow(); err != nil {
			return err
		}
		if now := time.Since(s.start) / time.Second; now > seconds {
			seconds = now
			if err := s.second(); err != nil {
				return err
			}
		}
		if len(s.run.Evidence) > 0 {
			return nil
		}
	}
}

// living handles roles that have ended or stand still.
func (s *execution) living(ctx context.Context) error {
	for _, a := range s.actors {
		if !a.busy() || !a.ended.IsZero() {
			continue
		}
		select {
		case a.ended = <-a.exit:
			if err := s.handleExit(ctx, a); err != nil {
				return err
			}
			continue
		default:
		}
		u, err := a.env.Usage()
		if err != nil {
			return fmt.Errorf("read the CPU time of %s: %w", a.part.Name(), err)
		}
		moved := u.Total() > a.seen.Total()
		if a.seen = u; moved || a.part.Load.Control == "duty-cycle" && a.part.Target == 0 && len(s.cell.Steps) == 0 || a.part.MayIdle() || a.aheadOfTarget() {
			a.quiet, a.ready = 0, false
			continue
		}
		ready, err := a.env.Ready()
		if err != nil {
			return fmt.Errorf("check whether %s is runnable: %w", a.part.Name(), err)
		}
		// The lab itself stops a held load at some of the looks.
		a.ready = a.ready || ready
		if a.quiet++; a.quiet != stall {
			continue
		}
		e := result.Evidence{Reason: result.Stalled, Role: a.part.Name(), Value: (stall * look).Seconds(), Unit: "s", At: time.Since(s.start),
			Text: fmt.Sprintf("%s used no CPU time for %s and was not runnable: frozen from outside, waiting, or hung", a.part.Name(), stall*look)}
		if a.ready {
			e.Reason = result.Starved
			e.Text = fmt.Sprintf("%s was runnable and got no CPU time for %s: other processes or the hypervisor used its CPUs", a.part.Name(), stall*look)
		}
		s.addEvidence(e)
	}
	return nil
}

// handleExit handles a role whose process has ended.
func (s *execution) handleExit(ctx context.Context, a *partRun) error {
	at := a.ended.Sub(s.start)
	if err := a.process.Err(); err != nil {
		if _, lost := lostHost(err); lost {
			return err
		}
		if a.part.Measure && a.done() {
			return nil // what it does after its iterations does not count
		}
		reason := result.CorunnerDied
		if a.part.Measure {
			reason = result.WorkloadFailed
		}
		a.died = err
		s.addEvidence(result.Evidence{Reason: reason, Role: a.part.Name(), At: at, Text: fmt.Sprintf("%s ended: %v", a.part.Name(), err)})
		return nil
	}
	if a.part.Restart && !(a.part.Measure && a.done()) {
		return a.restart(ctx, s.start)
	}
	return nil
}

// mostDropped is the largest share of the received datagrams that may be lost in a
// program's own sockets: those are not lost in the network.
const mostDropped = 0.001

// mark records the CPU time of all parts at the start or the end of the steady window.
func (s *execution) mark(open bool) error {
	var errs []error
	for _, a := range s.actors {
		u, err := a.env.Usage()
		errs = append(errs, err)
		if open {
			a.used0 = u
		} else {
			a.used = u
		}
		if e, ok := a.env.(interface {
			Datagrams() (received, dropped uint64, err error)
		}); ok {
			before := a.datagrams
			a.datagrams.received, a.datagrams.dropped, err = e.Datagrams()
			errs = append(errs, err)
			dropped, most := float64(a.datagrams.dropped-before.dropped), mostDropped*float64(a.datagrams.received-before.received)
			if !open && dropped > most {
				s.addEvidence(result.Evidence{Reason: result.Saturated, Role: a.part.Name(), Value: dropped, Bound: most, Unit: "datagrams", Text: "its sockets dropped datagrams that had arrived, because the program did not read them in time: give it more CPU time"})
			}
		}
	}
	return errors.Join(append(errs, s.window(open))...)
}

// checkWindow compares the steady window with the study's requirements for a run.
func (s *execution) checkWindow() {
	w := s.run.Window
	s.run.Overlap = 1
	for _, a := range s.actors {
		if !a.busy() {
			continue
		}
		if a.part.Measure && !a.ended.IsZero() && a.died == nil {
			// A measured role that has done its work need not run in the whole window.
			continue
		}
		s.run.Overlap = min(s.run.Overlap, a.share(w, s.start))
	}
	if least := float64(s.Study.Run.MinOverlap); s.run.Overlap < least && len(s.run.Evidence) == 0 {
		s.addEvidence(result.Evidence{Reason: result.OverlapShort, Value: s.run.Overlap, Bound: least, Text: "a role did not run for all of the measured window"})
	}
	for _, a := range s.actors {
		if a.held != nil {
			s.loads(a)
		}
	}
	for _, a := range s.actors {
		if a.part.Workload.Metric.Parse == "" || a.part.Workload.Serves > 0 || s.Metric == nil || a.out == nil {
			continue
		}
		a.out.mu.Lock()
		early := a.early(s.start.Add(w.From))
		metric, values, err := s.Metric(&a.part.Workload, a.out.tail.Bytes(), early)
		if err == nil && metric != 0 {
			err = a.unread(early)
		}
		a.metric = metric
		a.out.report(values)
		a.out.mu.Unlock()
		if err != nil {
			s.addEvidence(result.Evidence{Reason: result.WorkloadFailed, Role: a.part.Name(), Text: "read its metric: " + err.Error()})
		}
	}
}

// share is the fraction of a window in which the part ran.
func (a *partRun) share(w result.Window, start time.Time) float64 {
	span := w.To - w.From
	if span <= 0 {
		return 0
	}
	end := w.To
	if !a.ended.IsZero() {
		end = min(end, a.ended.Sub(start))
	}
	ran := end - max(w.From, a.began.Sub(start))
	for _, g := range a.gaps {
		if lost := min(g.To, w.To) - max(g.From, w.From); lost > 0 {
			ran -= lost
		}
	}
	return max(0, ran.Seconds()/span.Seconds())
}

// loads compares the load that a part achieved with its targets.
func (s *execution) loads(a *partRun) {
	check := func(target float64, from, to time.Duration) (float64, bool) {
		got, unattainable, ok := a.achieved(s.start.Add(from), s.start.Add(to))
		if !ok {
			return 0, false
		}
		tolerance := float64(a.part.Load.Tolerance)
		e := result.Evidence{Role: a.part.Name(), Value: got, Bound: target, Unit: "share of its CPUs", At: from}
		switch {
		case unattainable:
			e.Reason, e.Text = result.LoadUnattainable, fmt.Sprintf("it ran without a pause and reached only %.1f %%, the target is %.1f %%", got*100, target*100)
			s.addEvidence(e)
		case got < target-tolerance || got > target+tolerance:
			e.Reason, e.Text = result.LoadOffTarget, fmt.Sprintf("load %.2f %% differs from the target %.1f %% by more than %.1f points", got*100, target*100, tolerance*100)
			s.addEvidence(e)
		}
		return got, true
	}
	instances, climbs := 0, false
	for i := range s.cell.Parts {
		if s.cell.Parts[i].Role == a.part.Role {
			instances++
		}
	}
	for _, step := range s.cell.Steps {
		if step.Role != a.part.Role {
			continue
		}
		climbs = true
		got, ok := check(float64(step.Target), step.From+step.Settle, step.To-step.Trail)
		if !ok {
			continue
		}
		// The instances of a role climb together: a step is one, at the mean of their loads.
		got /= float64(instances)
		if k := slices.IndexFunc(s.run.Steps, func(o result.Step) bool { return o.From == step.From }); k >= 0 {
			s.run.Steps[k].Achieved += got
		} else {
			s.run.Steps = append(s.run.Steps, result.Step{Step: step, Achieved: got})
		}
	}
	if !climbs {
		check(float64(a.part.Target), s.run.Window.From, s.run.Window.To)
	}
}
