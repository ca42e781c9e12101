package plan_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// loop is /hog interfering with /web, whose cost is a function of /hog's usage, under a
// planner with feedback caps; one sample a second.
type loop struct {
	t      *testing.T
	p      *plan.Planner
	cost   func(usage float64) float64
	wants  float64 // usage of /hog without a cap
	rate   float64 // its cap, +Inf for none
	now    sample.Millis
	past   [2][]detect.Point
	adjust int
}

const mean, limit = 1.0, 1.2

func newLoop(t *testing.T, wants float64, cost func(float64) float64, change func(*plan.Policy)) *loop {
	policy := plan.Paper()
	policy.Mode, policy.Feedback, policy.For = plan.On, true, 10*time.Minute
	if change != nil {
		change(&policy)
	}
	l := &loop{t: t, p: plan.New("machine", detect.Quell, policy), cost: cost, wants: wants, rate: math.Inf(1), now: 60 * second}
	for i := range 10 { // five good intervals and five bad ones
		used := wants
		if i < 5 {
			used = 0.02 * wants
		}
		l.past[0] = append(l.past[0], detect.Point{At: l.now, Cost: cost(used)})
		l.past[1] = append(l.past[1], detect.Point{At: l.now, Cost: math.NaN(), Pressure: used})
		l.now += second
	}
	return l
}

func (l *loop) window(k sample.TaskKey) []detect.Point { return l.past[k.Inode-1] }

func (l *loop) take() plan.Output {
	out := take(l.p)
	for _, a := range out.Actions {
		switch a.Kind {
		case plan.Uncap:
			l.rate = math.Inf(1)
			l.p.Lifted(l.now, a.ID, false)
		case plan.Adjust:
			l.rate = a.Rate
			l.adjust++
		case plan.Cap:
			l.rate = a.Rate
			l.p.Applied(l.now, a.ID, nil)
		}
	}
	take(l.p) // the results of the actions
	return out
}

func (l *loop) accuse() plan.Incident {
	id := l.p.Finding(l.now, detect.Finding{At: l.now, Signal: sample.CPI, Victim: web(), Spec: spec.Spec{Mean: mean, StdDev: 0.1}, First: l.now - 3*second,
		Result: detect.Result{Kind: detect.Neighbour, Threshold: limit, Bad: 3, Cost: l.cost(l.wants), Pairs: 10, Suspects: suspects(), Antagonists: 1}}, l.window)
	l.take()
	return l.incident(id)
}

// round is the n-th round of an open incident in its current state.
func (l *loop) round(id string, n int) *plan.Round { return l.incident(id).Rounds[n] }

// incident is an open incident in its current state.
func (l *loop) incident(id string) plan.Incident {
	inc, _ := l.p.Incident(id)
	return inc
}

// step is one interval; it returns the victim's cost and the usage that the cap took.
func (l *loop) step(noise float64) (cost, taken float64) {
	l.now += second
	used := min(l.wants, l.rate)
	cost = l.cost(used) + noise
	l.p.Interval(l.now, sample.CPI, l.now, []detect.Reading{{Task: ptr(web()), Cost: cost}, {Task: ptr(hog()), Cost: math.NaN(), Pressure: used, CPU: used}},
		[]detect.Verdict{{Judged: true, Sane: true, Outlier: cost > limit}, {}})
	l.take()
	l.p.Tick(l.now)
	l.take()
	return cost, l.wants - used
}

// plants are ways in which a victim's cost may grow with a suspect's usage.
var plants = map[string]func(wants, worst float64) func(float64) float64{
	"linear": func(wants, worst float64) func(float64) float64 {
		return func(u float64) float64 { return mean + (worst-mean)*u/wants }
	},
	"queue": func(wants, worst float64) func(float64) float64 {
		return func(u float64) float64 { return mean + (worst-mean)*0.08*u/wants/(1.08-u/wants) }
	},
	"cache": func(wants, worst float64) func(float64) float64 {
		return func(u float64) float64 { return mean + (worst-mean)*1.5*max(0, 1-1/(0.8+2.2*u/wants)) }
	},
	"squared": func(wants, worst float64) func(float64) float64 {
		return func(u float64) float64 { return mean + (worst-mean)*u*u/wants/wants }
	},
}

// TestFeedbackFindsTheLeastCap: for every cost function, the cap settles where the victim
// is below its threshold. It takes no more than the fixed cap does, and not much more
// than necessary.
func TestFeedbackFindsTheLeastCap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for name, plant := range plants {
		for range 50 {
			wants, worst := 1+7*rng.Float64(), limit+0.1+2*rng.Float64()
			l := newLoop(t, wants, plant(wants, worst), nil)
			l.accuse()
			for range 60 {
				l.step(0)
			}
			bad, taken := 0, 0.0
			for range 60 {
				cost, took := l.step(0)
				if cost > limit {
					bad++
				}
				taken += took / 60
			}
			if bad > 3 { // on a steep curve the threshold is crossed occasionally
				t.Errorf("%s, wants %.2f, worst %.2f: %d of 60 intervals are bad", name, wants, worst, bad)
			}
			if fixed := wants - 0.1; taken > fixed+1e-9 {
				t.Errorf("%s: takes %.3f, the fixed cap %.3f", name, taken, fixed)
			}
			// The highest usage that keeps the cost below mean + 0.075, by bisection.
			low, high := 0.1, wants
			for range 50 {
				if middle := (low + high) / 2; l.cost(middle) < mean+0.075 {
					low = middle
				} else {
					high = middle
				}
			}
			if taken > wants-low+0.05*wants {
				t.Errorf("%s, wants %.2f, worst %.2f: takes %.3f where %.3f would do", name, wants, worst, taken, wants-low)
			}
		}
	}
}

// TestFeedbackStandsNoise: with samples as noisy as their spec says, few under the cap
// are outliers.
func TestFeedbackStandsNoise(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for name, plant := range plants {
		bad, all := 0, 0
		for range 20 {
			l := newLoop(t, 4, plant(4, 1.6), nil)
			l.accuse()
			for i := range 200 {
				if cost, _ := l.step(0.09 * rng.NormFloat64()); i >= 5 {
					if all++; cost > limit {
						bad++
					}
				}
			}
		}
		if share := float64(bad) / float64(all); share > 0.3 {
			t.Errorf("%s: %.2f of samples are outliers", name, share)
		}
	}
}

// TestACapThatHoldsNothingBackIsLifted before its end, and not while it binds.
func TestACapThatHoldsNothingBackIsLifted(t *testing.T) {
	l := newLoop(t, 2, plants["linear"](2, 2), nil)
	inc := l.accuse()
	for range 20 {
		l.step(0)
	}
	if l.round(inc.ID, 0).Ended != 0 {
		t.Fatal("it was lifted while it was felt")
	}
	l.wants = 0.01
	for range 3 {
		if l.round(inc.ID, 0).Ended != 0 {
			t.Error("it was lifted too early")
		}
		l.step(0)
	}
	if r := l.round(inc.ID, 0); r.Ended == 0 || r.Outcome != plan.TruePositive || r.Ended >= r.Until {
		t.Errorf("%+v", r)
	}
	// The next cap starts at the rate of this one.
	was := l.round(inc.ID, 0).Rate
	l.wants = 2
	for range 4 {
		l.step(0)
	}
	if inc := l.accuse(); len(inc.Rounds) != 2 || inc.Rounds[1].Rate != was {
		t.Errorf("%d rounds, the second at %v, want %v", len(inc.Rounds), inc.Rounds[len(inc.Rounds)-1].Rate, was)
	}
}

// TestFixedCapsStayAsTheyAre: fixed caps and trials are not adjusted.
func TestFixedCapsStayAsTheyAre(t *testing.T) {
	l := newLoop(t, 2, plants["linear"](2, 2), func(p *plan.Policy) { p.Feedback = false })
	inc := l.accuse()
	for range 30 {
		l.step(0)
	}
	if r := l.round(inc.ID, 0); l.adjust != 0 || r.Rate != 0.1 || r.Ended != 0 {
		t.Errorf("%d adjustments, %+v", l.adjust, r)
	}
	policy := plan.Paper()
	policy.Mode, policy.Feedback, policy.Trial = plan.On, true, 3*time.Minute
	p := plan.New("machine", detect.EvidenceMethod, policy)
	p.Finding(60*second, unsure(60*second, web(), hog()), none)
	out := take(p)
	if a := out.Actions[0]; a.Rate != 0.1 {
		t.Errorf("a trial holds to %v", a.Rate)
	}
	p.Applied(60*second, out.Actions[0].ID, nil)
	for i := range sample.Millis(20) {
		now := (61 + i) * second
		p.Interval(now, sample.CPI, now, []detect.Reading{{Task: ptr(web()), Cost: 1}}, []detect.Verdict{{Judged: true, Sane: true}})
		if out := take(p); len(out.Actions) > 0 {
			t.Fatalf("a trial is adjusted: %+v", out.Actions)
		}
	}
}

// TestWhoComesBackIsToBeStartedElsewhere: after three caps that helped, the advice says
// so; quell continues to cap and does nothing else.
func TestWhoComesBackIsToBeStartedElsewhere(t *testing.T) {
	l := newLoop(t, 2, plants["linear"](2, 2), func(p *plan.Policy) { p.Feedback, p.For = false, 20*time.Second })
	for round := range 5 {
		inc := l.accuse()
		if says := strings.Contains(inc.Advice, "restart it on another machine, or move /web"); says != (round >= 3) || len(inc.Rounds) != round+1 {
			t.Errorf("round %d of %d: %q", round, len(inc.Rounds), inc.Advice)
		}
		for range 25 {
			l.step(0)
		}
	}
}

// TestAVictimThatNoCapHelpsIsToBeMoved.
func TestAVictimThatNoCapHelpsIsToBeMoved(t *testing.T) {
	l := newLoop(t, 2, func(float64) float64 { return 2 }, func(p *plan.Policy) { p.Feedback, p.For = false, 20*time.Second })
	l.accuse()
	for range 25 {
		l.step(0)
	}
	if inc := l.accuse(); !strings.Contains(inc.Advice, "move /web to another machine: the cap here did not help it") || len(inc.Rounds) != 1 {
		t.Errorf("%d rounds, %q", len(inc.Rounds), inc.Advice)
	}
}
