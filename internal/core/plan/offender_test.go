package plan_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
)

// hogs is a loop whose caps last 20 s.
func hogs(t *testing.T, cost func(float64) float64, change func(*plan.Policy)) *loop {
	return newLoop(t, 2, cost, func(p *plan.Policy) {
		p.Feedback, p.For = false, 20*time.Second
		if change != nil {
			change(p)
		}
	})
}

// cycle accuses /hog and lets the cap expire; it returns the cap's duration.
func (l *loop) cycle() time.Duration {
	inc := l.accuse()
	n := len(inc.Rounds) - 1
	r := inc.Rounds[n]
	for ; r.Ended == 0; r = l.round(inc.ID, n) {
		l.step(0)
	}
	return r.Until.Sub(r.From)
}

// TestARepeatOffenderIsHeldLonger: if the policy says so, as long as its caps are recent,
// and until an operator pardons it. A planner that is given its record continues from
// there.
func TestARepeatOffenderIsHeldLonger(t *testing.T) {
	strict := func(p *plan.Policy) { p.Confine, p.ConfineWithin, p.ConfineFor = 2, time.Hour, time.Minute }
	l := hogs(t, plants["linear"](2, 2), strict)
	for i, want := range []time.Duration{20 * time.Second, 20 * time.Second, time.Minute} {
		if got := l.cycle(); got != want {
			t.Errorf("cap %d was for %s, want %s", i, got, want)
		}
	}
	all := l.p.Offenders(l.now)
	if len(all) != 1 || all[0].Job != "/hog" || all[0].Task != "/hog" || all[0].Victim != "/web" || len(all[0].Helped) != 3 || !all[0].Confined {
		t.Fatalf("%+v", all)
	}

	next := hogs(t, plants["linear"](2, 2), strict)
	next.p.RestoreOffenders(append(all, plan.Offender{Job: "no-cap"}, plan.Offender{Helped: []sample.Millis{1}}))
	if again := next.p.Offenders(l.now); fmt.Sprint(again) != fmt.Sprint(all) {
		t.Errorf("the next planner knows %+v, want %+v", again, all)
	}
	if got := next.cycle(); got != time.Minute {
		t.Errorf("the next planner's cap was for %s", got)
	}

	lax := hogs(t, plants["linear"](2, 2), nil)
	lax.p.RestoreOffenders(all)
	if got := lax.cycle(); got != 20*time.Second || lax.p.Offenders(l.now)[0].Confined {
		t.Errorf("a policy without confinement capped for %s", got)
	}

	if err := l.p.Pardon("/web"); !errors.Is(err, plan.ErrRefused) {
		t.Errorf("pardon of a job that did nothing: %v", err)
	}
	if err := l.p.Pardon("/hog"); err != nil || len(l.p.Offenders(l.now)) != 0 {
		t.Errorf("pardon: %v", err)
	}
	if got := l.cycle(); got != 20*time.Second {
		t.Errorf("after the pardon the cap was for %s", got)
	}
	l.cycle()
	l.now += 3600 * second
	if l.p.Offenders(l.now)[0].Confined {
		t.Error("it is confined for what it did an hour ago")
	}
}

// TestOnlyCapsThatHelpedMakeAnOffender.
func TestOnlyCapsThatHelpedMakeAnOffender(t *testing.T) {
	l := hogs(t, func(float64) float64 { return 2 }, nil)
	l.cycle()
	if all := l.p.Offenders(l.now); len(all) != 0 {
		t.Errorf("%+v", all)
	}
}

// TestOffendersAreBounded: the latest offenders are kept.
func TestOffendersAreBounded(t *testing.T) {
	p := plan.New("machine", detect.Quell, plan.Paper())
	var many []plan.Offender
	for i := range 300 {
		o := plan.Offender{Job: sample.JobName(fmt.Sprint("job-", i))}
		for n := range 40 {
			o.Helped = append(o.Helped, sample.Millis(1000*i+n))
		}
		many = append(many, o)
	}
	p.RestoreOffenders(many)
	all := p.Offenders(1e9)
	if len(all) != 256 || all[0].Job != "job-299" || all[255].Job != "job-44" || len(all[0].Helped) != 32 || all[0].Helped[31] != 299039 {
		t.Errorf("%d, %+v … %+v", len(all), all[0], all[len(all)-1])
	}
}

// TestACapThatHelpsGoesOn while it binds, as long as the policy allows.
func TestACapThatHelpsGoesOn(t *testing.T) {
	l := hogs(t, plants["linear"](2, 2), func(p *plan.Policy) { p.MaxDuration = 70 * time.Second })
	inc := l.accuse()
	r := inc.Rounds[0]
	for ; r.Ended == 0 && l.now < r.From+200*second; r = l.round(inc.ID, 0) {
		l.step(0)
	}
	if got := r.Ended.Sub(r.From); got != 70*time.Second || r.Outcome != plan.TruePositive || r.Rate != 0.1 {
		t.Errorf("it ended after %s: %+v", got, r)
	}
}

// TestACapThatDoesNotHelpEndsByTheClock.
func TestACapThatDoesNotHelpEndsByTheClock(t *testing.T) {
	l := hogs(t, func(float64) float64 { return 2 }, func(p *plan.Policy) { p.MaxDuration = 70 * time.Second })
	if got := l.cycle(); got != 20*time.Second || l.adjust != 0 {
		t.Errorf("it was for %s, %d adjustments", got, l.adjust)
	}
}

// TestAFixedCapThatHoldsNothingBackEnds early if Policy.MaxDuration is set, and by the clock
// otherwise.
func TestAFixedCapThatHoldsNothingBackEnds(t *testing.T) {
	for longest, want := range map[time.Duration]time.Duration{0: 20 * time.Second, time.Minute: 10 * time.Second} {
		l := hogs(t, plants["linear"](2, 2), func(p *plan.Policy) { p.MaxDuration = longest })
		inc := l.accuse()
		r := inc.Rounds[0]
		for ; r.Ended == 0; r = l.round(inc.ID, 0) {
			if l.now == r.From+7*second {
				l.wants = 0.01
			}
			l.step(0)
		}
		if got := r.Ended.Sub(r.From); got != want {
			t.Errorf("longest %s: it ended after %s, want %s", longest, got, want)
		}
	}
}

// TestAnEscalationIsSaidToPrograms: move if no cap helps, restart if it comes back.
func TestAnEscalationIsSaidToPrograms(t *testing.T) {
	l := hogs(t, func(float64) float64 { return 2 }, nil)
	l.cycle()
	if e := l.accuse().Escalation; e == nil || *e != (plan.Escalation{Do: plan.Move, Task: "/web"}) {
		t.Errorf("no cap helps: %+v", e)
	}
	l = hogs(t, plants["linear"](2, 2), nil)
	for range 3 {
		l.cycle()
	}
	inc := l.accuse()
	if e := inc.Escalation; e == nil || *e != (plan.Escalation{Do: plan.Restart, Task: "/hog"}) {
		t.Errorf("it comes back: %+v", e)
	}
}
