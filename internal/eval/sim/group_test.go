package sim

import (
	"flag"
	"slices"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
)

// three makes a machine on which three tasks hurt the victim only together, and an innocent works
// at the same times. The channel is linear: a member adds 0.95 times the distance from the mean
// to the threshold, so one alone does not put the victim over it, and to limit one of the three
// does not bring it below. quiet: the other tasks of the machine do not change what they do.
func three(p *Simulator, seed uint64, quiet bool) (m *machine, s *Scenario, members []sample.TaskName) {
	s = &Scenario{Name: "three-together", Class: "group", Channel: SMT, Pattern: Group, Confuser: NoConfuser}
	m = newMachine(*s, seed, p.shape, p.specs)
	m.reaction = goesOn
	m.antagonistClock.meanOn, m.antagonistClock.meanOff = 30, 15
	const each = 0.95
	v := &m.tasks[0]
	v.spread /= 2    // its own noise; the job's σ is also of its other tasks
	var load float64 // of the three
	for n, i := range m.antagonists {
		t := &m.tasks[i]
		if n >= 3 {
			t.antagonist, t.weight = false, 0
			continue
		}
		t.wave.low, t.weight = 0, 0.1/t.wave.high
		load += 0.1
		members = append(members, t.id.Name)
	}
	if len(m.antagonists) == 3 {
		i := m.antagonists[2]
		m.tasks = append(m.tasks, m.tasks[i])
		t := &m.tasks[len(m.tasks)-1]
		t.id.Key.Inode++
		t.id.Name, t.antagonist, t.weight = t.id.Name+"-innocent", false, 0
		m.antagonists = append(m.antagonists, len(m.tasks)-1)
	}
	// The innocent is led like an antagonist, and its clock is late by a few minutes each time.
	i := m.antagonists[3]
	m.antagonists = m.antagonists[:3]
	m.tasks[i].wave = wave{kind: led, high: m.tasks[i].wave.high, meanOn: 6, meanOff: 30}
	for k := range m.tasks[1:] {
		if t := &m.tasks[k+1]; quiet && !t.antagonist && k+1 != i {
			t.wave = wave{kind: steady, high: t.wave.mean()}
		}
	}
	m.usual = m.stress(0.5)
	v.sensitivity = 3 * each * (v.threshold/v.mean - 1) / (m.stress(0.5+load) - m.usual)
	for k := 1; k < len(m.tasks); k++ {
		m.tasks[k].sensitivity = 0
	}
	return m, s, members
}

var (
	firstGroup = flag.Uint64("first", 2000, "seed of the first case of three tasks that hurt together")
	groupCases = flag.Uint64("cases", 10, "number of such cases")
)

// TestThreeHurtOnlyTogether: the three are named as one group and capped in one round, under which
// the victim is below its threshold, and no innocent is accused: in 10 of 10 cases. Where the other
// tasks of the machine come and go it is 8, as 164 of 200. The seeds are not those on which the planner's numbers
// were chosen (docs/design/0014-groups.md). Without the setting no round has several tasks.
func TestThreeHurtOnlyTogether(t *testing.T) {
	p, cases := simulator(), int(*groupCases)
	for _, c := range []struct {
		name          string
		groups, quiet bool
		cases         int
		least, wrong  int
	}{
		{"off", false, true, min(3, cases), 0, 0},
		{"quiet", true, true, cases, 10, 0},
		{"busy", true, false, cases, 8, 0},
	} {
		found, wrong := 0, 0
		for seed := *firstGroup; seed < *firstGroup+uint64(c.cases); seed++ {
			m, s, members := three(p, seed, c.quiet)
			st := setup(t, detect.EvidenceMethod, 360)
			st.Policy.Trial, st.Policy.Groups, st.Incidents = 3*time.Minute, c.groups, true
			played := play(m, s, seed, st)
			if got := joint(&played, m, members); got == "" {
				found++
			} else if c.groups {
				t.Logf("%s, case %d: %s", c.name, seed, got)
				logCase(t, &played, m, members)
			}
			for _, a := range played.Accusations {
				if !a.Right {
					wrong++
					t.Logf("%s, case %d: %s is accused for %s, member %v", c.name, seed, a.Suspect, a.Victim, slices.Contains(members, a.Suspect))
				}
			}
		}
		t.Logf("%s: found, capped together and relieved in %d of %d; %d innocents accused", c.name, found, c.cases, wrong)
		if found < c.least || wrong > c.wrong || !c.groups && found > 0 {
			t.Errorf("%s: %d of %d, %d innocents", c.name, found, c.cases, wrong)
		}
	}
}

// joint says what is missing of a round that capped exactly these tasks, which are named as one
// group, and under which the victim was below its threshold; "" if nothing is.
func joint(c *Case, m *machine, members []sample.TaskName) string {
	missing := "no such round"
	for _, inc := range c.Incidents {
		if inc.Victim.Name != m.tasks[0].id.Name {
			continue
		}
		groups, named := map[string]bool{}, 0
		for _, f := range inc.Findings {
			if f.Group != "" {
				groups[f.Group] = true
				if !slices.Contains(members, f.Suspect.Name) {
					return string(f.Suspect.Name) + " is in the group"
				}
				named++
			}
		}
		for _, r := range inc.Rounds {
			other := func(task *plan.Capped) bool { return !slices.Contains(members, task.Suspect.Name) }
			switch {
			case r.Trial || len(r.Tasks()) != len(members) || slices.ContainsFunc(r.Tasks(), other):
			case r.Outcome != plan.TruePositive || float64(r.CostUnder) > m.tasks[0].threshold:
			case len(groups) != 1 || named != len(members):
				missing = "not named as a group"
			default:
				return ""
			}
		}
	}
	return missing
}

// logCase prints the rounds of a case.
func logCase(t *testing.T, c *Case, m *machine, members []sample.TaskName) {
	t.Log(members)
	for _, inc := range c.Incidents {
		if inc.Victim.Name != m.tasks[0].id.Name {
			continue
		}
		t.Logf("incident %s to %s, threshold %.3g", inc.Began.Time().UTC().Format("15:04"), inc.Closed.Time().UTC().Format("15:04"), m.tasks[0].threshold)
		for _, r := range inc.Rounds {
			t.Logf("  %s %s, trial %v: %.3g, then %.3g in %d samples, %s", r.From.Time().UTC().Format("15:04"), r.Names(), r.Trial, float64(r.CostBefore), float64(r.CostUnder), r.Samples, r.Outcome)
		}
	}
}
