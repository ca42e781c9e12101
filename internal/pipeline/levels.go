package pipeline

import "github.com/quell-dev/quell/internal/detect"

// level gives levels to the suspects of a finding of a detector that gives none: who
// is named is likely by a formula, and proven by the evidence of all suspects.
// To be removed once every rule says its levels itself.
func level(p detect.Params, f *detect.Finding) {
	for i := range f.Suspects {
		if s := &f.Suspects[i]; s.Method != "" || s.Level != detect.None {
			return
		}
	}
	for i := range f.Suspects {
		s, named := &f.Suspects[i], i < f.Antagonists
		switch {
		case s.Excluded != "":
		case !p.Switches.Evidence:
			s.Method = detect.ByFormula
			if named {
				s.Level = detect.Likely
			}
		case named:
			s.Level, s.Method, s.Why = detect.Proven, detect.ByStatistics, string(s.Name)+" explains the cost better than chance or another suspect does"
		case f.Trial && i == 0:
			s.Level, s.Method = detect.Possible, detect.ByStatistics
		}
	}
}
