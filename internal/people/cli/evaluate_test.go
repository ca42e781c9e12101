package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/eval/evaluation"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
)

// TestEvaluateASimulation: the output of the simulator becomes section 7's report, with
// separate figures for the outcome rate and the labelled precision.
func TestEvaluateASimulation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lines, page := filepath.Join(dir, "run.jsonl"), filepath.Join(dir, "report.html")
	if r := quell(t, clitest.Env(""), strings.Fields("sim --scenario */bursts/strong/plain --rule cpi2 --for 120m --machines 2 --json --incidents "+lines)...); r.Code != app.ExitOK {
		t.Fatalf("exit code %d, %q", r.Code, r.Err)
	}
	r := quell(t, clitest.Env(""), "evaluate", "--json", lines)
	var e evaluation.Report
	if err := json.Unmarshal([]byte(r.Out), &e); err != nil || r.Code != app.ExitOK {
		t.Fatalf("exit code %d, %v, %q", r.Code, err, r.Err)
	}
	if e.Incidents < 10 || e.Days < 0.8 || e.Days > 0.9 || e.OutcomeRate[0].TruePositive.N < 5 || e.Precision == nil || e.Precision.N < 5 || !(e.PerDay > 0) {
		t.Errorf("%+v", e)
	}
	text := quell(t, clitest.Env(""), "evaluate", "--out", page, lines)
	for _, want := range []string{"outcome rate", "labelled precision", "16b", "14d"} {
		if !strings.Contains(text.Out, want) {
			t.Errorf("%q is missing in\n%s", want, text.Out)
		}
	}
	html, err := os.ReadFile(page)
	if err != nil || strings.Count(string(html), "<svg") < 5 || strings.Contains(string(html), "<script") {
		t.Errorf("%v, %d plots", err, strings.Count(string(html), "<svg"))
	}
}

// TestEvaluateReads: evaluate reads the output of other commands (an incident, a list of
// them, a replay's summary) and nothing else.
func TestEvaluateReads(t *testing.T) {
	for text, want := range map[string]struct {
		incidents int
		days      float64
		precision int
		bad       string
	}{
		`{"kind":"neighbour","victim":{},"spec_mean":1}`:                                               {incidents: 1},
		`[{"kind":"neighbour","victim":{},"spec_mean":1},{"kind":"nobody","victim":{},"spec_mean":2}]`: {incidents: 2},
		`[]`: {},
		`{"rule":"cpi2","machines":2,"from":0,"to":86400000,"precision":{"k":1,"n":3,"value":0.3}}`: {days: 2, precision: 3},
		`{"rule":"cpi2","minutes":720,"precision":0.5,"right":2,"accusations":4}`:                   {days: 0.5, precision: 4},
		`{"colour":"red"}`: {bad: "neither an incident"},
		`{`:                {bad: "unexpected EOF"},
		`7`:                {bad: "cannot unmarshal"},
	} {
		name := filepath.Join(t.TempDir(), "x.json")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r := quell(t, clitest.Env(""), "evaluate", "--json", name)
		if want.bad != "" {
			if r.Code == app.ExitOK || !strings.Contains(r.Err, want.bad) {
				t.Errorf("%s: exit code %d, %q", text, r.Code, r.Err)
			}
			continue
		}
		var e evaluation.Report
		if err := json.Unmarshal([]byte(r.Out), &e); err != nil || r.Code != app.ExitOK {
			t.Errorf("%s: exit code %d, %v, %q", text, r.Code, err, r.Err)
			continue
		}
		n := 0
		if e.Precision != nil {
			n = e.Precision.N
		}
		if e.Incidents != want.incidents || e.Days != want.days || n != want.precision {
			t.Errorf("%s: %d incidents, %v days, precision of %d", text, e.Incidents, e.Days, n)
		}
	}
}

func TestTrialRefuses(t *testing.T) {
	for args, says := range map[string]string{
		"trial --reason x":                                         "--budget 0",
		"trial --budget 1":                                         "why is empty",
		"trial --budget 1 --reason x --rate 0":                     "rate 0: want",
		"trial --budget 1 --reason x --for 1ms":                    "for 1ms: want",
		"trial --budget 1 --reason x --within 0s":                  "--within",
		"trial --budget 1 --reason x --socket /nowhere/agent.sock": "reach the agent",
	} {
		if r := quell(t, clitest.Env(""), strings.Fields(args)...); r.Code != app.ExitUsage || !strings.Contains(r.Err, says) {
			t.Errorf("%s: exit code %d, %q", args, r.Code, r.Err)
		}
	}
}
