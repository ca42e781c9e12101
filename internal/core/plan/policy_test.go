package plan_test

import (
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/quell-dev/quell/internal/core/plan"
)

func TestThePolicyIsThePapers(t *testing.T) {
	p := plan.Paper()
	have := map[string]float64{
		"hard_cap_quota":             p.Rate,
		"hard_cap_quota_best_effort": p.BestEffortRate,
		"hard_cap_duration":          p.For.Minutes(),
		"outlier_violations":         float64(p.Outliers), // section 5: "if the victim's CPI remains high", judged as before
	}
	f, err := os.Open(filepath.Join("..", "..", "..", "testdata", "reference", "cpi2_parameters.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows[1:] {
		if got, ok := have[row[0]]; ok {
			delete(have, row[0])
			if want, err := strconv.ParseFloat(row[1], 64); err != nil || got != want {
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
