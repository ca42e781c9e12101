package record

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// staircase is a run of a victim with an antagonist that is off for 10 s, on for 20 s and
// off again, in steps of 10 s whose first second does not count. victim gives the length
// of the victim's iterations in each of the four steps.
func staircase(victim [4]time.Duration, used [4]float64) *result.Run {
	r := &result.Run{Verdict: result.Valid, Start: time.UnixMilli(1_700_000_000_000), Window: result.Window{To: 40 * time.Second}}
	r.Cell = study.Cell{Kind: study.Main, Levels: []study.Level{{Factor: "pair", Value: "a-b"}}, Parts: []study.Part{
		{Role: "victim", Measure: true, Workload: study.Workload{Name: "a"}},
		{Role: "antagonist", Workload: study.Workload{Name: "b", Contends: "cache"}},
		{Role: "bystander", Several: true, Workload: study.Workload{Name: "light"}},
		{Role: "bystander", Index: 1, Several: true, Workload: study.Workload{Name: "light"}}}}
	r.Parts = []result.Part{{Name: "victim", Role: "victim", CPUs: []string{"0"}}, {Name: "antagonist", Role: "antagonist", CPUs: []string{"1"}}}
	for k, target := range []study.Share{0.03, 0.99, 0.99, 0.03} {
		from := time.Duration(k) * 10 * time.Second
		r.Steps = append(r.Steps, result.Step{Step: study.Step{Role: "antagonist", Target: target, From: from, To: from + 10*time.Second, Settle: time.Second}, Achieved: used[k]})
		for at := from; victim[k] > 0 && at < from+10*time.Second; at += victim[k] {
			r.Parts[0].Iterations = append(r.Parts[0].Iterations, result.Iteration{From: at, To: min(at+victim[k], from+10*time.Second), Units: min(1, (from+10*time.Second-at).Seconds()/victim[k].Seconds())})
		}
	}
	r.CellKey = r.Cell.Key()
	return r
}

// A command of a fixed length is executed as often where it is hurt: it is not known to be spared.
func TestVictimWithAFigureOfItsRun(t *testing.T) {
	r := staircase([4]time.Duration{time.Second, time.Second, time.Second, time.Second}, [4]float64{0.03, 0.9, 0.9, 0.03})
	if all := Stretches(r, nil); len(all) != 1 || all[0].Truth != Spared {
		t.Errorf("a fixed amount of work: %+v", all)
	}
	r.Cell.Parts[0].Workload.Metric.Parse = "sysbench"
	if all := Stretches(r, nil); len(all) != 1 || all[0].Truth != Unclear || !strings.Contains(all[0].Why, "of the whole run") {
		t.Errorf("a fixed length: %+v", all)
	}
}

func TestStretches(t *testing.T) {
	const ms = time.Millisecond
	free := [4]float64{0.03, 0.9, 0.9, 0.03}
	busier := func(in, out float64) []result.Sample {
		var all []result.Sample
		for s := 1; s <= 40; s++ {
			v := out
			if s > 10 && s <= 30 {
				v = in
			}
			all = append(all, result.Sample{At: time.Duration(s) * time.Second, Values: map[string]float64{"cpu.foreign": v}})
		}
		return all
	}
	for name, c := range map[string]struct {
		victim  [4]time.Duration
		used    [4]float64
		seconds []result.Sample
		truth   Truth
		slow    float64
		why     string
	}{
		"twice as slow":             {[4]time.Duration{100 * ms, 200 * ms, 200 * ms, 100 * ms}, free, nil, Hurt, 2, ""},
		"not slowed":                {[4]time.Duration{100 * ms, 102 * ms, 102 * ms, 100 * ms}, free, nil, Spared, 1.02, ""},
		"sped up":                   {[4]time.Duration{100 * ms, 90 * ms, 90 * ms, 100 * ms}, free, nil, Spared, 0.9, ""},
		"a little":                  {[4]time.Duration{100 * ms, 110 * ms, 110 * ms, 100 * ms}, free, nil, Unclear, 1.1, "inconclusive"},
		"and stayed slow":           {[4]time.Duration{100 * ms, 200 * ms, 200 * ms, 200 * ms}, free, nil, Unclear, 1.5, "before and"},
		"beside others that came":   {[4]time.Duration{100 * ms, 200 * ms, 200 * ms, 100 * ms}, free, busier(0.5, 0.1), Unclear, 2, "other tasks used 40 points more"},
		"beside others all along":   {[4]time.Duration{100 * ms, 200 * ms, 200 * ms, 100 * ms}, free, busier(0.5, 0.5), Hurt, 2, ""},
		"the antagonist did little": {[4]time.Duration{100 * ms, 200 * ms, 200 * ms, 100 * ms}, [4]float64{0.03, 0.05, 0.05, 0.03}, nil, Unclear, 2, "used 5 %"},
		"stood still beside it":     {[4]time.Duration{100 * ms, 0, 0, 100 * ms}, free, nil, Unclear, math.Inf(1), "no work"},
	} {
		got := Stretches(staircase(c.victim, c.used), c.seconds)
		if len(got) != 1 {
			t.Fatalf("%s: %+v", name, got)
		}
		s := got[0]
		if s.Truth != c.truth || math.Abs(float64(s.Slowdown)-c.slow) > 1e-6 || !strings.Contains(s.Why, c.why) || (s.Why == "") != (c.truth != Unclear) {
			t.Errorf("%s: %+v", name, s)
		}
		if s.Victim != "victim" || s.Antagonist != "antagonist" || s.Window != (result.Window{From: 10 * time.Second, To: 30 * time.Second}) || s.Cause != "cache" {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func TestStretchesWithoutAnAntagonist(t *testing.T) {
	r := staircase([4]time.Duration{1e8, 1e8, 1e8, 1e8}, [4]float64{})
	r.Steps = nil // no role climbs
	if got := Stretches(r, nil); got != nil {
		t.Errorf("%+v", got)
	}
}

func TestCauseOnOneCPU(t *testing.T) {
	r := staircase([4]time.Duration{1e8, 2e8, 2e8, 1e8}, [4]float64{0.03, 0.5, 0.5, 0.03})
	r.Parts[1].CPUs = []string{"0"}
	if s := Stretches(r, nil); s[0].Cause != "cpu" {
		t.Errorf("%+v", s)
	}
}

// There is no baseline for an antagonist that was on from the beginning.
func TestStretchWithoutBefore(t *testing.T) {
	r := staircase([4]time.Duration{1e8, 2e8, 2e8, 1e8}, [4]float64{0.03, 0.5, 0.5, 0.03})
	r.Steps = r.Steps[1:]
	if s := Stretches(r, nil); len(s) != 1 || s[0].Truth != Unclear {
		t.Errorf("%+v", s)
	}
}
