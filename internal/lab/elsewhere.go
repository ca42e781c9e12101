package lab

import (
	"errors"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/place"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/host"
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

// Places returns the CPUs of each part of a cell. Relations and mappings apply to this
// machine. A part on another host is on the CPUs that the study lists for it there, or else
// stays where its environment is.
func Places(s *study.Study, top host.Topology, allowed sample.Set, cell *study.Cell) ([][]sample.Set, error) {
	here := *cell
	here.Parts = nil
	for _, p := range cell.Parts {
		if s.Here(&p) {
			here.Parts = append(here.Parts, p)
		}
	}
	if len(here.Parts) < len(cell.Parts) {
		for i := range here.Parts { // parts elsewhere take no place here
			here.Parts[i].Slot, here.Parts[i].Slots = i, len(here.Parts)
		}
	}
	near, err := place.Resolve(top, allowed, &here)
	if err != nil {
		return nil, err
	}
	sets := make([][]sample.Set, len(cell.Parts))
	for i := range cell.Parts {
		p := &cell.Parts[i]
		if s.Here(p) {
			sets[i], near = near[0], near[1:]
			continue
		}
		if sets[i], err = place.Listed(cell, p); err != nil {
			return nil, err
		}
	}
	return sets, nil
}
