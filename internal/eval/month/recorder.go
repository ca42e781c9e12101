package main

import (
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
)

// recorder sends what an agent would have sent to a server, thinned: of each incident its
// first and its last state, the first with an accusation, and the one after each change of
// its rounds. The document of an incident without an accusation has only the first suspect.
type recorder struct {
	machine string
	start   sample.Millis
	tick    sample.Millis     // between two batches
	add     func(store.Batch) // called for each day, in order
	day     sample.Millis     // of batch
	batch   store.Batch
	open    map[string]seen // incidents, by ID
	err     error
}

// seen is what was stored of an open incident.
type seen struct {
	accused       bool
	rounds, ended int
}

const dayMS = 24 * 3_600_000

// sample takes a sample to be stored.
func (r *recorder) sample(s *sample.Sample) {
	since := s.TS - r.start
	if day := (since - 1) / dayMS; day != r.day {
		r.flush(day * dayMS)
		r.day = day
	}
	r.batch.Samples = append(r.batch.Samples, *s)
}

// flush sends what was gathered until a time since the start. The batch has the number that
// the newest of that time would have.
func (r *recorder) flush(since sample.Millis) {
	r.batch.Source = store.Source{Stream: "samples", Machine: r.machine, Boot: "month"}
	r.batch.N = uint64(since / r.tick)
	r.add(r.batch)
	r.batch = store.Batch{Samples: r.batch.Samples[:0]}
}

// changed takes a state of an incident.
func (r *recorder) changed(inc *incident.Record) {
	now := seen{accused: len(inc.Named()) > 0, rounds: len(inc.Rounds)}
	for _, x := range inc.Rounds {
		if x.Ended != 0 {
			now.ended++
		}
	}
	had, known := r.open[inc.ID]
	now.accused = now.accused || had.accused
	if known && had == now && inc.Closed == 0 {
		return
	}
	r.open[inc.ID] = now
	if inc.Closed != 0 {
		delete(r.open, inc.ID)
	}
	brief := *inc
	if !now.accused && now.rounds == 0 {
		brief.Suspects, brief.Latest = brief.Suspects[:min(1, len(brief.Suspects))], nil
	}
	row, err := store.IncidentOf(&brief)
	if err != nil {
		r.err = err
		return
	}
	r.batch.Incidents = append(r.batch.Incidents, row)
}
