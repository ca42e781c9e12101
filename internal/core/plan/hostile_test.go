package plan_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestAttackCapWithoutReasonOrEnd: a cap of ten years, without a reason or without a name
// is refused by the planner itself, whatever door it came through.
func TestAttackCapWithoutReasonOrEnd(t *testing.T) {
	task := sample.Task{Key: sample.TaskKey{Inode: 1}, Name: "/batch/1", Job: "batch", Class: sample.Batch}
	for name, c := range map[string]struct {
		terms   command.Terms
		by, why string
		ok      bool
	}{
		"a cap":           {command.Terms{Rate: 0.1, For: command.Duration(24 * time.Hour)}, "anna", "r", true},
		"no reason":       {command.Terms{Rate: 0.1, For: command.Duration(time.Hour)}, "anna", "", false},
		"a blank reason":  {command.Terms{Rate: 0.1, For: command.Duration(time.Hour)}, "anna", " \t\n", false},
		"no operator":     {command.Terms{Rate: 0.1, For: command.Duration(time.Hour)}, " ", "r", false},
		"no end":          {command.Terms{Rate: 0.1}, "anna", "r", false},
		"ten years":       {command.Terms{Rate: 0.1, For: command.Duration(87_600 * time.Hour)}, "anna", "r", false},
		"99,999 hours":    {command.Terms{Rate: 0.1, For: command.Duration(99_999 * time.Hour)}, "anna", "r", false},
		"a day and a bit": {command.Terms{Rate: 0.1, For: command.Duration(24*time.Hour + 1)}, "anna", "r", false},
		"the longest":     {command.Terms{Rate: 0.1, For: math.MaxInt64}, "anna", "r", false},
		"before its time": {command.Terms{Rate: 0.1, For: -command.Duration(time.Hour)}, "anna", "r", false},
	} {
		p := plan.New("machine", detect.Quell, plan.Paper())
		_, err := p.CapFor(1000, task, c.terms, "", c.by, c.why, none)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, plan.ErrRefused) || len(p.Caps()) != map[bool]int{true: 1}[c.ok] {
			t.Errorf("%s: %v, %d caps", name, err, len(p.Caps()))
		}
	}
}

// hostile is a planner that caps what it is told.
type hostile struct {
	*plan.Planner
	now sample.Millis
}

func newHostile() *hostile {
	policy := plan.Paper()
	policy.Mode = plan.On
	return &hostile{Planner: plan.New("machine", detect.EvidenceMethod, policy)}
}

// tell tells that one task hurts another, as the kernel's accounts prove it, and returns the incident.
func (h *hostile) tell(victim, by sample.Task) plan.Incident {
	s := detect.Suspect{Task: by, Grounds: detect.Grounds{Level: detect.Proven, Basis: detect.ByAccounts, Share: 0.5}}
	id := h.Finding(h.now, detect.Finding{At: h.now, First: h.now, Signal: sample.RunQ, Victim: victim, Spec: spec.Spec{State: spec.Ready, Mean: 1, StdDev: 0.1},
		Result: detect.Result{Kind: detect.Neighbour, Cost: 2, Threshold: 1.2, Antagonists: 1, Suspects: []detect.Suspect{s}}}, none)
	h.carryOut()
	inc, _ := h.Incident(id)
	return inc
}

func (h *hostile) carryOut() (last plan.Output) {
	for h.Pending() {
		last = h.Take()
		for _, a := range last.Actions {
			if a.Kind == plan.Cap {
				h.Applied(h.now, a.ID, nil)
			} else if a.Kind == plan.Uncap {
				h.Lifted(h.now, a.ID, false)
			}
		}
	}
	return last
}

func named(name, job string, class sample.Class, inode int) sample.Task {
	return sample.Task{Key: sample.TaskKey{Inode: uint64(inode)}, Name: sample.TaskName(name), Job: sample.JobName(job), Class: class}
}

// Tasks of a job that hurt each other, in as many pairs as there may be caps, do not keep the victims of
// other jobs from being helped.
func TestAttackAllCapsForOneJob(t *testing.T) {
	h := newHostile()
	for n := range 2 * plan.Paper().MaxCaps {
		h.tell(named(fmt.Sprint("/mine/", n), "mine", sample.LatencySensitive, 10+n), named(fmt.Sprint("/decoy/", n), "decoys", sample.Batch, 100+n))
	}
	if n := len(h.Caps()); n != plan.Paper().MaxCaps/2 {
		t.Errorf("%d caps for one job", n)
	}
	for n, job := range []string{"web", "db", "mail"} {
		inc := h.tell(named("/"+job, job, sample.LatencySensitive, 1000+n), named("/hog/"+job, "hog", sample.Batch, 2000+n))
		if len(inc.Rounds) != 1 {
			t.Errorf("%s is not helped: %s", job, inc.NotDone)
		}
	}
}

// An incident that never ends gets a cap every five minutes. Its record stays small enough to be sent.
func TestAttackAnIncidentThatNeverEnds(t *testing.T) {
	h := newHostile()
	victim, hog := named("/liar", "liar", sample.LatencySensitive, 1), named("/hog", "hog", sample.Batch, 2)
	outlier := []detect.Verdict{{Judged: true, Sane: true, Outlier: true}}
	reading := func(cost float64) []detect.Reading {
		return []detect.Reading{{Task: &victim, Cost: cost, Spec: &spec.Spec{State: spec.Ready, Mean: 1, StdDev: 0.1}}}
	}
	var inc plan.Incident
	for range 300 {
		inc = h.tell(victim, hog)
		for range 5 {
			h.now += 60_000
			h.Interval(h.now, sample.RunQ, h.now, reading(2), outlier)
			h.Tick(h.now)
			h.carryOut()
		}
	}
	text, err := json.Marshal(inc)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(inc.Rounds); n < 100 || n > 128 || len(text) > 1<<18 {
		t.Errorf("%d rounds, %d bytes", n, len(text))
	}
}

// Thousands of victims, and their end at once, take a time that is linear in their number.
func TestAttackThousandsOfVictims(t *testing.T) {
	took := func(victims int) time.Duration {
		h := newHostile()
		h.SetMode(0, plan.Advise)
		hog := named("/hog", "hog", sample.Batch, 1)
		var readings []detect.Reading
		for n := range victims {
			task := named(fmt.Sprint("/victim/", n), "mine", sample.LatencySensitive, 10+n)
			h.tell(task, hog)
			readings = append(readings, detect.Reading{Task: &task, Cost: 2, Spec: &spec.Spec{State: spec.Ready, Mean: 1, StdDev: 0.1}})
		}
		verdicts := make([]detect.Verdict, victims)
		for i := range verdicts {
			verdicts[i] = detect.Verdict{Judged: true, Sane: true, Outlier: true}
		}
		runtime.GC()
		began := quelltest.CPUTime(t)
		h.Interval(60_000, sample.RunQ, 60_000, readings, verdicts)
		for _, r := range readings {
			h.Gone(60_000, r.Task.Key)
		}
		h.carryOut()
		if h.OpenCount() != 0 {
			t.Fatalf("%d are open", h.OpenCount())
		}
		return quelltest.CPUTime(t) - began
	}
	// Measured: 30 to 60 times as long, since caches are small; with each compared with all, 580 times.
	few, many := min(took(500), took(500), took(500), took(500)), min(took(8000), took(8000))
	if many > 150*few {
		t.Errorf("500 victims take %s, 8,000 %s", few, many)
	}
}
