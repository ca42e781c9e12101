package agent

import (
	"flag"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
)

var update = flag.Bool("update", false, "bring docs/metrics.md up to date")

// scrape returns the output of /metrics, as text and as values by series.
func (r *rig) scrape() (string, map[string]string) {
	r.t.Helper()
	w := httptest.NewRecorder()
	r.agent.MetricsServer().Handler.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		r.t.Fatalf("GET /metrics: %d %s", w.Code, w.Body)
	}
	series := map[string]string{}
	for line := range strings.Lines(w.Body.String()) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name != "#" {
			if i := strings.LastIndexByte(line, '}'); i >= 0 { // a label may contain spaces
				name, value = line[:i+1], strings.TrimSpace(line[i+1:])
			}
			if _, twice := series[name]; twice {
				r.t.Errorf("%s is there twice", name)
			}
			series[name] = value
		}
	}
	return w.Body.String(), series
}

func TestMetrics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// With a rule that accuses at the third outlier: the expected numbers are for
		// one cap.
		r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on", "detect.rule=quell")
		noisy := r.add("/batch/noisy-1", 0.05)
		r.suffering(noisy)
		r.add("/batch/split-1", 1).split = "it is"
		r.start()
		defer r.stop()
		r.agent.Signals = append(r.agent.Signals, api.SignalStatus{Signal: sample.RunQ, Reason: "no"})
		r.source.info.Accounts, r.source.info.CountsLosses = true, true
		r.source.totals = counter.Totals{Lost: 7, PairsDropped: 21, Unattributed: 7 * time.Second / 2}
		r.learn()
		noisy.set(1.5)
		r.pass(8*time.Minute + 30*time.Second) // an incident, a cap, its end
		text, got := r.scrape()
		for series, want := range map[string]string{
			`quell_info{platform="p",rule="quell",version="test"}`:    "1",
			`quell_signal_available{signal="cpi",variant="by-heart"}`: "1",
			`quell_signal_available{signal="runq",variant=""}`:        "0",
			`quell_signal_lost_total{signal="cpi"}`:                   "7",
			`quell_signal_unattributed_seconds_total{signal="cpi"}`:   "3.5",
			`quell_signal_refused_pairs_total{signal="cpi"}`:          "21",
			`quell_degraded`:                                       "0",
			`quell_enforcement_mode`:                               "2",
			`quell_tasks`:                                          "3",
			`quell_intervals_total`:                                "20",
			`quell_samples_total{signal="cpi"}`:                    "60",
			`quell_not_counted_total{signal="cpi"}`:                "40",
			`quell_rejected_total{signal="cpi"}`:                   "0",
			`quell_outliers_total{signal="cpi"}`:                   "4",
			`quell_incidents_total{kind="neighbour",signal="cpi"}`: "1",
			`quell_incidents_open`:                                 "1",
			`quell_caps`:                                           "0",
			`quell_caps_ended_total{result="restored"}`:            "1",
			`quell_outcomes_total{outcome="true-positive"}`:        "1",
			`quell_specs{signal="cpi",state="ready"}`:              "1",
			`quell_job_tasks{job="web"}`:                           "1",
			`quell_job_cpu{job="web"}`:                             "0.5",
			`quell_ticks_late_total`:                               "0",
		} {
			if got[series] != want {
				t.Errorf("%s is %q, want %q", series, got[series], want)
			}
		}
		if got[`quell_job_cost{job="web",signal="cpi"}`] == "" {
			t.Error("the cost of a job is missing")
		}
		if _, ok := got[`quell_job_cost{job="noisy",signal="cpi"}`]; ok {
			t.Error("there is a cost of a job that could not be counted")
		}
		problems, err := promlint.New(strings.NewReader(text)).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			if strings.HasPrefix(p.Metric, "quell_") { // the runtime's own metrics are not named by quell
				t.Errorf("%s: %s", p.Metric, p.Text)
			}
		}
	})
}

// Without a PMU there is no CPI: it is reported as missing, never as 0.
func TestMetricsOfWhatIsNotCounted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.source = r.machine.source(sample.RunQ)
		r.add("/batch/job-1", 1).cost = func() float64 { return 0.1 }
		r.start()
		defer r.stop()
		r.agent.Signals = []api.SignalStatus{{Signal: sample.CPI, Reason: "no PMU"}, {Signal: sample.RunQ, Variant: "v", OK: true}}
		r.pass(time.Minute)
		_, got := r.scrape()
		for series, value := range got {
			if strings.Contains(series, `"cpi"`) && series != `quell_signal_available{signal="cpi",variant=""}` && !strings.HasPrefix(series, "quell_rejected") {
				t.Errorf("%s %s", series, value)
			}
		}
		if got[`quell_signal_available{signal="cpi",variant=""}`] != "0" || got[`quell_signal_available{signal="runq",variant="v"}`] != "1" {
			t.Errorf("series %v", got)
		}
		if got[`quell_job_cost{job="job",signal="runq"}`] != "0.1" {
			t.Errorf("series %v", got)
		}
	})
}

// Whatever the number of jobs and their names, a scrape is bounded and can be parsed;
// the jobs that use most CPU are in it.
func TestMetricsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		for i := range 1000 {
			r.add(fmt.Sprintf("/batch/j%04d-1", i), float64(i)/1000).cost = func() float64 { return 1 }
		}
		r.add("/batch/\xff\"\\\n-1", 5) // names are any bytes
		r.start()
		defer r.stop()
		r.pass(time.Minute)
		text, got := r.scrape()
		n := map[string]int{}
		for series := range got {
			name, _, _ := strings.Cut(series, "{")
			n[name]++
		}
		for _, m := range metrics() {
			if n[m.name] > maxJobs {
				t.Errorf("%s has %d series", m.name, n[m.name])
			}
		}
		if n["quell_job_cpu"] != maxJobs || len(text) > 64<<10 {
			t.Errorf("%d jobs in %d bytes", n["quell_job_cpu"], len(text))
		}
		if got[`quell_job_cpu{job="j0999"}`] == "" || got[`quell_job_cpu{job="j0100"}`] != "" {
			t.Error("the jobs shown are not those that use most")
		}
		if got[`quell_tasks`] != "1001" {
			t.Errorf("%s tasks", got[`quell_tasks`])
		}
	})
}

// Pairs are bounded too: the worst have series, and the others are counted.
func TestPairsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		noisy := r.add("/batch/noisy-1", 0.05)
		const victims = maxPairs + 7
		for i := range victims {
			n := 0
			r.add(fmt.Sprintf("/batch/v%02d-1", i), 0.5).cost = func() float64 {
				n++
				return 1 + 0.01*float64(n%5) + (1+float64(i)/victims)*max(0, noisy.rate()-0.1)
			}
		}
		r.start()
		defer r.stop()
		r.pass(12*time.Minute - 30*time.Second)
		noisy.set(1.5)
		r.pass(10 * time.Minute)
		_, got := r.scrape()
		n := 0
		for series := range got {
			if strings.HasPrefix(series, "quell_pair_incidents_open{") {
				n++
			}
		}
		if n != maxPairs || got["quell_pairs_left_out"] != "7" || got["quell_incidents_open"] != fmt.Sprint(victims) {
			t.Errorf("%d pairs, %s left out, %s open", n, got["quell_pairs_left_out"], got["quell_incidents_open"])
		}
		suspect := `{kind="neighbour",signal="cpi",suspect="noisy",suspect_namespace="",victim="v%02d",victim_namespace=""}`
		if worst := fmt.Sprintf(suspect, victims-1); got["quell_pair_cost"+worst] == "" || got["quell_pair_threshold"+worst] == "" || got["quell_pair_incidents_open"+worst] != "1" {
			t.Errorf("the worst has no series: %v", got)
		}
		if mild := fmt.Sprintf(suspect, 0); got["quell_pair_level"+mild] != "" {
			t.Error("the mildest has a series")
		}
	})
}

func TestHealth(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.start()
		health := func() int {
			w := httptest.NewRecorder()
			r.agent.MetricsServer().Handler.ServeHTTP(w, httptest.NewRequest("GET", "/healthz", nil))
			io.Copy(io.Discard, w.Body)
			return w.Code
		}
		if got := health(); got != 200 {
			t.Errorf("running: %d", got)
		}
		r.stop()
		if got := health(); got != 503 {
			t.Errorf("stopped: %d", got)
		}
	})
}

func TestMetricNames(t *testing.T) {
	name := regexp.MustCompile(`^quell_[a-z][a-z_]*[a-z]$`)
	seen := map[string]bool{}
	for _, m := range metrics() {
		if !name.MatchString(m.name) || seen[m.name] {
			t.Errorf("%s is no name, or is there twice", m.name)
		}
		seen[m.name] = true
		if strings.HasSuffix(m.name, "_total") != (m.kind == count) {
			t.Errorf("%s: a counter's name, and no other, ends in _total", m.name)
		}
		if !slices.IsSorted(m.labels) {
			t.Errorf("%s: labels %v are not sorted", m.name, m.labels)
		}
		if !strings.HasSuffix(m.help, ".") {
			t.Errorf("%s: help is not a sentence", m.name)
		}
	}
}

// The page is generated from the table.
func TestMetricsPage(t *testing.T) {
	const page = "../../docs/metrics.md"
	const begin, end = "<!-- made by go test ./internal/agent -update -->\n", "<!-- end -->\n"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no block between %q and %q", page, begin, end)
	}
	var b strings.Builder
	fmt.Fprintln(&b, "| metric | kind | labels | what |\n|---|---|---|---|")
	for _, m := range metrics() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.name, strings.ToLower(m.kind.ToDTO().String()), strings.Join(m.labels, ", "), m.help)
	}
	want := before + begin + b.String() + end + after
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("%s is out of date; go test ./internal/agent -update", page)
	}
}
