package plan_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// shared is a machine on which tasks raise the cost of /web by what each does, unless it is
// capped. Its threshold is 2, its mean 1 and its σ 0.2. All tasks are suspects alike, whatever
// they do.
type shared struct {
	t       *testing.T
	p       *plan.Planner
	policy  plan.Policy
	raise   map[sample.TaskName]float64
	tasks   []sample.Task
	capped  map[sample.TaskName]string // the caps in force, by task
	fails   sample.TaskName            // cannot be capped
	now     sample.Millis
	past    []detect.Point
	aside   map[sample.TaskName]detect.Grounds // of suspects that are worth no trial
	bad     int                                // bad intervals in a row
	change  detect.Change                      // the finding is that the victim changed itself
	outside bool                               // usage outside any task is named, and no other is worth a trial
	unknown bool                               // no history is known
	begun   [][]sample.TaskName                // what began at once
	last    plan.Incident
}

func share(t *testing.T, raise map[sample.TaskName]float64, change func(*plan.Policy)) *shared {
	m := &shared{t: t, raise: raise, capped: map[sample.TaskName]string{}, now: 600 * second, policy: plan.Paper()}
	m.policy.Mode, m.policy.Trial, m.policy.Groups, m.policy.MinLevel, m.policy.Relief = plan.On, 3*time.Minute, true, detect.Proven, detect.Relief
	if change != nil {
		change(&m.policy)
	}
	for name := range raise {
		m.tasks = append(m.tasks, sample.Task{Name: name, Class: sample.Batch})
	}
	slices.SortFunc(m.tasks, func(a, b sample.Task) int { return strings.Compare(string(a.Name), string(b.Name)) })
	for i := range m.tasks {
		m.tasks[i].Key.Inode = uint64(20 + i)
	}
	m.p = plan.New("machine", detect.EvidenceMethod, m.policy)
	return m
}

// play lets intervals of 10 s pass.
func (m *shared) play(intervals int) {
	for range intervals {
		m.now += 10 * second
		cost := 1.0
		readings, verdicts := []detect.Reading{{Task: ptr(web())}}, make([]detect.Verdict, 1, 8)
		for i := range m.tasks {
			task := &m.tasks[i]
			r := detect.Reading{Task: task, Pressure: 1}
			if m.capped[task.Name] != "" {
				r.Pressure, r.Flags = 0.1, sample.Capped
			}
			cost += m.raise[task.Name] * r.Pressure
			readings, verdicts = append(readings, r), append(verdicts, detect.Verdict{})
		}
		readings[0].Cost, verdicts[0] = cost, detect.Verdict{Judged: true, Sane: true, Outlier: cost > 2}
		m.past = append(m.past, detect.Point{At: m.now, Cost: cost, Pressure: 1})
		m.p.Interval(m.now, sample.CPI, m.now, readings, verdicts)
		m.p.Tick(m.now)
		m.drain()
		if m.bad++; cost <= 2 {
			m.bad = 0
		}
		if m.bad < 3 {
			continue
		}
		f := detect.Finding{At: m.now, Signal: sample.CPI, Victim: web(), Spec: spec.Spec{Mean: 1, StdDev: 0.2}, First: m.now - 20*second, Trial: true,
			Result: detect.Result{Kind: detect.Indeterminate, Threshold: 2, Bad: 3, Cost: cost, Pairs: 10}}
		for _, task := range m.tasks {
			if _, aside := m.aside[task.Name]; !aside {
				f.Suspects = append(f.Suspects, detect.Suspect{Task: task, Correlation: 0.8, Grounds: detect.Grounds{Level: detect.Possible, Basis: detect.ByAccounts, Probability: 0.7, Share: 0.3}})
				f.TrialCandidates++
			}
		}
		for _, task := range m.tasks {
			if g, aside := m.aside[task.Name]; aside {
				f.Suspects = append(f.Suspects, detect.Suspect{Task: task, Correlation: 0.8, Grounds: g})
			}
		}
		if m.outside {
			other := detect.Suspect{Task: detect.Outside(), Grounds: detect.Grounds{Level: detect.Likely, Basis: detect.ByAccounts, Displaced: 0.1}}
			f.Kind, f.Suspects, f.Antagonists, f.Trial, f.TrialCandidates = detect.Neighbour, slices.Insert(f.Suspects, 0, other), 1, false, 0
		}
		if m.change != "" {
			f.Kind, f.Change, f.Trial, f.TrialCandidates = detect.PhaseChange, m.change, false, 0
		}
		m.p.Finding(m.now, f, func(sample.TaskKey) []detect.Point {
			if m.unknown {
				return nil
			}
			return m.past
		})
		m.drain()
	}
}

// drain carries out the planner's actions.
func (m *shared) drain() {
	for m.p.Pending() {
		out := m.p.Take()
		var begun []sample.TaskName
		for _, a := range out.Actions {
			switch a.Kind {
			case plan.Cap:
				if m.capped[a.Task.Name] != "" {
					m.t.Fatalf("%s is capped twice", a.Task.Name)
				}
				if a.Task.Name == m.fails {
					m.p.Applied(m.now, a.ID, errors.New("no"))
					continue
				}
				m.capped[a.Task.Name] = a.ID
				begun = append(begun, a.Task.Name)
				m.p.Applied(m.now, a.ID, nil)
			case plan.Uncap:
				delete(m.capped, a.Task.Name)
				m.p.Lifted(m.now, a.ID, false)
			}
		}
		if len(begun) > 0 {
			m.begun = append(m.begun, begun)
		}
		if n := len(m.capped); n > m.policy.MaxCaps {
			m.t.Fatalf("%d caps in force", n)
		}
		if n := len(out.Incidents); n > 0 {
			m.last = out.Incidents[n-1]
		}
	}
}

// TestAGroupIsFoundByLimits: no cap on one task is enough; the tasks that need to be capped
// together are named, as one finding, and others that behave alike are not.
func TestAGroupIsFoundByLimits(t *testing.T) {
	m := share(t, map[sample.TaskName]float64{"/a": 0.8, "/b": 0.8, "/c": 0.8, "/d": 0}, nil)
	m.play(600)
	var named []string
	for _, f := range m.last.Findings {
		named = append(named, fmt.Sprint(f.Suspect.Name, " ", f.Suspect.Level, " ", f.Suspect.Basis, " ", f.Group == m.last.Findings[0].Group && f.Group != ""))
	}
	if want := []string{"/a proven group true", "/b proven group true", "/c proven group true"}; !slices.Equal(named, want) {
		t.Errorf("named %q, want %q", named, want)
	}
	if want := "/a, /b and /c hurt /web together: cpi of /web fell from 3.4 to 1.24 while /a, /b and /c were limited together, and was 1.96 while /a was not"; m.last.Reason != want {
		t.Errorf("it says %q, want %q", m.last.Reason, want)
	}
	// First one alone, then all; in the end what takes the least: one may stay, since two are enough.
	if first := m.begun[:2]; !slices.Equal(first[0], []sample.TaskName{"/a"}) || !slices.Equal(first[1], []sample.TaskName{"/a", "/b", "/c", "/d"}) {
		t.Errorf("capped %v", first)
	}
	newest := m.last.Rounds[len(m.last.Rounds)-1]
	if newest.Names() != "/a, /b and /c" && newest.Names() != "/b and /c" {
		t.Errorf("at last %s is capped", newest.Names())
	}
}

// TestAGroupHasThoseThatWereServedAsLong: a suspect that is worth no trial of its own is tried with
// others if it was served as long as they, and longer than usual.
func TestAGroupHasThoseThatWereServedAsLong(t *testing.T) {
	for name, c := range map[string]struct {
		grounds detect.Grounds
		want    bool
	}{
		"as long":              {detect.Grounds{Basis: detect.ByAccounts, Share: 0.2, UsualShare: 0.19}, true},
		"as long as usual":     {detect.Grounds{Basis: detect.ByAccounts, Share: 0.3, UsualShare: 0.3}, false},
		"little":               {detect.Grounds{Basis: detect.ByAccounts, Share: 0.14}, false},
		"without such figures": {detect.Grounds{Basis: detect.ByStatistics}, false},
	} {
		m := share(t, map[sample.TaskName]float64{"/a": 0.8, "/b": 0.8, "/c": 0.8}, nil)
		m.aside = map[sample.TaskName]detect.Grounds{"/c": c.grounds}
		for i := 0; i < 200 && (len(m.begun) == 0 || len(m.begun[len(m.begun)-1]) < 2); i++ {
			m.play(1)
		}
		if together := m.begun[len(m.begun)-1]; slices.Contains(together, "/c") != c.want {
			t.Errorf("%s: %v were capped together", name, together)
		}
	}
}

// untilTogether plays until tasks have begun to be limited together n times.
func (m *shared) untilTogether(n int) (all [][]sample.TaskName) {
	for i := 0; i < 200 && len(all) < n; i++ {
		m.play(1)
		all = slices.DeleteFunc(slices.Clone(m.begun), func(b []sample.TaskName) bool { return len(b) < 2 })
	}
	return all
}

// TestAGroupWaitsForNoTrialThatDoesNotCome: after the first trial the finding is one that tries no task.
func TestAGroupWaitsForNoTrialThatDoesNotCome(t *testing.T) {
	for name, c := range map[string]struct {
		then func(m *shared)
		want bool
	}{
		"usage outside any task, which cannot be limited": {func(m *shared) { m.outside = true }, true},
		"no other task used more":                         {func(m *shared) { m.change = detect.NewLevel }, true},
		"it did more work":                                {func(m *shared) { m.change = detect.MoreWork }, false},
	} {
		m := share(t, map[sample.TaskName]float64{"/a": 0.2, "/b": 0.9, "/c": 0.9}, nil) // the trial of /a is in vain
		for len(m.begun) == 0 {
			m.play(1)
		}
		c.then(m)
		if all := m.untilTogether(1); c.want != (len(all) == 1 && len(all[0]) == 3) || !c.want && len(all) > 0 {
			t.Errorf("%s: %v were capped together", name, all)
		}
	}
}

// TestAGroupThatWasNotMeasuredIsTriedAgain: without a history of the victim a round has no result.
func TestAGroupThatWasNotMeasuredIsTriedAgain(t *testing.T) {
	m := share(t, map[sample.TaskName]float64{"/a": 0.8, "/b": 0.8, "/c": 0.8}, nil)
	for len(m.begun) == 0 {
		m.play(1)
	}
	m.unknown = true
	m.untilTogether(1)
	m.unknown = false
	if all := m.untilTogether(2); len(all) != 2 || !slices.Equal(all[0], all[1]) {
		t.Errorf("capped together %v", all)
	}
	if r := m.last.Rounds[1]; r.Outcome != plan.NotMeasured {
		t.Errorf("the first round of all three is %+v", r)
	}
}

// TestNoGroup: where one cap is enough, and without the setting, no caps begin together.
func TestNoGroup(t *testing.T) {
	alike := map[sample.TaskName]float64{"/a": 0.8, "/b": 0.8, "/c": 0.8}
	for name, m := range map[string]*shared{
		"one is enough": share(t, map[sample.TaskName]float64{"/a": 2, "/b": 0}, nil),
		"off":           share(t, alike, func(p *plan.Policy) { p.Groups = false }),
		"advise":        share(t, alike, func(p *plan.Policy) { p.Mode = plan.Advise }),
		"no trials":     share(t, alike, func(p *plan.Policy) { p.Trial = 0 }),
		"two caps":      share(t, alike, func(p *plan.Policy) { p.MaxCaps = 2 }),
	} {
		m.play(200)
		if i := slices.IndexFunc(m.begun, func(b []sample.TaskName) bool { return len(b) > 1 }); i >= 0 {
			t.Errorf("%s: %v were capped together", name, m.begun[i])
		}
	}
}

// TestAGroupFitsIntoItsShare: no more tasks are capped together than the victims of one job may have caps.
func TestAGroupFitsIntoItsShare(t *testing.T) {
	m := share(t, map[sample.TaskName]float64{"/a": 0.8, "/b": 0.8, "/c": 0.8}, func(p *plan.Policy) { p.MaxCaps = 4 })
	m.play(600)
	if !slices.ContainsFunc(m.begun, func(b []sample.TaskName) bool { return len(b) == 2 }) || len(m.capped) != 2 {
		t.Errorf("%v are capped, after %v", m.capped, m.begun)
	}
}

// TestAGroupHasAllOfItsCapsOrNone: if one of them fails or ends, the others end.
func TestAGroupHasAllOfItsCapsOrNone(t *testing.T) {
	alike := map[sample.TaskName]float64{"/a": 0.8, "/b": 0.8, "/c": 0.8}
	for name, c := range map[string]struct {
		fails sample.TaskName
		end   func(m *shared)
		want  plan.Outcome
	}{
		"failed": {fails: "/c", want: plan.CapFailed},
		"taken over": {end: func(m *shared) {
			id := m.capped["/b"]
			delete(m.capped, "/b")
			m.p.Lifted(m.now, id, true)
		}, want: plan.CapTakenOver},
		"gone": {end: func(m *shared) { m.p.Gone(m.now, m.tasks[1].Key) }, want: plan.SuspectExited},
		"uncapped": {end: func(m *shared) {
			if err := m.p.Uncap(m.now, m.tasks[1].Key, "r"); err != nil {
				t.Error(err)
			}
		}, want: plan.NotMeasured},
	} {
		m := share(t, alike, nil)
		m.fails = c.fails
		for i := 0; i < 200 && (len(m.begun) == 0 || len(m.begun[len(m.begun)-1]) < 2); i++ {
			m.play(1)
		}
		if c.end != nil {
			if len(m.capped) != 3 {
				t.Fatalf("%s: capped %v", name, m.begun)
			}
			c.end(m)
			m.drain()
		}
		i := slices.IndexFunc(m.last.Rounds, func(r *plan.Round) bool { return len(r.With) > 0 })
		if i < 0 || m.last.Rounds[i].Outcome != c.want || len(m.capped) > 0 {
			t.Errorf("%s: %d rounds, the first of several tasks is number %d; %v are still capped", name, len(m.last.Rounds), i, m.capped)
		}
	}
}
