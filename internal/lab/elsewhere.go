package lab

import (
	"errors"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/place"
	"github.com/quell-dev/quell/internal/lab/result"
)

// lostHost returns the host that err reports as lost. ok is false if no error in its
// tree has a method LostHost.
func lostHost(err error) (host string, ok bool) {
	var lost interface{ LostHost() string }
	if errors.As(err, &lost) {
		return lost.LostHost(), true
	}
	return "", false
}

// places returns the CPUs of each part. Relations and mappings apply to this machine. A
// part on another host is on the CPUs that the study lists for it there, or else stays
// where its environment is.
func (s *execution) places() ([][]sample.Set, error) {
	here := *s.cell
	here.Parts = nil
	for _, p := range s.cell.Parts {
		if s.Study.Here(&p) {
			here.Parts = append(here.Parts, p)
		}
	}
	if len(here.Parts) < len(s.cell.Parts) {
		for i := range here.Parts { // parts elsewhere take no place here
			here.Parts[i].Slot, here.Parts[i].Slots = i, len(here.Parts)
		}
	}
	near, err := place.Resolve(s.Topology, s.Allowed, &here)
	if err != nil {
		return nil, err
	}
	sets := make([][]sample.Set, len(s.cell.Parts))
	for i := range s.cell.Parts {
		p := &s.cell.Parts[i]
		if s.Study.Here(p) {
			sets[i], near = near[0], near[1:]
			continue
		}
		if sets[i], err = place.Listed(s.cell, p); err != nil {
			return nil, err
		}
	}
	return sets, nil
}

// closeObserver ends the observation. parts are all parts of the run; the observer gets
// those that are on this host.
func (s *execution) closeObserver(parts []result.Part) ([]result.Evidence, error) {
	var here []int
	var seen []result.Part
	for i, a := range s.actors {
		if !a.remote {
			here, seen = append(here, i), append(seen, parts[i])
		}
	}
	evidence, err := s.observer.Close(seen)
	for k, i := range here {
		parts[i] = seen[k]
	}
	return evidence, err
}
