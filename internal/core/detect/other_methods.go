package detect

import (
	"math"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Rules of other projects, reimplemented from their published descriptions (docs/rules.md
// cites them), to be compared with quell's on the same samples. They are not for
// production: agents do not offer them.
const (
	// CPI2Sigma3 is CPI2 with the advice of the paper's section 7.2: an anomaly requires 3
	// σ.
	CPI2Sigma3 Method = "cpi2-3sigma"
	// Rubik is openEuler rubik's rule: the paper's correlation with a bar of 0.15, a spec
	// per task, and the biggest user that may be limited if no suspect reaches the bar.
	Rubik Method = "rubik"
	// CPUShare is linnix's rule: the task that used most CPU while the victim suffered.
	CPUShare Method = "cpu-share"
	// Biggest is the manual procedure: an anomaly, and the biggest user of the window that
	// may be limited.
	Biggest Method = "2sigma-biggest"
	// Fences is Intel PRM's rule: a fence for each range of the victim's own CPU usage, and
	// the task whose usage increased most.
	Fences Method = "prm-fences"
)

// Methods returns all rules, quell's first.
func Methods() []Method {
	return []Method{Quell, EvidenceMethod, CPI2, CPI2Sigma3, Rubik, CPUShare, Biggest, Fences}
}

// Selection is a rule's method to select the antagonist.
type Selection uint8

const (
	// SelectByCorrelation accuses all suspects that reach Params.Correlation: the paper's method.
	SelectByCorrelation Selection = iota
	// SelectByUsage accuses the biggest user of the window that may be limited.
	SelectByUsage
	// SelectByShare accuses the biggest user of the bad intervals.
	SelectByShare
	// SelectByRise accuses the task whose usage increased most from good intervals to bad ones.
	SelectByRise
)

// setOtherMethod sets the parameters in which a rule of another project differs.
func (p *Params) setOtherMethod() {
	switch p.Method {
	case CPI2Sigma3:
		p.Sigmas = 3
	case Rubik:
		p.Correlation, p.Fallback, p.OwnSpec = 0.15, true, true
	case CPUShare:
		p.Selection = SelectByShare
	case Biggest:
		p.Selection = SelectByUsage
	case Fences:
		p.Selection, p.UsageBins = SelectByRise, true
	}
}

// mayLimit reports whether a task may be limited under such rules.
func mayLimit(t *sample.Task) bool { return t.Class != sample.LatencySensitive && !t.NeverCap }

// selectSuspect returns the slot of the suspect that a rule without a bar accuses, −1 if there
// is none.
func (d *Detector) selectSuspect(s *series, victim int, by Selection) int {
	best, most := -1, 0.0
	for i := range s.tasks {
		t := &s.tasks[i]
		if i == victim || !t.used || t.flags&sample.Capped != 0 || d.exclusion(s, victim, i) != "" {
			continue
		}
		var much float64
		switch by {
		case SelectByUsage:
			if !mayLimit(&t.task) {
				continue
			}
			much = d.den[i]
		case SelectByShare:
			much = d.meanBadUsage(victim, i)
		case SelectByRise:
			if r := d.shift(victim, func(r *row) float64 { return float64(r.pressure[i]) }); !math.IsNaN(r.bad - r.good) {
				much = r.bad - r.good
			}
		}
		if much > most || much == most && best >= 0 && much > 0 && t.task.Name < s.tasks[best].task.Name {
			best, most = i, much
		}
	}
	return best
}
