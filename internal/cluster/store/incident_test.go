package store

import (
	"errors"
	"os"
	"testing"
	"time"

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

// Only a cap of CPU time has a rate: those of disks and of the network are no caps to 0 CPU-s/s.
func TestOnlyCapsOfCPUTimeHaveARate(t *testing.T) {
	for want, round := range map[float64]plan.Capped{0.5: {Rate: 0.5}, -1: {IO: plan.IORate{Bytes: 1e6}}, -2: {Net: 1e6}} {
		r, err := IncidentOf(&incident.Record{Incident: plan.Incident{Rounds: []*plan.Round{{Capped: round}}}})
		if err != nil || want > 0 && (r.CappedRate == nil || *r.CappedRate != want) || want < 0 && r.CappedRate != nil {
			t.Errorf("%+v: %v, %v", round, r.CappedRate, err)
		}
	}
}

// TestWaitsForItselfTeach: the samples of an incident of waits for itself are those of no other cost, and
// a spec follows them as the agent's own does. Those of a neighbour's incident do not teach.
func TestWaitsForItselfTeach(t *testing.T) {
	for kind, follows := range map[detect.Kind]bool{detect.SelfWait: true, detect.Neighbour: false, detect.OwnQuota: false} {
		r, err := IncidentOf(&incident.Record{Incident: plan.Incident{Analysis: plan.Analysis{Result: detect.Result{Kind: kind}}}})
		if err != nil || r.Follows != follows {
			t.Errorf("%s: follows %t, %v", kind, r.Follows, err)
		}
	}
}

// TestQuotasOutsideTheCostTeach: so do those of the task's own quota, where the cost excludes what it waited for that.
func TestQuotasOutsideTheCostTeach(t *testing.T) {
	for _, c := range []struct {
		signal  sample.SignalName
		variant string
		follows bool
	}{{sample.RunQ, "bpf", true}, {sample.RunQ, "schedstat", false}, {sample.IO, "bpf", true}, {sample.Net, "bpf", true}, {sample.CPI, "ref-cycles", false}} {
		inc := plan.Incident{Signal: c.signal, Variant: c.variant, Analysis: plan.Analysis{Result: detect.Result{Kind: detect.OwnQuota}}}
		if r, err := IncidentOf(&incident.Record{Incident: inc}); err != nil || r.Follows != c.follows {
			t.Errorf("%s, %s: follows %t, %v", c.signal, c.variant, r.Follows, err)
		}
	}
}

// TestEarlierIncidentsAreMerged: rows of a version that did not store the load are merged with
// newer ones. Their load is null.
func TestEarlierIncidentsAreMerged(t *testing.T) {
	dir, c := t.TempDir(), &clock{start}
	s := open(t, dir, c.options())
	for n := range uint64(3) {
		r, err := IncidentOf(&incident.Record{Incident: plan.Incident{ID: string(rune('a' + n)), Updated: sample.At(start), Busy: 3}, CPUs: 8})
		if err != nil {
			t.Fatal(err)
		}
		s.Add(&Batch{Source: Source{"records", "m1", "b"}, N: n + 1, Incidents: []Incident{r}})
		flush(t, s)
	}
	sn := s.Snapshot(0, 0)
	name, seg := sn.Files(Incidents)[0], sn.Segments[0]
	sn.Close()
	type earlier struct {
		Machine string `parquet:"machine,dict"`
		ID      string `parquet:"id"`
		Updated int64  `parquet:"updated,timestamp(millisecond)"`
		Doc     string `parquet:"doc"`
	}
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeRecords(file, Incidents, []earlier{{"m1", "a", int64(sample.At(start)), "{}"}}); err != nil {
		t.Fatal(err)
	}
	info, err := file.Stat()
	if err = errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	seg.Bytes = info.Size()
	s.mu.Lock()
	s.state.Segments[seg.File] = seg
	s.mu.Unlock()
	c.now = c.now.Add(48 * time.Hour)
	if more, err := s.Compact(); !more || err != nil {
		t.Fatal(more, err)
	}
	rows := read[Incident](t, dir, Incidents)
	if len(rows) != 3 {
		t.Fatalf("%d rows", len(rows))
	}
	for _, r := range rows {
		if old := r.ID == "a"; old != (r.Busy == nil) || old != (r.CPUs == nil) || !old && (*r.Busy != 3 || *r.CPUs != 8) {
			t.Errorf("%s: %v of %v", r.ID, r.Busy, r.CPUs)
		}
	}
}
