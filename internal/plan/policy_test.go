package plan_test

import (
	"encoding/json"
	"math"
	"slices"
	"testing"

	"github.com/quell-dev/quell/internal/plan"
)

func TestThePolicyIsThePapers(t *testing.T) {
	p := plan.Paper()
	have := map[string]float64{
		"hard_cap_quota":             p.Rate,
		"hard_cap_quota_best_effort": p.BestEffortRate,
		"hard_cap_duration":          p.For.Minutes(),
		"outlier_violations":         float64(p.Outliers), // section 5: "if the victim's CPI remains high", judged as before
	}
	w := newWorld(t)
	for _, row := range reference(w, "cpi2_parameters.csv") {
		if got, ok := have[row[0]]; ok {
			delete(have, row[0])
			if want := w.number(row[1]); got != want {
				t.Errorf("%s = %v, the paper has %v %s", row[0], got, want, row[2])
			}
		}
	}
	if len(have) > 0 {
		t.Errorf("not in the paper's table: %v", have)
	}
	if p.Mode != plan.Advise {
		t.Errorf("mode %s, the default is advise", p.Mode)
	}
}

func TestModesAreWrittenByName(t *testing.T) {
	for _, m := range []plan.Mode{plan.Off, plan.Advise, plan.On} {
		text, err := json.Marshal(m)
		back := plan.Mode(9)
		if err == nil {
			err = json.Unmarshal(text, &back)
		}
		if err != nil || back != m {
			t.Errorf("%s became %v, %v", text, back, err)
		}
	}
	if m, err := plan.ParseMode("ON"); err == nil || m == plan.On {
		t.Errorf("ON was read as %s, %v", m, err)
	}
}

func TestWhatWasNotMeasuredIsNullInJSON(t *testing.T) {
	in := []plan.Value{1.5, plan.Value(math.NaN()), plan.Value(math.Inf(1)), 0}
	text, err := json.Marshal(in)
	if err != nil || string(text) != "[1.5,null,null,0]" {
		t.Fatalf("%s, %v", text, err)
	}
	var out []plan.Value
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	if !math.IsNaN(float64(out[1])) || !slices.Equal(out[:1], in[:1]) || out[3] != 0 {
		t.Errorf("%v", out)
	}
	if err := json.Unmarshal([]byte(`"x"`), &out[0]); err == nil {
		t.Error(`"x" was accepted`)
	}
}

// The construction behind the case studies, on its own.
func TestCorrelatedSeriesHaveTheCorrelationWanted(t *testing.T) {
	costs := []float64{1, 1.2, 0.8, 3, 2.2, 5}
	const limit = 2
	for _, r := range []float64{-0.4, -0.1, 0, 0.07, 0.35, 0.5, 0.58} {
		u, err := correlated(costs, limit, r, 0.5)
		if err != nil {
			t.Fatal(err)
		}
		sum, got := 0.0, 0.0
		for _, x := range u {
			if sum += x; x < 0 {
				t.Errorf("r %v: negative usage in %v", r, u)
			}
		}
		for i, c := range costs {
			if c > limit {
				got += u[i] / sum * (1 - limit/c)
			} else {
				got += u[i] / sum * (c/limit - 1)
			}
		}
		if math.Abs(got-r) > 1e-9 || math.Abs(sum/6-0.5) > 1e-9 {
			t.Errorf("wanted %v, got %v of mean %v", r, got, sum/6)
		}
	}
	if u, err := correlated(costs, limit, 0.7, 0.5); err == nil {
		t.Errorf("0.7 is out of reach, got %v", u)
	}
}
