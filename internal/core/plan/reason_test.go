package plan

import (
	"testing"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// The basis of a suspect's level is described by the method that decided.
func TestBecause(t *testing.T) {
	for _, c := range []struct {
		signal       sample.SignalName
		grounds      detect.Grounds
		text, figure string
	}{
		{sample.RunQ, detect.Grounds{Level: detect.Proven, Basis: detect.ByAccounts, Share: 0.81, UsualShare: 0.03, FairShare: 0.25},
			"/batch/a ran for 81 % of the time in which /web was served or waited (usually 3 %, fair share 25 %)", "81 %"},
		{sample.IO, detect.Grounds{Level: detect.Likely, Basis: detect.ByAccounts, Share: 0.5, Why: "its fair share is unknown"},
			"/batch/a was served by the disk for 50 % of the time in which /web was served or waited (usually 0 %); its fair share is unknown", "50 %"},
		{sample.RunQ, detect.Grounds{Level: detect.Likely, Basis: detect.ByAccounts, Share: 0.02, Displaced: 0.44},
			"/batch/a uses more than before and displaced other tasks, which ran for 44 % of the time in which /web was served or waited", "46 %"},
		{sample.CPI, detect.Grounds{Level: detect.Likely, Basis: detect.ByStatistics, Probability: 0.93, Why: "they step together"},
			"probability 0.93 that it is /batch/a: they step together", "p 0.93"},
		{sample.CPI, detect.Grounds{Level: detect.Proven, Basis: detect.ByTrial, Why: "limiting it reduced the victim's cost each time"},
			"limiting it reduced the victim's cost each time", "tried"},
		{sample.CPI, detect.Grounds{}, "", ""},
	} {
		s := &detect.Suspect{Task: sample.Task{Name: "/batch/a"}, Grounds: c.grounds}
		if got := Explain(c.signal, "/web", s); got != c.text {
			t.Errorf("%s; want %s", got, c.text)
		}
		if got := Figure(s); got != c.figure {
			t.Errorf("figure %s of %s; want %s", got, c.text, c.figure)
		}
	}
}
