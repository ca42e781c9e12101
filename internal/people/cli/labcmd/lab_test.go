package labcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/record"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

var update = flag.Bool("update", false, "write the golden files")

// TestMain makes the test binary the program that the lab starts.
func TestMain(m *testing.M) {
	words := os.Args[1:]
	switch {
	case len(words) > 0 && slices.Contains([]string{"lab-guard", "lab-hold", "lab-remote", "lab-net"}, words[0]):
		a := &app.App{Out: os.Stdout, Err: os.Stderr}
		os.Exit(a.Run(context.Background(), newRoot(a), words))
	case len(words) > 2 && words[0] == "workload" && words[1] == "command":
		if err := workload.RunCommand(context.Background(), words[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case len(words) > 1 && words[0] == "workload" && words[1] == "lab":
		k, err := workload.ParseKernel(words[2:])
		if err == nil {
			err = workload.RunKernel(context.Background(), k)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	quelltest.Main(m)
}

func quell(t *testing.T, env map[string]string, args ...string) clitest.Answer {
	t.Helper()
	return clitest.Run(t, newRoot, env, args...)
}

func newRoot(a *app.App) *cobra.Command {
	root := &cobra.Command{Use: "quell"}
	root.AddCommand(Command(a))
	root.AddCommand(Helpers()...)
	return root
}

const simulatedStudy = `version: 1
study: simulated
question: does the command line do what it says?
environments: {ve: {driver: synthetic, cpus: 1, truth: {base: 1s, slope: 0.5, noise: 1%, ar1: 0.3, fail: 50%}}}
workloads: {work: {builtin: primes}}
roles:
  fg: {workload: work, environment: ve, measure: true}
  bg: {workload: work, environment: ve, load: {target: $load}}
factors:
  load: {staircase: {from: 10%, to: 90%, step: 20%, hold: 30s, settle: 5s, trail: 5s}}
  placement:
    - {name: apart, relation: per-core}
    - {name: free, relation: neutral}
design: {repetitions: 3}
run: {retries: 20}
analysis: [{kind: interference}]
`

func studyFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "study.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestLabFromFileToResults: the command line alone takes a study from its file to its
// results. Existing runs are not repeated, and the results match the truth.
func TestLabFromFileToResults(t *testing.T) {
	t.Parallel()
	file := studyFile(t, simulatedStudy)
	out := filepath.Join(t.TempDir(), "out")
	env := clitest.Env("/nowhere")

	if r := quell(t, env, "lab", "check", file); r.Code != app.ExitOK || !strings.Contains(r.Out, "study simulated is valid: 5 cells, 14 runs") {
		t.Errorf("check: %+v", r)
	}
	clitest.Golden(t, *update, "lab-plan", strings.ReplaceAll(quell(t, env, "lab", "plan", "--runs", file).Out, file, "STUDY"))
	if r := quell(t, env, "lab", "run", "--out", out, file); r.Code != app.ExitOK || !strings.Contains(r.Out, "14 runs planned, 0 already complete, 0 left") ||
		!strings.Contains(r.Out, "corunner-died") {
		t.Errorf("run: %+v", r)
	}
	// With --cell the runs of other cells are not missing.
	if r := quell(t, env, "lab", "run", "--out", filepath.Join(t.TempDir(), "part"), "--cell", "main placement=apart", file); r.Code != app.ExitOK {
		t.Errorf("run of one cell: %+v", r)
	}
	// What is to be typed next is about the same cells.
	once, part := studyFile(t, strings.NewReplacer("retries: 20", "retries: 0", "fail: 50%", "fail: 100%").Replace(simulatedStudy)), filepath.Join(t.TempDir(), "part")
	if r := quell(t, env, "lab", "run", "--out", part, "--cell", "main", once); r.Code != app.ExitNegative || !strings.Contains(r.Err, "quell lab resume "+part+" --cell 'main'") {
		t.Errorf("run of the main cells: %+v", r)
	}
	r := quell(t, env, "lab", "status", "--json", out)
	var st status
	if err := json.Unmarshal([]byte(r.Out), &st); err != nil || r.Code != app.ExitOK || st.Left != 0 || st.Planned != 14 || st.Running || st.Verdicts["invalid"] == 0 {
		t.Errorf("status: %+v, %v", r, err)
	}
	// A lost run is the only one that is repeated.
	folder, err := result.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	runs, err := folder.Runs()
	lost := slices.IndexFunc(runs, func(r result.Run) bool { return r.Verdict == result.Valid })
	if err != nil || lost < 0 {
		t.Fatal(runs, err)
	}
	if err := os.RemoveAll(folder.Path("runs", runs[lost].CellKey, fmt.Sprintf("%d.%d", runs[lost].N, runs[lost].Try))); err != nil {
		t.Fatal(err)
	}
	if r := quell(t, env, "lab", "status", out); r.Code != app.ExitNegative || !strings.Contains(r.Err, "1 of 14 runs are left") || !strings.Contains(r.Err, "quell lab resume "+out) {
		t.Errorf("status: %+v", r)
	}
	if r := quell(t, env, "lab", "resume", out); r.Code != app.ExitOK || !strings.Contains(r.Out, "13 already complete, 0 left") {
		t.Errorf("resume: %+v", r)
	}
	r = quell(t, env, "lab", "analyse", "--json", out)
	var res analyse.Results
	if err := json.Unmarshal([]byte(r.Out), &res); err != nil || !res.Simulated || len(res.Interferences) != 2 {
		t.Fatalf("analyse: %+v, %v", r, err)
	}
	// A slowdown of 1 + 0.5·load has this throughput, fitted over 10 to 90 %.
	for _, i := range res.Interferences {
		if i.Metric < 31 || i.Metric > 36 || i.Style() != "bold" {
			t.Errorf("metric %.2f, %s", i.Metric, i.Style())
		}
	}
	// Markdown has its plots as files next to it, twice without a file of before.
	for range 2 {
		if r := quell(t, env, "lab", "report", "--format", "md", out); r.Code != app.ExitOK {
			t.Fatalf("report: %+v", r)
		}
	}
	text, err := os.ReadFile(filepath.Join(out, "report", "simulated.md"))
	images := regexp.MustCompile(`(?m)^!\[.+\]\((simulated-plots/[0-9]+\.svg)\)$`).FindAllStringSubmatch(string(text), -1)
	if err != nil || len(images) < 3 {
		t.Fatalf("%d images, %v", len(images), err)
	}
	for _, i := range images {
		if svg, err := os.ReadFile(filepath.Join(out, "report", i[1])); err != nil || !bytes.HasPrefix(svg, []byte("<svg xmlns=")) {
			t.Errorf("%s: %.20s, %v", i[1], svg, err)
		}
	}
	if files, err := filepath.Glob(filepath.Join(out, "report", "simulated-plots", "*")); err != nil || len(files) != len(images) {
		t.Errorf("%d files for %d images, %v", len(files), len(images), err)
	}
	// A study compared with itself has changed in nothing.
	if r := quell(t, env, "lab", "compare", "--json", out, out); r.Code != app.ExitOK || !strings.Contains(r.Out, `"direction": "not significant"`) || !strings.Contains(r.Out, `"ratio"`) || strings.Contains(r.Out, "Iterations") {
		t.Errorf("compare --json: %+v", r)
	}
	if r := quell(t, env, "lab", "compare", out, out); r.Code != app.ExitOK || !strings.Contains(r.Out, "0 changes among") {
		t.Errorf("compare: %+v", r)
	}
	if r := quell(t, env, "lab", "analyse", out); r.Code != app.ExitOK || !strings.Contains(r.Out, "SIMULATED") {
		t.Errorf("analyse: %+v", r)
	}
}

// A study that names no analysis has the values of its measured roles: later it is too late to name one, since a folder
// keeps to the file of its runs.
func TestLabWithoutAnalysis(t *testing.T) {
	t.Parallel()
	out, env := filepath.Join(t.TempDir(), "out"), clitest.Env("/nowhere")
	if r := quell(t, env, "lab", "run", "--out", out, studyFile(t, strings.Replace(simulatedStudy, "analysis: [{kind: interference}]\n", "", 1))); r.Code != app.ExitOK {
		t.Fatalf("%+v", r)
	}
	var res analyse.Results
	r := quell(t, env, "lab", "analyse", "--json", out)
	if err := json.Unmarshal([]byte(r.Out), &res); err != nil || len(res.Scores) != 2 || len(res.Interferences) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if r := quell(t, env, "lab", "analyse", out); r.Code != app.ExitOK || !regexp.MustCompile(`(?m)^apart +fg +work +[0-9.]+ \[.+\] +iterations/s +higher`).MatchString(r.Out) {
		t.Errorf("%+v", r)
	}
}

func TestLabSaysWhatIsWrong(t *testing.T) {
	env := clitest.Env("/nowhere")
	bad := studyFile(t, strings.Replace(strings.Replace(simulatedStudy, "primes}", "primes, options: -set=1MiB}", 1), "from: 10%", "from: 10", 1))
	worse := studyFile(t, strings.Replace(simulatedStudy, "primes}", "primes, options: -set=1MiB}", 1))
	real := studyFile(t, strings.Replace(simulatedStudy, "{driver: synthetic, cpus: 1, truth: {base: 1s, slope: 0.5, noise: 1%, ar1: 0.3, fail: 50%}}", "{driver: synthetic}", 1))
	odd := studyFile(t, simulatedStudy+"preconditions: {require: {idel_cpu: '>=97%'}}\n")
	folder := t.TempDir()
	for _, c := range []struct {
		args []string
		code int
		err  string
	}{
		{[]string{"check", bad}, app.ExitNegative, bad + ":10: factors.load.staircase.from"},
		{[]string{"check", worse}, app.ExitNegative, "workloads.work.options"},
		{[]string{"check", real}, app.ExitNegative, "environments.ve.truth"},
		{[]string{"check", odd}, app.ExitNegative, "preconditions.require.idel_cpu"},
		{[]string{"check", "/nowhere.yaml"}, app.ExitUsage, "name a study's file"},
		{[]string{"run", bad}, app.ExitNegative, "staircase.from"},
		{[]string{"status", folder}, app.ExitUsage, "not a study folder"},
		{[]string{"resume", folder}, app.ExitUsage, "quell lab run"},
		{[]string{"analyse", folder}, app.ExitUsage, "lab-results/smoke"},
	} {
		r := quell(t, env, append([]string{"lab"}, c.args...)...)
		if r.Code != c.code || !strings.Contains(r.Err, c.err) {
			t.Errorf("lab %q: exit code %d, want %d with %q: %s", c.args, r.Code, c.code, c.err, r.Err)
		}
	}
	r := quell(t, env, "lab", "check", "--json", bad)
	var got check
	if err := json.Unmarshal([]byte(r.Out), &got); err != nil || got.OK || len(got.Problems) != 1 || !strings.HasSuffix(got.Problems[0].Where, ":10") {
		t.Errorf("%s: %v", r.Out, err)
	}
}

// What a later quell would refuse to run can still be read: nothing recorded is lost by an upgrade.
func TestRecordsOutliveTheRules(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	out, env := filepath.Join(dir, "out"), clitest.Env("/nowhere")
	if r := quell(t, env, "lab", "run", "--out", out, studyFile(t, simulatedStudy)); r.Code != app.ExitOK {
		t.Fatalf("%+v", r)
	}
	lock := filepath.Join(out, "study.lock.json")
	text, err := os.ReadFile(lock)
	if err != nil {
		t.Fatal(err)
	}
	as := func(old, now string) {
		changed := strings.Replace(string(text), old, now, 1)
		if err := os.WriteFile(lock, []byte(changed), 0o644); err != nil || changed == string(text) {
			t.Fatalf("%q: %v", old, err)
		}
	}
	as("{kind: interference}", "{kind: interference, exclude_row: fg}")
	pack := filepath.Join(dir, "pack.tar.gz")
	for _, args := range [][]string{{"status", out}, {"analyse", out}, {"pack", out, pack}, {"report", "--out", filepath.Join(dir, "a"), out}, {"report", "--out", filepath.Join(dir, "b"), pack}} {
		if r := quell(t, env, append([]string{"lab"}, args...)...); r.Code != app.ExitOK || !strings.Contains(r.Err, "analysis[0].exclude_row") {
			t.Errorf("%q: %+v", args, r)
		}
	}
	if r := quell(t, env, "lab", "resume", out); r.Code != app.ExitUsage || !strings.Contains(r.Err, "analysis[0].exclude_row") {
		t.Errorf("resume: %+v", r)
	}
	// A pack's author does not choose where the report is written.
	as("study: simulated", "study: ../simulated")
	if r := quell(t, env, "lab", "report", "--out", filepath.Join(dir, "c"), out); r.Code != app.ExitUsage {
		t.Errorf("report: %+v", r)
	}
}

// TestAttackAReportElsewhere: in a folder of a stranger's the report, or its folder, is a link to what is the user's.
func TestAttackAReportElsewhere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	out, mine, env := filepath.Join(dir, "out"), filepath.Join(dir, "mine"), clitest.Env("/nowhere")
	if r := quell(t, env, "lab", "run", "--out", out, studyFile(t, simulatedStudy)); r.Code != app.ExitOK {
		t.Fatalf("%+v", r)
	}
	page := filepath.Join(out, "report", "simulated.md")
	err := errors.Join(os.Mkdir(mine, 0o755), os.WriteFile(filepath.Join(mine, "file"), []byte("mine"), 0o644),
		os.RemoveAll(filepath.Dir(page)), os.Mkdir(filepath.Dir(page), 0o755), os.Symlink(filepath.Join(mine, "file"), page)) // lab run has made one
	if err != nil {
		t.Fatal(err)
	}
	if r := quell(t, env, "lab", "report", "--format", "md", out); r.Code != app.ExitOK {
		t.Errorf("report: %+v", r)
	}
	if info, err := os.Lstat(page); err != nil || !info.Mode().IsRegular() {
		t.Errorf("%v, %v", info, err)
	}
	if err := errors.Join(os.RemoveAll(filepath.Dir(page)), os.Symlink(mine, filepath.Dir(page))); err != nil {
		t.Fatal(err)
	}
	if r := quell(t, env, "lab", "report", "--format", "md", out); r.Code != app.ExitUsage || !strings.Contains(r.Err, "perhaps a link") {
		t.Errorf("report in a folder elsewhere: %+v", r)
	}
	text, err := os.ReadFile(filepath.Join(mine, "file"))
	if files, bad := os.ReadDir(mine); err != nil || bad != nil || len(files) != 1 || string(text) != "mine" {
		t.Errorf("%d files, %.20q, %v, %v", len(files), text, err, bad)
	}
}

// Two labs at once would mix their runs.
func TestLabRunsOneAtATime(t *testing.T) {
	t.Parallel()
	file := studyFile(t, simulatedStudy)
	out := filepath.Join(t.TempDir(), "out")
	if r := quell(t, clitest.Env("/nowhere"), "lab", "run", "--out", out, file); r.Code != app.ExitOK {
		t.Fatalf("%+v", r)
	}
	f, _, err := openStudy(out, nil)
	if err != nil {
		t.Fatal(err)
	}
	free, err := lockFolder(f)
	if err != nil {
		t.Fatal(err)
	}
	if r := quell(t, clitest.Env("/nowhere"), "lab", "resume", out); r.Code != app.ExitUsage || !strings.Contains(r.Err, "another quell runs its study") {
		t.Errorf("%+v", r)
	}
	if r := quell(t, clitest.Env("/nowhere"), "lab", "status", out); !strings.Contains(r.Out, "simulated, running") {
		t.Errorf("%+v", r)
	}
	free()
	if r := quell(t, clitest.Env("/nowhere"), "lab", "resume", out); r.Code != app.ExitOK {
		t.Errorf("%+v", r)
	}
}

func TestAbout(t *testing.T) {
	var got bytes.Buffer
	for _, d := range []time.Duration{0, time.Second, 61 * time.Second, 2 * time.Minute, 23*time.Minute + 40*time.Second, 59*time.Minute + 59*time.Second, 26*time.Hour + 29*time.Second} {
		fmt.Fprintln(&got, formatDuration(d))
	}
	if want := "no time\n1 s\n1 min 1 s\n2 min\n24 min\n1 h 0 min\n26 h 0 min\n"; got.String() != want {
		t.Errorf("got %q, want %q", got.String(), want)
	}
}

// Status and report are of the newest machine and the newest conditions: records of an emulated
// CPU are not averaged with those of a real one on the same machine.
func TestSeriesOfTheNewestRecord(t *testing.T) {
	guest := study.Cell{Parts: []study.Part{{Environment: study.Environment{Driver: study.QEMU}}}}
	runs := []result.Run{{Order: 0, Env: "a", Cell: guest, Stamp: []string{"accel=tcg"}}, {Order: 2, Env: "a", Cell: guest, Stamp: []string{"accel=kvm"}}, {Order: 1, Env: "b", Cell: guest, Stamp: []string{"accel=kvm"}}, {Order: 3, Simulated: true}}
	newest := seriesOf(runs)
	var got []int
	for i := range runs {
		if newest.has(&runs[i]) {
			got = append(got, runs[i].Order)
		}
	}
	if !slices.Equal(got, []int{2, 3}) {
		t.Errorf("runs %v", got)
	}
}

// On a machine that has changed lab resume says that the records do not count, before it spends hours
// on them again.
func TestResumeOnAnotherMachine(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	if r := quell(t, clitest.Env("/nowhere"), "lab", "run", "--out", out, studyFile(t, simulatedStudy)); r.Code != app.ExitOK || strings.Contains(r.Err, "do not count") {
		t.Fatalf("%+v", r)
	}
	f, s, err := openStudy(out, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := s.Plan()[0].Cell
	a, err := f.Begin(c.Key(), 0, 99)
	if err == nil {
		err = a.Finish(&result.Run{CellKey: c.Key(), Cell: c, Try: 99, Order: 1000, Env: "old", Stamp: []string{"accel=tcg"}, Verdict: result.Valid})
	}
	if err != nil {
		t.Fatal(err)
	}
	if r := quell(t, clitest.Env("/nowhere"), "lab", "resume", out); !strings.Contains(r.Err, "do not count") || !strings.Contains(r.Err, "  stamps: accel=tcg → \n") {
		t.Errorf("%+v", r)
	}
}

// A trace has one machine's samples: tasks have the same names in all runs, and what is normal for
// them is learned from all of a trace.
func TestTracesAreOfOneMachine(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	if r := quell(t, clitest.Env("/nowhere"), "lab", "run", "--out", out, studyFile(t, simulatedStudy)); r.Code != app.ExitOK {
		t.Fatalf("%+v", r)
	}
	f, s, err := openStudy(out, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := s.Plan()[0].Cell
	for i, machine := range []string{"old", "new"} {
		a, err := f.Begin(c.Key(), i, 99)
		if err == nil {
			err = a.Finish(&result.Run{CellKey: c.Key(), Cell: c, N: i, Try: 99, Order: 1000 + i, Env: machine, Verdict: result.Valid})
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(a.Dir(), record.TraceFile), []byte("ts,task,signal,cpu,cost\n"), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r := quell(t, clitest.Env("/nowhere"), "lab", "traces", "--json", out)
	var got []traceJSON
	if err := json.Unmarshal([]byte(r.Out), &got); err != nil || len(got) != 1 || len(got[0].Runs) != 1 || got[0].Runs[0].N != 1 || !strings.Contains(r.Err, "left out: 1 runs of another machine") {
		t.Errorf("%+v: %v", r, err)
	}
}

// A rate that is a share of the base case's is a share of that of the same series: another
// machine has another maximum.
func TestRateIsAShareOfTheSameMachines(t *testing.T) {
	f, err := result.Create(filepath.Join(t.TempDir(), "r"), result.Lock{Study: "t", Hash: "t"})
	if err != nil {
		t.Fatal(err)
	}
	c := study.Cell{Kind: study.Main, Parts: []study.Part{{Role: "load", Workload: study.Workload{Name: "get", Builtin: study.HTTPClient}}, {Role: "web", Workload: study.Workload{Name: "web", Builtin: study.HTTPServer}}}}
	for i, machine := range []struct {
		env  string
		rate float64
	}{{"old", 400}, {"new", 100}} {
		a, err := f.Begin(c.Key(), 0, i)
		if err == nil {
			err = a.Finish(&result.Run{CellKey: c.Key(), Cell: c, Try: i, Order: i, Env: machine.env, Verdict: result.Valid, Window: result.Window{To: time.Second},
				Parts: []result.Part{{Name: "load", Iterations: []result.Iteration{{To: time.Second, Units: machine.rate}}}}})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	p := &study.Part{Workload: study.Workload{Name: "get"}, Load: study.Load{Control: study.Requests}, Target: 0.5}
	if rate, err := rateOf(f, &series{env: "new"}, []study.Cell{c}, &c, p); rate != 50 || err != nil {
		t.Errorf("%v, %v", rate, err)
	}
	var lack *lab.LackError
	if _, err := rateOf(f, &series{env: "a third"}, []study.Cell{c}, &c, p); !errors.As(err, &lack) {
		t.Error(err)
	}
}

// What ran before the rest of a study is in its summary.
func TestSummaryOfBothHalves(t *testing.T) {
	sum := lab.Summary{Planned: 9, Existing: 3, Verdicts: map[result.Verdict]int{result.Valid: 4}, Reasons: map[result.Reason]int{}}
	sum.After(lab.Summary{Planned: 9, Existing: 1, Verdicts: map[result.Verdict]int{result.Valid: 2, result.Invalid: 1}, Reasons: map[result.Reason]int{result.Steal: 1}})
	if sum.Planned != 9 || sum.Existing != 1 || sum.Verdicts[result.Valid] != 6 || sum.Verdicts[result.Invalid] != 1 || sum.Reasons[result.Steal] != 1 {
		t.Errorf("%+v", sum)
	}
}
