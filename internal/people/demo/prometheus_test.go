//go:build prometheus

package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

const deployed = "../../../deploy/"

// service starts a program until the test's end, and waits until a URL answers.
func service(t *testing.T, ready, program string, args ...string) {
	t.Helper()
	quelltest.Need(t, program)
	var log bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt)
		<-done
		if t.Failed() {
			t.Logf("%s: %s", program, log.String())
		}
	})
	quelltest.Until(t, program+" is ready", func() bool {
		r, err := http.Get(ready)
		if err == nil {
			r.Body.Close()
		}
		return err == nil && r.StatusCode == 200
	})
}

// ask decodes an answer of an API.
func ask(url string, into any) error {
	r, err := http.Get(url)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != 200 {
		err = fmt.Errorf("%s: %s", r.Status, text)
	}
	return errors.Join(err, json.Unmarshal(text, into))
}

// alert is an alert of Prometheus.
type alert struct {
	State  string            `json:"state"`
	Labels map[string]string `json:"labels"`
}

// A real Prometheus scrapes the shipped agent on the running demo. The shipped alert fires and
// names the victim and its antagonist, Alertmanager gets it, and every query of the dashboard
// for Grafana is answered.
func TestPrometheusOnTheDemo(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.EBPF, quelltest.TwoCPUs)
	agent, prometheus, alertmanager, dir := quelltest.FreeAddress(t), quelltest.FreeAddress(t), quelltest.FreeAddress(t), t.TempDir()
	rules, err := filepath.Abs(deployed + "prometheus/quell.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	conf := fmt.Sprintf(`global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs: [{job_name: quell-agent, static_configs: [{targets: ["%s"]}]}]
alerting: {alertmanagers: [{static_configs: [{targets: ["%s"]}]}]}
`, rules, agent, alertmanager)
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	startAlertmanager(t, dir, alertmanager)
	service(t, "http://"+prometheus+"/-/ready", "prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+prometheus)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan *Result, 1)
	go func() {
		r, err := Run(ctx, Options{Channel: CPU, Mode: plan.On, Seed: 1, Agent: quelltest.Program(t, "quell-agent"), Listen: agent, Patience: 2 * time.Minute, Show: func(e Event) {
			if e.Of == 0 {
				t.Logf("%5.1fs %s", e.After.Seconds(), e.Text)
			}
		}})
		if err != nil {
			t.Error(err)
		}
		ended <- r
	}()
	fired := map[string]alert{} // by name, victim and suspect
	var result *Result
	answered := map[string]int{} // rows that a query of the dashboard returned when an alert fired
	queries := panelQueries(t)
	for running := true; running; {
		select {
		case r := <-ended:
			if running, result = false, r; r == nil {
				return // with the error
			}
			if r.Named == "" {
				t.Fatalf("the demo named no task: %s", r.Verdict)
			}
		case <-time.After(time.Second): // the queries use the CPUs that the demo is about
		}
		var all struct{ Data struct{ Alerts []alert } }
		if err := ask("http://"+prometheus+"/api/v1/alerts", &all); err != nil {
			t.Fatal(err)
		}
		for _, a := range all.Data.Alerts {
			key := strings.Join([]string{a.Labels["alertname"], a.Labels["victim"], a.Labels["suspect"]}, " ")
			if _, before := fired[key]; before || a.State != "firing" {
				continue
			}
			fired[key] = a
			for _, q := range queries {
				var got struct{ Data struct{ Result []any } }
				if err := ask("http://"+prometheus+"/api/v1/query?query="+url.QueryEscape(q), &got); err != nil {
					t.Fatalf("%s: %v", q, err)
				}
				answered[q] = max(answered[q], len(got.Data.Result))
			}
		}
	}
	// The demo's own tests judge whether it names the right task. On a busy machine the other
	// tasks of the demo may be victims too.
	suspect := short(result.Named)
	if got, ok := fired["QuellNoisyNeighbour "+victimName+" "+suspect]; !ok || got.Labels["instance"] != agent {
		t.Errorf("no alert for %s and %s; fired: %v", victimName, suspect, fired)
	}
	for _, a := range fired {
		switch name := a.Labels["alertname"]; {
		case name == "QuellDown": // the demo's agent ends
		case name != "QuellNoisyNeighbour":
			t.Errorf("%s fires on the demo: %v", name, a.Labels)
		case a.Labels["victim"] != victimName || a.Labels["suspect"] != suspect:
			t.Logf("another alert: %v", a.Labels)
		}
	}
	var received []struct{ Labels map[string]string }
	if err := ask("http://"+alertmanager+"/api/v2/alerts?filter=alertname%3DQuellNoisyNeighbour&filter=victim%3D"+victimName+"&filter=suspect%3D"+suspect, &received); err != nil || len(received) == 0 {
		t.Errorf("Alertmanager has %v, %v", received, err)
	}
	without := 0
	for _, q := range queries {
		if answered[q] == 0 {
			without++
			t.Logf("no data in the demo: %s", q)
		}
	}
	if without > len(queries)/3 {
		t.Errorf("%d of %d queries had no data", without, len(queries))
	}
}

func startAlertmanager(t *testing.T, dir, address string) {
	t.Helper()
	service(t, "http://"+address+"/-/ready", "prometheus-alertmanager", "--config.file="+deployed+"prometheus/alertmanager.yaml",
		"--storage.path="+filepath.Join(dir, "alerts"), "--web.listen-address="+address, "--cluster.listen-address=")
}

// panelQueries are the dashboard's, for all machines.
func panelQueries(t *testing.T) (all []string) {
	t.Helper()
	text, err := os.ReadFile(deployed + "grafana/quell.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all = append(all, strings.ReplaceAll(target.Expr, "$instance", ".*"))
		}
	}
	return all
}

// While quell caps a container, Alertmanager suppresses the stock alert of throttling for it,
// and for no other container.
func TestPrometheusStockAlertIsInhibited(t *testing.T) {
	address, dir := quelltest.FreeAddress(t), t.TempDir()
	startAlertmanager(t, dir, address)
	post := func(all []map[string]map[string]string) {
		body, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.Post("http://"+address+"/api/v2/alerts", "application/json", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if r.StatusCode != 200 {
			t.Fatalf("%s", r.Status)
		}
	}
	of := func(alert, container string) map[string]map[string]string {
		return map[string]map[string]string{"labels": {"alertname": alert, "namespace": "etl", "pod": "encode-7", "container": container}}
	}
	post([]map[string]map[string]string{of("CPUThrottlingHigh", "main"), of("CPUThrottlingHigh", "sidecar"), of("QuellCaps", "main")})
	var got []struct {
		Labels map[string]string
		Status struct{ State string }
	}
	quelltest.Until(t, "Alertmanager has handled the alerts", func() bool {
		got = nil
		if err := ask("http://"+address+"/api/v2/alerts?filter=alertname%3DCPUThrottlingHigh", &got); err != nil {
			t.Fatal(err)
		}
		return len(got) == 2 && got[0].Status.State != "unprocessed" && got[1].Status.State != "unprocessed"
	})
	for _, a := range got {
		if want := map[string]string{"main": "suppressed", "sidecar": "active"}[a.Labels["container"]]; a.Status.State != want {
			t.Errorf("%v is %s, want %s", a.Labels, a.Status.State, want)
		}
	}
}
