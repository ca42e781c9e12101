package lab

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/lab/place"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/synthetic"
)

// LackError says that the machine lacks something that a run needs, e.g. a container
// program: the run is skipped, not failed.
type LackError struct {
	What   string
	Remedy string
}

func (e *LackError) Error() string {
	if e.Remedy == "" {
		return e.What
	}
	return e.What + "; what to do: " + e.Remedy
}

// attempt does one run and writes its record. It returns only errors that end the
// study: the context's error, or that no record can be written.
func (o *Options) attempt(ctx context.Context, d pendingRun, order, runs int) (*result.Run, error) {
	a, err := o.Folder.Begin(d.Cell.Key(), d.N, d.try)
	if err != nil {
		return nil, err
	}
	var r *result.Run
	if simulated(&d.Cell) {
		r, err = o.simulate(a, d, order, runs)
	} else {
		r, err = o.real(ctx, a, d, order)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, errors.Join(err, a.Abandon())
	}
	r.Study = o.Study.Name
	if err := a.Finish(r); err != nil {
		return nil, errors.Join(err, a.Abandon())
	}
	return r, nil
}

// simulated reports whether all parts of a cell are synthetic.
func simulated(c *study.Cell) bool {
	for _, p := range c.Parts {
		if p.Environment.Driver != study.Synthetic {
			return false
		}
	}
	return len(c.Parts) > 0
}

func (o *Options) simulate(a *result.Attempt, d pendingRun, order, runs int) (*result.Run, error) {
	r, seconds := synthetic.Run(&d.Cell, synthetic.RunID{N: d.N, Try: d.try, Order: order, Runs: runs, Seed: o.Study.Design.Seed})
	for _, s := range seconds {
		if err := a.Sample(s); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// real does a run. An error in the run becomes its verdict.
func (o *Options) real(ctx context.Context, a *result.Attempt, d pendingRun, order int) (*result.Run, error) {
	r := &result.Run{CellKey: d.Cell.Key(), Cell: d.Cell, N: d.N, Try: d.try, Order: order, Verdict: result.Valid,
		Start: time.Now(), Env: o.Env, Stamp: o.Stamp}
	ctx, cancel := context.WithTimeout(ctx, o.Study.Run.Timeout+d.Takes)
	defer cancel()
	s := &execution{Options: o, attempt: a, run: r, cell: &d.Cell}
	err := s.setKnobs()
	if err == nil && s.Power != nil {
		err = s.Power(ctx, s.cell)
	}
	if err == nil {
		err = s.prepare(ctx)
	}
	if err == nil {
		err = s.execute(ctx)
	}
	err = errors.Join(err, s.teardown(), s.resetKnobs())
	var lack *LackError
	var missing *place.MissingError
	host, lost := lostHost(err)
	switch {
	case err == nil:
	case lost:
		s.addEvidence(result.Evidence{Reason: result.HostLost, Text: fmt.Sprintf("host %s: %v", host, err)})
	case errors.As(err, &lack), errors.As(err, &missing):
		r.Verdict = result.Skipped
		r.Evidence = append(r.Evidence, result.Evidence{Reason: "lacking", Text: err.Error()})
	case errors.Is(err, context.DeadlineExceeded):
		s.addEvidence(result.Evidence{Reason: result.TimedOut, Value: time.Since(r.Start).Seconds(), Bound: (o.Study.Run.Timeout + d.Takes).Seconds(), Unit: "s", Text: "the run exceeded its time limit"})
	case errors.Is(err, context.Canceled):
		return nil, err
	default:
		r.Verdict = result.Failed
		r.Evidence = append(r.Evidence, result.Evidence{Reason: result.WorkloadFailed, Text: err.Error()})
	}
	if r.Verdict == result.Valid && len(r.Evidence) > 0 {
		r.Verdict = result.Invalid
	}
	return r, nil
}

// execution is a run while it is played.
type execution struct {
	*Options
	attempt *result.Attempt
	run     *result.Run
	cell    *study.Cell

	actors   []*partRun
	watchers []watcher
	dynamic  *place.Dynamic // of a placement that follows load
	start    time.Time      // the common start
	undo     func() error   // resets the machine's knobs; nil if none are set
}

// addEvidence adds evidence that makes the run invalid.
func (s *execution) addEvidence(e result.Evidence) { s.run.Evidence = append(s.run.Evidence, e) }

// prepare prepares everything up to the barrier.
func (s *execution) prepare(ctx context.Context) error {
	sets, err := Places(s.Study, s.Topology, s.Allowed, s.cell)
	if err != nil {
		return err
	}
	images, err := s.bootImages(ctx)
	defer func() {
		for _, e := range images {
			_ = e.Close() // of a run that is not prepared; the maker reports the error again
		}
	}()
	if err != nil {
		return err
	}
	for i := range s.cell.Parts {
		p := &s.cell.Parts[i]
		s.Progress.Phase("preparing "+p.Name(), time.Duration(i), time.Duration(len(s.cell.Parts)))
		env := images[i]
		delete(images, i)
		if env == nil {
			if env, err = s.Maker.Make(ctx, p); err != nil {
				return fmt.Errorf("prepare %s: %w", p.Name(), err)
			}
		}
		act := &partRun{part: p, env: env, sets: sets[i], remote: !s.Study.Here(p)}
		s.actors = append(s.actors, act)
		if err := s.pin(act); err != nil {
			return err
		}
		if p.Idle {
			continue
		}
		if err := act.prepare(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// bootImages makes, at the same time, the environments of the parts that boot a disk image,
// which takes from 20 s to minutes; by the number of the part. It also returns those
// that it made before an error.
func (s *execution) bootImages(ctx context.Context) (map[int]Environment, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	envs := map[int]Environment{}
	var errs []error
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range s.cell.Parts {
		p := &s.cell.Parts[i]
		if p.Environment.Image == "" {
			continue
		}
		s.Progress.Phase("booting guests", 0, 0)
		wg.Go(func() {
			e, err := s.Maker.Make(ctx, p)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				envs[i] = e
				return
			}
			// The others' errors are of the cancellation.
			if cancel(); len(errs) == 0 {
				errs = append(errs, fmt.Errorf("prepare %s: %w", p.Name(), err))
			}
		})
	}
	wg.Wait()
	return envs, errors.Join(errs...)
}

// pin places a part and reads its placement back.
func (s *execution) pin(a *partRun) error {
	name := a.part.Name()
	if len(a.sets) > 0 {
		if err := a.env.Pin(a.sets); err != nil {
			return fmt.Errorf("place %s: %w", name, err)
		}
	}
	got, err := a.env.Pinned()
	if err != nil {
		return fmt.Errorf("read the placement of %s: %w", name, err)
	}
	for k, set := range got {
		a.free = a.free.Union(set)
		a.pinned = append(a.pinned, set.String())
		if k < len(a.sets) && set.String() != a.sets[k].String() {
			s.addEvidence(result.Evidence{Reason: result.Misplaced, Role: name, Text: fmt.Sprintf("virtual CPU %d may run on %s, wanted %s", k, set, a.sets[k])})
		}
	}
	return nil
}

// teardown ends all parts and puts their results into the record.
func (s *execution) teardown() error {
	var errs []error
	for _, a := range s.actors {
		errs = append(errs, a.end())
	}
	var parts []result.Part
	for _, a := range s.actors {
		p := a.record(s.start)
		if p.Values[role.SaturatedValue] != 0 {
			s.addEvidence(result.Evidence{Reason: result.Saturated, Role: p.Name, Value: p.Values[role.SaturatedValue], Text: "the load generator fell behind its schedule; its output says by how much"})
		}
		if v := p.Values[role.UnreachableValue]; v != 0 {
			s.addEvidence(result.Evidence{Reason: result.WorkloadFailed, Role: p.Name, Value: v, Unit: "requests", Text: "the server was unreachable or did not answer; see the part's output"})
		}
		parts = append(parts, p)
	}
	errs = append(errs, s.closeWatchers(parts))
	s.run.Parts = parts
	for _, a := range s.actors {
		errs = append(errs, a.env.Close())
	}
	return errors.Join(errs...)
}

// setKnobs sets the machine's knobs to the cell's values before the run makes anything.
func (s *execution) setKnobs() (err error) {
	if len(s.cell.Knobs) == 0 {
		return nil
	}
	if s.SetKnobs == nil {
		return fmt.Errorf("set knobs: %w", &LackError{What: "setting knobs of the machine is not supported here"})
	}
	if s.undo, err = s.SetKnobs(s.cell.Knobs); err == nil && s.CPUs != nil {
		s.Topology, s.Allowed, err = s.CPUs()
	}
	return err
}

// resetKnobs resets the knobs, whatever the result of the run.
func (s *execution) resetKnobs() error {
	if s.undo == nil {
		return nil
	}
	return s.undo()
}
