package quality

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/eval/rivals"
	"github.com/quell-dev/quell/internal/eval/sim"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// TestCounts: a case is counted as docs/rules.md defines it.
func TestCounts(t *testing.T) {
	var c Count
	minute := time.Minute
	c.Add(&sim.Case{Minutes: 720, Accusations: []sim.Accusation{{Right: true}, {}}, Victims: []sim.Victim{{Named: true, After: minute}, {}},
		Rounds: []*plan.Round{{Outcome: plan.TruePositive}, {Outcome: plan.Noise, Trial: true}}, Trials: 1})
	c.Add(&sim.Case{Minutes: 720, Accusations: []sim.Accusation{{}}, Victims: []sim.Victim{{Named: true, After: 3 * minute}}})
	c.Add(&sim.Case{Minutes: 1440, Accusations: []sim.Accusation{{}}})
	share := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-12 {
			t.Errorf("%s %v, want %v", what, got, want)
		}
	}
	precision, _ := c.Precision()
	share("precision", precision, 1.0/4)
	recall, low := c.Recall()
	share("recall", recall, 2.0/3)
	if !(low > 0.1 && low < recall) {
		t.Errorf("the lower end is %v", low)
	}
	top, _ := c.Top1()
	share("top-1", top, 1.0/2)
	rate, high := c.FalsePerThousandDays()
	share("false a thousand days", rate, 1500)
	share("its upper end", math.Round(high), math.Round(7.7537/2*1000))
	if c.Outcomes[plan.TruePositive] != 1 || c.Outcomes[plan.Noise] != 0 || c.Trials != 1 {
		t.Errorf("outcomes %v, %d trials: a trial is no cap", c.Outcomes, c.Trials)
	}
	if c.Median() != 3*minute {
		t.Errorf("median %v", c.Median())
	}
}

// TestRulesInShort plays a part of the table (make quality plays all of it). On the tuning
// half, evidence is right more often than the paper's rule, which is right more often than
// naming the biggest user.
func TestRulesInShort(t *testing.T) {
	policy := sim.Policy()
	policy.Trial = 3 * time.Minute
	results, err := Run(Study{Rules: []detect.Method{detect.EvidenceMethod, detect.CPI2, rivals.Biggest}, Half: sim.Tuning, Seeds: 1, Minutes: 50,
		Days: 1, Seed: 1, Policy: policy}, func(int, int) {})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := Text(&text, results); err != nil {
		t.Fatal(err)
	}
	t.Log(text.String())
	var precision, top [3]float64
	for i := range results {
		precision[i], _ = results[i].All.Precision()
		top[i], _ = results[i].All.Top1()
	}
	if !(precision[0] > precision[1] && precision[1] > precision[2]) || !(top[0] > top[1] && top[1] > top[2]) {
		t.Errorf("precision %.2f, top-1 %.2f", precision, top)
	}
	if precision[0] < 0.95 || top[0] < 0.95 {
		t.Errorf("evidence has precision %.3f and top-1 %.3f", precision[0], top[0])
	}
	if all := &results[1].All; all.Relief.Taken == 0 || all.Outcomes[plan.TruePositive] == 0 {
		t.Errorf("cpi2 in mode on: %.0f CPU-s taken, rounds %v", all.Relief.Taken, all.Outcomes)
	}
	if days := results[1].Everyday.Minutes; days != 24*60 {
		t.Errorf("%d minutes of a day", days)
	}
}

// TestAdviseCapsNoTask: a rule that caps in mode on (TestRulesInShort) caps no task in mode advise.
func TestAdviseCapsNoTask(t *testing.T) {
	results, err := Run(Study{Rules: []detect.Method{detect.CPI2}, Half: sim.Tuning, Only: sim.Bandwidth, Seeds: 1, Minutes: 50, Seed: 1, Policy: sim.Policy(), Advise: true}, func(int, int) {})
	if err != nil {
		t.Fatal(err)
	}
	all := &results[0].All
	if measured := all.Outcomes[plan.TruePositive] + all.Outcomes[plan.Noise]; all.Relief.Taken != 0 || measured != 0 || all.Accusations == 0 {
		t.Errorf("%.0f CPU-s taken, rounds %v, %d accusations", all.Relief.Taken, all.Outcomes, all.Accusations)
	}
}

// TestDaysOfASeed: no day of a seed is one of another seed or one for tuning, also where one plays
// as many as make quality.
func TestDaysOfASeed(t *testing.T) {
	const days = 30_000
	seen := map[uint64]string{}
	for _, s := range []Study{{Half: sim.Tuning, Seed: 1}, {Half: sim.Test, Seed: 1}, {Half: sim.Test, Seed: 2}, {Half: sim.Test, Seed: 5001}, {Half: sim.Test, Seed: 6001}} {
		name := fmt.Sprintf("%s %d", s.Half, s.Seed)
		for n := range uint64(days) {
			if other, was := seen[s.firstDay()+n]; was {
				t.Fatalf("day %d of %s is one of %s", n, name, other)
			}
			seen[s.firstDay()+n] = name
		}
	}
}

func TestAStudyThatMakesNoSenseIsRefused(t *testing.T) {
	for want, s := range map[string]Study{"luck": {Half: sim.Test, Rules: []detect.Method{"luck"}}, "tests": {Half: "tests"}, "1048577 days": {Half: sim.Test, Days: daysOfASeed + 1}} {
		if _, err := Run(s, func(int, int) {}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", s, err)
		}
	}
}
