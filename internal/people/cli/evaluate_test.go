package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/cluster/api"
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
		// Two states of an incident, as in an agent's log; after a summary it is one of another run.
		`{"id":"i","machine":"m","updated":1,"kind":"neighbour","victim":{},"spec_mean":1}{"id":"i","machine":"m","updated":2,"kind":"neighbour","victim":{},"spec_mean":1}`: {incidents: 1},
		`{"id":"i","updated":2,"closed":2,"kind":"neighbour","victim":{},"spec_mean":1}{"id":"i","updated":1,"kind":"neighbour","victim":{},"spec_mean":1}`:                  {incidents: 1},
		`{"id":"i","kind":"neighbour","victim":{},"spec_mean":1}{"rule":"cpi2","machine_days":2}{"id":"i","kind":"neighbour","victim":{},"spec_mean":1}`:                     {incidents: 2, days: 2},
		`{"rule":"cpi2","machines":2,"from":0,"to":86400000,"precision":{"k":1,"n":3,"value":0.3}}`:                                                                          {days: 2, precision: 3},
		`{"rule":"cpi2","machines":2,"from":0,"to":864000000,"machine_days":2.5}`:                                                                                            {days: 2.5},
		`{"rule":"cpi2","minutes":720,"precision":0.5,"right":2,"accusations":4}`:                                                                                            {days: 0.5, precision: 4},
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

// TestEvaluateCluster: the tables of a server become the report, its page and CSV files.
func TestEvaluateCluster(t *testing.T) {
	const (
		first, last = "2025-11-20T12:00:00Z", "2025-11-21T12:00:00Z"
		at          = 1_763_726_400_000 // last
	)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q cluster.Query
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || r.URL.Path != cluster.PathQuery || q.Since == "" || q.Until == "" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		rows := ""
		switch has := func(text string) bool { return strings.Contains(q.SQL, text) }; {
		case has("AS accuses") && q.Since == first && q.Until == last: // is asked for again in parts
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, `{"error":"the query exceeded its time limit"}`)
			return
		case has("AS accuses") && q.Since == first:
			rows = fmt.Sprintf(`["m1","inc-1",%d,"neighbour","latency-sensitive","web","encode",true,0.5,2,1,8,16,true]`, at-7_200_000)
		case has("$.rounds"):
			round := `[{"suspect":{"task":"/hog","job":"encode","class":"batch"},"correlation":0.5,"rate":0.1,"from":1763719200000,"until":1763719500000,"ended":1763719500000,"by":"quell","cost_before":2,"cost_under":1,"relative_cost":0.5,"samples":4,"outcome":"true-positive"}]`
			rows = fmt.Sprintf(`["m1","inc-1",%d,"neighbour","cpi","latency-sensitive","web","/web",%d,1,0.1,%q]`, at-7_000_000, at-7_300_000, round)
		case has("FROM machines"):
			rows = fmt.Sprintf(`["run-1",720,%d]`, at)
		case has("count(DISTINCT ts)"):
			rows = `["m1",12,340,31,1800000]` // it has sent samples for half an hour
		case has("epoch_ms(max(ts))"):
			rows = fmt.Sprint("[", at, "]")
		}
		fmt.Fprintf(w, `{"columns":[],"rows":[%s]}`, rows)
	}))
	t.Cleanup(s.Close)
	env := map[string]string{"LANG": "C.UTF-8", "QUELL_SERVER": s.URL}
	folder, page := filepath.Join(t.TempDir(), "figures"), filepath.Join(t.TempDir(), "page.html")
	got := quell(t, env, "evaluate", "--cluster", "--json", "--since", first, "--until", last, "--csv", folder, "--out", page)
	var e evaluation.Report
	if err := json.Unmarshal([]byte(got.Out), &e); err != nil || got.Code != app.ExitOK {
		t.Fatalf("exit code %d, %v, %q", got.Code, err, got.Err)
	}
	if e.Incidents != 1 || e.Identified.K != 1 || e.Days != 0.5 || e.PerDay != 2 || e.OutcomeRate[0].TruePositive.K != 1 || e.Cluster == nil || e.Cluster.Machines != 1 || e.Utilisation.N != 1 {
		t.Errorf("%+v, cluster %+v", e, e.Cluster)
	}
	text, err := os.ReadFile(filepath.Join(folder, "figure14.csv"))
	if want := "identified,utilisation,correlation,cost_by_mean\ntrue,0.5,0.5,2\n"; err != nil || string(text) != want {
		t.Errorf("%v: %q, want %q", err, text, want)
	}
	if html, err := os.ReadFile(page); err != nil || !strings.Contains(string(html), "(figure 1)") {
		t.Errorf("%v: the page lacks figure 1", err)
	}
	for args, says := range map[string]string{
		"--cluster file.json":                   "choose one",
		"--cluster --state-dir /x":              "choose one",
		"--cluster --since 1h --until 2h":       "--since",
		"--cluster --since yesterday":           "yesterday",
		"--cluster --server http://127.0.0.1:1": "start quell-server",
		"--cluster --csv /dev/null/x --since 2025-11-20T12:00:00Z --until 2025-11-21T12:00:00Z": "write CSV",
	} {
		if r := quell(t, env, append([]string{"evaluate"}, strings.Fields(args)...)...); r.Code == app.ExitOK || !strings.Contains(r.Err, says) {
			t.Errorf("%s: exit code %d, %q", args, r.Code, r.Err)
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
