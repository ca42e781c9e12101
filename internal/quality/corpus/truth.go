package main

import (
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/trace"
)

// work is when a victim finished pieces of work, in order.
type work []time.Time

// rate is how many pieces a second it did from one moment to another.
func (w work) rate(from, to time.Time) float64 {
	after := func(t, at time.Time) int { return t.Compare(at) }
	a, _ := slices.BinarySearchFunc(w, from, after)
	b, _ := slices.BinarySearchFunc(w, to, after)
	return float64(b-a) / to.Sub(from).Seconds()
}

// A victim is hurt where it does at most harmed of the work that it does in the calm
// before and after, whichever is less, and not where it does more than unharmed.
// What is between is not known, nor where the two differ by more than unsteady.
const (
	harmed   = 0.90
	unharmed = 0.95
	unsteady = 0.80
)

// stretch is a part of a scene as it was played.
type stretch struct {
	from, to    time.Time
	calm        bool
	antagonists []antagonist
	phase       string // the victim's task whose own work changes, "" for none
}

// antagonist is one that was there in a stretch.
type antagonist struct {
	task  sample.TaskName
	cause string
}

// uncounted are the stretches in which it is not known whether a task suffered whose
// work is not counted: those with an antagonist.
func uncounted(machine string, task sample.TaskName, all []stretch) (unknown []trace.Stretch) {
	for _, s := range all {
		if len(s.antagonists) > 0 {
			unknown = append(unknown, trace.Stretch{Machine: machine, Victim: task, From: sample.At(s.from), To: sample.At(s.to)})
		}
	}
	return unknown
}

// judgement says what is true of a victim in the stretches of a scene.
type judgement struct {
	labels  []trace.Label
	unknown []trace.Stretch
}

// judge compares what a victim did in each stretch with what it did in the calm ones
// next to it.
func judge(machine string, victim sample.TaskName, w work, all []stretch) (j judgement) {
	rates := make([]float64, len(all))
	var calms []float64
	for i, s := range all {
		from := s.from.Add(settling * interval)
		if !from.Before(s.to) {
			from = s.from
		}
		rates[i] = w.rate(from, s.to)
		if s.calm {
			calms = append(calms, rates[i])
		}
	}
	slices.Sort(calms)
	usual := calms[len(calms)/2]
	unknown := func(s *stretch) {
		j.unknown = append(j.unknown, trace.Stretch{Machine: machine, Victim: victim, From: sample.At(s.from), To: sample.At(s.to)})
	}
	for i := range all {
		s := &all[i]
		if s.calm {
			if rates[i] < unsteady*usual { // something else went on
				unknown(s)
			}
			continue
		}
		before, after := usual, usual
		for k := i - 1; k >= 0; k-- {
			if all[k].calm {
				before = rates[k]
				break
			}
		}
		for k := i + 1; k < len(all); k++ {
			if all[k].calm {
				after = rates[k]
				break
			}
		}
		least, most := min(before, after), max(before, after)
		switch {
		case least <= 0:
			unknown(s)
		case len(s.antagonists) == 0:
			// Nobody came. What the victim does less it does by itself, or it is not known.
			if s.phase != string(victim) && rates[i] < unharmed*least {
				unknown(s)
			}
		case rates[i] <= harmed*least:
			for _, a := range s.antagonists {
				j.labels = append(j.labels, trace.Label{Machine: machine, Victim: victim, Antagonist: a.task, Cause: a.cause, From: sample.At(s.from), To: sample.At(s.to)})
			}
		case rates[i] < unharmed*least || least < unsteady*most:
			unknown(s)
		}
	}
	return j
}
