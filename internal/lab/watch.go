package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/lab/result"
)

// watcher observes a run on one machine: this one, another host, or the inside of a guest.
type watcher struct {
	Observer
	host  string // "" for this machine; a guest has its part's name
	parts []int  // the run's parts that it observes
}

// openWatchers starts to observe the run: here, if a part is here; on the hosts of the other
// parts, and on those that the study names; inside guests, if the study asks for it.
func (s *execution) openWatchers(ctx context.Context) error {
	const here = ""
	on := map[string][]int{}
	for i, a := range s.actors {
		host := here
		if a.remote {
			host = a.part.Host
		}
		on[host] = append(on[host], i)
	}
	for _, h := range s.Study.Observe.Hosts {
		if _, ok := on[h]; !ok {
			on[h] = nil
		}
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var errs []error
	open := func(host string, parts []int, from func(o Observed) (Observer, error)) {
		o := Observed{Cell: s.cell, Start: s.start, Want: s.Study.Observe, Run: s.Study.Run}
		for _, i := range parts {
			a := s.actors[i]
			sets, err := s.possibleCPUs(a)
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
				return
			}
			o.Names, o.Envs, o.Sets = append(o.Names, a.part.Name()), append(o.Envs, a.env), append(o.Sets, sets)
		}
		if host == here {
			o.Dir = s.attempt.Dir()
		}
		wg.Go(func() {
			observer, err := from(o)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("observe: %w", err))
				return
			}
			s.watchers = append(s.watchers, watcher{observer, host, parts})
		})
	}
	for _, host := range slices.Sorted(maps.Keys(on)) {
		switch {
		case host == here && s.Observe != nil:
			open(here, on[here], s.Observe)
		case host != here && s.Host != nil:
			open(host, on[host], func(o Observed) (Observer, error) {
				h, err := s.Host(ctx, host)
				if err != nil {
					return nil, err
				}
				return h.Observe(ctx, o)
			})
		}
	}
	for _, a := range s.actors {
		guest, ok := a.env.(interface{ Inside() Watchable })
		if !ok || !s.Study.Observe.Inside {
			continue
		}
		if inside := guest.Inside(); inside != nil {
			open(a.part.Name(), nil, func(o Observed) (Observer, error) { return inside.Observe(ctx, o) })
		}
	}
	wg.Wait()
	slices.SortFunc(s.watchers, func(a, b watcher) int { return strings.Compare(a.host, b.host) })
	return errors.Join(errs...)
}

// evidence adds what an observer has found.
func (s *execution) evidence(w *watcher, all []result.Evidence) {
	for _, e := range all {
		if w.host != "" {
			e.Text = "host " + w.host + ": " + e.Text
		}
		s.addEvidence(e)
	}
}

// second writes the samples of the last second. Those of other machines may come later.
func (s *execution) second() error {
	for i := range s.watchers {
		if err := s.take(&s.watchers[i]); err != nil {
			return err
		}
	}
	return nil
}

// take writes the samples that an observer has, and adds its evidence.
func (s *execution) take(w *watcher) error {
	for {
		one, evidence := w.Second(time.Now())
		s.evidence(w, evidence)
		if one.Values == nil {
			return nil
		}
		one.Host = w.host
		if err := s.attempt.Sample(one); err != nil || w.host == "" {
			return err
		}
	}
}

// window begins or ends the steady window of all observers at the same time.
func (s *execution) window(open bool) error {
	errs := make([]error, len(s.watchers))
	var wg sync.WaitGroup
	for i, w := range s.watchers {
		wg.Go(func() { errs[i] = w.Window(open) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// closeWatchers ends the observation, and puts what was counted into the parts, and the energy
// and the clocks of the machines into the record.
func (s *execution) closeWatchers(parts []result.Part) error {
	var errs []error
	for i := range s.watchers {
		w := &s.watchers[i]
		var seen []result.Part
		for _, k := range w.parts {
			seen = append(seen, parts[k])
		}
		evidence, err := w.Close(seen)
		for j, k := range w.parts {
			parts[k] = seen[j]
		}
		s.evidence(w, evidence)
		errs = append(errs, err)
		if w.host != "" { // its last seconds have come since the last look
			errs = append(errs, s.take(w))
		}
		if there, ok := w.Observer.(interface {
			Clock() (offset, within, drift time.Duration)
			Platform() string
			Machine() string
		}); ok && w.host != "" {
			h := result.Host{Name: w.host, Platform: there.Platform(), Machine: there.Machine()}
			h.Offset, h.Within, h.Drift = there.Clock()
			h.Joules, h.Energy = w.Energy(s.run.Window)
			s.run.Hosts = append(s.run.Hosts, h)
		}
	}
	s.energy()
	return errors.Join(errs...)
}

// energy puts the energy of the measured parts' machines into the record, if all have a source.
func (s *execution) energy() {
	of := func(w result.Window) (joules float64, source string) {
		for i := range s.watchers {
			o := &s.watchers[i]
			if !slices.ContainsFunc(o.parts, func(k int) bool { return s.actors[k].part.Measure }) {
				continue
			}
			j, from := o.Energy(w)
			if from == "" {
				return 0, ""
			}
			if o.host != "" {
				from = "host " + o.host + ": " + from
			}
			joules, source = joules+j, strings.TrimPrefix(source+"; "+from, "; ")
		}
		return joules, source
	}
	s.run.Joules, s.run.Energy = of(s.run.Window)
	for i := range s.run.Steps {
		step := &s.run.Steps[i]
		step.Joules, _ = of(result.Window{From: step.From + step.Settle, To: step.To - step.Trail})
	}
}
