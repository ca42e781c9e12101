package notify

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
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

// make1 makes a Notifier.
func make1(t *testing.T, now func() time.Time, log io.Writer, set func(*config.ServerNotify)) *Notifier {
	t.Helper()
	c := config.DefaultServer().Notify
	set(&c)
	if log == nil {
		log = io.Discard
	}
	n, err := New(Options{Config: c, Results: NewResults(), Log: slog.New(slog.NewTextHandler(log, nil)), Now: now})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func count(n *Notifier, receiver, result string) float64 {
	return testutil.ToFloat64(n.Results.WithLabelValues(receiver, result))
}

// drain returns what is queued for a receiver, a line each.
func drain(r *receiver) (all string) {
	for {
		select {
		case e := <-r.queue.waiting:
			all += fmt.Sprintf("%s %s %s<%s %d\n", e.Event, e.ID, e.Victim.Job, e.Suspect.Job, e.LeftOut)
		default:
			return all
		}
	}
}

// What is found by a provisional spec is not sent before the spec is ready.
func TestProvisionalIncidentsAreNotNotified(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	n := make1(t, func() time.Time { return now }, nil, func(c *config.ServerNotify) { c.Webhook.URL = "http://127.0.0.1:1" })
	r := of("1", "m1", "web", "encode", detect.Likely, now)
	r.SpecSamples = 27
	n.Incident(r)
	if got := drain(n.receivers[0]); got != "" {
		t.Errorf("sent %s", got)
	}
	n.Incident(of("1", "m1", "web", "encode", detect.Likely, now))
	if got := drain(n.receivers[0]); got != "firing 1 web<encode 0\n" {
		t.Errorf("with the spec ready: %q", got)
	}
}

func TestACoolDownIsPerPair(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	n := make1(t, func() time.Time { return now }, nil, func(c *config.ServerNotify) { c.Webhook.URL = "http://127.0.0.1:1" })
	first := of("1", "m1", "web", "encode", detect.Likely, now)
	for _, step := range []struct {
		name string
		r    *incident.Record
		pass time.Duration
		want string
	}{
		{"no suspect", &incident.Record{Incident: plan.Incident{ID: "9", Machine: "m1", Updated: sample.At(now)}}, 0, ""},
		{"a suspect that is only possible", of("0", "m1", "web", "encode", detect.Possible, now), 0, ""},
		{"history", of("0", "m1", "web", "encode", detect.Proven, now.Add(-2*late)), 0, ""},
		{"the first", first, 0, "firing 1 web<encode 0\n"},
		{"the same again", first, time.Minute, ""},
		{"the pair on another machine", of("2", "m2", "web", "encode", detect.Proven, now), 0, "firing 2 web<encode 0\n"},
		{"again", of("2", "m2", "web", "encode", detect.Proven, now), 0, ""},
		{"the pair on a third machine", of("5", "m3", "web", "encode", detect.Proven, now), 0, ""},
		{"again", of("5", "m3", "web", "encode", detect.Proven, now), 0, ""},
		{"another pair", of("3", "m2", "db", "encode", detect.Proven, now), 0, "firing 3 db<encode 0\n"},
		{"another suspect of the same incident", of("3", "m2", "db", "backup", detect.Proven, now), 0, "resolved 3 db<encode 0\nfiring 3 db<backup 0\n"},
		{"the end of the first", closed(first, now), 0, "resolved 1 web<encode 0\n"},
		{"the end of the second", closed(of("2", "m2", "web", "encode", detect.Proven, now), now), 0, "resolved 2 web<encode 0\n"},
		{"the end of one that was left out", closed(of("5", "m3", "web", "encode", detect.Proven, now), now), 0, ""},
		{"an end without a suspect", &incident.Record{Incident: plan.Incident{ID: "3", Machine: "m2", Closed: sample.At(now)}}, 0, "resolved 3 db<backup 0\n"},
		{"after the cool-down", of("4", "m3", "web", "encode", detect.Likely, now.Add(time.Hour)), time.Hour, "firing 4 web<encode 1\n"},
	} {
		now = now.Add(step.pass)
		n.Incident(step.r)
		if got := drain(n.receivers[0]); got != step.want {
			t.Errorf("%s: %q, want %q", step.name, got, step.want)
		}
	}
	if got := count(n, "webhook", "left-out"); got != 1 {
		t.Errorf("%v are left out", got)
	}
}

// TestAttackAPairOfOthers: a machine that says without end that a job slows another one hides no other machine on which
// it does.
func TestAttackAPairOfOthers(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	n := make1(t, func() time.Time { return now }, nil, func(c *config.ServerNotify) { c.Webhook.URL = "http://127.0.0.1:1" })
	for hour := range 3 {
		for i := range 5 {
			lie := of(fmt.Sprint(hour, "-", i), "evil", "web", "encode", detect.Proven, now)
			n.Incident(lie)
			n.Incident(closed(lie, now))
			now = now.Add(time.Minute)
		}
		drain(n.receivers[0])
		if n.Incident(of(fmt.Sprint(hour), "m1", "web", "encode", detect.Likely, now)); !strings.Contains(drain(n.receivers[0]), fmt.Sprint("firing ", hour, " web<encode")) {
			t.Errorf("hour %d: the incident of another machine is not notified", hour)
		}
		now = now.Add(time.Hour)
	}
}

// Agents name the jobs: what is remembered and queued is bounded, and a machine that invents
// incidents does not hide those of others.
func TestAFloodIsBounded(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	n := make1(t, func() time.Time { return now }, nil, func(c *config.ServerNotify) { c.Webhook.URL = "http://127.0.0.1:1" })
	const flood = 1000
	for i := range flood { // each ends at once, so that few are active
		r := of(fmt.Sprint("brief-", i), "brief", "web", fmt.Sprint("brief-", i), detect.Proven, now)
		n.Incident(r)
		n.Incident(closed(r, now))
	}
	if got := strings.Count(drain(n.receivers[0]), "firing"); got != mostOfMachine {
		t.Errorf("%d notifications of incidents that end at once", got)
	}
	for hour := range 2 {
		for i := range flood {
			n.Incident(of(fmt.Sprint(hour, "-", i), "liar", strings.Repeat("\x1b", 5000)+fmt.Sprint(i), fmt.Sprint(hour, i), detect.Proven, now))
		}
		n.Incident(of("1", fmt.Sprint("honest-", hour), "web", fmt.Sprint("encode-", hour), detect.Likely, now))
		if got := strings.Count(drain(n.receivers[0]), "firing"); got != mostOfMachine*(1-hour)+1 {
			t.Errorf("hour %d: %d notifications", hour, got)
		}
		now = now.Add(time.Hour)
	}
	for m := range mostActive/mostOfMachine + 5 {
		for i := range mostOfMachine + 1 {
			n.Incident(of(fmt.Sprint(i), fmt.Sprint("m", m), "v", fmt.Sprint(m, "/", i), detect.Proven, now))
		}
	}
	if len(n.active) > mostActive || len(n.pairs) > mostPairs || len(n.receivers[0].queue.waiting) != queued {
		t.Errorf("%d active, %d pairs, %d queued", len(n.active), len(n.pairs), len(n.receivers[0].queue.waiting))
	}
	if count(n, "webhook", "dropped") == 0 {
		t.Error("drops are not counted")
	}
}

func TestBudget(t *testing.T) {
	b, now := Budget{Most: 2}, time.Unix(1_800_000_000, 0)
	got := ""
	for _, machine := range []string{"a", "a", "a", "b"} {
		got += fmt.Sprint(b.Take(machine, now), " ")
	}
	now = now.Add(time.Hour)
	if got += fmt.Sprint(b.Take("a", now)); got != "true true false true true" {
		t.Error(got)
	}
}

// fakes answers requests by host, and notes them.
type fakes struct {
	status atomic.Int64 // of the host hook; 0: it accepts the connection and says nothing
	mu     sync.Mutex
	posts  map[string][]string
}

func (f *fakes) RoundTrip(q *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.posts[q.URL.Host] = append(f.posts[q.URL.Host], string(body))
	f.mu.Unlock()
	status := 200
	if q.URL.Host == "hook" {
		if status = int(f.status.Load()); status == 0 {
			<-q.Context().Done()
			return nil, q.Context().Err()
		}
	}
	return &http.Response{StatusCode: status, Body: http.NoBody, Request: q}, nil
}

// take returns what a host got since the last call.
func (f *fakes) take(host string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	got := f.posts[host]
	delete(f.posts, host)
	return got
}

// A receiver that hangs holds up neither the server nor the other receivers, an overloaded one is
// asked again, one that refuses is not, and the log says once that it fails.
func TestDeadReceivers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, f := &quelltest.Output{}, &fakes{posts: map[string][]string{}}
		n := make1(t, time.Now, log, func(c *config.ServerNotify) {
			c.Webhook.URL, c.Alertmanager.URL = "http://hook/services/secret", "http://alerts"
		})
		for _, r := range n.receivers {
			r.client.Transport = f
		}
		go n.Run(t.Context())
		fire := func(id string) { n.Incident(of(id, "m"+id, "web", "encode-"+id, detect.Likely, time.Now())) }
		for i := range 2 * queued {
			fire(fmt.Sprint(i)) // does not wait: the clock of the test stands still
		}
		synctest.Wait()
		if got := count(n, "webhook", "dropped"); got < queued/2 {
			t.Errorf("%v were dropped", got)
		}
		alerts := 0
		for _, body := range f.take("alerts") {
			alerts += strings.Count(body, "startsAt")
		}
		if dead := len(f.take("hook")); dead != 1 || float64(alerts) != count(n, "alertmanager", "sent") || alerts == 0 {
			t.Errorf("%d requests to the dead one, %d alerts, %v counted", dead, alerts, count(n, "alertmanager", "sent"))
		}
		for len(n.receivers[0].queue.waiting) > 0 {
			<-time.After(time.Hour)
		}
		<-time.After(time.Hour)
		synctest.Wait()
		if got := strings.Count(log.String(), "notifications fail"); got != 1 {
			t.Errorf("logged %d times:\n%s", got, log.String())
		}
		for _, c := range []struct{ status, requests int }{{200, 1}, {400, 1}, {302, 1}, {503, attempts}, {429, attempts}, {200, 1}} {
			f.status.Store(int64(c.status))
			f.take("hook")
			fire(fmt.Sprint("later-", c.status, "-", time.Now().Unix()))
			<-time.After(time.Minute)
			synctest.Wait()
			if got := len(f.take("hook")); got != c.requests {
				t.Errorf("status %d: %d requests, want %d", c.status, got, c.requests)
			}
		}
		if got := strings.Count(log.String(), "works again"); got != 2 {
			t.Errorf("it worked again %d times:\n%s", got, log.String())
		}
		if strings.Contains(log.String(), "secret") {
			t.Errorf("the URL is in the log:\n%s", log.String())
		}
	})
}

// Alertmanager forgets an alert that it is not told again. An agent that is never heard of again
// does not keep an alert for ever.
func TestAnAlertIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakes{posts: map[string][]string{}}
		f.status.Store(200)
		n := make1(t, time.Now, nil, func(c *config.ServerNotify) { c.Webhook.URL, c.Alertmanager.URL = "http://hook", "http://alerts" })
		for _, r := range n.receivers {
			r.client.Transport = f
		}
		go n.Run(t.Context())
		n.Incident(of("1", "m", "web", "encode", detect.Likely, time.Now()))
		<-time.After(3*again + time.Second)
		synctest.Wait()
		if hook, alerts := f.take("hook"), f.take("alerts"); len(hook) != 1 || len(alerts) != 4 {
			t.Errorf("%q, %q", hook, alerts)
		}
		<-time.After(late + 2*again)
		synctest.Wait()
		if hook := f.take("hook"); len(hook) != 1 || !strings.Contains(hook[0], `"event":"resolved"`) || !strings.Contains(hook[0], "nothing was heard of it for 1h") {
			t.Errorf("at the end: %q", hook)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if len(n.active) != 0 {
			t.Errorf("%d alerts are active", len(n.active))
		}
	})
}

// TestAServerThatNoLongerLeadsIsSilent: it hears of no incident any more. It does not say an hour later that
// one has ended, nor until then that it fires.
func TestAServerThatNoLongerLeadsIsSilent(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	n := make1(t, func() time.Time { return now }, nil, func(c *config.ServerNotify) { c.Webhook.URL = "http://127.0.0.1:1" })
	open := of("1", "m1", "web", "encode", detect.Likely, now)
	n.Incident(open)
	drain(n.receivers[0])
	n.Forget()
	now = now.Add(2 * late)
	if fires, sent := n.fires(), drain(n.receivers[0]); len(fires) != 0 || sent != "" {
		t.Errorf("%d fire, sent %q", len(fires), sent)
	}
	open.Updated = sample.At(now) // it leads again
	n.Incident(open)
	if sent := drain(n.receivers[0]); sent != "firing 1 web<encode 0\n" {
		t.Errorf("sent %q", sent)
	}
}

func TestNothingIsConfigured(t *testing.T) {
	if n, err := New(Options{Config: config.DefaultServer().Notify}); n != nil || err != nil {
		t.Errorf("%v, %v", n, err)
	}
}
