package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// An incident that an agent sends over the bus reaches a webhook and a collector, and the store,
// although an Alertmanager accepts connections and never answers.
func TestIncidentsAreNotified(t *testing.T) {
	t.Parallel()
	var posts sync.Map // the newest, by path
	got := func(path string) string {
		body, _ := posts.Load(path)
		text, _ := body.(string)
		return text
	}
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		if err != nil {
			t.Error(err)
		}
		posts.Store(q.URL.Path, string(body))
	}))
	defer receiver.Close()
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	r := start(t, "notify.webhook.url="+receiver.URL+"/hook", "notify.alertmanager.url=http://"+dead.Addr().String(), "otlp.url="+receiver.URL, "otlp.every=1s")
	creds, err := quellServer(t, "credentials", "agent", "m1", "--set", "state_dir="+r.state)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "m1.creds")
	if err := os.WriteFile(file, []byte(creds), 0o600); err != nil {
		t.Fatal(err)
	}
	up := r.uplink(t, "m1", file, nil)
	now := sample.At(time.Now())
	hog := detect.Suspect{Task: sample.Task{Name: "/hog/1", Job: "hog"}, Grounds: detect.Grounds{Level: detect.Likely}}
	doc, err := json.Marshal(&incident.Record{Incident: plan.Incident{ID: "i1", Machine: "m1", Signal: sample.CPI, Victim: sample.Task{Name: "/web/1", Job: "web"}, Began: now, Opened: now, Updated: now,
		Analysis: plan.Analysis{Result: detect.Result{Kind: detect.Neighbour, Cost: 3, Threshold: 1.5, Suspects: []detect.Suspect{hog}, Antagonists: 1}}}})
	if err != nil {
		t.Fatal(err)
	}
	up.Record(now, wire.Record_KIND_INCIDENT, "i1", doc)
	quelltest.Until(t, "both have been told", func() bool { return got("/hook") != "" && got("/v1/logs") != "" })
	if !strings.Contains(got("/hook"), `"text":"web on m1 is slowed by hog (likely): cpi is 3, its threshold 1.5"`) {
		t.Error(got("/hook"))
	}
	r.untilSQL("the incident is there", "SELECT machine, id FROM incidents", `["m1","i1"]`)
	quelltest.Until(t, "the notifications are counted", quelltest.Paced(func() bool {
		_, text := r.get("/metrics")
		return strings.Contains(text, `quell_server_notifications_total{receiver="webhook",result="sent"} 1`) && strings.Contains(text, `quell_server_notifications_total{receiver="otlp",result="sent"} 1`) &&
			strings.Contains(text, `quell_server_notifications_total{receiver="alertmanager",result="sent"} 0`)
	}))
	quelltest.Until(t, "the collector has metrics", func() bool { return got("/v1/metrics") != "" })
	r.end() // before the receiver
}
