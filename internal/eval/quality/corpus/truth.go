package main

import (
	"math"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace"
)

// work is the times at which a victim finished pieces of work, in order.
type work []time.Time

// rate returns the number of pieces a second between two times.
func (w work) rate(from, to time.Time) float64 {
	after := func(t, at time.Time) int { return t.Compare(at) }
	a, _ := slices.BinarySearchFunc(w, from, after)
	b, _ := slices.BinarySearchFunc(w, to, after)
	return float64(b-a) / to.Sub(from).Seconds()
}

// pace is a rate and its standard error, from its variation from second to second; the
// error is at least one piece.
type pace struct{ rate, se float64 }

func (w work) pace(from, to time.Time) pace {
	rate := w.rate(from, to)
	n := int(to.Sub(from) / interval)
	if n < 2 {
		return pace{rate, rate}
	}
	var sum, squares float64
	for i := range n {
		r := w.rate(from.Add(time.Duration(i)*interval), from.Add(time.Duration(i+1)*interval))
		sum, squares = sum+r, squares+r*r
	}
	mean := sum / float64(n)
	return pace{rate, max(math.Sqrt(max(0, squares/float64(n)-mean*mean)/float64(n-1)), 1/to.Sub(from).Seconds())}
}

// A victim is hurt in a stretch if its rate of work is at most harmed times the rate of the
// calm stretch before it and of the one after it, and by at least cut pieces less: each end
// of a stretch cuts one off. It is not hurt if its rate is at least unharmed times both,
// and higher than harmed times both by certain standard errors. Anything else is not known:
// a cloud machine becomes faster or slower for a minute for other reasons. A calm stretch
// with less than unsteady times the usual rate is not known either.
const (
	harmed   = 0.90
	unharmed = 0.95
	certain  = 2
	cut      = 2
	unsteady = 0.80
)

// stretch is a part of a scene as it was played.
type stretch struct {
	from, to    time.Time
	calm        bool
	antagonists []antagonist
	phase       string // the victim's task whose own work changes, "" for none
	// foreign is the load outside the scene in the stretch, CPU-s/s.
	foreign float64
}

// of is the stretch of one task in a trace.
func (s *stretch) of(machine string, task sample.TaskName) trace.Stretch {
	return trace.Stretch{Machine: machine, Victim: task, From: sample.At(s.from), To: sample.At(s.to)}
}

// maxOutsideLoad is the load outside a scene, in CPU-s/s, above which it may be the cause of an
// effect that is attributed to an antagonist.
const maxOutsideLoad = 0.25

// antagonist is an antagonist that was present in a stretch.
type antagonist struct {
	task  sample.TaskName
	cause string
}

// uncounted returns the stretches in which it is not known whether a task suffered whose
// work is not counted: those with an antagonist.
func uncounted(machine string, task sample.TaskName, all []stretch) (unknown []trace.Stretch) {
	for _, s := range all {
		if len(s.antagonists) > 0 {
			unknown = append(unknown, s.of(machine, task))
		}
	}
	return unknown
}

// judgement is the truth on a victim in the stretches of a scene.
type judgement struct {
	labels  []trace.Label
	unknown []trace.Stretch
}

// judge compares a victim's rate in each stretch with its rate in the calm ones next to it.
func judge(machine string, victim sample.TaskName, w work, all []stretch) (j judgement) {
	paces := make([]pace, len(all))
	var calms []float64
	for i, s := range all {
		from := s.from.Add(settling * interval)
		if !from.Before(s.to) {
			from = s.from
		}
		paces[i] = w.pace(from, s.to)
		if s.calm {
			calms = append(calms, paces[i].rate)
		}
	}
	slices.Sort(calms)
	usual := calms[len(calms)/2]
	unknown := func(s *stretch) { j.unknown = append(j.unknown, s.of(machine, victim)) }
	for i := range all {
		s := &all[i]
		if s.calm {
			if paces[i].rate < unsteady*usual { // something else happened
				unknown(s)
			}
			continue
		}
		low, high := pace{usual, 0}, pace{usual, 0} // of the calm stretches before and after
		if k := calmFrom(all, i, -1); k >= 0 {
			low, high = paces[k], paces[k]
		}
		if k := calmFrom(all, i, +1); k >= 0 {
			if paces[k].rate < low.rate {
				low = paces[k]
			} else {
				high = paces[k]
			}
		}
		now := paces[i]
		switch {
		case low.rate <= 0 || s.foreign > maxOutsideLoad:
			unknown(s)
		case len(s.antagonists) == 0:
			// No antagonist. A decrease is the victim's own phase, or it is not known.
			if s.phase != string(victim) && now.rate < unharmed*low.rate {
				unknown(s)
			}
		case now.rate <= harmed*low.rate && now.rate <= low.rate-cut/s.to.Sub(s.from).Seconds():
			for _, a := range s.antagonists {
				j.labels = append(j.labels, trace.Label{Machine: machine, Victim: victim, Antagonist: a.task, Cause: a.cause, From: sample.At(s.from), To: sample.At(s.to)})
			}
		case now.rate < unharmed*high.rate || now.rate-certain*math.Hypot(now.se, harmed*high.se) < harmed*high.rate:
			unknown(s)
		}
	}
	return j
}

// calmFrom returns the index of the calm stretch next to the i-th in a direction, −1 for
// none.
func calmFrom(all []stretch, i, direction int) int {
	for k := i + direction; k >= 0 && k < len(all); k += direction {
		if all[k].calm {
			return k
		}
	}
	return -1
}
