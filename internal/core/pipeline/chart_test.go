package pipeline_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// An antagonist that follows the first one is drawn too, although it was absent when the
// incident began.
func TestAnAntagonistThatComesLaterIsDrawn(t *testing.T) {
	w := newWorld(t)
	w.run(strings.Split(`machine rule=quell mode=advise
task web, latency-sensitive, 1±0.5
task hog, batch
task late, batch
samples
     web  hog  late
  4* 1@1  0.1  -
  3* 4@1  2    -
  3* 1@1  0.1  0
  3* 4@1  0.1  3
  4* 1@1  0.1  0
  4* 4@1  0.1  3`, "\n"))
	inc := w.pair[0].Open()[0]
	i := slices.IndexFunc(inc.Usage, func(t pipeline.Track) bool { return t.Task == "late" })
	if len(inc.Findings) != 2 || i < 0 {
		t.Fatalf("it named %+v and draws %+v", inc.Findings, inc.Usage)
	}
	if n := len(inc.Times); inc.Usage[i].Usage[n-1] != 3 {
		t.Errorf("it used %v", inc.Usage[i].Usage)
	}
	w.end()
}

// Each task that is capped together with others is drawn, and not only the first.
func TestTasksThatAreCappedTogetherAreDrawn(t *testing.T) {
	c := byRule(t, detect.EvidenceMethod)
	c.Policy.Mode, c.Policy.Trial, c.Policy.Trials, c.Policy.Groups = plan.On, 3*time.Minute, 1, true
	p := pipeline.New(c)
	sig, _ := sample.LookupSignal(sample.CPI)
	var subjects []*pipeline.Subject
	for i, name := range []sample.TaskName{"/web", "/a", "/b", "/c"} {
		s := &pipeline.Subject{Task: sample.Task{Key: sample.TaskKey{Inode: uint64(i + 1)}, Name: name, Class: sample.Batch}}
		subjects = append(subjects, s)
	}
	web := subjects[0]
	web.Task.Class, web.Spec = sample.LatencySensitive, spec.Spec{State: spec.Ready, Mean: 1, StdDev: 0.2}
	now := sample.Millis(0)
	drain := func() {
		for {
			r, more := p.Ready()
			if !more {
				return
			}
			for _, a := range r.Actions {
				if a.Kind == plan.Uncap {
					p.Lifted(now, a.ID, false)
				} else {
					p.Applied(now, a.ID, nil)
				}
			}
		}
	}
	give := func(intervals int, cost float64) {
		for range intervals {
			now += 60_000
			iv := p.Begin(sig, now, 10*time.Second)
			for i, s := range subjects {
				m := pipeline.Measurement{CPU: 1, Cost: nan}
				if i == 0 {
					m.Cost = cost
				}
				iv.Add(s, m)
			}
			iv.End(now)
			p.Tick(now)
			drain()
		}
	}
	find := func(suspects ...sample.Task) string {
		f := detect.Finding{At: now, Signal: sample.CPI, Victim: web.Task, Spec: web.Spec, First: now - 120_000, Trial: true, TrialCandidates: len(suspects),
			Result: detect.Result{Kind: detect.Indeterminate, Threshold: 1.4, Bad: 3, Cost: 4, Pairs: 7}}
		for _, task := range suspects {
			f.Suspects = append(f.Suspects, detect.Suspect{Task: task, Grounds: detect.Grounds{Level: detect.Possible, Basis: detect.ByStatistics, Probability: 0.6}})
		}
		id := p.Finding(now, f, func(k sample.TaskKey) []detect.Point { return p.Window(sample.CPI, k) })
		drain()
		return id
	}
	limit := func(s *pipeline.Subject, id string) {
		if _, err := p.Cap(now, s.Task, command.Terms{Rate: 0.1, For: command.Duration(3 * time.Minute)}, id, "ann", "r"); err != nil {
			t.Fatal(err)
		}
		drain()
	}
	give(4, 1)
	give(3, 4)
	id := find(sample.Task{Key: sample.TaskKey{Inode: 9}, Name: "/kept", Class: sample.Batch, NeverCap: true})
	limit(subjects[1], id)
	give(4, 4) // in vain
	find(subjects[1].Task, subjects[2].Task)
	limit(subjects[3], id)
	inc := p.Open()[0]
	i := slices.IndexFunc(inc.Rounds, func(r *plan.Round) bool { return len(r.With) > 0 })
	if i < 0 {
		t.Fatalf("none are capped together: %+v, %s", inc.Rounds, inc.NotDone)
	}
	var drawn []sample.TaskName
	for _, u := range inc.Usage {
		drawn = append(drawn, u.Task)
	}
	if want := []sample.TaskName{"/kept", "/a", "/b", "/c"}; !slices.Equal(drawn, want) {
		t.Errorf("drawn are %q, want %q", drawn, want)
	}
}
