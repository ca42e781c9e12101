package detect

import (
	"fmt"
	"math"

	"github.com/quell-dev/quell/internal/core/sample"
)

// SuspectStatistics are the statistics of a suspect, from everything that is remembered of it and the
// victim (docs/design/0009).
type SuspectStatistics struct {
	// Task is the suspect's, with Params.Explain only.
	Task sample.Task
	// Correlation of the logarithm of the victim's cost with the suspect's work, −1 to 1. Work is its
	// pressure ÷ (its own cost ÷ its usual cost): a co-victim uses more for the same work.
	Correlation float64
	// Intervals is the effective number of independent intervals of that correlation
	// (Bartlett's formula for series of order 1).
	Intervals float64
	// Share is its part of the increase of all suspects' work from good intervals to the
	// newest bad ones, 0..1.
	Share float64
	// WorkRatio is the ratio of its work in the newest bad intervals to that in good ones.
	WorkRatio float64
	// Step is the rank of its step at the onset of the victim's excess among all its steps, 0..1.
	Step float64
	// Cover is the part of the bad intervals since the victim's last good period with more
	// than half of its increase: a task that came later did not cause them.
	Cover float64
	// Score is the value by which suspects are ranked, Lead its difference from the best
	// other suspect's.
	Score, Lead float64
	// Good is the number of good intervals.
	Good float64
	// Own is the logarithm of the ratio of its own cost in the newest bad intervals to that in
	// good ones, Fellows the median Own of the other suspects: what is slow for other tasks
	// too has a cause that reaches them all. 0 if such costs are not counted.
	Own, Fellows float64
	// Once says that the victim became bad once, and recently: this is one coincidence.
	Once bool
	// Mild says that the victim is mildly worse for long (level).
	Mild bool
}

// score ranks suspects: by the correlation after Fisher's variance-stabilising transform,
// and with small weights by Share and Step.
func (w *SuspectStatistics) score() float64 {
	return fisher(w.Correlation) + scoreOfShare*math.Log(w.Share+minShare) + scoreOfStep*w.Step
}

func fisher(r float64) float64 { return math.Atanh(min(max(r, -maxFisher), maxFisher)) }

// Constants of the statistics: unit, meaning, and how each was chosen (docs/design/0009).
const (
	// Probability: least for level possible. Fixed with the other two by the trade of trials
	// for recall.
	possibleFrom = 0.3
	// Probability: least for a trial. 0.3, 0.5 and 0.7 were measured; design 0009, "Levels".
	triedFrom = 0.5
	// Probability: the same if the victim is only mildly worse (level), since a task's own
	// variation looks similar. Not stated.
	triedMild = 0.8
	// Probability: least for level likely. 0.8 to 0.95 were measured; design 0009, "Eight inputs".
	likelyFrom = 0.8
	// Probability: the same if the victim is only mildly worse, or became bad once and
	// recently. Design 0009, "Eight inputs".
	likelyWeak = 0.97
	// Score: least lead that tells two suspects apart. Design 0009, "Eight inputs".
	minScoreLead = 0.1
	// Probability: bound for suspects that cannot be told apart. Design 0009, "Eight inputs".
	maxAmbiguous = 0.75
	// Ratio: least between a suspect's own costs that indicates other work. Of several
	// programs of one task, such as a stressor's, some hurt and some do not. On the recordings
	// of design 0009 1.5 and 1.75 put the right one first, 2.5 separates none.
	otherWorkRatio = 1.75
	// Ratio: most of a suspect's own costs, if it reports them itself, that reduces its work. A
	// pointer chase that loses the whole cache costs 8 to 13 times as much (measured).
	maxReportedRatio = 8
	// Score for a unit of ln Share and of Step: small weights next to Fisher's z (design
	// 0009). Not stated.
	scoreOfShare = 0.1
	scoreOfStep  = 0.2
	// Intervals: compared on each side of a step. Not stated.
	stepIntervals = 5
	// Intervals: consecutive good ones that end a bad period of a victim. Not stated.
	recoveryIntervals = 3
	// Relative deviation: below it a suspect's work counts as constant. Numerical.
	constantTolerance = 1e-6
	// Share: added before a logarithm. Numerical.
	minShare = 0.1
	// Correlation: bound of Fisher's transform. Numerical.
	maxFisher = 0.98
	// Logarithm of cost ÷ threshold: bound. Numerical.
	maxLogCost = 3
	// Ratio: bounds of WorkRatio as an input. Not stated.
	minWorkRatio, maxWorkRatio = 0.5, 10
	// Logarithm of a ratio of own costs: bound of Own and Fellows. 0.2 to 1 were measured;
	// design 0009, "Eight inputs".
	maxOwn = 0.3
)

// intercept is the log-odds of a suspect whose features are all 0; it and the coefficients
// of features are those of a logistic regression, fitted by eval/quality/fit on labelled
// recordings, the corpus's tuning programs and the simulator's tuning half (docs/design/0009).
const intercept = -5.647

// features are the inputs of the probability. A coefficient is in log-odds for a unit of
// its feature. The bounds of features are numerical.
var features = [...]struct {
	coefficient float64
	of          func(*SuspectStatistics) float64
}{
	{2.974, func(w *SuspectStatistics) float64 { return w.Cover * w.Share * fisher(w.Correlation) }},
	{4.509, (*SuspectStatistics).significance},
	{1.166, func(w *SuspectStatistics) float64 { return math.Log(min(max(w.WorkRatio, minWorkRatio), maxWorkRatio)) }},
	{-0.805, func(w *SuspectStatistics) float64 { return math.Log(max(w.Intervals, 2)) }},
	{0.178, func(w *SuspectStatistics) float64 { return math.Log1p(w.Good) }},
	{1.007, func(w *SuspectStatistics) float64 { return w.Lead }},
	{8.469, func(w *SuspectStatistics) float64 { return w.Fellows }},
	{-1.958, func(w *SuspectStatistics) float64 { return w.Own }},
}

// significance is the root of the log-likelihood ratio of its correlation, if that is
// positive, against none.
func (w *SuspectStatistics) significance() float64 {
	r := min(max(w.Correlation, 0), 0.995)
	return math.Sqrt(min(-max(w.Intervals, 2)/2*math.Log(1-r*r), 60))
}

// Features returns the inputs of the probability.
func (w *SuspectStatistics) Features() []float64 {
	all := make([]float64, len(features))
	for i := range features {
		all[i] = features[i].of(w)
	}
	return all
}

// Probability is the probability that the suspect is the antagonist, 0..1.
func (w *SuspectStatistics) Probability() float64 {
	z := intercept
	for i := range features {
		z += features[i].coefficient * features[i].of(w)
	}
	p := 1 / (1 + math.Exp(-z))
	if math.Abs(w.Lead) < minScoreLead {
		p = min(p, maxAmbiguous) // another suspect explains it as well
	}
	return p
}

// grounds converts the statistics of a suspect to its level.
func (w *SuspectStatistics) grounds() Grounds {
	g := Grounds{Basis: ByStatistics, Probability: w.Probability()}
	likely := likelyFrom
	if w.Mild || w.Once {
		likely = likelyWeak
	}
	switch {
	case g.Probability >= likely:
		g.Level = Likely
	case g.Probability >= possibleFrom:
		g.Level = Possible
	}
	return g
}

// why says in words what the probability depends on most.
func (w *SuspectStatistics) why() string {
	return fmt.Sprintf("its work and the victim's cost have a correlation of %.2f over %.0f independent intervals; its share of the increase in all suspects' work is %.0f %%",
		w.Correlation, w.Intervals, 100*w.Share)
}
