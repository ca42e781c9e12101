package replaycmd

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/eval/replay"
	"github.com/quell-dev/quell/internal/eval/rivals"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) { quelltest.Main(m) }

func quell(t *testing.T, env map[string]string, args ...string) clitest.Answer {
	t.Helper()
	return clitest.Run(t, newRoot, env, args...)
}

func newRoot(a *app.App) *cobra.Command {
	root := &cobra.Command{Use: "quell"}
	root.AddCommand(Replay(a), Sim(a))
	return root
}

const kepler = "../../../../testdata/traces/kepler_coremark_2023.json.gz"

// labelled writes a trace in which /encode hurts /web intermittently from minute 130 on,
// with labels.
func labelled(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("#labels: machine,victim,antagonist,from,to,cause\n#label: m,/web,/encode,7860000,9600000,cache\n#unlabelled: m,/encode,0,9600000\nts,machine,job,task,signal,variant,class,cpu,cost\n")
	for at := range 200 {
		cost, used := 1.5+0.01*float64(at%7), 0.05
		if at >= 130 && at < 160 && at/3%2 == 0 {
			cost, used = 4, 3
		}
		fmt.Fprintf(&b, "%[1]d,m,web,/web,cpi,v,latency-sensitive,1,%[2]v\n%[1]d,m,encode,/encode,cpi,v,batch,%[3]v,\n", (at+1)*60_000, cost, used)
	}
	b.WriteString("bad\n1,m,web,/web,cpi,v,batch,1,1\n")
	name := filepath.Join(t.TempDir(), "labelled.csv")
	if err := os.WriteFile(name, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestReplay(t *testing.T) {
	t.Parallel()
	page := filepath.Join(t.TempDir(), "report.html")
	got := quell(t, clitest.Env(""), "replay", "--out", page, labelled(t))
	if got.Code != app.ExitOK {
		t.Fatalf("%+v", got)
	}
	if html, err := os.ReadFile(page); err != nil || !strings.Contains(string(html), "Costs of jobs") {
		t.Errorf("%v, %.200s", err, html)
	}
	clitest.Golden(t, *update, "replay", got.Out)

	got = quell(t, clitest.Env(""), "replay", "--rule", "cpi2", "--step", "3s", "--specs", "whole", "--by-task", "--least-samples", "20",
		"--least-cpu", "0", "--sane", "0.1:20", "--json", kepler)
	lines := strings.Split(strings.TrimSpace(got.Out), "\n")
	var inc incident.Record
	var s replay.Summary
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &s); err != nil || got.Code != app.ExitOK {
		t.Fatal(err, got)
	}
	if s.Rule != "cpi2" || s.Rows != 4302 || s.Samples != 2491 || s.Outliers != 103 || s.Anomalies != 1 || s.Accusations != 0 || s.Precision != nil {
		t.Errorf("%+v", s)
	}
	if err := json.Unmarshal([]byte(lines[0]), &inc); err != nil || len(lines) != 2 || !strings.Contains(string(inc.Victim.Name), "kube-apiserver") {
		t.Errorf("%d lines, %v, %+v", len(lines), err, inc.Victim)
	}
}

func TestReplayScores(t *testing.T) {
	t.Parallel()
	got := quell(t, clitest.Env(""), "replay", "--json", labelled(t))
	lines := strings.Split(strings.TrimSpace(got.Out), "\n")
	var s replay.Summary
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &s); err != nil {
		t.Fatal(err)
	}
	if len(s.ByCause) != 1 || s.ByCause[0].Cause != "cache" || s.ByCause[0].Precision.K != 1 || s.ByCause[0].Recall.N != 1 {
		t.Errorf("%+v", s.ByCause)
	}
	if s.Precision == nil || s.Precision.Value() != 1 || s.Recall.Value() != 1 || s.Top1.Value() != 1 || s.After.N != 1 || s.Bad != 1 || s.Late != 1 {
		t.Errorf("%+v", s)
	}
	for _, want := range []string{"bad rows skipped: 1: line 405", "not in time order: 1"} {
		if !strings.Contains(got.Err, want) {
			t.Errorf("%q is not in %q", want, got.Err)
		}
	}
}

// Why nothing was compared with a spec is said, also to programs.
func TestReplayOfNothing(t *testing.T) {
	t.Parallel()
	file := labelled(t)
	for want, args := range map[string][]string{
		"no sample counts": {"--least-cpu", "5"}, "no job has 1000 samples": {"--specs", "whole", "--least-samples", "1000"},
		"need 1000 samples per task": {"--least-samples", "1000"},
	} {
		for _, more := range [][]string{nil, {"--json"}} {
			got := quell(t, clitest.Env(""), slices.Concat([]string{"replay", file}, args, more)...)
			if got.Code != app.ExitOK || !strings.Contains(strings.Join(strings.Fields(got.Out+got.Err), " "), want) {
				t.Errorf("%v: %d, %q is not in %s%s", args, got.Code, want, got.Out, got.Err)
			}
		}
	}
}

// Windows for another time between two samples than the recording's are told: they do not show in the result.
func TestReplayAtAnotherStep(t *testing.T) {
	t.Parallel()
	file := labelled(t)
	for step, want := range map[string]string{"1s": "more than twice of --step 1s apart", "10m": "less than half of --step 10m0s apart", "1m": ""} {
		got := quell(t, clitest.Env(""), "replay", "--json", "--step", step, file)
		if got.Code != app.ExitOK || !strings.Contains(got.Err, want) || want == "" && strings.Contains(got.Err, "--step") {
			t.Errorf("--step %s: %d, %s", step, got.Code, got.Err)
		}
	}
}

// A task that uses CPU time has sent no requests by that.
func TestLeastCPUIsOfCPUs(t *testing.T) {
	f := replayFlags{specs: "learn", step: time.Minute, leastSamples: 100, leastCPU: 0.1}
	o, err := f.options("quell", func(flag string) bool { return flag == "least-cpu" })
	if err != nil || o.Signals[sample.CPI].LeastCPU != 0.1 || o.Signals[sample.RunQ].LeastCPU != 0.1 {
		t.Errorf("%v, %+v", err, o.Signals)
	}
	for _, name := range []sample.SignalName{sample.IO, sample.Net, sample.Probe} {
		if s, _ := sample.LookupSignal(name); o.Signals[name].LeastCPU != s.LeastCPU {
			t.Errorf("%s counts from %v CPU-s/s on", name, o.Signals[name].LeastCPU)
		}
	}
}

// Of a file without labels nothing is known to be right: in one score with a labelled one that is told.
func TestReplaySomeLabels(t *testing.T) {
	t.Parallel()
	file := labelled(t)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	bare := filepath.Join(t.TempDir(), "bare.csv")
	rows := strings.ReplaceAll(string(text[bytes.Index(text, []byte("ts,")):]), ",m,", ",n,")
	if err := os.WriteFile(bare, []byte(rows), 0o644); err != nil {
		t.Fatal(err)
	}
	got := quell(t, clitest.Env(""), "replay", "--json", file, bare)
	if got.Code != app.ExitOK || !strings.Contains(got.Err, "1 of 2 files have no labels") {
		t.Errorf("%d, %s", got.Code, got.Err)
	}
	if got := quell(t, clitest.Env(""), "replay", "--json", bare); strings.Contains(got.Err, "labels") {
		t.Errorf("a file without labels alone: %s", got.Err)
	}
}

// A saved trace replays to the same result, labels included.
func TestReplaySaves(t *testing.T) {
	t.Parallel()
	summary := func(args ...string) string {
		got := quell(t, clitest.Env(""), append([]string{"replay", "--json"}, args...)...)
		if got.Code != app.ExitOK {
			t.Fatalf("%+v", got)
		}
		return got.Out
	}
	dir := t.TempDir()
	columns, csv := filepath.Join(dir, "a.parquet"), filepath.Join(dir, "a.csv")
	summary("--save", columns, labelled(t)) // without its malformed row and its late one
	want := summary("--save", csv, columns)
	for _, file := range []string{columns, csv} {
		if got := summary(file); got != want || !strings.Contains(got, `"precision"`) {
			t.Errorf("%s: %s\nwant %s", file, got, want)
		}
	}
	if text, err := os.ReadFile(csv); err != nil || !strings.Contains(string(text), "\n#unlabelled: m,/encode,0,9600000\n") {
		t.Errorf("%v, no stretch that is left out in %.200s", err, text)
	}
	start, err := os.ReadFile(columns)
	if err != nil || !strings.HasPrefix(string(start), "PAR1") {
		t.Errorf("%v, %.4q", err, start)
	}
}

// Innocents of another recording are played and saved with the recording's tasks.
func TestReplayInnocents(t *testing.T) {
	t.Parallel()
	saved := filepath.Join(t.TempDir(), "spliced.parquet")
	got := quell(t, clitest.Env(""), "replay", "--json", "--innocents", kepler, "--innocents", "../../../../testdata/traces/rezolus_AB_base.csv.gz", "--innocents-columns", "cgroup-counters",
		"--innocents-tasks", "3", "--save", saved, labelled(t))
	if got.Code != app.ExitOK {
		t.Fatalf("%+v", got)
	}
	for _, want := range []string{"3 innocents of kepler_coremark_2023.json.gz on each machine", "3 innocents of rezolus_AB_base.csv.gz on each machine", "it is repeated, up to 21."} {
		if !strings.Contains(got.Err, want) {
			t.Errorf("%q is not in %q", want, got.Err)
		}
	}
	summary := func(out string) (s replay.Summary) {
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := summary(got.Out)
	if s.Jobs <= 2 || s.Recall.Value() != 1 {
		t.Errorf("%+v", s)
	}
	if again := summary(quell(t, clitest.Env(""), "replay", "--json", saved).Out); again.Jobs != s.Jobs || again.Samples != s.Samples || again.Recall.Value() != 1 {
		t.Errorf("saved: %+v, before: %+v", again, s)
	}
	if got := quell(t, clitest.Env(""), "replay", "--innocents", labelled(t), saved); got.Code == app.ExitOK || !strings.Contains(got.Err, "already has innocents") {
		t.Errorf("innocents twice: %+v", got)
	}
}

func TestReplayRules(t *testing.T) {
	t.Parallel()
	got := quell(t, clitest.Env(""), "replay", "--rules", "evidence,2sigma-biggest", labelled(t))
	if got.Code != app.ExitOK {
		t.Fatalf("%+v", got)
	}
	clitest.Golden(t, *update, "replay-rules", got.Out)
	got = quell(t, clitest.Env(""), "replay", "--rules", "all", "--json", labelled(t))
	lines := strings.Split(strings.TrimSpace(got.Out), "\n")
	for i, rule := range rivals.Names() {
		var s replay.Summary
		if err := json.Unmarshal([]byte(lines[i]), &s); err != nil || s.Rule != rule || s.Precision == nil {
			t.Errorf("%s: %v, %+v", rule, err, s)
		}
	}
	if len(lines) != len(rivals.Names()) {
		t.Errorf("%d lines", len(lines))
	}
}

func TestReplayRefuses(t *testing.T) {
	csv := filepath.Join(t.TempDir(), "a.csv")
	if err := os.WriteFile(csv, []byte("a,b\n1,2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	good := labelled(t)
	empty := filepath.Join(t.TempDir(), "empty.csv")
	if err := os.WriteFile(empty, []byte("ts,task,signal,cpu,cost\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"no such file": {"none"}, "invalid trace header": {csv}, "--columns": {csv}, `rule "nobody"`: {"--rule", "nobody", csv},
		"want learn or whole": {"--specs", "half", csv}, "want two numbers": {"--sane", "3", csv}, "--step": {"--step", "0s", csv},
		"google2011": {"--columns", "none", csv}, "read header": {"--columns", "cgroup-counters", csv}, "write it to a file first": {"--specs", "whole", "-"},
		"--rules reads": {"--rules", "all", "-"}, "cannot be combined with --out": {"--rules", "all", "--save", csv + "2", csv}, `rule "none"`: {"--rules", "evidence,none", good},
		"--innocents-tasks 0": {"--innocents-tasks", "0", csv}, "--innocents reads": {"--innocents", "-", csv}, "--innocents none": {"--innocents", "none", csv},
		"no task with two samples": {"--innocents", empty, csv}, "open nope": {"--innocents-columns", "nope", csv},
	} {
		got := quell(t, clitest.Env(""), append([]string{"replay"}, args...)...)
		if got.Code != app.ExitUsage || !strings.Contains(got.Err, want) {
			t.Errorf("%v: %d, %q, want %q", args, got.Code, got.Err, want)
		}
	}
	// A recording is not overwritten before it is read, under whatever name.
	before, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	alias := filepath.Join(t.TempDir(), "alias.csv")
	if err := os.Symlink(good, alias); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--save", good, good}, {"--out", good, good}, {"--save", alias, "--innocents", good, empty}} {
		got := quell(t, clitest.Env(""), append([]string{"replay"}, args...)...)
		if after, err := os.ReadFile(good); got.Code != app.ExitUsage || err != nil || !bytes.Equal(before, after) {
			t.Errorf("%v: %d, %q, %v, %d bytes of %d", args, got.Code, got.Err, err, len(after), len(before))
		}
	}
}
