package plan_test

import (
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// These tests show what scripts cannot: in a script a sample is processed at the moment
// it ends, for one signal.

const second = sample.Millis(1000)

func web() sample.Task {
	return sample.Task{Key: sample.TaskKey{Inode: 1}, Name: "/web", Class: sample.LatencySensitive}
}

func hog() sample.Task {
	return sample.Task{Key: sample.TaskKey{Inode: 2}, Name: "/hog", Class: sample.Batch}
}

// suspects is /hog alone, as a correlation rule names it.
func suspects() []detect.Suspect {
	return []detect.Suspect{{Task: hog(), Grounds: detect.Grounds{Level: detect.Likely, Basis: detect.ByFormula}, Correlation: 0.5}}
}

func ptr(t sample.Task) *sample.Task { return &t }

// past is what detection remembers of /web.
type past []detect.Point

func (h *past) add(at sample.Millis, cost float64) {
	if n := len(*h); n == 0 || (*h)[n-1].At < at {
		*h = append(*h, detect.Point{At: at, Cost: cost})
	}
}

// found adds the three bad intervals of a finding.
func (h *past) found(f *detect.Finding) {
	for at := f.First; at <= f.At; at += 10 * second {
		h.add(at, f.Cost)
	}
}

func (h *past) window(k sample.TaskKey) []detect.Point {
	if k != web().Key {
		return nil
	}
	return *h
}

// take returns everything that resulted from the calls so far.
func take(p *plan.Planner) (out plan.Output) {
	for p.Pending() {
		more := p.Take()
		out.Actions, out.Incidents = append(out.Actions, more.Actions...), append(out.Incidents, more.Incidents...)
		out.Offenders = out.Offenders || more.Offenders
	}
	return out
}

// accused is a planner that was just given a finding of /hog against /web, and its
// incident.
func accused(t *testing.T, now sample.Millis, suspects []detect.Suspect) (*plan.Planner, plan.Incident) {
	t.Helper()
	policy := plan.Paper()
	policy.Mode = plan.On
	p := plan.New("machine", detect.Quell, policy)
	p.Finding(now, detect.Finding{At: now, Signal: sample.CPI, Victim: web(), Spec: spec.Spec{StdDev: 0.5}, First: now - 20*second,
		Result: detect.Result{Kind: detect.Neighbour, Threshold: 2, Bad: 3, Cost: 4, Pairs: 10, Suspects: suspects, Antagonists: 1}}, func(sample.TaskKey) []detect.Point {
		return []detect.Point{{At: now, Cost: 4, Pressure: 1}}
	})
	out := take(p)
	if len(out.Actions) != 1 || len(out.Incidents) != 1 {
		t.Fatalf("%+v", out)
	}
	p.Applied(now, out.Actions[0].ID, nil)
	return p, out.Incidents[0]
}

// sampled gives the planner a sample of /web.
func sampled(p *plan.Planner, now, at sample.Millis, signal sample.SignalName, cost float64) {
	p.Interval(now, signal, at, []detect.Reading{{Task: ptr(web()), Cost: cost}}, []detect.Verdict{{Judged: true, Sane: true}})
}

func TestOnlySamplesThatEndedUnderTheCapAreMeasured(t *testing.T) {
	now := sample.At(time.Date(2011, 5, 16, 2, 30, 0, 0, time.UTC))
	p, before := accused(t, now, suspects())
	sampled(p, now+second, now-second, sample.CPI, 4) // processed late
	sampled(p, now+second, now, sample.CPI, 4)
	sampled(p, now+10*second, now+10*second, sample.RunQ, 7)
	sampled(p, now+10*second, now+10*second, sample.CPI, 4) // partly from before the cap
	if r := p.Open()[0].Rounds[0]; r.Samples != 0 {
		t.Errorf("%d samples, want none yet", r.Samples)
	}
	sampled(p, now+20*second, now+20*second, sample.RunQ, 7)
	sampled(p, now+20*second, now+20*second, sample.CPI, 1)
	if r := p.Open()[0].Rounds[0]; r.Samples != 1 || r.CostUnder != 1 || r.RelativeCost != 0.25 {
		t.Errorf("%d samples, %v under the cap, relative %v", r.Samples, r.CostUnder, r.RelativeCost)
	}
	if r := before.Rounds[0]; r.Samples != 0 {
		t.Errorf("an incident that was given has changed: %+v", r)
	}
}

func TestInIncident(t *testing.T) {
	p, _ := accused(t, 60*second, suspects())
	if !p.InIncident(sample.CPI, web().Key) || p.InIncident(sample.RunQ, web().Key) || p.InIncident(sample.CPI, hog().Key) {
		t.Error("only /web is in an incident, of cpi")
	}
}

// TestAnIncidentOfTheVictimsOwnEnds: an operator caps a task for an incident that the victim's own
// quota explains, and it helps. The task is proven then, and the incident of a neighbour that is
// open meanwhile stays another one; both end, once.
func TestAnIncidentOfTheVictimsOwnEnds(t *testing.T) {
	p := plan.New("machine", detect.Quell, plan.Paper())
	h := past{}
	now := 100 * second
	find := func(kind detect.Kind, suspects []detect.Suspect) string {
		f := detect.Finding{At: now, Signal: sample.CPI, Victim: web(), Spec: spec.Spec{Mean: 1, StdDev: 0.5}, First: now - 20*second,
			Result: detect.Result{Kind: kind, Threshold: 2, Bad: 3, Cost: 4, Pairs: 10, Suspects: suspects}}
		h.found(&f)
		return p.Finding(now, f, h.window)
	}
	quota := find(detect.OwnQuota, nil)
	if _, err := p.CapFor(now, hog(), command.Terms{Rate: 0.1, For: command.Duration(time.Minute)}, quota, "ann", "is it the neighbour?", h.window); err != nil {
		t.Fatal(err)
	}
	p.Applied(now, take(p).Actions[0].ID, nil)
	for range 6 {
		now += 10 * second
		sampled(p, now, now, sample.CPI, 1)
	}
	p.Tick(now)
	p.Lifted(now, take(p).Actions[0].ID, false)
	if inc, _ := p.Incident(quota); inc.Outcome != plan.TruePositive || inc.Kind != detect.Neighbour {
		t.Fatalf("%s, %s", inc.Outcome, inc.Kind)
	}
	nobody := find(detect.Nobody, nil)
	take(p)
	closed := map[string]int{}
	for range 60 {
		now += 10 * second
		p.Tick(now)
		for _, inc := range take(p).Incidents {
			if inc.Closed != 0 {
				closed[inc.ID]++
			}
		}
	}
	if p.OpenCount() != 0 || p.InIncident(sample.CPI, web().Key) || len(closed) != 2 || closed[quota] != 1 || closed[nobody] != 1 {
		t.Errorf("%d are open, closed %v of %s and %s", p.OpenCount(), closed, quota, nobody)
	}
}

// TestBusyIsOfTasks: what stands in for the machine in a signal of the machine has the usage of all
// of it, which is not added to that of the tasks. Nor is that of a task in another one.
func TestBusyIsOfTasks(t *testing.T) {
	p := plan.New("machine", detect.Quell, plan.Paper())
	now := 100 * second
	inner := sample.Task{Name: hog().Name + "/inner", Class: sample.Batch, Key: sample.TaskKey{Inode: 77, FirstSeen: 1}}
	tasks := []detect.Reading{{Task: ptr(web()), CPU: 1}, {Task: ptr(hog()), CPU: 2.5}, {Task: &inner, CPU: 2, Inner: true}}
	p.Interval(now, sample.CPI, now, tasks, make([]detect.Verdict, 3))
	node := sample.Task{Name: "node 0", Class: sample.Batch, NeverCap: true, Key: sample.TaskKey{FirstSeen: 1}}
	p.Interval(now, sample.Probe, now, append(tasks, detect.Reading{Task: &node, CPU: 3.5, Cost: 1e-8}), make([]detect.Verdict, 4))
	p.Interval(now, sample.Steal, now, []detect.Reading{{Task: &node, CPU: 4, Cost: 0.1}}, make([]detect.Verdict, 1))
	p.Finding(now, detect.Finding{At: now, Signal: sample.CPI, Victim: web(), First: now - 20*second, Result: detect.Result{Kind: detect.Nobody, Threshold: 2, Bad: 3, Cost: 4}}, none)
	if got := p.Open()[0].Busy; got != 3.5 {
		t.Errorf("all tasks use %v CPU-s/s", got)
	}
}

// TestAClosedIncidentIsFinal: the victim ends while its cap cannot be undone. When that works at last,
// the incident is not recorded once more: its chart is gone by then, and that record would replace the
// one with it.
func TestAClosedIncidentIsFinal(t *testing.T) {
	p, _ := accused(t, 100*second, suspects())
	p.Gone(120*second, web().Key)
	out := take(p)
	if len(out.Actions) != 1 || len(out.Incidents) != 1 || out.Incidents[0].Closed != 120*second || out.Incidents[0].Updated != 120*second {
		t.Fatalf("%+v", out)
	}
	p.Lifted(900*second, out.Actions[0].ID, false)
	if p.Pending() || len(p.Caps()) > 0 {
		t.Errorf("%+v, caps %+v", take(p), p.Caps())
	}
}
