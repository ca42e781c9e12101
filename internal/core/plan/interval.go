package plan

import (
	"math"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Interval processes one interval, as given to and judged by detect.Observe, and updates
// the signal's open incidents.
func (p *Planner) Interval(now sample.Millis, sig sample.SignalName, at sample.Millis, readings []detect.Reading, verdicts []detect.Verdict) {
	micros := int64(0) // integers: the sum must not depend on the order
	for i := range readings {
		if u := readings[i].CPU; u < 1e6 && !readings[i].Inner { // also false for NaN
			micros += int64(u * 1e6)
		}
	}
	if !sig.OfMachine() { // else the usage of the whole machine is among them
		p.busy = float64(micros) / 1e6
	}
	index := NewIndex(readings)
	limited := p.noteLimits(sig, at, readings)
	for _, c := range p.Caps() {
		for _, k := range [...]sample.TaskKey{c.Task.Key, c.Victim} {
			if i := index.Of(k); i >= 0 {
				p.Review(now, *readings[i].Task)
			}
		}
	}
	if s, ok := sample.LookupSignal(sig); ok {
		p.testify(&s, at, readings, verdicts)
	}
	if len(p.open) == 0 {
		return
	}
	usage := func(k sample.TaskKey) float64 {
		if i := index.Of(k); i >= 0 {
			return readings[i].Pressure
		}
		return math.NaN()
	}
	for _, inc := range p.inOrder() {
		if inc.Signal != sig {
			continue
		}
		if i := index.Of(inc.Victim.Key); i >= 0 && verdicts[i].Counts() {
			cost := readings[i].Cost
			if verdicts[i].Outlier {
				inc.lastDisturbance = max(inc.lastDisturbance, at)
			}
			inc.addSample(at, cost, readings[i].Misses, verdicts[i].Outlier, p.policy.Outliers, limited, usage)
			p.adjustFeedback(now, inc, cost, usage)
		}
		if inc.capped() {
			p.changed(inc, now)
		}
	}
}

// Index finds readings by their tasks. An incident and its chart need few: a linear search is cheaper than
// a map until many are asked for.
type Index struct {
	readings []detect.Reading
	asked    int
	of       map[sample.TaskKey]int
}

// mostSearched is the number of searches after which a map is made.
const mostSearched = 32

// NewIndex returns an index of readings.
func NewIndex(readings []detect.Reading) *Index { return &Index{readings: readings} }

// Of returns the index of a task's reading, −1 if there is none.
func (x *Index) Of(k sample.TaskKey) int {
	if x.asked++; x.asked > mostSearched {
		if x.of == nil {
			x.of = make(map[sample.TaskKey]int, len(x.readings))
			for i := len(x.readings) - 1; i >= 0; i-- { // the first one counts
				x.of[x.readings[i].Task.Key] = i
			}
		}
		if i, ok := x.of[k]; ok {
			return i
		}
		return -1
	}
	for i := range x.readings {
		if x.readings[i].Task.Key == k {
			return i
		}
	}
	return -1
}

// Tick ends caps whose lease has expired and closes incidents that are calm.
func (p *Planner) Tick(now sample.Millis) {
	for _, c := range p.Caps() {
		if now >= c.Until {
			p.lift(now, c.ID, "the lease expired", "")
		}
	}
	for _, inc := range p.inOrder() {
		if !inc.capped() && now.Sub(inc.lastDisturbance) >= p.policy.Calm {
			p.close(now, inc)
		}
	}
}

// Due returns when Tick next has something to do if nothing else happens, and whether
// there is such a time.
func (p *Planner) Due() (at sample.Millis, ok bool) {
	at = math.MaxInt64
	for _, c := range p.caps {
		if !c.ended {
			at = min(at, c.Until)
		}
	}
	for _, inc := range p.open {
		if !inc.capped() {
			at = min(at, inc.lastDisturbance.Add(p.policy.Calm))
		}
	}
	return at, at < math.MaxInt64
}
