// Package notify tells other systems of incidents: a webhook, and Alertmanager.
//
// A notification is about a pair, the victim's job and that of a named suspect. After one, others
// of that pair are counted and not sent for a cool-down, on whatever machine they are: a job that
// slows another one on a hundred machines is one message. The end of an incident that was
// notified is always sent. Nothing here waits for a receiver: what a full queue does not
// take is counted.
package notify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/printable"
)

const (
	// late is the age of an incident's record from which on it is history: an agent sends what
	// it has kept on disk when it is connected again.
	late = time.Hour
	// mostPairs and mostActive bound what is remembered: agents name the jobs.
	mostPairs, mostActive = 10_000, 1000
	queued                = 256
	// again is how often Alertmanager is told that an alert still fires, and lasts how long
	// it believes that.
	again, lasts = time.Minute, 5 * time.Minute
	maxText      = 200 // bytes of a name
)

// Options configure a Notifier.
type Options struct {
	Config config.ServerNotify
	Log    *slog.Logger
	Now    func() time.Time // nil: time.Now
	// Transport carries the requests; nil: http.DefaultTransport.
	Transport http.RoundTripper
}

// pair is what a cool-down is for.
type pair struct{ victim, suspect string }

// told is when a pair was notified last, and the incidents of it that were left out since.
type told struct {
	at   time.Time
	left map[string]bool
}

// Notifier decides what is sent, and sends it.
type Notifier struct {
	Options
	least     detect.Level
	client    *http.Client
	receivers []receiver
	queue     chan *Event
	results   *prometheus.CounterVec

	mu     sync.Mutex
	pairs  map[pair]*told
	active map[string]*Event // by ID of the incident
}

// New makes a Notifier; nil if nothing is configured. Run sends.
func New(o Options) (*Notifier, error) {
	c := o.Config
	if c.Webhook == "" && c.Alertmanager == "" {
		return nil, nil
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	n := &Notifier{Options: o, client: newClient(o.Transport), queue: make(chan *Event, queued), pairs: map[pair]*told{}, active: map[string]*Event{},
		results: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quell_server_notifications_total",
			Help: "Notifications of incidents, by receiver (webhook, alertmanager) and result: sent, failed, dropped for lack of room, or left out in a cool-down."}, []string{"receiver", "result"})}
	if err := n.least.UnmarshalText([]byte(c.Level)); err != nil {
		return nil, fmt.Errorf("notify.level: %w", err)
	}
	if c.Webhook != "" {
		token := ""
		if c.WebhookTokenFile != "" {
			text, err := os.ReadFile(c.WebhookTokenFile)
			if err != nil {
				return nil, fmt.Errorf("notify.webhook_token_file: %w", err)
			}
			token = strings.TrimSpace(string(text))
		}
		n.receivers = append(n.receivers, receiver{name: "webhook", url: c.Webhook, token: token, body: webhook})
	}
	if c.Alertmanager != "" {
		n.receivers = append(n.receivers, receiver{name: "alertmanager", url: strings.TrimSuffix(c.Alertmanager, "/") + "/api/v2/alerts", repeats: true, body: alertmanager})
	}
	return n, nil
}

// Collector is the count of notifications.
func (n *Notifier) Collector() prometheus.Collector { return n.results }

// Event is a notification. Its texts come from agents; they are printable and short.
type Event struct {
	Version int       `json:"version"` // of this document: 1
	Event   string    `json:"event"`   // firing or resolved
	ID      string    `json:"id"`
	Machine string    `json:"machine"`
	Victim  Task      `json:"victim"`
	Suspect Task      `json:"suspect"`
	Level   string    `json:"level"`
	Signal  string    `json:"signal"`
	Cost    float64   `json:"cost"`
	Limit   float64   `json:"threshold"`
	Opened  time.Time `json:"opened"`
	Closed  time.Time `json:"closed,omitzero"`
	Outcome string    `json:"outcome,omitempty"`
	Text    string    `json:"text"`             // a sentence
	Advice  string    `json:"advice,omitempty"` // what to do
	Link    string    `json:"link,omitempty"`   // the dashboard's page of it
	// LeftOut is the number of incidents of the pair that were not notified in the last
	// cool-down.
	LeftOut int `json:"left_out,omitempty"`

	updated time.Time
}

// Task is a task and its job.
type Task struct {
	Job  string `json:"job"`
	Task string `json:"task"`
}

func clip(s string) string {
	if s = printable.Text(s); len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "…"
	}
	return s
}

func taskOf(t *sample.Task) Task { return Task{clip(string(t.Job)), clip(t.Name.String())} }

// eventOf describes an incident that names a suspect.
func (n *Notifier) eventOf(r *incident.Record, s *detect.Suspect) *Event {
	e := &Event{Version: 1, Event: "firing", ID: clip(r.ID), Machine: clip(r.Machine), Victim: taskOf(&r.Victim), Suspect: taskOf(&s.Task), Level: s.Level.String(),
		Signal: string(r.Signal), Cost: r.Cost, Limit: r.Threshold, Opened: r.Opened.Time(), Outcome: string(r.Outcome), Advice: clip(r.Advice), updated: r.Updated.Time()}
	e.Text = fmt.Sprintf("%s on %s is slowed by %s (%s): cost %.3g, threshold %.3g in %s", e.Victim.Job, e.Machine, e.Suspect.Job, e.Level, e.Cost, e.Limit, e.Signal)
	if n.Config.Link != "" {
		e.Link = strings.TrimSuffix(n.Config.Link, "/") + "/#/incident/" + url.PathEscape(r.ID) + "?machine=" + url.QueryEscape(r.Machine)
	}
	if r.Closed != 0 {
		e.Event, e.Closed = "resolved", r.Closed.Time()
		e.Text = fmt.Sprintf("%s on %s is no longer slowed by %s; %s", e.Victim.Job, e.Machine, e.Suspect.Job, cmp.Or(e.Outcome, "no cap was judged"))
	}
	return e
}

// Incident takes an incident that has changed.
func (n *Notifier) Incident(r *incident.Record) {
	now, s := n.Now(), r.Antagonist()
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.active[r.Machine+"/"+r.ID]
	switch {
	case s == nil || now.Sub(r.Updated.Time()) > late && before == nil:
		return
	case before != nil && r.Closed == 0: // it stands, with what is known now
		e := n.eventOf(r, s)
		e.Victim, e.Suspect = before.Victim, before.Suspect // Alertmanager knows an alert by its labels
		n.active[r.Machine+"/"+r.ID] = e
		return
	case before != nil:
		e := n.eventOf(r, s)
		e.Victim, e.Suspect = before.Victim, before.Suspect
		delete(n.active, r.Machine+"/"+r.ID)
		n.send(e)
		return
	case r.Closed != 0 || s.Level < n.least:
		return
	}
	k := pair{string(r.Victim.Job), string(s.Job)}
	last := n.pairs[k]
	if last != nil && now.Sub(last.at) < n.Config.CoolDown {
		if id := r.Machine + "/" + r.ID; !last.left[id] && len(last.left) < mostActive { // an incident has many records
			last.left[id] = true
			n.count("left-out")
		}
		return
	}
	if n.forget(now); len(n.pairs) >= mostPairs || len(n.active) >= mostActive {
		n.count("dropped")
		return
	}
	e := n.eventOf(r, s)
	if last != nil {
		e.LeftOut = len(last.left)
	}
	n.pairs[k], n.active[r.Machine+"/"+r.ID] = &told{now, map[string]bool{}}, e
	n.send(e)
}

// forget drops what no longer matters: cool-downs that are over, once there are many, and
// incidents that their agents have not spoken of for long.
func (n *Notifier) forget(now time.Time) {
	if len(n.pairs) >= mostPairs {
		for k, p := range n.pairs {
			if now.Sub(p.at) >= n.Config.CoolDown {
				delete(n.pairs, k)
			}
		}
	}
	for id, e := range n.active {
		if now.Sub(e.updated) > late {
			delete(n.active, id)
		}
	}
}

// send queues an event, or counts that there is no room.
func (n *Notifier) send(e *Event) {
	select {
	case n.queue <- e:
	default:
		n.count("dropped")
	}
}

// count counts what is sent to no receiver.
func (n *Notifier) count(result string) {
	for i := range n.receivers {
		n.results.WithLabelValues(n.receivers[i].name, result).Inc()
	}
}

// Run sends until ctx ends.
func (n *Notifier) Run(ctx context.Context) {
	repeat := time.NewTicker(again)
	defer repeat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-n.queue:
			n.post(ctx, func(*receiver) []*Event { return []*Event{e} })
		case <-repeat.C:
			now := n.Now()
			var all []*Event
			n.mu.Lock()
			n.forget(now)
			for _, e := range n.active {
				all = append(all, e)
			}
			n.mu.Unlock()
			n.post(ctx, func(r *receiver) []*Event {
				if !r.repeats {
					return nil
				}
				return all
			})
		}
	}
}

// post sends events to each receiver.
func (n *Notifier) post(ctx context.Context, of func(*receiver) []*Event) {
	for i := range n.receivers {
		r := &n.receivers[i]
		all := of(r)
		if len(all) == 0 {
			continue
		}
		err := r.post(ctx, n.client, n.Now(), all)
		if errors.Is(err, context.Canceled) {
			return
		}
		result := "sent"
		if err != nil {
			result = "failed"
			n.Log.Warn("notify", "receiver", r.name, "reason", err)
		}
		n.results.WithLabelValues(r.name, result).Add(float64(len(all)))
	}
}
