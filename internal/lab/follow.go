package lab

import (
	"fmt"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/place"
)

// settleLoad is the time over which a load is averaged before a placement follows it:
// about nine periods of 107 ms.
const settleLoad = time.Second

// follow moves all parts when the load of the role that a dynamic placement follows has
// crossed its threshold.
func (s *execution) follow() error {
	d := s.cell.Place.Dynamic
	if d == nil {
		return nil
	}
	if s.dynamic == nil {
		s.dynamic = place.NewDynamic(*d)
	}
	now := time.Now()
	for _, a := range s.actors {
		if a.part.Role != d.Role {
			continue
		}
		load, _, ok := a.achieved(now.Add(-settleLoad), now)
		if !ok {
			continue
		}
		if relation, changed := s.dynamic.Update(load); changed {
			return s.move(relation)
		}
		return nil
	}
	return nil
}

// possibleCPUs returns all CPUs on which a part may be in the course of the run.
func (s *execution) possibleCPUs(a *partRun) ([]sample.Set, error) {
	d := s.cell.Place.Dynamic
	if d == nil || a.part.CPUs != "" || a.remote {
		return a.sets, nil
	}
	above, err := place.Relation(s.Topology, s.Allowed, d.Above, a.part.Slot, a.part.Slots)
	if err != nil {
		return nil, err
	}
	all := sample.SetOf()
	for _, set := range append(above, a.sets...) {
		all = all.Union(set)
	}
	return []sample.Set{all}, nil
}

// move places every part according to another relation.
func (s *execution) move(relation string) error {
	for _, a := range s.actors {
		if a.part.CPUs != "" || a.remote {
			continue
		}
		sets, err := place.Relation(s.Topology, s.Allowed, relation, a.part.Slot, a.part.Slots)
		if err != nil {
			return err
		}
		if err := a.env.Pin(sets); err != nil {
			return fmt.Errorf("move %s: %w", a.part.Name(), err)
		}
		a.sets = sets
		for _, set := range sets {
			a.pinned = append(a.pinned, fmt.Sprintf("%s from %s", set, time.Since(s.start).Round(100*time.Millisecond)))
		}
	}
	return nil
}
