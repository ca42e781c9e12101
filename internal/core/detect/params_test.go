package detect

import (
	"strconv"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

func TestParametersAreThoseOfThePaper(t *testing.T) {
	p, s := paper(t, CPI2), spec.Paper()
	const elsewhere = -1 // set by config, plan, enforce or the agent, and tested there
	have := map[string]float64{
		"required_cpu_usage":               signal(t, sample.CPI).LeastCPU,
		"outlier_threshold":                p.Sigmas,
		"outlier_violations":               float64(p.Outliers),
		"outlier_window":                   p.OutlierWindow.Minutes(),
		"correlation_window":               p.Window.Minutes(),
		"antagonist_correlation_threshold": p.Correlation,
		"analysis_rate_limit":              1 / p.Pace.Seconds(),
		"minimum_tasks_per_job":            float64(s.MinTasks),
		"minimum_samples_per_task":         float64(s.MinSamples),
		"age_weight_per_day":               s.AgeWeight,
		"spec_recalculation_goal":          s.Every.Hours(),
		"spec_recalculation":               elsewhere, // the goal is what is implemented
		"sampling_duration":                elsewhere,
		"sampling_period":                  elsewhere,
		"aggregation":                      elsewhere,
		"hard_cap_quota":                   elsewhere,
		"hard_cap_quota_best_effort":       elsewhere,
		"hard_cap_example_period":          elsewhere,
		"hard_cap_duration":                elsewhere,
		"sampling_overhead_limit":          elsewhere,
		"correlation_cost":                 elsewhere, // BenchmarkIdentify1000x10
	}
	rows := reference(t, "cpi2_parameters.csv")
	if len(rows) != len(have) {
		t.Errorf("the table has %d parameters, this test knows %d", len(rows), len(have))
	}
	for _, row := range rows {
		got, known := have[row[0]]
		if !known {
			t.Errorf("%s: where is it held?", row[0])
		}
		if got == elsewhere {
			continue
		}
		if want, err := strconv.ParseFloat(row[1], 64); err != nil || got != want {
			t.Errorf("%s = %v, the paper has %s %s (%v)", row[0], got, row[1], row[2], err)
		}
	}
}

func TestRulesAreKnownByName(t *testing.T) {
	if sw, err := CPI2.Switches(); err != nil || sw != (Switches{}) {
		t.Errorf("cpi2 turns on %+v, %v", sw, err)
	}
	all := Switches{Reach: true, CoVictim: true, LeastEffect: true, Indeterminate: true, LeastPressure: true, LookBack: true, PhaseChange: true, OwnCauses: true,
		Bounds: true, Outside: true, CappedApart: true, Withhold: true}
	evident := all
	evident.Evidence = true
	for _, c := range []struct {
		asked, is Method
		want      Switches
	}{{Quell, Quell, all}, {EvidenceMethod, EvidenceMethod, evident}, {"", EvidenceMethod, evident}} {
		p, err := Paper(c.asked)
		if err != nil || p.Switches != c.want || p.Method != c.is {
			t.Errorf("rule %q: %+v, %v", c.asked, p, err)
		}
	}
	if _, err := Paper("cpi3"); err == nil {
		t.Error("rule cpi3 was accepted")
	}
}

func TestThresholdIsTwoSigmasAndAtLeastTheLeastEffect(t *testing.T) {
	for _, c := range []struct {
		signal       sample.SignalName
		mean, sd     float64
		paper, quell float64
	}{
		{sample.CPI, 1.8, 0.16, 2.12, 2.12}, // the web search of figure 7
		{sample.CPI, 2, 0.01, 2.02, 2.1},    // 5 % are more than 2σ
		{sample.CPI, 2, 0, 2, 2.1},
		{sample.CPS, 1e-5, 0, 1e-5, 1.05e-5},
		{sample.CPT, 4, 1, 6, 6},
		{sample.RunQ, 0, 0, 0, 0.05}, // +0.05 s/s
		{sample.RunQ, 0.1, 0.01, 0.12, 0.15},
		{sample.RunQ, 0.25, 0, 0.25, 0.30}, // both
		{sample.RunQ, 1, 0.05, 1.1, 1.2},   // 20 %
		{sample.RunQ, 1, 0.2, 1.4, 1.4},
	} {
		s := ready(c.mean, c.sd)
		if got := paper(t, CPI2).Threshold(signal(t, c.signal), *s); !near(got, c.paper, 1e-12) {
			t.Errorf("%s %v±%v, cpi2: %v, want %v", c.signal, c.mean, c.sd, got, c.paper)
		}
		if got := paper(t, Quell).Threshold(signal(t, c.signal), *s); !near(got, c.quell, 1e-12) {
			t.Errorf("%s %v±%v, quell: %v, want %v", c.signal, c.mean, c.sd, got, c.quell)
		}
	}
}

// While a task is limited the window goes on, from the newest interval without a limit.
func TestTheWindowHoldsWhatWasBeforeALimit(t *testing.T) {
	d := New(paper(t, EvidenceMethod))
	sig := signal(t, sample.CPI)
	for at := minute; at <= 37*minute; at += minute {
		d.Observe(sig, at, []Reading{victim(1, 1), suspect(2, 1).with(func(r *Reading) {
			if at > 25*minute {
				r.Flags = sample.Capped
			}
		})})
	}
	if w := d.Window(sample.CPI, task(2, 0).Key); len(w) != 22 || w[0].At != 16*minute || w[21].At != 37*minute {
		t.Errorf("the window is %v", w)
	}
}

func TestTheWindowIsTenMinutesLong(t *testing.T) {
	d := New(paper(t, CPI2))
	sig := signal(t, sample.CPI)
	for at := minute; at <= 25*minute; at += minute {
		d.Observe(sig, at, []Reading{victim(1, float64(at/minute)/10), suspect(2, float64(at/minute))})
	}
	w := d.Window(sample.CPI, task(2, 0).Key)
	if len(w) != 10 || w[0].At != 16*minute || w[9].At != 25*minute || w[9].Pressure != 25 {
		t.Errorf("window %v", w)
	}
	if w := d.Window(sample.CPI, task(1, 0).Key); !near(w[0].Cost, 1.6, 1e-6) {
		t.Errorf("cost %v", w[0])
	}
	if d.Window(sample.CPI, task(3, 0).Key) != nil || d.Window(sample.RunQ, task(1, 0).Key) != nil {
		t.Error("a window of something unknown")
	}
	if d := d.Params().Window; d != 10*time.Minute {
		t.Error(d)
	}
}
