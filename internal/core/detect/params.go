package detect

import (
	"fmt"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// Method names a set of switches.
type Method string

const (
	// CPI2 is the paper's rules: every switch is off. The package comment lists what it adds to them.
	CPI2 Method = "cpi2"
	// Quell is CPI2 with every switch that improves the results.
	Quell Method = "quell"
	// EvidenceMethod is Quell with the switch Evidence: queue accounts, statistics over all
	// suspects, and short trials where the policy allows them (plan.Policy.Trial).
	EvidenceMethod Method = "evidence"
	// Default is the rule that applies if none is requested.
	Default = EvidenceMethod
)

// Methods returns quell's own rules.
func Methods() []Method { return []Method{Quell, EvidenceMethod, CPI2} }

// Switches are quell's additions to the paper, each independent of the others. The tags are
// their names in the agent's configuration and in rules without a switch (eval/rivals).
type Switches struct {
	// Reach excludes suspects that cannot hurt the victim because they share nothing of the
	// signal's resource with it.
	Reach bool `key:"reach"`
	// CoVictim ranks a suspect that was over its own threshold when the victim was behind
	// suspects that reach the bar and were below theirs.
	CoVictim bool `key:"co_victim"`
	// LeastEffect requires a minimum effect of an outlier: at least the signal's least
	// effect above the mean.
	LeastEffect bool `key:"least_effect"`
	// Indeterminate refuses to accuse from a window without both good and bad
	// samples of the victim, where every suspect with any usage scores alike.
	Indeterminate bool `key:"indeterminate"`
	// LeastPressure excludes suspects with almost no usage in the victim's bad intervals.
	// Normalised usage hides the absolute amount, so a task that ran for a moment in a bad
	// interval correlates like one that filled it.
	LeastPressure bool `key:"least_pressure"`
	// LookBack moves a window without good samples of the victim back to its last good ones, so that an
	// antagonist that fills the window can be told from a task that was always there.
	LookBack bool `key:"look_back"`
	// PhaseChange tells a victim that changed itself from one that suffers interference. A
	// suspect that used no more in the victim's bad intervals is not accused, and a change
	// of the victim itself is a separate finding (change.go).
	PhaseChange bool `key:"phase_change"`
	// Evidence accuses by accounts, statistics and trials over everything that is kept
	// instead of by Params.Correlation (accounts.go, statistics.go, regression.go).
	Evidence bool `key:"evidence"`
	// OwnCauses makes separate findings of samples that the task's own quota, stolen time
	// or waiting on itself explain.
	OwnCauses bool `key:"own_causes"`
	// Bounds drops costs outside the signal's range (sample.Signal.Min and Max), which no
	// measurement gives.
	Bounds bool `key:"bounds"`
	// Outside makes the usage outside any task a suspect (OutsideName), so that no task is
	// blamed for it.
	Outside bool `key:"outside"`
	// CappedApart does not rank suspects that are capped. The paper relies on a cap to lower
	// their correlation; it ignores scale, so a steady suspect keeps it.
	CappedApart bool `key:"capped_apart"`
	// Withhold keeps samples of incidents, and outliers until it is known that no incident
	// followed, from teaching specs (package pipeline).
	Withhold bool `key:"withhold"`
}

// Switches returns the switches that the rule turns on.
func (r Method) Switches() (Switches, error) {
	switch r {
	case CPI2:
		return Switches{}, nil
	case Quell, EvidenceMethod:
		return Switches{Reach: true, CoVictim: true, LeastEffect: true, Indeterminate: true, LeastPressure: true,
			LookBack: true, PhaseChange: true, OwnCauses: true, Bounds: true, Outside: true, CappedApart: true, Withhold: true, Evidence: r == EvidenceMethod}, nil
	}
	return Switches{}, fmt.Errorf("rule %q: want one of %v", r, Methods())
}

// Params are the parameters of detection. Start from Paper. The tags are those of the agent's
// configuration (format/keyed).
type Params struct {
	Method        Method `key:"rule" help:"evidence: regression over all suspects, with trials (docs/rules.md); quell: correlation; cpi2: the paper's rules; the page also lists what cpi2 adds to them" oneof:"evidence quell cpi2"`
	Switches      Switches
	Sigmas        float64       `key:"sigmas" help:"a cost over mean + this many standard deviations is an outlier" min:"0" max:"100"`
	Outliers      int           `key:"outliers" help:"outliers that make an anomaly" min:"1" max:"1000"`
	OutlierWindow time.Duration `key:"outlier_window" help:"time within which these outliers must occur" min:"100ms" max:"24h"`
	Window        time.Duration `key:"window" help:"correlate victim and suspects over this long" min:"100ms" max:"24h"`
	LookBack      time.Duration `key:"look_back" help:"if no interval of the window was good, compare with earlier good intervals up to this age (not with rule cpi2)" min:"0s" max:"24h"`
	// Memory is how much longer the costs and usages of all tasks are kept, with decreasing
	// resolution (switch Evidence).
	Memory      time.Duration
	Correlation float64 `key:"correlation" help:"a suspect with at least this correlation is an antagonist" min:"-1" max:"1"`
	// LeastPressure is a mean. Paper sets it to the hard cap, since a cap has no effect on a task that
	// uses less. Signals whose pressure is not CPU usage have their own (sample.Signal.LeastPressure).
	LeastPressure float64 `key:"least_pressure" help:"CPU-s/s that a suspect must have used in the victim's bad intervals (not with rule cpi2)" min:"0" max:"1024"`
	// Select, if set, selects the antagonist if no suspect reaches Correlation; −1 for
	// none. It is for methods of other projects (eval/rivals).
	Select func([]Accusable) int
	Pace   time.Duration `key:"pace" help:"minimum time between two analyses" min:"0s" max:"1h"`
	Top    int           `key:"top" help:"suspects listed in an incident" min:"1" max:"1000"`
	// Groups: tasks may be limited together (plan.Policy.Groups). pipeline.New sets it.
	Groups bool
	// Explain adds the statistics of all suspects to findings (Finding.Statistics).
	Explain bool
	// ThrottledShare and StolenShare are the shares, of a task's time in an interval and of the
	// machine's CPU time in it, from which on the flags Throttled and Stolen are set.
	ThrottledShare, StolenShare float64
}

// Paper returns CPI²'s parameters (table 2; section 4.2) with the given rule's switches.
func Paper(r Method) (Params, error) {
	if r == "" {
		r = Default
	}
	sw, err := r.Switches()
	p := Params{
		Method: r, Switches: sw,
		Sigmas: 2, Outliers: 3, OutlierWindow: 5 * time.Minute,
		Window: 10 * time.Minute, LookBack: time.Hour, Correlation: 0.35, LeastPressure: 0.1, Pace: time.Second, Top: 10,
		ThrottledShare: 0.05, StolenShare: 0.02,
	}
	if sw.Evidence {
		p.Memory = 24 * time.Hour
	}
	return p, err
}

// kept returns how long intervals are kept.
func (p Params) kept() time.Duration {
	if p.Switches.LookBack {
		return max(p.Window, p.LookBack)
	}
	return p.Window
}

// Threshold is the cost above which a sample is an outlier: mean + k·σ, with the spec's own k if
// it has one, and with LeastEffect at least the signal's least effect over the mean.
func (p Params) Threshold(sig sample.Signal, s spec.Spec) float64 {
	return p.threshold(&sig, s.Mean, s.StdDev, s.Sigmas)
}

func (p *Params) threshold(sig *sample.Signal, mean, sd, sigmas float64) float64 {
	if sigmas <= 0 {
		sigmas = p.Sigmas
	}
	t := mean + sigmas*sd
	if p.Switches.LeastEffect {
		t = max(t, mean+sig.EffectAbs, mean*(1+sig.EffectRel))
	}
	return t
}
