package main

import (
	"math"
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

// paced is the rate and its standard error, from how it differs from second to second.
func (w work) paced(from, to time.Time) (rate, se float64) {
	rate = w.rate(from, to)
	n := int(to.Sub(from) / interval)
	if n < 2 {
		return rate, rate
	}
	var sum, squares float64
	for i := range n {
		r := w.rate(from.Add(time.Duration(i)*interval), from.Add(time.Duration(i+1)*interval))
		sum, squares = sum+r, squares+r*r
	}
	mean := sum / float64(n)
	return rate, math.Sqrt(max(0, squares/float64(n)-mean*mean) / float64(n-1))
}

// A victim is hurt where it does at most harmed of the work that it does in the calm
// before and after, whichever is less. It is not where it does more than unharmed, if
// its pace is steady enough to tell that from harmed: by certain standard errors.
// Anything else is not known, nor where the calm before and after differ by more than
// unsteady.
const (
	harmed   = 0.90
	unharmed = 0.95
	certain  = 2
	unsteady = 0.80
)

// stretch is a part of a scene as it was played.
type stretch struct {
	from, to    time.Time
	calm        bool
	antagonists []antagonist
	phase       string // the victim's task whose own work changes, "" for none
	// foreign is what ran outside the scene meanwhile, CPU-s/s.
	foreign float64
}

// tooMuch is from how much on, in CPU-s/s, what runs outside a scene may have done what
// is put down to an antagonist.
const tooMuch = 0.25

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
	rates, ses := make([]float64, len(all)), make([]float64, len(all))
	var calms []float64
	for i, s := range all {
		from := s.from.Add(settling * interval)
		if !from.Before(s.to) {
			from = s.from
		}
		rates[i], ses[i] = w.paced(from, s.to)
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
		before, after, se := usual, usual, 0.0
		for k := i - 1; k >= 0; k-- {
			if all[k].calm {
				before, se = rates[k], ses[k]
				break
			}
		}
		for k := i + 1; k < len(all); k++ {
			if all[k].calm {
				if after = rates[k]; after < before {
					se = ses[k]
				}
				break
			}
		}
		least, most := min(before, after), max(before, after)
		switch {
		case least <= 0 || s.foreign > tooMuch:
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
		case rates[i] < unharmed*least || least < unsteady*most || rates[i]-certain*math.Hypot(ses[i], harmed*se) < harmed*least:
			unknown(s)
		}
	}
	return j
}
