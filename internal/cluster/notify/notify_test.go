package notify

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// of is an open incident of two jobs on a machine.
func of(id, machine, victim, suspect string, level detect.Level, at time.Time) *incident.Record {
	s := detect.Suspect{Task: sample.Task{Name: sample.TaskName("/" + suspect + "/1"), Job: sample.JobName(suspect)}, Grounds: detect.Grounds{Level: level}}
	return &incident.Record{Incident: plan.Incident{ID: id, Machine: machine, Signal: sample.CPI, Victim: sample.Task{Name: sample.TaskName("/" + victim + "/1"), Job: sample.JobName(victim)},
		Opened: sample.At(at), Updated: sample.At(at), Analysis: plan.Analysis{Result: detect.Result{Kind: detect.Neighbour, Cost: 3, Threshold: 1.5, Suspects: []detect.Suspect{s}, Antagonists: 1}}}}
}

func closed(r *incident.Record, at time.Time) *incident.Record {
	c := *r
	c.Closed, c.Updated, c.Outcome = sample.At(at), sample.At(at), plan.TruePositive
	return &c
}

// drain returns what is queued, a line each.
func drain(n *Notifier) (all string) {
	for {
		select {
		case e := <-n.queue:
			all += fmt.Sprintf("%s %s %s<%s %d\n", e.Event, e.ID, e.Victim.Job, e.Suspect.Job, e.LeftOut)
		default:
			return all
		}
	}
}

func TestACoolDownIsPerPair(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	c := config.DefaultServer().Notify
	c.Webhook = "http://127.0.0.1:1"
	n, err := New(Options{Config: c, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	first := of("1", "m1", "web", "encode", detect.Likely, now)
	for _, step := range []struct {
		name string
		r    *incident.Record
		pass time.Duration
		want string
	}{
		{"a suspect that is only possible", of("0", "m1", "web", "encode", detect.Possible, now), 0, ""},
		{"history", of("0", "m1", "web", "encode", detect.Proven, now.Add(-2*late)), 0, ""},
		{"the first", first, 0, "firing 1 web<encode 0\n"},
		{"the same again", first, time.Minute, ""},
		{"the pair on another machine", of("2", "m2", "web", "encode", detect.Proven, now), 0, ""},
		{"again", of("2", "m2", "web", "encode", detect.Proven, now), 0, ""},
		{"another pair", of("3", "m2", "db", "encode", detect.Proven, now), 0, "firing 3 db<encode 0\n"},
		{"the end of the first", closed(first, now), 0, "resolved 1 web<encode 0\n"},
		{"the end of one that was left out", closed(of("2", "m2", "web", "encode", detect.Proven, now), now), 0, ""},
		{"after the cool-down", of("4", "m3", "web", "encode", detect.Likely, now.Add(time.Hour)), time.Hour, "firing 4 web<encode 1\n"},
	} {
		now = now.Add(step.pass)
		n.Incident(step.r)
		if got := drain(n); got != step.want {
			t.Errorf("%s: %q, want %q", step.name, got, step.want)
		}
	}
	if got := testutil.ToFloat64(n.results.WithLabelValues("webhook", "left-out")); got != 1 {
		t.Errorf("%v are left out", got)
	}
}

// Agents name the jobs: what is remembered and queued is bounded.
func TestAFloodIsBounded(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	c := config.DefaultServer().Notify
	c.Webhook = "http://127.0.0.1:1"
	n, err := New(Options{Config: c, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	const flood = 3 * mostActive
	for i := range flood {
		n.Incident(of(fmt.Sprint(i), "m", strings.Repeat("\x1b", 5000)+fmt.Sprint(i), "x", detect.Proven, now))
	}
	if len(n.active) > mostActive || len(n.pairs) > mostPairs || len(n.queue) != queued {
		t.Errorf("%d active, %d pairs, %d queued", len(n.active), len(n.pairs), len(n.queue))
	}
	if got := testutil.ToFloat64(n.results.WithLabelValues("webhook", "dropped")); got != flood-queued {
		t.Errorf("%v were dropped", got)
	}
	if e := <-n.queue; len(e.Victim.Job) > maxText+8 || strings.Contains(e.Text, "\x1b") {
		t.Errorf("%q", e.Victim.Job)
	}
}

// received is what a receiver got, and how it answers.
type received struct {
	got    chan string
	status []int // of the first requests; then 200
}

func (r *received) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, _ := io.ReadAll(q.Body)
	if len(r.status) > 0 {
		w.WriteHeader(r.status[0])
		r.status = r.status[1:]
		return
	}
	r.got <- q.URL.Path + " " + q.Header.Get("Authorization") + " " + string(body)
}

func TestReceivers(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	hook, alerts := &received{got: make(chan string, 9), status: []int{503}}, &received{got: make(chan string, 9)}
	h, a := httptest.NewServer(hook), httptest.NewServer(alerts)
	t.Cleanup(func() { h.Close(); a.Close() })
	c := config.DefaultServer().Notify
	c.Webhook, c.WebhookTokenFile, c.Alertmanager, c.Link = h.URL+"/hook", token, a.URL, "https://quell.example"
	carrier := &http.Transport{}
	t.Cleanup(carrier.CloseIdleConnections)
	n, err := New(Options{Config: c, Log: slog.New(slog.DiscardHandler), Transport: carrier})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { n.Run(t.Context()); close(done) }()
	t.Cleanup(func() { <-done })
	now := time.Now()
	r := of("inc-1", "m1", "web", "encode", detect.Proven, now)
	n.Incident(r)
	path, doc, _ := strings.Cut(<-hook.got, " Bearer secret ")
	var e Event
	if err := json.Unmarshal([]byte(doc), &e); err != nil || path != "/hook" {
		t.Fatalf("%s %s: %v", path, doc, err)
	}
	if e.Version != 1 || e.Event != "firing" || e.Victim != (Task{"web", "/web/1"}) || e.Suspect != (Task{"encode", "/encode/1"}) || e.Level != "proven" ||
		e.Link != "https://quell.example/#/incident/inc-1?machine=m1" || e.Text != "web on m1 is slowed by encode (proven): cost 3, threshold 1.5 in cpi" {
		t.Errorf("%+v", e)
	}
	alert := func() (labels, annotations map[string]string, ends time.Time) {
		path, doc, _ := strings.Cut(<-alerts.got, "  ")
		var all []struct {
			Labels, Annotations map[string]string
			EndsAt              time.Time
		}
		if err := json.Unmarshal([]byte(doc), &all); err != nil || path != "/api/v2/alerts" || len(all) != 1 {
			t.Fatalf("%s %s: %v", path, doc, err)
		}
		return all[0].Labels, all[0].Annotations, all[0].EndsAt
	}
	labels, annotations, ends := alert()
	if labels["victim"] != "web" || labels["suspect"] != "encode" || labels["alertname"] != "QuellIncident" || annotations["summary"] != e.Text || !ends.After(now) {
		t.Errorf("%v %v %v", labels, annotations, ends)
	}
	n.Incident(closed(r, now.Add(time.Second)))
	if _, doc, _ = strings.Cut(<-hook.got, " Bearer secret "); !strings.Contains(doc, `"event":"resolved"`) || !strings.Contains(doc, `"outcome":"true-positive"`) {
		t.Error(doc)
	}
	again, _, ends := alert()
	if fmt.Sprint(again) != fmt.Sprint(labels) || !ends.Equal(now.Add(time.Second).Truncate(time.Millisecond)) {
		t.Errorf("the end of the alert %v has %v, %v", labels, again, ends)
	}
}

// Alertmanager forgets an alert that it is not told again, and a receiver that refuses is not
// asked again.
func TestAnAlertIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		posts, status := map[string]int{}, atomic.Int64{}
		status.Store(200)
		transport := roundTrip(func(q *http.Request) (*http.Response, error) {
			posts[q.URL.Host]++
			return &http.Response{StatusCode: int(status.Load()), Status: fmt.Sprint(status.Load()), Body: http.NoBody}, nil
		})
		c := config.DefaultServer().Notify
		c.Webhook, c.Alertmanager = "http://hook", "http://alerts"
		n, err := New(Options{Config: c, Log: slog.New(slog.DiscardHandler), Transport: transport})
		if err != nil {
			t.Fatal(err)
		}
		go n.Run(t.Context())
		n.Incident(of("1", "m", "web", "encode", detect.Likely, time.Now()))
		<-time.After(3*again + time.Second)
		synctest.Wait()
		if posts["hook"] != 1 || posts["alerts"] != 4 {
			t.Errorf("%v", posts)
		}
		status.Store(400)
		n.Incident(of("2", "m", "db", "encode", detect.Likely, time.Now()))
		<-time.After(again / 2)
		synctest.Wait()
		if posts["hook"] != 2 || testutil.ToFloat64(n.results.WithLabelValues("webhook", "failed")) != 1 {
			t.Errorf("refused: %v", posts)
		}
		status.Store(500)
		n.Incident(of("3", "m", "cache", "encode", detect.Likely, time.Now()))
		<-time.After(again / 3)
		synctest.Wait()
		if posts["hook"] != 2+attempts {
			t.Errorf("overloaded: %v", posts)
		}
		// An agent that is never heard of again does not keep an alert for ever.
		status.Store(200)
		<-time.After(late + 2*again)
		synctest.Wait()
		n.mu.Lock()
		defer n.mu.Unlock()
		if len(n.active) != 0 {
			t.Errorf("%d alerts are active", len(n.active))
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }

func TestNothingIsConfigured(t *testing.T) {
	if n, err := New(Options{Config: config.DefaultServer().Notify}); n != nil || err != nil {
		t.Errorf("%v, %v", n, err)
	}
}
