package plan_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// TestAnOperatorsCapIsARoundOfTheIncidentItNames, and of no other that lists the task: two
// victims suspect /hog, and the cap is for the second.
func TestAnOperatorsCapIsARoundOfTheIncidentItNames(t *testing.T) {
	p := plan.New("machine", detect.Quell, plan.Paper())
	db := sample.Task{Key: sample.TaskKey{Inode: 9}, Name: "/db", Class: sample.LatencySensitive}
	now := 60 * second
	var ids []string
	for _, victim := range []sample.Task{web(), db} {
		ids = append(ids, p.Finding(now, detect.Finding{At: now, Signal: sample.CPI, Victim: victim, Spec: spec.Spec{Mean: 1, StdDev: 0.5}, First: now - 20*second,
			Result: detect.Result{Kind: detect.Neighbour, Threshold: 2, Bad: 3, Cost: 4, Pairs: 10, Suspects: suspects(), Antagonists: 1}}, none))
	}
	take(p)
	terms := command.Terms{Rate: 0.1, For: command.Duration(time.Minute)}
	rounds := func() (n []int) {
		for _, id := range ids {
			inc, _ := p.Incident(id)
			n = append(n, len(inc.Rounds))
		}
		return n
	}
	if _, err := p.CapFor(now, hog(), terms, "inc-0", "ann", "r", none); !errors.Is(err, plan.ErrRefused) || !strings.Contains(err.Error(), "no incident inc-0 is open") {
		t.Errorf("an incident that is not open: %v", err)
	}
	protected := db
	protected.Class, protected.Protected = sample.Batch, true
	if _, err := p.CapFor(now, protected, terms, ids[1], "ann", "r", none); !errors.Is(err, plan.ErrRefused) {
		t.Errorf("the victim itself: %v", err)
	}
	if _, err := p.CapFor(now, hog(), terms, "", "ann", "r", none); err != nil || !slices.Equal(rounds(), []int{0, 0}) {
		t.Errorf("without an incident: %v, rounds %v", err, rounds())
	}
	for _, a := range take(p).Actions {
		if a.Incident != "" || a.Victim != (sample.TaskKey{}) {
			t.Errorf("without an incident: %+v", a)
		}
		p.Applied(now, a.ID, nil)
		if err := p.Uncap(now, hog().Key, "r"); err != nil {
			t.Error(err)
		}
		p.Lifted(now, a.ID, false)
	}
	take(p)
	id, err := p.CapFor(now, hog(), terms, ids[1], "ann", "r", none)
	if err != nil || !slices.Equal(rounds(), []int{0, 1}) {
		t.Fatalf("%v, rounds %v", err, rounds())
	}
	inc, _ := p.Incident(ids[1])
	if r := inc.Rounds[0]; r.ID != id || r.By != "ann" || r.Correlation != 0.5 {
		t.Errorf("the round is %+v", r)
	}
}

// TestAFreedTaskIsCappedForNoOpenIncident: /hog hurts two victims and is capped for the first. An
// operator lifts that cap, or another program replaces it: it is not capped for the second either.
func TestAFreedTaskIsCappedForNoOpenIncident(t *testing.T) {
	for name, end := range map[string]func(p *plan.Planner, id string){
		"uncapped": func(p *plan.Planner, _ string) {
			if err := p.Uncap(90*second, hog().Key, "it is needed"); err != nil {
				t.Error(err)
			}
		},
		"taken over": func(p *plan.Planner, id string) { p.Lifted(90*second, id, true) },
	} {
		policy := plan.Paper()
		policy.Mode = plan.On
		p := plan.New("machine", detect.Quell, policy)
		db := sample.Task{Key: sample.TaskKey{Inode: 9}, Name: "/db", Class: sample.LatencySensitive}
		carryOut := func() (caps []string) {
			for _, a := range take(p).Actions {
				if a.Kind == plan.Uncap {
					p.Lifted(90*second, a.ID, false)
					continue
				}
				p.Applied(60*second, a.ID, nil)
				caps = append(caps, a.ID)
			}
			return caps
		}
		find := func(now sample.Millis) []string {
			for _, victim := range []sample.Task{web(), db} {
				p.Finding(now, detect.Finding{At: now, Signal: sample.CPI, Victim: victim, Spec: spec.Spec{Mean: 1, StdDev: 0.5}, First: now - 20*second,
					Result: detect.Result{Kind: detect.Neighbour, Threshold: 2, Bad: 3, Cost: 4, Pairs: 10, Suspects: suspects(), Antagonists: 1}}, none)
			}
			return carryOut()
		}
		caps := find(60 * second)
		if len(caps) != 1 {
			t.Fatalf("%s: caps %v", name, caps)
		}
		end(p, caps[0])
		carryOut()
		if again := find(120 * second); len(again) > 0 {
			t.Errorf("%s: it is capped again for %s", name, p.Open()[1].Victim.Name)
		}
	}
}

// TestTheNextSuspectWaitsForACapForAnotherVictim: /hog hurts two victims, and a second suspect is named
// next to it. /hog is capped for the first victim, so at that moment no task is capped for the second;
// if that one suffers under the cap, the second suspect is.
func TestTheNextSuspectWaitsForACapForAnotherVictim(t *testing.T) {
	policy := plan.Paper()
	policy.Mode = plan.On
	p := plan.New("machine", detect.Quell, policy)
	db := sample.Task{Key: sample.TaskKey{Inode: 9}, Name: "/db", Class: sample.LatencySensitive}
	next := suspects()[0]
	next.Key.Inode, next.Name = 8, "/encode"
	find := func(now, at sample.Millis, victim sample.Task) (capped []sample.TaskName) {
		p.Finding(now, detect.Finding{At: at, Signal: sample.CPI, Victim: victim, Spec: spec.Spec{Mean: 1, StdDev: 0.5}, First: at - 20*second,
			Result: detect.Result{Kind: detect.Neighbour, Threshold: 2, Bad: 3, Cost: 4, Pairs: 10, Suspects: append(suspects(), next), Antagonists: 2}}, none)
		for _, a := range take(p).Actions {
			p.Applied(now, a.ID, nil)
			capped = append(capped, a.Task.Name)
		}
		return capped
	}
	got := fmt.Sprint(find(60*second, 60*second, web()), find(61*second, 60*second, db), find(120*second, 120*second, db))
	if got != "[/hog] [] [/encode]" {
		t.Errorf("capped for /web, at that moment for /db, and later: %s", got)
	}
}

// course is a machine with /web, /hog and others, interval by interval, and what detection
// remembers of it.
type course struct {
	t    *testing.T
	p    *plan.Planner
	now  sample.Millis
	past map[sample.TaskKey][]detect.Point
}

func (c *course) window(k sample.TaskKey) []detect.Point { return c.past[k] }

// interval is 10 s in which /web has a cost and misses and /hog a usage, with some tasks
// limited; the cost is that of an interval that counts unless it is negative.
func (c *course) interval(cost, misses, usage float64, limited ...sample.Task) {
	c.now += 10 * second
	v := detect.Verdict{Judged: true, Sane: cost >= 0, Outlier: cost > 2}
	point := detect.Point{At: c.now, Cost: cost, Misses: misses}
	if cost < 0 { // it waited, and its work took no longer
		point.Cost = math.NaN()
	}
	c.past[web().Key] = append(c.past[web().Key], point)
	c.past[hog().Key] = append(c.past[hog().Key], detect.Point{At: c.now, Cost: math.NaN(), Pressure: usage})
	readings := []detect.Reading{{Task: ptr(web()), Cost: math.Abs(cost), Misses: misses}, {Task: ptr(hog()), Cost: math.NaN(), Pressure: usage}}
	verdicts := []detect.Verdict{v, {}}
	for _, task := range limited {
		if task.Key == hog().Key {
			readings[1].Flags = sample.Capped
			continue
		}
		readings, verdicts = append(readings, detect.Reading{Task: ptr(task), Cost: math.NaN(), Flags: sample.Capped}), append(verdicts, detect.Verdict{})
	}
	c.p.Interval(c.now, sample.CPI, c.now, readings, verdicts)
	c.p.Tick(c.now)
	c.carryOut()
}

func (c *course) carryOut() {
	for _, a := range take(c.p).Actions {
		if a.Kind == plan.Uncap {
			c.p.Lifted(c.now, a.ID, false)
		} else {
			c.p.Applied(c.now, a.ID, nil)
		}
	}
	take(c.p)
}

// cap gives the planner a finding whose anomaly began with the first of the newest n
// intervals, and caps /hog for it.
func (c *course) cap(n int) (id string) {
	c.t.Helper()
	all := c.past[web().Key]
	id = c.p.Finding(c.now, detect.Finding{At: c.now, Signal: sample.CPI, Victim: web(), Spec: spec.Spec{Mean: 1, StdDev: 0.5}, First: all[len(all)-n].At,
		Result: detect.Result{Kind: detect.Neighbour, Threshold: 2, Bad: 3, Cost: 9, Pairs: 10, Suspects: suspects(), Antagonists: 1}}, c.window)
	c.carryOut()
	if _, err := c.p.CapFor(c.now, hog(), command.Terms{Rate: 0.1, For: command.Duration(5 * time.Minute)}, id, "ann", "r", c.window); err != nil {
		c.t.Fatal(err)
	}
	c.carryOut()
	return id
}

// TestBothSidesOfARoundCountTheSameIntervals: the cost before a cap and that under it are
// means over intervals in which the same other tasks were limited, good ones and bad ones.
func TestBothSidesOfARoundCountTheSameIntervals(t *testing.T) {
	other := sample.Task{Key: sample.TaskKey{Inode: 5}, Name: "/other", Class: sample.Batch}
	for _, c := range []struct {
		name string
		play func(*course) (id string)
		want string
	}{
		{"good and bad intervals count on both sides", func(c *course) string {
			c.interval(4, 0.02, 2)
			c.interval(1, 0.01, 1)
			c.interval(4, 0.03, 3)
			id := c.cap(3)
			c.interval(8, 0.5, 2, hog()) // partly from before the cap
			c.interval(1, 0.01, 0.1, hog())
			c.interval(3, 0.02, 0.3, hog())
			return id
		}, "3 → 2 in 2, usage 2 → 0.2, misses 0.02 → 0.015"},
		{"what another task's limit did before is not what this one removes", func(c *course) string {
			c.interval(4, 0, 2)
			c.interval(1, 0, 2, other)
			c.interval(1, 0, 2, other)
			c.interval(4, 0, 2)
			id := c.cap(4)
			c.interval(1, 0, 0.1, hog())
			c.interval(1, 0, 0.1, hog())
			return id
		}, "4 → 1 in 1, usage 2 → 0.1, misses NaN → NaN"},
		{"another task that is limited meanwhile gets no credit for this one", func(c *course) string {
			c.interval(4, 0, 2)
			c.interval(4, 0, 2)
			c.interval(4, 0, 2)
			id := c.cap(3)
			c.interval(4, 0, 0.1, hog())
			c.interval(4, 0, 0.1, hog())
			c.interval(1, 0, 0.1, hog(), other)
			c.interval(1, 0, 0.1, hog(), other)
			return id
		}, "4 → 4 in 1, usage 2 → 0.1, misses NaN → NaN"},
		{"a cap that overlaps another is compared with what was before both", func(c *course) string {
			c.interval(4, 0, 2)
			c.interval(4, 0, 2)
			c.interval(4, 0, 2)
			c.p.Finding(c.now, detect.Finding{At: c.now, Signal: sample.CPI, Victim: web(), Spec: spec.Spec{Mean: 1, StdDev: 0.5}, First: c.now - 20*second,
				Result: detect.Result{Kind: detect.Nobody, Threshold: 2, Bad: 3, Cost: 4}}, c.window)
			c.interval(3, 0, 2, other)
			c.interval(3, 0, 2, other)
			id := c.cap(3)
			c.interval(2, 0, 0.1, hog(), other)
			c.interval(2, 0, 0.1, hog(), other)
			c.interval(1, 0, 0.1, hog())
			c.interval(1, 0, 0.1, hog())
			return id
		}, "4 → 1 in 2, usage 2 → 0.1, misses NaN → NaN"},
		{"after another cap the incident's earlier intervals are before", func(c *course) string {
			c.interval(4, 0, 2)
			c.interval(4, 0, 2)
			c.interval(4, 0, 2)
			c.p.Finding(c.now, detect.Finding{At: c.now, Signal: sample.CPI, Victim: web(), Spec: spec.Spec{Mean: 1, StdDev: 0.5}, First: c.now - 20*second,
				Result: detect.Result{Kind: detect.Nobody, Threshold: 2, Bad: 3, Cost: 4}}, c.window)
			for range 3 {
				c.interval(3, 0, 2, other)
			}
			id := c.cap(3)
			c.interval(1, 0, 0.1, hog())
			c.interval(1, 0, 0.1, hog())
			return id
		}, "4 → 1 in 1, usage 2 → 0.1, misses NaN → NaN"},
		{"a cap right after the task's trial is not compared with the calm that the trial left", func(c *course) string {
			c.interval(4, 0, 2)
			c.interval(4, 0, 2)
			c.interval(4, 0, 2)
			c.p.Finding(c.now, detect.Finding{At: c.now, Signal: sample.CPI, Victim: web(), Spec: spec.Spec{Mean: 1, StdDev: 0.5}, First: c.now - 20*second,
				Result: detect.Result{Kind: detect.Nobody, Threshold: 2, Bad: 3, Cost: 4}}, c.window)
			for range 3 {
				c.interval(3, 0, 0.1, hog())
			}
			c.interval(0, 0, 2)
			id := c.cap(4)
			c.interval(1, 0, 0.1, hog())
			c.interval(1, 0, 0.1, hog())
			return id
		}, "3 → 1 in 1, usage 2 → 0.1, misses NaN → NaN"},
		{"nor with the little harm right after it", func(c *course) string {
			c.interval(9, 0, 2)
			c.interval(9, 0, 2)
			c.interval(9, 0, 2)
			c.p.Finding(c.now, detect.Finding{At: c.now, Signal: sample.CPI, Victim: web(), Spec: spec.Spec{Mean: 1, StdDev: 0.5}, First: c.now - 20*second,
				Result: detect.Result{Kind: detect.Nobody, Threshold: 2, Bad: 3, Cost: 9}}, c.window)
			for range 3 {
				c.interval(3, 0, 0.1, hog())
			}
			c.interval(2.5, 0, 2)
			id := c.cap(4)
			c.interval(2.7, 0, 0.1, hog())
			c.interval(2.7, 0, 0.1, hog())
			return id
		}, "7.38 → 2.7 in 1, usage 2 → 0.1, misses NaN → NaN"},
		{"where no intervals can be compared nothing is measured", func(c *course) string {
			for range 3 {
				c.interval(4, 0, 2, other)
			}
			id := c.cap(3)
			c.interval(1, 0, 0.1, hog())
			c.interval(1, 0, 0.1, hog())
			return id
		}, "4 → NaN in 0, usage 2 → NaN, misses NaN → NaN"},
		{"a wait without harm counts on neither side", func(c *course) string {
			c.interval(4, 0, 2)
			c.interval(-9, 0, 2)
			c.interval(4, 0, 2)
			id := c.cap(3)
			c.interval(1, 0, 0.1, hog())
			c.interval(-9, 0, 0.1, hog())
			c.interval(2, 0, 0.1, hog())
			return id
		}, "4 → 2 in 1, usage 2 → 0.1, misses NaN → NaN"},
	} {
		t.Run(c.name, func(t *testing.T) {
			policy := plan.Paper()
			m := &course{t: t, p: plan.New("machine", detect.Quell, policy), now: 60 * second, past: map[sample.TaskKey][]detect.Point{}}
			id := c.play(m)
			inc, _ := m.p.Incident(id)
			r := inc.Rounds[len(inc.Rounds)-1]
			got := fmt.Sprintf("%.3g → %.3g in %d, usage %.3g → %.3g, misses %.3g → %.3g", r.CostBefore, r.CostUnder, r.Samples, r.UsageBefore, r.UsageUnder, r.MissesBefore, r.MissesUnder)
			if got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			if err := m.p.Uncap(m.now, hog().Key, "r"); err != nil {
				t.Fatal(err)
			}
			inc, _ = m.p.Incident(id)
			if r := inc.Rounds[len(inc.Rounds)-1]; (r.Samples == 0) != (r.Outcome == plan.NotMeasured) {
				t.Errorf("its outcome is %s", r.Outcome)
			}
		})
	}
}
