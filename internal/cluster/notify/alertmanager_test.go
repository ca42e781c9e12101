package notify

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// run starts a program until the test's end, and waits until a URL answers.
func run(t *testing.T, client *http.Client, ready string, cmd *exec.Cmd) {
	t.Helper()
	log := &quelltest.Output{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt)
		<-ended
		if t.Failed() {
			t.Logf("%s: %s", cmd.Path, log)
		}
	})
	quelltest.Until(t, cmd.Path+" is ready", func() bool {
		select {
		case <-ended:
			t.Fatalf("%s has ended", cmd.Path)
		default:
		}
		r, err := client.Get(ready)
		if err == nil {
			r.Body.Close()
		}
		return err == nil && r.StatusCode == 200
	})
}

// A real Alertmanager has the alert of an incident while it is open, whatever names others made up.
func TestAlertmanagerShowsIncidents(t *testing.T) {
	quelltest.Need(t, "prometheus-alertmanager")
	dir, address := t.TempDir(), quelltest.FreeAddress(t)
	conf := filepath.Join(dir, "alertmanager.yaml")
	if err := os.WriteFile(conf, []byte("route: {receiver: none}\nreceivers: [{name: none}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	run(t, client, "http://"+address+"/-/ready", exec.Command("prometheus-alertmanager", "--config.file="+conf, "--storage.path="+dir, "--web.listen-address="+address, "--cluster.listen-address="))
	type shown struct {
		Labels, Annotations map[string]string
		StartsAt, EndsAt    time.Time
	}
	alerts := func() map[string]shown {
		r, err := client.Get("http://" + address + "/api/v2/alerts")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		var all []shown
		if err := json.NewDecoder(r.Body).Decode(&all); err != nil {
			t.Fatal(err)
		}
		by := map[string]shown{}
		for _, a := range all {
			by[a.Labels["incident"]] = a
		}
		return by
	}
	n := make1(t, nil, nil, func(c *config.ServerNotify) { c.Alertmanager.URL, c.Link = "http://"+address, "https://quell.example" })
	start(t, n)
	now := time.Now()
	hostile := of("evil", "m2", "a\nb\x1b[2J\xff"+strings.Repeat("x", 100_000), `"},{"`, detect.Proven, now)
	hostile.Opened = 1 << 62
	n.Incident(hostile)
	first := of("inc-1", "m1", "web", "encode", detect.Likely, now)
	n.Incident(first)
	quelltest.Until(t, "Alertmanager has both alerts", func() bool { return len(alerts()) == 2 })
	a := alerts()["inc-1"]
	if want := map[string]string{"alertname": "QuellIncident", "severity": "warning", "machine": "m1", "signal": "cpi", "victim": "web", "suspect": "encode", "incident": "inc-1"}; fmt.Sprint(a.Labels) != fmt.Sprint(want) {
		t.Errorf("labels %v", a.Labels)
	}
	if a.Annotations["summary"] != "web on m1 is slowed by encode (likely): cpi is 3, its threshold 1.5" || a.StartsAt.UnixMilli() != now.UnixMilli() || !a.EndsAt.After(now) {
		t.Errorf("%+v", a)
	}
	if v := alerts()["evil"].Labels["victim"]; !strings.HasPrefix(v, `a\nb\x1b[2J\xffxxx`) || len(v) > maxText+4 {
		t.Errorf("the name is %q", v)
	}
	n.Incident(closed(first, now))
	quelltest.Until(t, "the alert has ended", func() bool { _, there := alerts()["inc-1"]; return !there })
	if got := count(n, "alertmanager", "failed"); got != 0 {
		t.Errorf("%v failed", got)
	}
}
