// Package evict restarts persistent antagonists on another machine: what operators of CPI² do by
// hand (section 5: they may kill a persistent offender, and restart it elsewhere).
//
// An incident asks for it when caps on a suspect helped its victim again and again
// (plan.Escalation). quell then evicts the suspect's pod by Kubernetes' API, which respects
// disruption budgets, or runs the operator's program. It is off by default.
//
// Incidents come from agents, and a machine may lie. A pod is evicted only if Kubernetes says that
// it runs on the machine that accuses it: its root could end it anyway. Evictions are bounded by
// the hour and for each job, and each is in the audit log, also those that are only advised.
package evict

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/cluster/notify"
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/format/printable"
)

const (
	// again is when a machine may ask again for a task of the same job: a refusal may be over then.
	again = time.Hour
	// late is the age of an incident's record from which on it is history: an agent sends what it
	// has kept on disk when it is connected again.
	late = 10 * time.Minute
	// waiting is how many evictions wait for a slow API server or program, and remembered how many
	// requests of machines are known.
	waiting, remembered = 16, 10_000
)

// Options configure an Evictor.
type Options struct {
	Config config.ServerEvict
	Log    *slog.Logger
	Now    func() time.Time // nil: time.Now
}

// Evictor decides what is evicted (Incident), and evicts (Run).
type Evictor struct {
	Options
	client *http.Client // of Kubernetes; nil: not configured
	queue  chan request
	total  *prometheus.CounterVec

	mu    sync.Mutex
	asks  map[ask]time.Time    // when a machine asked last for a task of a job
	often notify.Budget        // of requests of a machine
	jobs  map[string]time.Time // the newest restart of a job
	done  int                  // restarts in the hour
	hour  time.Time            // its begin
}

// ask is a job of which a machine asks to restart a task. What one machine asks for, and is
// refused, does not count for what others ask.
type ask struct{ machine, job string }

// request is an eviction that was decided. It is the document that the operator's program reads.
type request struct {
	Machine    string `json:"machine"`
	Task       string `json:"task"`
	Job        string `json:"job"`
	Path       string `json:"path"` // of its cgroup
	Victim     string `json:"victim"`
	VictimJob  string `json:"victim_job"`
	Incident   string `json:"incident"`
	HelpedCaps int    `json:"helped_caps"`
}

// New makes an Evictor; nil if evictions are off.
func New(o Options) (*Evictor, error) {
	if o.Config.Mode == "off" {
		return nil, nil
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	e := &Evictor{Options: o, queue: make(chan request, waiting), asks: map[ask]time.Time{}, often: notify.Budget{Most: o.Config.PerHour}, jobs: map[string]time.Time{},
		total: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quell_server_evictions_total",
			Help: "Tasks that incidents ask to be restarted on another machine, by result: done, advised, refused, failed, or left-out in a cool-down or by the bound of an hour."}, []string{"result"})}
	if o.Config.Kubernetes.URL != "" {
		var err error
		if e.client, err = notify.NewClient("evict.kubernetes", &o.Config.Kubernetes.ServerPeer); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// Describe and Collect implement prometheus.Collector.
func (e *Evictor) Describe(c chan<- *prometheus.Desc) { e.total.Describe(c) }

// Collect implements prometheus.Collector.
func (e *Evictor) Collect(c chan<- prometheus.Metric) { e.total.Collect(c) }

// Incident takes an incident that has changed. It does not wait.
func (e *Evictor) Incident(r *incident.Record) {
	now := e.Now()
	if r.Escalation == nil || r.Escalation.Do != plan.Restart || r.Closed != 0 || now.Sub(r.Updated.Time()) > late {
		return
	}
	q, ok := e.asked(r)
	if !ok {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.age(now)
	k := ask{q.Machine, q.Job}
	if _, waits := e.asks[k]; waits {
		return // also each further record of this incident
	}
	if len(e.asks) >= remembered || !e.often.Take(q.Machine, now) {
		e.total.WithLabelValues("left-out").Inc()
		return
	}
	select {
	case e.queue <- q:
		e.asks[k] = now
	default:
		e.total.WithLabelValues("left-out").Inc()
	}
}

// age forgets what no longer counts.
func (e *Evictor) age(now time.Time) {
	if now.Sub(e.hour) >= time.Hour {
		e.hour, e.done = now, 0
	}
	maps.DeleteFunc(e.asks, func(_ ask, at time.Time) bool { return now.Sub(at) >= again })
	maps.DeleteFunc(e.jobs, func(_ string, at time.Time) bool { return now.Sub(at) >= e.Config.CoolDown })
}

// bounded says why a restart would be one too many; nil if it would not.
func (e *Evictor) bounded(job string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.age(e.Now())
	switch _, cools := e.jobs[job]; {
	case cools:
		return fmt.Errorf("%w: a task of its job was restarted in the last %s (evict.cool_down)", errRefused, command.Duration(e.Config.CoolDown))
	case e.done >= e.Config.PerHour:
		return fmt.Errorf("%w: %d tasks were restarted in the hour (evict.per_hour)", errRefused, e.done)
	}
	return nil
}

// asked is what an incident asks for, if its own rounds show it: the suspect is proven, may be
// limited, is no task of the victim's job and no container of its pod, and caps on it helped often enough.
func (e *Evictor) asked(r *incident.Record) (q request, ok bool) {
	for _, f := range r.Named() {
		s := &f.Suspect
		if s.Name != r.Escalation.Task || s.Level != detect.Proven || !s.MayBeCapped() || s.Spared() || notify.JobOf(&s.Task) == notify.JobOf(&r.Victim) || notify.SamePod(string(s.Name), string(r.Victim.Name)) {
			continue
		}
		helped := 0
		for _, x := range r.Rounds {
			if x.Suspect.Name == s.Name && len(x.With) == 0 && x.Outcome == plan.TruePositive && !x.Trial {
				helped++
			}
		}
		// What is restarted goes by these: they are not cut.
		task, path := printable.Text(string(s.Name)), printable.Text(s.Path())
		if helped >= e.Config.After && max(len(task), len(path)) <= command.MaxName {
			return request{notify.Clip(r.Machine), task, notify.JobOf(&s.Task), path, notify.Clip(string(r.Victim.Name)), notify.JobOf(&r.Victim), notify.Clip(r.ID), helped}, true
		}
	}
	return q, false
}

// errRefused is a reason for which a task is not evicted, other than a fault.
var errRefused = errors.New("refused")

// Run evicts until the context ends. audit writes to the audit log.
func (e *Evictor) Run(ctx context.Context, audit func(store.Audit)) {
	for {
		select {
		case <-ctx.Done():
			return
		case q := <-e.queue:
			result, outcome := e.carryOut(ctx, &q)
			e.total.WithLabelValues(result).Inc()
			audit(store.Audit{Who: "quell-server", From: q.Machine, What: "evict", Target: q.Task, Outcome: outcome,
				Why: fmt.Sprintf("it slows %s: %d caps on it helped, and it came back (incident %s)", q.Victim, q.HelpedCaps, q.Incident)})
		}
	}
}

// carryOut evicts a task, or says what it would do.
func (e *Evictor) carryOut(ctx context.Context, q *request) (result, outcome string) {
	do, how := e.hook, "the program evict.hook"
	if namespace, name, ok := notify.PodOf(q.Task); ok && e.client != nil {
		do, how = func(ctx context.Context, q *request) error { return e.pod(ctx, q, namespace, name) }, "an eviction of its pod"
	} else if e.Config.Hook == "" {
		return "refused", "refused: it is no pod, and no evict.hook is configured"
	}
	if err := e.bounded(q.Job); err != nil {
		return "left-out", err.Error()
	}
	if e.Config.Mode != "on" {
		e.count(q.Job)
		return "advised", "advised: with evict.mode on it is restarted by " + how
	}
	switch err := do(ctx, q); {
	case errors.Is(err, errRefused):
		return "refused", err.Error()
	case err != nil:
		e.Log.Warn("an eviction failed", "task", q.Task, "machine", q.Machine, "reason", err)
		return "failed", "failed: " + cmp.Or(notify.Clip(err.Error()), "no reason")
	}
	e.count(q.Job)
	return "done", "done by " + how
}

// count counts a restart, or the advice to make it.
func (e *Evictor) count(job string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.jobs[job] = e.Now()
	e.done++
}
