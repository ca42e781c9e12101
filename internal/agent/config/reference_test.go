package config

import (
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"

	"github.com/quell-dev/quell/internal/format/keyed"
)

const repo = "../../.."

// The printed reference has the defaults, key by key.
func TestReferenceIsTheDefaults(t *testing.T) {
	got, want := load(t, Reference(), nil, nil), load(t, "", nil, nil)
	for i := range got.Rules {
		got.Rules[i].pattern = nil
	}
	for i := range want.Rules {
		want.Rules[i].pattern = nil
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	keyed.Walk(want, func(key string, f reflect.StructField, _ reflect.Value) {
		name := key[strings.LastIndexByte(key, '.')+1:]
		if !strings.Contains(Reference(), "\n"+strings.Repeat("  ", strings.Count(key, "."))+name+":") && key != "machine" {
			t.Errorf("%s is missing", key)
		}
		if help := "# " + f.Tag.Get("help"); !strings.Contains(Reference(), help) {
			t.Errorf("%s: %q is missing", key, help)
		}
	})
}

// matcherReference lists the keys of a rule as a table for the docs page.
func matcherReference() string {
	var b strings.Builder
	b.WriteString("| key | what |\n|---|---|\n")
	rows := func(prefix string, s any) {
		keyed.Walk(s, func(key string, f reflect.StructField, _ reflect.Value) {
			help := f.Tag.Get("help")
			if lo := f.Tag.Get("min"); lo != "" {
				help += fmt.Sprintf(" (%s to %s)", lo, f.Tag.Get("max"))
			}
			fmt.Fprintf(&b, "| `%s%s` | %s |\n", prefix, key, help)
		})
	}
	rows("", &Matcher{})
	rows("prometheus.", &Prometheus{})
	rows("uprobe.", &Uprobe{})
	return b.String()
}

// The page contains the current reference; -update updates it.
func TestConfigurationPage(t *testing.T) {
	name := filepath.Join(repo, "docs", "configuration.md")
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	for _, block := range []struct{ begin, end, want string }{
		{"<!-- rules: made by go test ./internal/agent/config -update -->\n", "<!-- end of rules -->\n", matcherReference()},
		{"<!-- reference: made by go test ./internal/agent/config -update -->\n```yaml\n", "```\n<!-- end -->\n", Reference()},
	} {
		before, rest, ok := strings.Cut(text, block.begin)
		got, after, closed := strings.Cut(rest, block.end)
		if !ok || !closed {
			t.Fatalf("%s has no block between %q and %q", name, block.begin, block.end)
		}
		if *update {
			got = block.want
		}
		if got != block.want {
			t.Errorf("%s is out of date; go test ./internal/agent/config -update", name)
		}
		text = before + block.begin + got + block.end + after
	}
	if *update {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// The examples of the page must load.
	examples := 0
	for _, text := range strings.Split(text, "```yaml\n")[1:] {
		text, _, _ = strings.Cut(text, "```")
		load(t, text, nil, nil)
		examples++
	}
	if examples == 0 {
		t.Error("the page has no example")
	}
}

// The defaults are the paper's, as in its tables.
func TestParamsAreThePapers(t *testing.T) {
	f, err := os.Open(filepath.Join(repo, "testdata", "reference", "cpi2_parameters.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	table := map[string]float64{}
	for _, r := range rows[1:] {
		v, err := strconv.ParseFloat(r[1], 64)
		if err != nil {
			continue // "job x cpu type" is no number
		}
		table[r[0]] = v * unit(r[2])
	}
	a := load(t, "", nil, nil)
	d, err := a.DetectParams()
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.Policy()
	if err != nil {
		t.Fatal(err)
	}
	s := a.Spec.Params
	cpi, _ := sample.LookupSignal(sample.CPI)
	for name, got := range map[string]float64{
		"sampling_duration":                float64(a.Sampling.Duration),
		"sampling_period":                  float64(a.Sampling.Period),
		"spec_recalculation_goal":          float64(s.Every),
		"required_cpu_usage":               cpi.LeastCPU,
		"outlier_threshold":                d.Sigmas,
		"outlier_violations":               float64(d.Outliers),
		"outlier_window":                   float64(d.OutlierWindow),
		"correlation_window":               float64(d.Window),
		"antagonist_correlation_threshold": d.Correlation,
		"hard_cap_quota":                   p.Rate,
		"hard_cap_quota_best_effort":       p.BestEffortRate,
		"hard_cap_duration":                float64(p.For),
		"age_weight_per_day":               s.AgeWeight,
		"minimum_samples_per_task":         float64(s.MinSamples),
		"analysis_rate_limit":              1 / d.Pace.Seconds(),
	} {
		if want, ok := table[name]; !ok || got != want {
			t.Errorf("%s is %g, the paper has %g", name, got, want)
		}
	}
	// A single machine may learn from one task of a job, other than in the paper.
	if s.MinTasks != 1 || table["minimum_tasks_per_job"] != 5 {
		t.Errorf("%d tasks, the paper has %g", s.MinTasks, table["minimum_tasks_per_job"])
	}
	if p.Mode != plan.Advise {
		t.Errorf("enforcement is %v by default", p.Mode)
	}
}

// unit is the factor for a number of the table: durations are in ns.
func unit(name string) float64 {
	switch name {
	case "ms":
		return float64(time.Millisecond)
	case "s":
		return float64(time.Second)
	case "min":
		return float64(time.Minute)
	case "h":
		return float64(time.Hour)
	}
	return 1
}

func TestSwitchesOverrideTheRule(t *testing.T) {
	all := detect.Switches{Reach: true, CoVictim: true, LeastEffect: true, Indeterminate: true, LeastPressure: true, LookBack: true, PhaseChange: true, OwnCauses: true,
		Bounds: true, Outside: true, CappedApart: true, Withhold: true}
	evidence := all
	evidence.Evidence = true
	for _, c := range []struct {
		settings []string
		want     detect.Switches
	}{
		{nil, evidence},
		{[]string{"detect.rule=evidence"}, evidence},
		{[]string{"detect.rule=quell"}, all},
		{[]string{"detect.rule=cpi2"}, detect.Switches{}},
		{[]string{"detect.rule=cpi2", "detect.switches.evidence=on"}, detect.Switches{Evidence: true}},
		{[]string{"detect.rule=cpi2", "detect.switches.reach=on"}, detect.Switches{Reach: true}},
		{[]string{"detect.rule=cpi2", "detect.switches.co_victim=on", "detect.switches.least_effect=on"}, detect.Switches{CoVictim: true, LeastEffect: true}},
		{[]string{"detect.rule=cpi2", "detect.switches.indeterminate=on", "detect.switches.own_causes=on"}, detect.Switches{Indeterminate: true, OwnCauses: true}},
		{[]string{"detect.rule=quell", "detect.switches.reach=off", "detect.switches.own_causes=off"}, detect.Switches{CoVictim: true, LeastEffect: true, Indeterminate: true, LeastPressure: true, LookBack: true, PhaseChange: true,
			Bounds: true, Outside: true, CappedApart: true, Withhold: true}},
		{[]string{"detect.rule=cpi2", "detect.switches.bounds=on", "detect.switches.outside=on", "detect.switches.capped_apart=on", "detect.switches.withhold=on"},
			detect.Switches{Bounds: true, Outside: true, CappedApart: true, Withhold: true}},
	} {
		p, err := load(t, "", nil, c.settings).DetectParams()
		if err != nil || p.Switches != c.want {
			t.Errorf("%v: %+v, %v; want %+v", c.settings, p.Switches, err, c.want)
		}
	}
}

// Numbers of the file reach the components that use them.
func TestNumbersArrive(t *testing.T) {
	a := load(t, `
spec: {min_tasks: 2, min_samples: 3, age_weight: 0.5, every: 2m, stale_after: 3m}
detect: {sigmas: 1.5, outliers: 2, outlier_window: 4m, window: 5m, look_back: 7m, correlation: 0.5, pace: 2s, top: 3}
enforce: {mode: on, rate: 0.3, best_effort_rate: 0.2, io_ops: 7, io_bytes: 8192, net_bytes: 9999, cap: feedback, for: 1m, longest: 10m, confine: 5, confine_within: 6h, confine_for: 7m, trial: 90s, trials: 3, groups: true, max_caps: 2, round_outliers: 4, calm: 6m, settle: 8m}
signals: [runq]
`, nil, nil)
	if s := a.Spec.Params; s.MinTasks != 2 || s.MinSamples != 3 || s.AgeWeight != 0.5 || s.Every != 2*time.Minute || s.StaleAfter != 3*time.Minute {
		t.Errorf("spec %+v", s)
	}
	d, err := a.DetectParams()
	if err != nil || d.Sigmas != 1.5 || d.Outliers != 2 || d.OutlierWindow != 4*time.Minute || d.Window != 5*time.Minute || d.LookBack != 7*time.Minute ||
		d.Correlation != 0.5 || d.Pace != 2*time.Second || d.Top != 3 {
		t.Errorf("detect %+v, %v", d, err)
	}
	p, err := a.Policy()
	want := plan.Policy{Mode: plan.On, MinLevel: detect.Likely, Rate: 0.3, BestEffortRate: 0.2, IO: plan.IORate{Ops: 7, Bytes: 8192}, Net: 9999, Feedback: true, For: time.Minute, MaxDuration: 10 * time.Minute, Confine: 5, ConfineWithin: 6 * time.Hour, ConfineFor: 7 * time.Minute, Trial: 90 * time.Second, Trials: 3, Groups: true, MaxCaps: 2, Outliers: 4, Calm: 6 * time.Minute, Settle: 8 * time.Minute}
	if err != nil || p != want {
		t.Errorf("policy %+v, %v; want %+v", p, err, want)
	}
	if !a.Counts(sample.RunQ) || a.Counts(sample.CPI) {
		t.Error("the signals asked for are not those counted")
	}
}

func TestMachineName(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(errors.New("this machine has no name"))
	}
	if got := load(t, "", nil, nil).MachineName(); got != host {
		t.Errorf("got %q, want %q", got, host)
	}
	if got := load(t, "machine: m1", nil, nil).MachineName(); got != "m1" {
		t.Errorf("got %q", got)
	}
}
