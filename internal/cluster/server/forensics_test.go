package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/cluster/store/duck"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/wire"
)

// forensic is a server whose queries DuckDB answers, with case 4 of the paper (CPI², section
// 6.1, figure 11) as its agent reported it: after the first cap, and at the end.
func forensic(t *testing.T, more ...*incident.Record) *bench {
	t.Helper()
	b := newBench(t, func(o *Options) {
		sn := o.Store.Snapshot(0, 0)
		defer sn.Close()
		asker := duck.NewRunner(os.Args[0], "query-child", sn.Dir)
		t.Cleanup(asker.Close)
		o.Asker = asker
	})
	text, err := os.ReadFile("testdata/case4.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var all []*wire.Record
	for _, doc := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
		all = append(all, &wire.Record{Machine: "m4", Json: doc})
	}
	for _, inc := range more {
		doc, err := json.Marshal(inc)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, &wire.Record{Machine: inc.Machine, Json: doc})
	}
	for i, r := range all {
		r.Boot, r.N, r.Kind = "b", uint64(i+1), wire.Record_KIND_INCIDENT
		batch, err := RecordOf(r, 0)
		if err != nil {
			t.Fatal(err)
		}
		b.Add(&batch)
	}
	if err := b.store.Flush(); err != nil {
		t.Fatal(err)
	}
	return b
}

// ask returns the rows of a query, each as the text of its named columns.
func (b *bench) ask(t *testing.T, q cluster.Query, columns ...string) (rows []string) {
	t.Helper()
	body, err := json.Marshal(&q)
	if err != nil {
		t.Fatal(err)
	}
	w := b.local("POST", "/v1/query", string(body))
	var a cluster.Answer
	if err := json.Unmarshal(w.Body.Bytes(), &a); w.Code != 200 || err != nil {
		t.Fatalf("%+v: %d %s", q, w.Code, w.Body)
	}
	for _, row := range a.Rows {
		var cells []string
		for _, name := range columns {
			i := slices.IndexFunc(a.Columns, func(c cluster.Column) bool { return c.Name == name })
			if i < 0 {
				t.Fatalf("%+v has no column %s: %+v", q, name, a.Columns)
			}
			cells = append(cells, strings.Trim(string(row[i]), `"`))
		}
		rows = append(rows, strings.Join(cells, " | "))
	}
	return rows
}

const case4 = "inc-20110804T164900.000-1"

// TestCase4CreditsTheCappedJob: nine suspects, of which only the last was capped, twice. The
// first suspect, a production service, gets neither its caps nor their outcomes.
func TestCase4CreditsTheCappedJob(t *testing.T) {
	b := forensic(t)
	rounds := []string{"scientific simulation | ann | noise | 0.99 | 0.4 | 0.1 | 0.01", "scientific simulation | ann | true-positive | 0.81 | 0.4 | 0.1 | 0.01"}
	got := b.ask(t, cluster.Query{Canned: "incident-rounds", Params: map[string]string{"incident": case4}}, "job", "by", "outcome", "relative_cost", "usage_before", "usage_under", "misses_before")
	b.ask(t, cluster.Query{Canned: "incident-rounds", Params: map[string]string{"incident": case4}}, "samples")
	if !slices.Equal(got, rounds) {
		t.Errorf("the rounds are %q", got)
	}
	got = b.ask(t, cluster.Query{Canned: "incident-suspects", Params: map[string]string{"incident": case4}}, "job", "level", "method", "correlation", "outcomes")
	if len(got) != 9 || got[0] != "scientific simulation | proven | trial | 0.36 | noise, true-positive" || got[1] != "a production service | likely | correlation | 0.66 | null" {
		t.Errorf("the suspects are %q", got)
	}
	got = b.ask(t, cluster.Query{Canned: "worst-antagonists", Params: map[string]string{"job": "a user-facing service"}}, "job", "incidents", "proven", "caps", "true_positives", "false_positives", "relative_cost")
	if len(got) != 9 || got[0] != "scientific simulation | 1 | 1 | 2 | 1 | 0 | 0.9" || !slices.Contains(got, "a production service | 1 | 0 | 0 | 0 | 0 | null") {
		t.Errorf("the worst antagonists are %q", got)
	}
	got = b.ask(t, cluster.Query{Canned: "cap-outcomes"}, "signal", "trial", "outcome", "caps", "median_relative_cost", "median_usage_lost")
	if want := []string{"cpi | false | noise | 1 | 0.99 | 0.75", "cpi | false | true-positive | 1 | 0.81 | 0.75"}; !slices.Equal(got, want) {
		t.Errorf("the outcomes are %q", got)
	}
	// The first suspect as the agent reported it before the second cap.
	got = b.ask(t, cluster.Query{SQL: "SELECT job, level, rank FROM suspect_history WHERE rank IN (1, 9) ORDER BY updated, rank"}, "job", "level", "rank")
	if want := []string{"a production service | likely | 1", "scientific simulation | possible | 9", "scientific simulation | proven | 1", "ads serving | likely | 9"}; !slices.Equal(got, want) {
		t.Errorf("the history is %q", got)
	}
}

// TestCannedQueriesFetchNoTableInVain: a word that is the name of a table makes the server fetch that table from a bucket.
func TestCannedQueriesFetchNoTableInVain(t *testing.T) {
	for _, c := range forensic(t).canned {
		if strings.Contains(c.SQL, "samples") && !strings.Contains(c.SQL, "FROM samples") {
			t.Errorf("%s names samples and does not read them", c.Name)
		}
	}
}

// TestIncidentsOfASuspect: an incident is listed for each job of which it named or capped a task, not only for
// the first.
func TestIncidentsOfASuspect(t *testing.T) {
	b := forensic(t)
	for job, want := range map[string]int{"scientific simulation": 1, "ads serving": 1, "a user-facing service": 0, "another": 0} {
		var all []incident.Record
		w := b.local("GET", "/v1/incidents?suspect="+url.QueryEscape(job), "")
		if err := json.Unmarshal(w.Body.Bytes(), &all); err != nil || len(all) != want {
			t.Errorf("%s: %d incidents, want %d: %v %s", job, len(all), want, err, w.Body)
		}
	}
}

// found is an incident of a victim that named one suspect, with a round for each outcome.
func found(id, victim, suspect string, level detect.Level, basis detect.Basis, trial bool, outcomes ...plan.Outcome) *incident.Record {
	s := detect.Suspect{Task: sample.Task{Name: sample.TaskName("/" + suspect), Job: sample.JobName(suspect), Class: sample.Batch}, Correlation: 0.5, Grounds: detect.Grounds{Level: level, Basis: basis}}
	inc := plan.Incident{ID: id, Machine: "m4", Rule: detect.Default, Signal: sample.RunQ, Victim: sample.Task{Name: "/web", Job: sample.JobName(victim)}, Began: 1, Opened: 2, Updated: 3, SpecMean: 1,
		Analysis: plan.Analysis{Analysed: 2, Result: detect.Result{Kind: detect.Neighbour, Threshold: 2, Cost: 5, Suspects: []detect.Suspect{s}}}, Findings: []plan.Finding{{Suspect: s, From: 2, Until: 3}}}
	for i, o := range outcomes {
		inc.Rounds = append(inc.Rounds, &plan.Round{ID: fmt.Sprint(id, "-", i), Capped: plan.Capped{Suspect: s.Task, UsageBefore: 2, UsageUnder: 0.5}, From: 2, Until: 3, Ended: 3, By: "quell", Trial: trial,
			CostBefore: 5, CostUnder: 2, RelativeCost: 0.4, MissesBefore: incident.Value(math.NaN()), MissesUnder: incident.Value(math.NaN()), Samples: 3, Outcome: o})
	}
	return &incident.Record{Incident: inc}
}

// TestAttackOutcomesOfOneMachine: a machine that says that all its caps helped does not keep a roll-out going for
// which the caps of others speak ill.
func TestAttackOutcomesOfOneMachine(t *testing.T) {
	var lies []*incident.Record
	for i := range 100 {
		lies = append(lies, found(fmt.Sprint("lie", i), "web", "x", detect.Likely, detect.ByStatistics, false, plan.TruePositive))
	}
	b := forensic(t, lies...)
	d := b.roll()
	d.At = 0
	if got, err := b.outcomes(t.Context(), &d); err != nil || got.Helped != 10 || got.Failed != 0 {
		t.Errorf("%+v, %v; want 10 that helped", got, err)
	}
}

// TestOutcomesOfOneMachineAreInProportion: of 100 caps on a machine some helped, and others failed in each way that there
// is; five on another machine helped, or there were none. A roll-out does not stop if more helped, however few more.
func TestOutcomesOfOneMachineAreInProportion(t *testing.T) {
	for _, c := range []struct {
		helped, elsewhere int
		stops             bool
	}{{60, 0, false}, {51, 0, false}, {45, 0, true}, {22, 5, true}, {27, 5, false}} {
		var all []*incident.Record
		for i := range 100 + c.elsewhere {
			outcome := plan.TruePositive
			if i >= c.helped && i < 100 {
				outcome = []plan.Outcome{plan.FalsePositive, plan.Noise, plan.CapFailed}[i%3]
			}
			inc := found(fmt.Sprint("i", i), "web", "x", detect.Likely, detect.ByStatistics, false, outcome)
			if i >= 100 {
				inc.Machine = "m5"
			}
			all = append(all, inc)
		}
		b := forensic(t, all...)
		d := b.roll()
		d.At = 0
		if got, err := b.outcomes(t.Context(), &d); err != nil || (got.Bad() != "") != c.stops || got.Helped+got.Failed > 10+c.elsewhere {
			t.Errorf("%+v: %+v, %v", c, got, err)
		}
	}
}

// TestOnlyWhatCapsConfirmBecomesAdvice: an exonerated innocent is in no pair, and neither is a
// likely suspect that no cap has confirmed. A proof by accounts needs no cap. A cap of several tasks
// that helped says nothing of one of them.
func TestOnlyWhatCapsConfirmBecomesAdvice(t *testing.T) {
	together := found("i9", "web", "member", detect.Possible, detect.ByStatistics, true, plan.TruePositive)
	together.Rounds[0].With = []plan.Capped{{Suspect: sample.Task{Name: "/fellow", Job: "fellow", Class: sample.Batch}}}
	b := forensic(t, together,
		found("i1", "web", "innocent", detect.Possible, detect.ByStatistics, true, plan.Noise),
		found("i2", "web", "untried", detect.Likely, detect.ByStatistics, true),
		found("i3", "web", "confirmed", detect.Likely, detect.ByStatistics, true, plan.TruePositive),
		found("i4", "web", "accounted", detect.Proven, detect.ByAccounts, true),
		found("i5", "web", "cleared", detect.Proven, detect.ByTrial, false, plan.TruePositive),
		found("i6", "web", "cleared", detect.Possible, detect.ByStatistics, false, plan.Noise),
		found("i7", "web", "cleared", detect.Possible, detect.ByStatistics, false, plan.FalsePositive),
		found("i8", "web", "unmeasured", detect.Likely, detect.ByStatistics, true, plan.NotMeasured))
	var pairs []cluster.Pair
	if w := b.local("GET", cluster.PathPairs, ""); w.Code != 200 || json.Unmarshal(w.Body.Bytes(), &pairs) != nil {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	var got []string
	for _, p := range pairs {
		lost, relative := "-", "-"
		if p.UsageLost != nil {
			lost, relative = fmt.Sprint(*p.UsageLost), fmt.Sprintf("%.3g", *p.RelativeCost)
		}
		got = append(got, fmt.Sprintf("%s %s: %d of %d proven, %d of %d caps helped, relative %s, lost %s, strength %.3g, confidence %.3f", p.Victim, p.Antagonist, p.Proven, p.Incidents, p.Helped, p.Caps, relative, lost, p.Strength, p.Confidence))
	}
	want := []string{
		"a user-facing service scientific simulation: 1 of 1 proven, 1 of 2 caps helped, relative 0.9, lost 0.75, strength 1.52, confidence 0.095",
		"web accounted: 1 of 1 proven, 0 of 0 caps helped, relative -, lost -, strength 2.5, confidence 0.207",
		"web confirmed: 0 of 1 proven, 1 of 1 caps helped, relative 0.4, lost 0.75, strength 2.5, confidence 0.207",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the pairs are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	rows := b.ask(t, cluster.Query{Canned: "interference-pairs"}, "victim_job", "job", "proven", "likely", "cleared", "caps", "helped")
	for _, want := range []string{"web | innocent | 0 | 0 | 1 | 1 | 0", "web | untried | 0 | 1 | 0 | 0 | 0", "web | cleared | 1 | 0 | 2 | 3 | 1", "web | member | 0 | 0 | 1 | 0 | 0", "a user-facing service | a production service | 0 | 1 | 0 | 0 | 0"} {
		if !slices.Contains(rows, want) {
			t.Errorf("%q is not in %q", want, rows)
		}
	}
	if i := slices.IndexFunc(rows, func(row string) bool { return strings.HasPrefix(row, "web | fellow |") }); i >= 0 {
		t.Errorf("a task that was capped with another is listed alone: %s", rows[i])
	}
}

// queriesOf are the SQL statements that a page shows: in blocks of SQL, as arguments of quell query,
// and in requests to the API.
func queriesOf(page string) (all []string) {
	for _, m := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(page, -1) {
		for s := range strings.SplitSeq(m[1], ";") {
			if strings.TrimSpace(s) != "" {
				all = append(all, s)
			}
		}
	}
	for _, m := range regexp.MustCompile(`quell query (?:--[a-z]+ [^\s"]+ )*"((?:[^"\\]|\\.)+)"`).FindAllStringSubmatch(page, -1) {
		all = append(all, strings.ReplaceAll(m[1], `\"`, `"`))
	}
	for _, m := range regexp.MustCompile(`"sql": "((?:[^"\\]|\\.)+)"`).FindAllStringSubmatch(page, -1) {
		all = append(all, strings.ReplaceAll(m[1], `\"`, `"`))
	}
	return slices.DeleteFunc(all, func(s string) bool { return strings.Contains(s, "…") }) // a form
}

// userPages are README.md and the pages of docs, without changelog and design notes.
func userPages(t *testing.T) []string {
	all := []string{"../../../README.md"}
	for _, pattern := range []string{"../../../docs/*.md", "../../../docs/signals/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) < 5 {
			t.Fatal(pattern, found, err)
		}
		all = append(all, found...)
	}
	return all
}

// TestDocumentedQueriesRun runs what the pages and quell's help show, on case 4; the answers are in docs/sql.md.
func TestDocumentedQueriesRun(t *testing.T) {
	text, err := os.ReadFile("../../../docs/sql.md")
	if err != nil {
		t.Fatal(err)
	}
	b := forensic(t)
	var statements []string
	pages := 0
	help, err := filepath.Glob("../../people/cli/help/*.txt")
	if err != nil || len(help) < 20 {
		t.Fatal(help, err)
	}
	for _, name := range append(userPages(t), help...) {
		page, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if found := queriesOf(string(page)); len(found) > 0 {
			statements = append(statements, found...)
			pages++
		}
	}
	if pages < 4 {
		t.Errorf("only %d pages have queries", pages)
	}
	if len(statements) < 10 {
		t.Fatalf("%d statements: %q", len(statements), statements)
	}
	answered := 0
	for _, s := range statements {
		if strings.Contains(s, "LEFT JOIN rounds") {
			got := b.ask(t, cluster.Query{SQL: s}, "victim_job", "job", "caps", "helped", "relative_cost", "usage_lost")
			if want := []string{"a user-facing service | scientific simulation | 2 | 1 | 0.81 | 0.75"}; !slices.Equal(got, want) {
				t.Errorf("%s\n%q, want %q", s, got, want)
			}
			answered++
			continue
		}
		b.ask(t, cluster.Query{SQL: s})
	}
	canned := regexp.MustCompile(`(?m)^    quell query --canned (\S+)((?: --\S+ [^\s#]+)*)`).FindAllSubmatch(text, -1)
	for _, m := range canned {
		q, args := cluster.Query{Canned: string(m[1]), Params: map[string]string{}}, strings.Fields(string(m[2]))
		if q.Canned == "#" { // the list
			continue
		}
		for i := 0; i+1 < len(args); i += 2 {
			q.Params[strings.TrimPrefix(args[i], "--")] = args[i+1]
		}
		if q.Canned != "incident-rounds" {
			b.ask(t, q)
			continue
		}
		shown := regexp.MustCompile(`(?m)^(scientific simulation)  (\S+)\s+(\S+)$`).FindAllStringSubmatch(string(text), -1)
		var want []string
		for _, row := range shown {
			want = append(want, strings.Join(row[1:], " | "))
		}
		if got := b.ask(t, q, "job", "outcome", "relative_cost"); len(want) != 2 || !slices.Equal(got, want) {
			t.Errorf("%+v: %q, docs/sql.md shows %q", q, got, want)
		}
		answered++
	}
	if answered != 2 {
		t.Errorf("%d of the examples were compared with their answers", answered)
	}
	for _, c := range b.canned { // each can be run
		q := cluster.Query{Canned: c.Name, Params: map[string]string{}}
		for _, p := range c.Params {
			q.Params[p] = "none"
		}
		b.ask(t, q)
	}
}
