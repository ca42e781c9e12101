package store

import (
	"testing"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
)

// An incident's row names its suspect, also when a cap on it had no effect: pairs and
// answers count those caps. A suspect that was never named is in no row.
func TestARowNamesWhomTheIncidentNamed(t *testing.T) {
	suspect := func(name string, l detect.Level) detect.Suspect {
		return detect.Suspect{Task: sample.Task{Name: sample.TaskName("/" + name), Job: sample.JobName(name)}, Grounds: detect.Grounds{Level: l}, Correlation: 0.4}
	}
	vain := suspect("decoy", detect.Possible)
	for _, c := range []struct {
		name string
		inc  plan.Incident
		row  Incident // the fields that are compared
	}{
		{"in vain", plan.Incident{Analysis: plan.Analysis{Analysed: 1, Result: detect.Result{Suspects: []detect.Suspect{vain}}, Reason: "because"}, Findings: []plan.Finding{{Suspect: vain}}, NotDone: "nobody may"},
			Incident{SuspectJob: "decoy", SuspectTask: "/decoy", Antagonists: 1, OutcomeReason: "because; nobody may"}},
		{"named", plan.Incident{Analysis: plan.Analysis{Result: detect.Result{Suspects: []detect.Suspect{suspect("hog", detect.Likely)}, Antagonists: 1}}, NotDone: "enforcement is off"},
			Incident{SuspectJob: "hog", SuspectTask: "/hog", Antagonists: 1, OutcomeReason: "enforcement is off"}},
		{"nobody", plan.Incident{Analysis: plan.Analysis{Result: detect.Result{Suspects: []detect.Suspect{vain}}, Reason: "because"}}, Incident{OutcomeReason: "because"}},
	} {
		r, err := IncidentOf(&incident.Record{Incident: c.inc})
		if err != nil {
			t.Fatal(err)
		}
		if r.SuspectJob != c.row.SuspectJob || r.SuspectTask != c.row.SuspectTask || r.Antagonists != c.row.Antagonists ||
			r.OutcomeReason != c.row.OutcomeReason || r.Correlation == nil || *r.Correlation != 0.4 {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
}
