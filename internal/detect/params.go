package detect

import (
	"fmt"
	"time"

	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/spec"
)

// Rule names a set of switches.
type Rule string

const (
	// CPI2 is the paper's rules and nothing else.
	CPI2 Rule = "cpi2"
	// Quell is CPI2 with every switch on that has earned it.
	Quell Rule = "quell"
	// Evident is Quell with the switch Evidence: regression over all suspects,
	// and short trials where policy allows them (plan.Policy.Trial).
	Evident Rule = "evidence"
	// Default is the rule where none is asked for.
	Default = Evident
)

// Switches are what quell adds to the paper, each on its own.
type Switches struct {
	// Reach leaves out suspects that cannot hurt the victim: for the signal's
	// resource they share nothing with it.
	Reach bool
	// CoVictim ranks a suspect that was over its own threshold when the victim
	// was behind suspects that clear the bar and were not.
	CoVictim bool
	// LeastEffect asks that an outlier also matters: at least the signal's
	// least effect over the mean.
	LeastEffect bool
	// Indeterminate refuses to accuse from a window without both good and bad
	// samples of the victim, where every suspect with any usage scores alike.
	Indeterminate bool
	// LeastPressure leaves out suspects that used next to nothing when the
	// victim was bad: normalised usage hides how little it was, so a task that
	// ran for a moment in a bad interval correlates like one that filled it.
	LeastPressure bool
	// LookBack moves a window without good samples of the victim back to its
	// last good ones, so that an antagonist who fills the window can be told
	// from who was always there.
	LookBack bool
	// PhaseChange tells a victim that changed itself from one that is
	// interfered with: who used no more when the victim was bad is not accused,
	// and a change of the victim's own is a finding of its own (change.go).
	PhaseChange bool
	// Evidence accuses by regression over all suspects and everything that is
	// kept instead of by Params.Correlation alone (evidence.go).
	Evidence bool
	// OwnCauses gives samples explained by the task's own quota, by stolen
	// time or by waiting on itself findings of their own.
	OwnCauses bool
}

// Switches returns what the rule turns on.
func (r Rule) Switches() (Switches, error) {
	switch r {
	case CPI2, CPI2Sigma3, Rubik, CPUShare, Biggest, Fences:
		return Switches{}, nil
	case Quell, Evident:
		return Switches{Reach: true, CoVictim: true, LeastEffect: true, Indeterminate: true, LeastPressure: true,
			LookBack: true, PhaseChange: true, OwnCauses: true, Evidence: r == Evident}, nil
	}
	return Switches{}, fmt.Errorf("rule %q: want one of %v", r, Rules())
}

// Params are the numbers of detection. Start from Paper.
type Params struct {
	Rule     Rule
	Switches Switches
	// Sigmas: a cost over mean + Sigmas·σ is an outlier.
	Sigmas float64
	// Outliers in OutlierWindow make an anomaly.
	Outliers      int
	OutlierWindow time.Duration
	// Window is how far back victim and suspects are correlated.
	Window time.Duration
	// LookBack is how old a good interval may be that the switch of that name
	// compares with.
	LookBack time.Duration
	// Memory is how much longer what all tasks cost and used is remembered, more and
	// more coarsely (switch Evidence).
	Memory time.Duration
	// Correlation is what an antagonist must reach, in [−1, 1].
	Correlation float64
	// LeastPressure is the mean usage (CPU-s/s) over the bad intervals that
	// the switch of that name asks of a suspect. Paper sets the hard cap: who
	// uses less would not notice being capped. Signals whose pressure is not CPU
	// usage have their own (sample.Signal.LeastPressure).
	LeastPressure float64
	// Suspicion is by what the rule tells who it is, and Fallback whether it
	// accuses the biggest user that may be held where nobody clears the bar.
	// Both are others' (rules.go).
	Suspicion Suspicion
	Fallback  bool
	// OwnSpec and UsageBins say what the rule wants to be given as Reading.Spec:
	// one of the task's own history, one of the range its usage is in.
	OwnSpec, UsageBins bool
	// Pace is the least time between two analyses on a machine.
	Pace time.Duration
	// Top is how many suspects a finding lists.
	Top int
	// Explain gives findings what all suspects were weighed by (Finding.Weighed).
	Explain bool
	// ThrottledShare and StolenShare of an interval are where the flags
	// Throttled and Stolen begin.
	ThrottledShare, StolenShare float64
}

// Paper returns CPI²'s numbers (table 2; section 4.2) with the given rule's
// switches.
func Paper(r Rule) (Params, error) {
	if r == "" {
		r = Default
	}
	sw, err := r.Switches()
	p := Params{
		Rule: r, Switches: sw,
		Sigmas: 2, Outliers: 3, OutlierWindow: 5 * time.Minute,
		Window: 10 * time.Minute, LookBack: time.Hour, Correlation: 0.35, LeastPressure: 0.1, Pace: time.Second, Top: 10,
		ThrottledShare: 0.05, StolenShare: 0.02,
	}
	if sw.Evidence {
		p.Memory = 24 * time.Hour
	}
	p.rival()
	return p, err
}

// kept is how long intervals are kept.
func (p Params) kept() time.Duration {
	if p.Switches.LookBack {
		return max(p.Window, p.LookBack)
	}
	return p.Window
}

// Threshold is the cost above which a sample is an outlier: mean + k·σ, and
// with LeastEffect at least the signal's least effect over the mean.
func (p Params) Threshold(sig sample.Signal, s spec.Spec) float64 {
	return p.threshold(&sig, s.Mean, s.StdDev)
}

func (p *Params) threshold(sig *sample.Signal, mean, sd float64) float64 {
	t := mean + p.Sigmas*sd
	if p.Switches.LeastEffect {
		t = max(t, mean+sig.EffectAbs, mean*(1+sig.EffectRel))
	}
	return t
}
