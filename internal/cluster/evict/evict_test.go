package evict

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

var begin = time.Unix(1_800_000_000, 0)

// persistent is the record, as it arrives from an agent, of an incident in which three caps on
// an antagonist helped.
func persistent(t *testing.T, task, job string, change func(*incident.Record)) *incident.Record {
	t.Helper()
	suspect := sample.Task{Key: sample.TaskKey{Inode: 7}, Name: sample.TaskName(task), Job: sample.JobName(job), Class: sample.Batch}
	r := &incident.Record{Incident: plan.Incident{ID: "inc-1", Machine: "m1", Signal: sample.CPI,
		Victim: sample.Task{Key: sample.TaskKey{Inode: 3}, Name: "shop/web-0/app", Job: "shop/web/app", Class: sample.LatencySensitive},
		Opened: sample.At(begin.Add(-time.Hour)), Updated: sample.At(begin), Escalation: &plan.Escalation{Do: plan.Restart, Task: suspect.Name, Job: suspect.Job},
		Analysis: plan.Analysis{Result: detect.Result{Kind: detect.Neighbour, Cost: 3, Threshold: 1.5,
			Suspects: []detect.Suspect{{Task: suspect, Grounds: detect.Grounds{Level: detect.Proven}}}, Antagonists: 1}}}}
	for range 3 {
		r.Rounds = append(r.Rounds, &plan.Round{Capped: plan.Capped{Suspect: suspect}, Outcome: plan.TruePositive})
	}
	if change != nil {
		change(r)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	got := new(incident.Record)
	if err := json.Unmarshal(text, got); err != nil {
		t.Fatal(err)
	}
	return got
}

func pod(t *testing.T, change func(*incident.Record)) *incident.Record {
	return persistent(t, "batch/encode-5d8f-x7/worker", "batch/encode/worker", change)
}

// apiServer stands in for a Kubernetes API server with one pod. A real one is in
// testkit/chart.
type apiServer struct {
	*httptest.Server
	mu      sync.Mutex
	pod     string // JSON; "": there is none
	answer  int    // to an eviction
	evicted string // the newest request
}

const good = `{"metadata":{"uid":"u-1","ownerReferences":[{"kind":"ReplicaSet","controller":true}]},"spec":{"nodeName":"m1"}}`

func newAPIServer(t *testing.T) *apiServer {
	a := &apiServer{pod: good, answer: http.StatusCreated}
	const path = "/api/v1/namespaces/batch/pods/encode-5d8f-x7"
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		switch {
		case r.Header.Get("Authorization") != "Bearer secret":
			w.WriteHeader(http.StatusUnauthorized)
		case r.Method == http.MethodGet && r.URL.Path == path && a.pod != "":
			io.WriteString(w, a.pod)
		case r.Method == http.MethodPost && r.URL.Path == path+"/eviction":
			text, _ := io.ReadAll(r.Body)
			a.evicted = string(text)
			w.WriteHeader(a.answer)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(a.Close)
	return a
}

// rig is an Evictor that runs.
type rig struct {
	*Evictor
	now   time.Time
	audit chan store.Audit
	stop  func() // ends Run, and waits for it
}

func start(t *testing.T, api *apiServer, set func(*config.ServerEvict)) *rig {
	t.Helper()
	r := &rig{now: begin, audit: make(chan store.Audit, 100)}
	c := config.DefaultServer().Evict
	c.Mode = "on"
	c.Kubernetes.TokenFile, c.Kubernetes.CA = filepath.Join(t.TempDir(), "token"), ""
	if err := os.WriteFile(c.Kubernetes.TokenFile, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if api != nil {
		c.Kubernetes.URL = api.URL
	}
	if set != nil {
		set(&c)
	}
	var err error
	if r.Evictor, err = New(Options{Config: c, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return r.now }}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx, func(a store.Audit) { r.audit <- a }) }()
	r.stop = func() { cancel(); <-done }
	t.Cleanup(r.stop)
	return r
}

// outcome is the outcome of the next eviction.
func (r *rig) outcome(t *testing.T) string {
	t.Helper()
	select {
	case a := <-r.audit:
		return a.Outcome
	case <-t.Context().Done():
		t.Fatal("nothing is in the audit log")
		return ""
	}
}

func TestAPersistentAntagonistIsRestartedElsewhere(t *testing.T) {
	for name, c := range map[string]struct {
		mode, pod string
		answer    int
		want      string // of the audit log
		evicted   bool   // whether the API server was asked to
	}{
		"its pod is evicted":         {want: "done by an eviction of its pod", evicted: true},
		"only advised":               {mode: "advise", want: "advised: with evict.mode on it is restarted by an eviction of its pod"},
		"a disruption budget":        {answer: 429, want: "refused: a disruption budget forbids it now", evicted: true},
		"it has ended":               {answer: 409, want: "refused: the pod has ended meanwhile", evicted: true},
		"a fault":                    {answer: 500, want: "failed: evict the pod: the API server answers 500", evicted: true},
		"no such pod":                {pod: "-", want: "refused: there is no such pod"},
		"another machine's pod":      {pod: strings.Replace(good, "m1", "m2", 1), want: `refused: Kubernetes says that it runs on "m2", and not on the machine that accuses it`},
		"no controller":              {pod: strings.Replace(good, `,"controller":true`, "", 1), want: "refused: it has no controller, so nothing would start it again"},
		"a DaemonSet's":              {pod: strings.Replace(good, "ReplicaSet", "DaemonSet", 1), want: "refused: its DaemonSet would start it again on this machine"},
		"annotated":                  {pod: strings.Replace(good, `"uid"`, `"annotations":{"quell.io/evict":"never"},"uid"`, 1), want: `refused: its annotation quell.io/evict is "never"`},
		"an answer that is no JSON":  {pod: "pod", want: "failed: decode the answer"},
		"an answer that has no node": {pod: "{}", want: `refused: Kubernetes says that it runs on ""`},
	} {
		t.Run(name, func(t *testing.T) {
			api := newAPIServer(t)
			if c.pod != "" {
				api.pod = strings.TrimPrefix(c.pod, "-")
			}
			if c.answer != 0 {
				api.answer = c.answer
			}
			r := start(t, api, func(x *config.ServerEvict) {
				if c.mode != "" {
					x.Mode = c.mode
				}
			})
			r.Incident(pod(t, nil))
			a := <-r.audit
			if !strings.HasPrefix(a.Outcome, c.want) {
				t.Errorf("outcome %q, want %q", a.Outcome, c.want)
			}
			if want := "it slows shop/web-0/app: 3 caps on it helped, and it came back (incident inc-1)"; a.Why != want || a.What != "evict" || a.Target != "batch/encode-5d8f-x7/worker" || a.From != "m1" {
				t.Errorf("audit %+v", a)
			}
			api.mu.Lock()
			defer api.mu.Unlock()
			if (api.evicted != "") != c.evicted || c.evicted && !strings.Contains(api.evicted, `"preconditions":{"uid":"u-1"}`) {
				t.Errorf("the API server was asked %q", api.evicted)
			}
		})
	}
}

func TestOnlyAProvenPersistentAntagonistIsEvicted(t *testing.T) {
	both := func(r *incident.Record, change func(*detect.Suspect)) {
		change(&r.Suspects[0])
		for _, x := range r.Rounds {
			x.Suspect = r.Suspects[0].Task
		}
	}
	for name, change := range map[string]func(*incident.Record){
		"two caps helped":    func(r *incident.Record) { r.Rounds = r.Rounds[1:] },
		"one was of several": func(r *incident.Record) { r.Rounds[0].With = []plan.Capped{{}} },
		"one was a trial":    func(r *incident.Record) { r.Rounds[0].Trial = true },
		"one did not help":   func(r *incident.Record) { r.Rounds[0].Outcome = plan.Noise },
		"one was on another": func(r *incident.Record) { r.Rounds[0].Suspect.Name, r.Rounds[0].Suspect.Key.Inode = "other", 9 },
		"only likely":        func(r *incident.Record) { r.Suspects[0].Level = detect.Likely },
		"latency-sensitive":  func(r *incident.Record) { both(r, func(s *detect.Suspect) { s.Class = sample.LatencySensitive }) },
		"never capped":       func(r *incident.Record) { both(r, func(s *detect.Suspect) { s.NeverCap = true }) },
		"protected":          func(r *incident.Record) { both(r, func(s *detect.Suspect) { s.Protected = true }) },
		"the victim's job":   func(r *incident.Record) { both(r, func(s *detect.Suspect) { s.Job = r.Victim.Job }) },
		"the victim's pod":   func(r *incident.Record) { r.Victim.Name = "batch/encode-5d8f-x7/app" },
		"moves the victim":   func(r *incident.Record) { r.Escalation.Do = plan.Move },
		"asks for nothing":   func(r *incident.Record) { r.Escalation = nil },
		"names another":      func(r *incident.Record) { r.Escalation.Task = "batch/other-0/worker" },
		"has ended":          func(r *incident.Record) { r.Closed = r.Updated },
		"is history":         func(r *incident.Record) { r.Updated = sample.At(begin.Add(-time.Hour)) },
	} {
		r := start(t, newAPIServer(t), nil)
		if r.Incident(pod(t, change)); len(r.asks) > 0 {
			t.Errorf("%s: it is evicted", name)
		}
	}
}

// Restarts are rare, whatever agents send: one of a job in a cool-down, few in an hour. What a
// machine asks for in vain does not count for others.
func TestRestartsAreBounded(t *testing.T) {
	const done = "done by the program evict.hook"
	r := start(t, nil, func(c *config.ServerEvict) { c.Hook = "/bin/true"; c.PerHour = 2; c.CoolDown = 90 * time.Minute })
	for i, c := range []struct {
		after        time.Duration
		machine, job string
		want         string // "": it is not asked for
	}{
		{0, "m1", "a", done},
		{time.Minute, "m1", "a", ""}, // further records of the incident
		{time.Minute, "m2", "a", "refused: a task of its job was restarted in the last 1h30m (evict.cool_down)"},
		{time.Minute, "m1", "b", done},
		{time.Minute, "m1", "c", ""}, // it has asked twice in the hour
		{time.Minute, "m2", "c", "refused: 2 tasks were restarted in the hour (evict.per_hour)"},
		{time.Minute, "m2", "d", ""},
		{time.Hour, "m3", "c", done},
		{time.Minute, "m3", "a", "refused: a task of its job was restarted in the last 1h30m (evict.cool_down)"},
		{time.Hour, "m3", "a", done},
	} {
		r.now = r.now.Add(c.after)
		r.Incident(persistent(t, "/batch/"+c.job, c.job, func(x *incident.Record) { x.Machine, x.Updated = c.machine, sample.At(r.now) }))
		if c.want != "" {
			if got := r.outcome(t); got != c.want {
				t.Errorf("%d: %q, want %q", i, got, c.want)
			}
		}
	}
	r.stop()
	if len(r.audit) > 0 || len(r.queue) > 0 || testutil.ToFloat64(r.total.WithLabelValues("done")) != 4 || testutil.ToFloat64(r.total.WithLabelValues("left-out")) != 5 {
		t.Errorf("%d and %d more, %v done, %v left out", len(r.audit), len(r.queue), testutil.ToFloat64(r.total.WithLabelValues("done")), testutil.ToFloat64(r.total.WithLabelValues("left-out")))
	}
}

// The operator's program gets what it needs to know, and its failure is told.
func TestTheOperatorsProgram(t *testing.T) {
	dir := t.TempDir()
	script := func(text string) string {
		file := filepath.Join(dir, "hook")
		if err := os.WriteFile(file, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
			t.Fatal(err)
		}
		return file
	}
	for _, c := range []struct{ text, want string }{
		{"cat >" + dir + "/got", "done by the program evict.hook"},
		{"echo the scheduler is away >&2; exit 3", "failed: " + dir + "/hook: exit status 3: the scheduler is away"},
		{"head -c 10000000 /dev/zero >&2; exit 1", "failed: " + dir + "/hook: exit status 1: "},
		{"", "done by the program evict.hook"}, // that does not read
	} {
		r := start(t, nil, func(x *config.ServerEvict) { x.Hook = script(c.text) })
		r.Incident(persistent(t, "/batch/encode", "encode\x1b[31m", nil))
		if got := r.outcome(t); !strings.HasPrefix(got, c.want) || len(got) > 2000 {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "got"))
	if want := `{"machine":"m1","task":"/batch/encode","job":"encode\\x1b[31m","path":"/batch/encode","victim":"shop/web-0/app","victim_job":"shop/web/app","incident":"inc-1","helped_caps":3}`; err != nil || string(text) != want {
		t.Errorf("%v, the program read\n%s\nwant\n%s", err, text, want)
	}
	// It goes by the task's whole name and path, however long.
	long := "/machine.slice/" + strings.Repeat(`x\x2d`, 100) + ".scope"
	r := start(t, nil, func(x *config.ServerEvict) { x.Hook = script("cat >" + dir + "/long") })
	r.Incident(persistent(t, long, "encode", nil))
	var q request
	if got := r.outcome(t); got != "done by the program evict.hook" {
		t.Error(got)
	}
	if text, err = os.ReadFile(filepath.Join(dir, "long")); err == nil {
		err = json.Unmarshal(text, &q)
	}
	if err != nil || q.Task != long || q.Path != long {
		t.Errorf("%v, the program read %s", err, text)
	}
	r = start(t, nil, nil)
	r.Incident(persistent(t, "/batch/encode", "encode", nil))
	if got := r.outcome(t); got != "refused: it is no pod, and no evict.hook is configured" {
		t.Error(got)
	}
}

// An API server that hangs does not hold up the messages of agents.
func TestAHangingReceiverIsNotWaitedFor(t *testing.T) {
	hangs := make(chan struct{})
	api := &apiServer{Server: httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hangs }))}
	t.Cleanup(api.Close)
	t.Cleanup(func() { close(hangs) })
	r := start(t, api, func(c *config.ServerEvict) { c.PerHour = 1000 })
	for i := range 100 {
		r.Incident(persistent(t, "batch/encode-0/worker", fmt.Sprintf("job-%d", i), nil))
	}
	if got := testutil.ToFloat64(r.total.WithLabelValues("left-out")); got < 100-waiting-1 {
		t.Errorf("%v of 100 left out", got)
	}
}

func TestOffIsNothing(t *testing.T) {
	if e, err := New(Options{Config: config.DefaultServer().Evict}); e != nil || err != nil {
		t.Errorf("%v, %v", e, err)
	}
}
