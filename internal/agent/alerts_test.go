package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/origin"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// rulesFile has the rules that are shipped for Prometheus.
const rulesFile = "../../deploy/prometheus/quell.rules.yaml"

// alertRule is a rule of rulesFile.
type alertRule struct {
	Alert       string            `yaml:"alert"`
	Record      string            `yaml:"record"`
	Expr        string            `yaml:"expr"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func alertRules(t *testing.T) (all []alertRule) {
	t.Helper()
	text, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Groups []struct {
			Rules []alertRule `yaml:"rules"`
		} `yaml:"groups"`
	}
	if err := yaml.Unmarshal(text, &f); err != nil {
		t.Fatal(err)
	}
	for _, g := range f.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// scraped is what a Prometheus has of an agent that it scrapes every minute: the values by
// series, "_" where it had none.
type scraped struct {
	values map[string][]string
	n      int
}

func (s *scraped) add(r *rig) {
	_, now := r.scrape()
	if s.values == nil {
		s.values = map[string][]string{}
	}
	now["up"] = "1"
	for name, v := range now {
		if len(s.values[name]) < s.n {
			s.values[name] = append(s.values[name], slices.Repeat([]string{"_"}, s.n-len(s.values[name]))...)
		}
		s.values[name] = append(s.values[name], v)
	}
	s.n++
	for name, v := range s.values { // a series that is gone is stale at once
		if len(v) < s.n {
			end := "_"
			if last := v[len(v)-1]; last != "stale" && last != "_" {
				end = "stale"
			}
			s.values[name] = append(v, end)
		}
	}
}

// promSeries is a series of a test of promtool.
type promSeries struct {
	Series string `yaml:"series"`
	Values string `yaml:"values"`
}

// series are those that Prometheus keeps: with the target's labels, and the label job of the
// agent renamed.
func (s *scraped) series() (all []promSeries) {
	for name, values := range s.values {
		metric, labels, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
		labels = strings.ReplaceAll(","+labels, ",job=", ",exported_job=")[1:]
		if labels != "" {
			labels += ","
		}
		all = append(all, promSeries{metric + "{" + labels + `instance="m1:9780",job="quell-agent"}`, strings.Join(values, " ")})
	}
	slices.SortFunc(all, func(x, y promSeries) int { return strings.Compare(x.Series, y.Series) })
	return all
}

// promAlert is what promtool expects at one time.
type promAlert struct {
	At    string      `yaml:"eval_time"`
	Alert string      `yaml:"alertname"`
	Want  []promWants `yaml:"exp_alerts"`
}

type promWants struct {
	Labels      map[string]string `yaml:"exp_labels"`
	Annotations map[string]string `yaml:"exp_annotations"`
}

// promtool checks which alerts fire, with the shipped rules. It returns what promtool
// prints if they are not those that are wanted.
func promtool(t *testing.T, series []promSeries, want []promAlert) string {
	t.Helper()
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(map[string]any{"rule_files": []string{rules}, "evaluation_interval": "1m",
		"tests": []any{map[string]any{"interval": "1m", "input_series": series, "alert_rule_test": want}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "test.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("promtool", "test", "rules", file).CombinedOutput(); err != nil {
		return string(out)
	}
	return ""
}

// quietHours: the alerts do not fire at the end of any of the hours.
func quietHours(t *testing.T, hours int) (want []promAlert) {
	for _, rule := range alertRules(t) {
		for h := 1; h <= hours && rule.Alert != ""; h++ {
			want = append(want, promAlert{At: fmt.Sprintf("%dh", h), Alert: rule.Alert})
		}
	}
	return want
}

// The default configuration, on a machine without a PMU and without interference.
func TestADefaultInstallFiresNoAlert(t *testing.T) {
	quelltest.Need(t, "promtool")
	var got scraped
	const hours = 24
	bubble(t, func(t *testing.T) {
		m, dir := newMachine(t), t.TempDir()
		c, err := config.Load("", nil, []string{"state_dir=" + dir, "machine=m1", "spec.provisional_samples=20"}) // as quell init writes it
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{machine: m, config: c, source: m.source(sample.RunQ)}
		r.unforeseen(1)
		for _, s := range c.Signals {
			r.signals = append(r.signals, api.SignalStatus{Signal: sample.SignalName(s), Reason: "no PMU"})
		}
		r.signals[slices.Index(c.Signals, string(sample.RunQ))] = api.SignalStatus{Signal: sample.RunQ, Variant: "bpf", OK: true}
		n := 0
		for i := range 4 {
			r.add(fmt.Sprintf("/system.slice/app-%d.service", i), 0.2).cost = func() float64 { n++; return 0.05 + 0.001*float64(n%7) }
		}
		r.start()
		defer r.stop()
		for range hours*60 + 1 {
			got.add(r)
			r.pass(time.Minute)
		}
		if len(r.incidents()) != 0 {
			t.Errorf("it is not quiet: %+v", r.incidents())
		}
	})
	if v := got.values["quell_specs{signal=\"runq\",state=\"ready\"}"]; len(v) == 0 {
		t.Error("no task was monitored")
	}
	if out := promtool(t, got.series(), quietHours(t, hours)); out != "" {
		t.Error(out)
	}
	// The same test fails for what must fire.
	got.values = map[string][]string{"quell_degraded": slices.Repeat([]string{"1"}, got.n)}
	if out := promtool(t, got.series(), quietHours(t, hours)); !strings.Contains(out, "alertname: QuellDegraded, time: 1d") {
		t.Errorf("with a problem: %s", out)
	}
}

// The alert names victim and suspect, with their namespaces, while the incident is open.
func TestAnAntagonistFiresAnAlert(t *testing.T) {
	quelltest.Need(t, "promtool")
	var got scraped
	fires, ends := 0, 0
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on",
			"incidents.profile=https://parca.example/?pod={namespace}%2F{pod}&from={from}&to={to}")
		noisy := r.add("/batch/noisy-1", 0.05)
		noisy.facts = &origin.Facts{Name: "etl/encode-7/main", Job: "etl/encode", Labels: map[string]string{"namespace": "etl", "pod": "encode-7", "container": "main"}}
		r.suffering(noisy).facts = &origin.Facts{Name: "shop/web-0/web", Job: "shop/web", Labels: map[string]string{"namespace": "shop", "pod": "web-0", "container": "web"}}
		r.start()
		defer r.stop()
		r.learn()
		noisy.set(1.5)
		for range 90 {
			got.add(r)
			if _, now := r.scrape(); now["quell_incidents_open"] == "1" && fires == 0 && noisy.rate() < 1 {
				fires = got.n - 1
				noisy.load = 0.05 // it has done its work
			} else if fires > 0 && ends == 0 && now["quell_incidents_open"] == "0" {
				ends = got.n - 1
			}
			r.pass(time.Minute)
		}
		if all := r.incidents(); len(all) != 1 || len(all[0].Named()) != 1 {
			t.Fatalf("incidents %+v", all)
		}
		// Links to profiles of both, in the incident's time.
		inc := r.incidents()[0]
		for i, pod := range []string{"shop%2Fweb-0", "etl%2Fencode-7"} {
			if want := fmt.Sprintf("https://parca.example/?pod=%s&from=%d&to=%d", pod, inc.Began, inc.Updated); len(inc.Profiles) != 2 || inc.Profiles[i].URL != want {
				t.Errorf("profiles %+v, want %s", inc.Profiles, want)
			}
		}
	})
	if fires == 0 || ends == 0 {
		t.Fatalf("the incident was open from minute %d to %d", fires, ends)
	}
	target := map[string]string{"instance": "m1:9780", "job": "quell-agent"}
	with := func(labels map[string]string) map[string]string {
		for k, v := range target {
			labels[k] = v
		}
		return labels
	}
	var ratio float64
	if _, err := fmt.Sscan(got.values[`quell_pair_cost{kind="neighbour",signal="cpi",suspect="noisy",suspect_namespace="etl",victim="web",victim_namespace="shop"}`][fires], &ratio); err != nil {
		t.Fatal(err)
	}
	var limit float64
	if _, err := fmt.Sscan(got.values[`quell_pair_threshold{kind="neighbour",signal="cpi",suspect="noisy",suspect_namespace="etl",victim="web",victim_namespace="shop"}`][fires], &limit); err != nil {
		t.Fatal(err)
	}
	runbook := func(alert string) string {
		return "https://github.com/quell-dev/quell/blob/main/docs/alerts.md#" + strings.ToLower(alert)
	}
	at := func(minute int) string { return fmt.Sprintf("%dm", minute) }
	want := []promAlert{{at(fires), "QuellNoisyNeighbour", []promWants{{
		Labels: with(map[string]string{"kind": "neighbour", "signal": "cpi", "severity": "warning", "victim": "web", "victim_namespace": "shop",
			"suspect": "noisy", "suspect_namespace": "etl"}),
		Annotations: map[string]string{"summary": "web is slowed by noisy on m1:9780", "runbook_url": runbook("QuellNoisyNeighbour"),
			"description": fmt.Sprintf("The cost of web (namespace shop) in cpi was %.1f times its threshold. noisy (namespace etl) is likely or proven to be the cause.", ratio/limit)},
	}}}}
	for _, rule := range alertRules(t) {
		if rule.Alert != "" && rule.Alert != "QuellCaps" {
			want = append(want, promAlert{At: at(ends), Alert: rule.Alert})
		}
	}
	if out := promtool(t, got.series(), want); out != "" {
		t.Error(out)
	}
	// While the cap is in force there is what inhibits the stock alert.
	caps := got.values[`quell_cap_end_timestamp_seconds{by="quell",capped_container="main",capped_job="noisy",capped_namespace="etl",capped_pod="encode-7",capped_task="etl/encode-7/main"}`]
	if len(caps) == 0 || caps[fires] == "_" {
		t.Errorf("the cap's series is %q", caps)
	}
}

// Credentials and certificates that are renewed in time fire no alert, however short their life is: a
// server's own are valid for a week and replaced every day, an agent's when a quarter of their life is left.
// What is not renewed fires before it ends.
func TestRenewedCredentialsFireNoAlert(t *testing.T) {
	quelltest.Need(t, "promtool")
	// The series of two weeks by the hour, of credentials with a life and the time left at their renewal, h.
	const hours = 14 * 24
	ends := func(life, renew int) string {
		var all []string
		for h, end := 0, life; h <= hours; h++ {
			if end-h <= renew {
				end = h + life
			}
			all = append(all, fmt.Sprint(end*3600))
		}
		return strings.Join(all, " ")
	}
	never := func(life int) string { return ends(life, -hours) }
	const (
		server      = `quell_server_credentials_expire_timestamp_seconds{instance="s",job="quell-server"}`
		agent       = `quell_credentials_expire_timestamp_seconds{instance="m",job="quell-agent"}`
		certificate = `quell_expiry_timestamp_seconds{instance="m",job="quell-agent",what="server.tls.cert"}`
	)
	degraded := func(n int) promSeries {
		return promSeries{`quell_degraded{instance="m",job="quell-agent"}`, fmt.Sprintf("%d+0x%d", n, hours)}
	}
	for _, x := range []struct {
		name   string
		series []promSeries
		quiet  bool
	}{
		{"a server's own", []promSeries{{server, ends(168, 144)}}, true},
		{"a server that renews nothing", []promSeries{{server, never(168)}}, false},
		{"an agent's, of a week", []promSeries{{agent, ends(168, 42)}, degraded(0)}, true},
		{"an agent that cannot renew them", []promSeries{{agent, never(168)}, degraded(1)}, false},
		{"a certificate of three days", []promSeries{{certificate, ends(72, 30)}, degraded(0)}, true},
		{"a certificate that nobody renews", []promSeries{{certificate, never(15 * 24)}, degraded(1)}, false},
		{"a server's certificate", []promSeries{{`quell_server_expiry_timestamp_seconds{instance="s",job="quell-server",what="tls.cert"}`, never(15 * 24)}}, false},
	} {
		text, err := yaml.Marshal(map[string]any{"rule_files": []string{absolute(t, rulesFile)}, "evaluation_interval": "1h",
			"tests": []any{map[string]any{"interval": "1h", "input_series": x.series, "alert_rule_test": []promAlert{{At: "127h", Alert: "QuellExpires"}, {At: "295h", Alert: "QuellExpires"}}}}})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "test.yaml")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("promtool", "test", "rules", file).CombinedOutput()
		if quiet := err == nil; quiet != x.quiet || !quiet && !strings.Contains(string(out), "QuellExpires") {
			t.Errorf("%s: quiet is %t, want %t: %s", x.name, quiet, x.quiet, out)
		}
	}
}

func absolute(t *testing.T, file string) string {
	t.Helper()
	path, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Every alert has a severity and a page that says what to do, and every metric that a rule
// reads exists.
func TestRulesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/alerts.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range alertRules(t) {
		if rule.Alert == "" {
			if !strings.Contains(string(page), "`"+rule.Record+"`") {
				t.Errorf("docs/alerts.md lacks the series %s", rule.Record)
			}
			continue
		}
		if !strings.Contains(string(page), "\n## "+rule.Alert+"\n") {
			t.Errorf("docs/alerts.md lacks a section %s", rule.Alert)
		}
		if url := rule.Annotations["runbook_url"]; !strings.HasSuffix(url, "/docs/alerts.md#"+strings.ToLower(rule.Alert)) {
			t.Errorf("%s: its page is %q", rule.Alert, url)
		}
		if !slices.Contains([]string{"none", "info", "warning", "critical"}, rule.Labels["severity"]) || rule.Annotations["summary"] == "" {
			t.Errorf("%s: %v %v", rule.Alert, rule.Labels, rule.Annotations)
		}
	}
}
