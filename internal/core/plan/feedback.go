package plan

import (
	"fmt"
	"math"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// A feedback cap (Policy.Feedback) takes from the antagonist only what the victim needs:
// the rate follows the victim's cost, which is kept just below its threshold. The paper
// names it as future work (CPI², section 6.2).

// Constants of feedback caps: unit, meaning, and how each was chosen (docs/design/0006).
const (
	// Share of the distance from the threshold to the mean: how far below the threshold the
	// victim is kept. At the paper's 2σ that is 0.75σ: one sample in five is an outlier by
	// noise alone, and three in five, an anomaly, are rare. Point 2.
	targetMargin = 0.375
	// Ratio: least of two consecutive rates. Point 3; the reason is not stated.
	minStepRatio = 0.5
	// Ratio: most of two consecutive rates. Point 3; the reason is not stated.
	maxStepRatio = 2
	// Relative change of a rate: smaller ones are not applied. Not stated.
	minRateChange = 0.05
	// Share of its rate that the suspect uses, at least, while a cap binds. Point 3; the
	// reason is not stated.
	bindingShare = 0.8
	// Intervals in a row without binding that end the cap. Point 4; the reason is not stated.
	maxSlackIntervals = 3
	// Pairs of victim and suspect whose rates are kept; a machine has few pairs that meet
	// repeatedly. Bounds memory.
	maxLearnt = 1024
)

// targetCost is the cost at which a feedback cap keeps the victim.
func (inc *incident) targetCost() float64 {
	return inc.latest.Threshold - targetMargin*(inc.latest.Threshold-inc.SpecMean)
}

// feedbackRates are the rates at which feedback caps ended, so that the next one on the same
// suspect for the same victim starts there.
type feedbackRates map[[2]sample.TaskKey]float64

func (l feedbackRates) keep(victim, suspect sample.TaskKey, rate float64) {
	if len(l) >= maxLearnt {
		clear(l)
	}
	l[[2]sample.TaskKey{victim, suspect}] = rate
}

func (l feedbackRates) forget(k sample.TaskKey) {
	for pair := range l {
		if pair[0] == k || pair[1] == k {
			delete(l, pair)
		}
	}
}

// initialRate returns the initial rate of a feedback cap: the rate at which the last one for
// this victim ended, or what the window's curve allows. There is no curve if the suspect
// used no more in bad intervals than in good ones.
func (p *Planner) initialRate(inc *incident, s sample.Task, window func(sample.TaskKey) []detect.Point) (float64, *curve) {
	used := map[sample.Millis]float64{}
	for _, u := range window(s.Key) {
		used[u.At] = u.Pressure
	}
	c := &curve{limit: inc.latest.Threshold, noise: (inc.latest.Threshold - inc.SpecMean) / 2, shapes: shapesOf(inc.Signal)}
	var good, bad, squares float64
	for _, v := range window(inc.Victim.Key) {
		u, ok := used[v.At]
		if !ok || math.IsNaN(v.Cost) {
			continue
		}
		c.before = append(c.before, point{u, v.Cost})
		if v.Cost > inc.latest.Threshold {
			bad, squares = bad+u, squares+u*u
		} else {
			good, c.calm.usage, c.calm.cost = good+1, c.calm.usage+u, c.calm.cost+v.Cost
		}
	}
	c.before = c.before[max(0, len(c.before)-maxBefore):]
	// A good interval need not be well below the aim; the mean is. Bad intervals are
	// weighted by the suspect's usage: where it used little, another task was the cause.
	c.calm = point{c.calm.usage / good, min(c.calm.cost/good, inc.SpecMean)}
	c.top = squares / bad
	floor := p.policy.rate(s)
	if !(c.top > c.calm.usage) || !(c.top > floor) || !(c.noise > 0) { // also if one is NaN
		return floor, nil
	}
	rate, known := p.feedbackRates[[2]sample.TaskKey{inc.Victim.Key, s.Key}]
	if !known {
		rate = c.rate(inc.targetCost(), floor)
	}
	return min(max(floor, rate), c.top), c
}

// adjustFeedback adapts the rate of the newest cap to the victim's newest sample, and ends a cap
// that has not limited the suspect for some time.
func (p *Planner) adjustFeedback(now sample.Millis, inc *incident, cost float64, usage func(sample.TaskKey) float64) {
	r := inc.newest()
	if r == nil || r.Trial || len(r.With) > 0 || !r.applied || r.seen < 2 || math.IsNaN(cost) {
		return // the first sample under a cap is partly from before it
	}
	c := p.caps[r.ID]
	if c == nil || c.ended || c.By != auto || now >= c.Until || r.Rate == 0 {
		return
	}
	used := usage(r.Suspect.Key)
	felt := used >= bindingShare*r.Rate
	switch {
	case r.curve == nil && p.policy.MaxDuration == 0:
		return // it ends by the clock
	case felt || cost > inc.latest.Threshold:
		r.slack = 0
	default:
		if r.slack++; r.slack >= maxSlackIntervals {
			p.lift(now, r.ID, "the cap no longer binds", "")
			return
		}
	}
	if !felt || math.IsInf(used, 0) {
		return // the victim's cost says nothing about this rate
	}
	why := p.adjust(inc, r, point{used, cost})
	if more := p.renew(now, inc, c); more != "" {
		why = more
	}
	if why == "" {
		return
	}
	c.Rate, c.Until = r.Rate, r.Until
	a := c.Action
	a.Kind, a.Why = Adjust, why
	p.actions = append(p.actions, a)
	p.changed(inc, now)
}

// adjust changes the rate of a feedback cap and says why; "" if it stays.
func (p *Planner) adjust(inc *incident, r *round, at point) (why string) {
	if r.curve == nil {
		return ""
	}
	r.curve.add(at)
	floor := p.policy.rate(r.Suspect)
	rate := r.curve.rate(inc.targetCost(), floor)
	if at.cost > inc.latest.Threshold {
		rate = min(rate, r.Rate)
	}
	rate = max(floor, min(maxStepRatio*r.Rate, max(minStepRatio*r.Rate, rate)))
	if !(math.Abs(rate-r.Rate) >= minRateChange*r.Rate) { // also if it is NaN
		return ""
	}
	p.feedbackRates.keep(inc.Victim.Key, r.Suspect.Key, rate)
	r.Rate = rate
	r.Adjusted++
	return fmt.Sprintf("%s of %s at %.3g, target %.3g", inc.Signal, inc.Victim.Name, at.cost, inc.targetCost())
}

// renew extends a cap that binds and helps (Policy.MaxDuration), when at most a quarter of
// Policy.For is left, and says why; "" if its end stays.
func (p *Planner) renew(now sample.Millis, inc *incident, c *CapState) (why string) {
	r := c.round
	until := min(now.Add(p.policy.For), c.From.Add(p.policy.MaxDuration))
	if until <= c.Until || c.Until.Sub(now) > p.policy.For/4 || !(float64(r.CostBefore-r.CostUnder) > inc.SpecStdDev) { // also if one is NaN
		return ""
	}
	r.Until = until
	return fmt.Sprintf("the cap binds and helps: %s of %s at %.3g under the cap, %.3g before", inc.Signal, inc.Victim.Name, r.CostUnder, r.CostBefore)
}
