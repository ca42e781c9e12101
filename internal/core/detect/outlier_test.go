package detect

import (
	"math"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

func TestAnOutlierIsStrictlyOverTheThreshold(t *testing.T) {
	d := New(paper(t, CPI2))
	v := d.Observe(signal(t, sample.CPI), minute, []Reading{
		victim(1, 2), victim(2, math.Nextafter(2, 3)), victim(3, 1.99)})
	for i, want := range []bool{false, true, false} {
		if !v[i].Judged || !v[i].Sane || v[i].Limit != 2 || v[i].Outlier != want || v[i].Anomaly {
			t.Errorf("cost %d: %+v, want outlier %v", i, v[i], want)
		}
	}
}

// TestASpecHasItsOwnThreshold: a number of standard deviations that the server sends replaces the
// agent's, but for the part that the task spends on itself, and the least effect stays.
func TestASpecHasItsOwnThreshold(t *testing.T) {
	for _, c := range []struct {
		rule         Method
		sigmas, want float64
	}{{CPI2, 0, 2}, {CPI2, 3, 2.5}, {CPI2, 1, 1.5}, {EvidenceMethod, 3, 2.5}, {EvidenceMethod, 0.01, 1 * (1 + signal(t, sample.CPI).EffectRel)}} {
		d := New(paper(t, c.rule))
		at := func(cost float64) Reading {
			return victim(1, cost).with(func(r *Reading) { r.Spec.Sigmas = c.sigmas })
		}
		s := *at(1).Spec
		if got := d.Params().Threshold(signal(t, sample.CPI), s); !near(got, c.want, 1e-12) {
			t.Errorf("%s, %v σ: threshold %v, want %v", c.rule, c.sigmas, got, c.want)
		}
		for i, cost := range []float64{c.want - 1e-9, c.want + 1e-9} {
			if v := d.Observe(signal(t, sample.CPI), sample.Millis(i+1)*minute, []Reading{at(cost)})[0]; v.Outlier != (i == 1) || !near(v.Limit, c.want, 1e-12) {
				t.Errorf("%s, %v σ, cost %v: %+v", c.rule, c.sigmas, cost, v)
			}
		}
	}
	d := New(paper(t, EvidenceMethod))
	runq := signal(t, sample.RunQ)
	self := victim(1, 1).with(func(r *Reading) {
		r.Spec.Sigmas, r.Spec.SelfSamples, r.Spec.SelfMean, r.Spec.SelfStdDev = 9, 100, 1, 0.5
		r.Self, r.SelfKnown, r.OwnApart = 2.1, true, true
	})
	if f := last(t, findings(d, runq, []Reading{self}, []Reading{self}, []Reading{self})); f.Kind != SelfWait {
		t.Errorf("%s", f.Kind)
	}
}

// The outlier of a wait that the task may have made itself says so, and that of any other signal does not.
func TestAWaitOfItsOwnMaking(t *testing.T) {
	for name, c := range map[string]struct {
		signal sample.SignalName
		change func(*Reading)
		want   bool
	}{
		"for others":                 {sample.RunQ, func(*Reading) {}, false},
		"for itself is not apart":    {sample.RunQ, func(r *Reading) { r.SelfKnown = false }, true},
		"half by low priority":       {sample.RunQ, func(r *Reading) { r.Niced = 0.5 * r.Waited }, false},
		"mostly by low priority":     {sample.RunQ, func(r *Reading) { r.Niced = 0.51 * r.Waited }, true},
		"with its usual demand":      {sample.RunQ, func(r *Reading) { r.Demand = 2.4 }, false},
		"with more than its usual":   {sample.RunQ, func(r *Reading) { r.Demand = 2.6 }, true},
		"another signal than queues": {sample.CPI, func(r *Reading) { r.SelfKnown = false }, false},
	} {
		d := New(paper(t, EvidenceMethod))
		calm := victim(1, 1).with(func(r *Reading) { r.SelfKnown, r.Wanted, r.Waited, r.Demand, r.Served = true, 2, 1, 1, []Served{} })
		worse := calm.with(func(r *Reading) { r.Cost = 3 }).with(c.change)
		sig := signal(t, c.signal)
		d.Observe(sig, minute, []Reading{calm})
		if v := d.Observe(sig, 2*minute, []Reading{worse})[0]; !v.Outlier || v.SelfMade != c.want {
			t.Errorf("%s: %+v, want self-made %v", name, v, c.want)
		}
	}
}

func TestThreeOutliersInFiveMinutesAreAnAnomaly(t *testing.T) {
	const s = sample.Millis(1000)
	for _, c := range []struct {
		name string
		bad  []sample.Millis
		want bool
	}{
		{"two", []sample.Millis{60 * s, 120 * s}, false},
		{"three in a row", []sample.Millis{60 * s, 120 * s, 180 * s}, true},
		{"first and last just inside", []sample.Millis{60 * s, 120 * s, 360*s - 1}, true},
		{"first and last five minutes apart", []sample.Millis{60 * s, 120 * s, 360 * s}, false},
		{"two bursts of two", []sample.Millis{60 * s, 120 * s, 600 * s, 660 * s}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := New(paper(t, CPI2))
			got := false
			for _, at := range c.bad {
				got = d.Observe(signal(t, sample.CPI), at, []Reading{victim(1, 3)})[0].Anomaly
			}
			f := drain(d, c.bad[len(c.bad)-1])
			if got != c.want || (len(f) > 0) != c.want {
				t.Errorf("anomaly %v, %d findings, want %v", got, len(f), c.want)
			}
			if c.want && (f[0].First != c.bad[0] || f[0].Bad != 3 || f[0].Cost != 3 || f[0].Threshold != 2 || f[0].At != c.bad[2]) {
				t.Errorf("%+v", f[0])
			}
		})
	}
}

// Conditions on a reading for its task to be a victim. Each row breaks one condition of a
// valid reading, and only valid readings are judged.
func TestOnlySoundSamplesMakeAVictim(t *testing.T) {
	cpi, runq := signal(t, sample.CPI), signal(t, sample.RunQ)
	for _, c := range []struct {
		name         string
		signal       sample.Signal
		change       func(*Reading)
		judged, sane bool
		rejected     uint64
	}{
		{"as it is", cpi, func(r *Reading) {}, true, true, 0},
		{"at the least usage", cpi, func(r *Reading) { r.CPU = 0.25 }, true, true, 0},
		{"below the least usage", cpi, func(r *Reading) { r.CPU = 0.2499 }, false, false, 0},
		{"activity does not count for cpi", cpi, func(r *Reading) { r.CPU, r.Rate = 0.1, 1e6 }, false, false, 0},
		{"activity counts for runq", runq, func(r *Reading) { r.CPU, r.Rate = 0.001, 20 }, true, true, 0},
		{"neither usage nor activity", runq, func(r *Reading) { r.CPU, r.Rate = 0.001, 19 }, false, false, 0},
		{"not counted", cpi, func(r *Reading) { r.Cost = math.NaN() }, false, false, 0},
		{"negative", cpi, func(r *Reading) { r.Cost = -1 }, false, false, 1},
		{"below the sane range", cpi, func(r *Reading) { r.Cost = 0.0999 }, false, false, 1},
		{"above the sane range", cpi, func(r *Reading) { r.Cost = 1000.1 }, false, false, 1},
		{"infinite", cpi, func(r *Reading) { r.Cost = math.Inf(1) }, false, false, 1},
		{"capped", cpi, func(r *Reading) { r.Flags = sample.Capped }, false, false, 0},
		{"split", cpi, func(r *Reading) { r.Flags = sample.Split }, false, false, 0},
		{"spec learning", cpi, func(r *Reading) { r.Spec.State = spec.Learning }, false, true, 0},
		{"spec insufficient", cpi, func(r *Reading) { r.Spec.State = spec.Insufficient }, false, true, 0},
		{"spec stale", cpi, func(r *Reading) { r.Spec.State = spec.Stale }, false, true, 0},
		{"batch, not protected: judged as well, plan decides", cpi, func(r *Reading) { r.Task.Class = sample.Batch }, true, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := New(only(t, Switches{Bounds: true}))
			for i := range 5 {
				at := sample.Millis(i+1) * minute
				v := d.Observe(c.signal, at, []Reading{victim(1, 3).with(c.change)})[0]
				if v.Judged != c.judged || v.Outlier != c.judged || v.Sane != c.sane || v.Anomaly != (c.judged && i >= 2) {
					t.Errorf("interval %d: %+v", i, v)
				}
			}
			if f := drain(d, 5*minute); (len(f) > 0) != c.judged {
				t.Errorf("%d findings", len(f))
			}
			if got := d.Rejected(c.signal.Name); got != 5*c.rejected {
				t.Errorf("%d rejected, want %d", got, 5*c.rejected)
			}
		})
	}
}

// TestThePaperHasNoBounds: rule cpi2 judges any cost that is a number.
func TestThePaperHasNoBounds(t *testing.T) {
	for cost, judged := range map[float64]bool{0: true, 0.01: true, 1e9: true, 1e31: false, -1: false, math.Inf(1): false} {
		d := New(paper(t, CPI2))
		v := d.Observe(signal(t, sample.CPI), minute, []Reading{victim(1, cost)})[0]
		if v.Judged != judged || v.Sane != judged || v.Outlier != (judged && cost > 2) || d.Rejected(sample.CPI) > 0 == judged {
			t.Errorf("cost %g: %+v, %d rejected", cost, v, d.Rejected(sample.CPI))
		}
	}
}

func TestSuspectsAreNotFilteredByUsage(t *testing.T) {
	f := last(t, findings(New(paper(t, CPI2)), signal(t, sample.CPI),
		[]Reading{victim(1, 1), suspect(2, 0.001)},
		[]Reading{victim(1, 4), suspect(2, 0.1)},
		[]Reading{victim(1, 4), suspect(2, 0.1)},
		[]Reading{victim(1, 4), suspect(2, 0.1)}))
	if f.Kind != Neighbour || f.Antagonists != 1 || f.of(t, 2).Correlation < 0.49 {
		t.Errorf("%+v", f)
	}
}

func TestAnIntervalNotAfterTheLastIsIgnored(t *testing.T) {
	d := New(paper(t, CPI2))
	sig := signal(t, sample.CPI)
	d.Observe(sig, 2*minute, []Reading{victim(1, 3), suspect(2, 1)})
	before := d.Window(sample.CPI, task(2, 0).Key)
	for _, at := range []sample.Millis{2 * minute, minute, 2*minute - 1} {
		v := d.Observe(sig, at, []Reading{victim(1, 3), suspect(2, 9), suspect(3, 9)})
		if len(v) != 3 || v[0] != (Verdict{}) {
			t.Errorf("at %d: %+v", at, v)
		}
	}
	if w := d.Window(sample.CPI, task(2, 0).Key); len(w) != 1 || w[0].Pressure != before[0].Pressure {
		t.Errorf("window changed to %v", w)
	}
	if d.Window(sample.CPI, task(3, 0).Key) != nil {
		t.Error("a task of an ignored interval is known")
	}
	// Each signal has its own time.
	if v := d.Observe(signal(t, sample.RunQ), minute, []Reading{victim(1, 3)}); !v[0].Judged {
		t.Error("an interval of another signal was ignored")
	}
}

func TestOneAnalysisASecond(t *testing.T) {
	d := New(paper(t, CPI2))
	for at := minute; at <= 3*minute; at += minute {
		d.Observe(signal(t, sample.CPI), at, []Reading{victim(3, 3), victim(1, 3), victim(2, 3)})
	}
	var got []uint64
	for now := 3 * minute; now < 3*minute+5000; now += 250 {
		for n := 0; ; n++ {
			f, ok := d.Next(now)
			if !ok {
				break
			}
			if n > 0 || (now-3*minute)%1000 != 0 {
				t.Errorf("analysis %d at +%d ms", n, now-3*minute)
			}
			got = append(got, f.Victim.Key.Inode)
		}
	}
	if len(got) != 3 || got[0] != 1 || got[1] != 2 || got[2] != 3 {
		t.Errorf("analysed %v, want each victim once", got)
	}
}

func TestAVictimWaitsInTheQueueOnce(t *testing.T) {
	d := New(paper(t, CPI2))
	for at := minute; at <= 6*minute; at += minute {
		d.Observe(signal(t, sample.CPI), at, []Reading{victim(1, 3)})
	}
	if f := drain(d, 6*minute); len(f) != 1 || f[0].At != 6*minute || f[0].Bad != 5 {
		t.Errorf("%+v", f)
	}
}

func TestARestartForgetsHowTheTaskFared(t *testing.T) {
	d := New(paper(t, CPI2))
	sig := signal(t, sample.CPI)
	bad := func(flags sample.Flags) []Reading {
		return []Reading{victim(1, 3).with(func(r *Reading) { r.Flags = flags }), suspect(2, 1)}
	}
	for at := minute; at <= 3*minute; at += minute {
		d.Observe(sig, at, bad(0))
	}
	// The anomaly from before the restart is still queued.
	if v := d.Observe(sig, 4*minute, bad(sample.Restarted)); !v[0].Outlier || v[0].Anomaly {
		t.Errorf("%+v", v[0])
	}
	if f := drain(d, 4*minute); len(f) != 0 {
		t.Errorf("found %+v", f)
	}
	for i, p := range d.Window(sample.CPI, task(1, 0).Key) {
		if math.IsNaN(p.Cost) != (i < 3) || p.Pressure != 1 {
			t.Errorf("interval %d: %+v", i, p)
		}
	}
	d.Observe(sig, 5*minute, bad(0))
	d.Observe(sig, 6*minute, bad(0))
	if f := last(t, drain(d, 6*minute)); f.Pairs != 3 || f.First != 4*minute || !near(f.of(t, 2).Correlation, 1-2.0/3, 1e-6) {
		t.Errorf("%+v", f)
	}
}

func TestAForgottenVictimDoesNotHoldUpTheNext(t *testing.T) {
	d := New(paper(t, CPI2))
	for at := minute; at <= 3*minute; at += minute {
		d.Observe(signal(t, sample.CPI), at, []Reading{victim(1, 3), victim(2, 3)})
	}
	d.Forget(task(1, 0).Key)
	if f, ok := d.Next(3 * minute); !ok || f.Victim.Key.Inode != 2 {
		t.Errorf("%v %+v", ok, f)
	}
}

func TestForgottenTasksLeaveNothingBehind(t *testing.T) {
	d := New(paper(t, CPI2))
	sig := signal(t, sample.CPI)
	for at := minute; at <= 3*minute; at += minute {
		d.Observe(sig, at, []Reading{victim(1, 3), suspect(2, 7), victim(3, 3)})
	}
	d.Forget(task(2, 0).Key)
	d.Forget(task(3, 0).Key)
	d.Forget(task(99, 0).Key)
	if f := drain(d, 3*minute); len(f) != 1 || f[0].Victim.Key.Inode != 1 || len(f[0].Suspects) != 0 {
		t.Errorf("a forgotten task is victim or suspect: %+v", f)
	}
	if d.Window(sample.CPI, task(2, 0).Key) != nil {
		t.Error("a forgotten task has a window")
	}
	// New tasks get the columns (5 that of 3, 4 that of 2), but not the history.
	d.Observe(sig, 4*minute, []Reading{victim(1, 3), victim(5, 3), suspect(4, 1)})
	f := last(t, drain(d, 4*minute))
	if got := f.of(t, 4); got.Usage != 0.25 || !near(got.Correlation, 1-2.0/3, 1e-6) {
		t.Errorf("newcomer %+v", got)
	}
	if s := d.series[sample.CPI]; len(s.tasks) != 3 || s.index[task(5, 0).Key] != 2 {
		t.Errorf("columns %v", s.index)
	}
	for i, p := range d.Window(sample.CPI, task(5, 0).Key) {
		if math.IsNaN(p.Cost) != (i < 3) || (p.Pressure == 0) != (i < 3) {
			t.Errorf("interval %d: %+v", i, p)
		}
	}
	// The outliers of the previous task and two of the new one's are no anomaly.
	if v := d.Observe(sig, 5*minute, []Reading{victim(5, 3)}); v[0].Anomaly {
		t.Error("the newcomer inherited outliers")
	}
}
