// Package notify tells other systems of incidents: a webhook, Alertmanager, Kubernetes.
//
// A notification is about a pair: the victim's job and that of a named suspect. After one, others
// of that pair are only counted for a cool-down, except for the first of another machine: a job that slows
// another one on a hundred machines is two messages. The end of what was notified is always sent.
//
// Nothing here waits for a receiver. Each has a queue and a goroutine of its own; what a full queue
// does not take is counted. What agents name is bounded: the pairs and incidents that are
// remembered, the notifications of one machine, and the texts.
package notify

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
)

const (
	// late is the age of an incident's record from which on it is history: an agent sends what
	// it has kept on disk when it is connected again. An incident that is not heard of for so
	// long counts as ended.
	late = time.Hour
	// Bounds of what is remembered. mostOfMachine is also the most notifications of one machine
	// an hour: one that invents incidents does not hide those of others.
	mostPairs, mostActive, mostOfMachine = 10_000, 1000, 30
	// again is how often Alertmanager is told that an alert still fires, and lasts how long it
	// believes that.
	again, lasts = time.Minute, 5 * time.Minute
)

// Options configure a Notifier.
type Options struct {
	Config  config.ServerNotify
	Results Results
	Log     *slog.Logger
	Now     func() time.Time // nil: time.Now
}

// pair is what a cool-down is for.
type pair struct {
	victim, suspect string
	second          bool // of another machine than the first: one that invents it hides none of others
}

// key is an incident of a machine.
type key struct{ machine, id string }

// told is when and by which machine's incident a pair was notified last, and those that were left out since.
type told struct {
	at      time.Time
	machine string
	left    map[key]bool
}

// active is an incident that was notified and has not ended.
type active struct {
	*Event
	seen time.Time
}

// Notifier decides what is sent, and sends it.
type Notifier struct {
	Options
	least     detect.Level
	receivers []*receiver

	mu     sync.Mutex
	pairs  map[pair]*told
	active map[key]active
	budget Budget
}

// New makes a Notifier; nil if no receiver is configured. Run sends.
func New(o Options) (*Notifier, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	n := &Notifier{Options: o, pairs: map[pair]*told{}, active: map[key]active{}, budget: Budget{Most: mostOfMachine}}
	if err := n.least.UnmarshalText([]byte(o.Config.Level)); err != nil {
		return nil, fmt.Errorf("notify.level: %w", err)
	}
	if err := n.open(); err != nil || len(n.receivers) == 0 {
		return nil, err
	}
	return n, nil
}

// Incident takes an incident that has changed.
func (n *Notifier) Incident(r *incident.Record) {
	now, s, id := n.Now(), r.Antagonist(), key{r.Machine, Clip(r.ID)}
	if r.SpecSamples > 0 { // by a provisional spec
		s = nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if before, known := n.active[id]; known {
		var e *Event
		if s != nil {
			e = firing(r, s, n.Config.Link, now)
		}
		if e != nil && r.Closed == 0 && e.pair() == before.pair() {
			n.active[id] = active{e, now} // it stands, with what is known now
			return
		}
		delete(n.active, id)
		n.send(before.resolved(r, now))
	}
	if s == nil || r.Closed != 0 || s.Level < n.least || now.Sub(r.Updated.Time()) > late {
		return
	}
	e := firing(r, s, n.Config.Link, now)
	of, first := e.pair(), n.pairs[e.pair()]
	of.second = first != nil && first.machine != r.Machine && now.Sub(first.at) < n.Config.CoolDown
	if last := n.pairs[of]; last != nil && now.Sub(last.at) < n.Config.CoolDown {
		if !first.left[id] && len(first.left) < mostActive { // an incident has many records
			first.left[id] = true
			n.count("left-out")
		}
		return
	}
	n.forget(now)
	if len(n.pairs) >= mostPairs || len(n.active) >= mostActive || n.activeOf(r.Machine) >= mostOfMachine || !n.budget.Take(r.Machine, now) {
		n.count("dropped")
		return
	}
	if first != nil {
		e.LeftOut = len(first.left)
		clear(first.left)
	}
	n.pairs[of], n.active[id] = &told{now, r.Machine, map[key]bool{}}, active{e, now}
	n.send(e)
}

// Forget forgets what was notified, as a restart does: another server gets the incidents from now on, and
// tells what fires and what ends.
func (n *Notifier) Forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.pairs)
	clear(n.active)
}

func (e *Event) pair() pair { return pair{victim: e.Victim.Job, suspect: e.Suspect.Job} }

func (n *Notifier) activeOf(machine string) (all int) {
	for id := range n.active {
		if id.machine == machine {
			all++
		}
	}
	return all
}

// forget drops what no longer matters: cool-downs that are over, once there are many, and
// incidents that their agents have not spoken of for long, which ends what was notified of them.
func (n *Notifier) forget(now time.Time) {
	if len(n.pairs) >= mostPairs {
		for k, p := range n.pairs {
			if now.Sub(p.at) >= n.Config.CoolDown {
				delete(n.pairs, k)
			}
		}
	}
	for id, a := range n.active {
		if now.Sub(a.seen) > late {
			delete(n.active, id)
			n.send(a.lapsed(now))
		}
	}
}

// send queues an event for each receiver.
func (n *Notifier) send(e *Event) {
	for _, r := range n.receivers {
		if r.wants(e) {
			r.queue.Add(e)
		}
	}
}

// count counts what is sent to no receiver.
func (n *Notifier) count(result string) {
	for _, r := range n.receivers {
		n.Results.WithLabelValues(r.status.Name, result).Inc()
	}
}

// fires returns what fires now, and ends that of which nothing was heard for long.
func (n *Notifier) fires() (all []*Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forget(n.Now())
	for _, a := range n.active {
		all = append(all, a.Event)
	}
	return all
}

// regularly calls do from time to time until ctx ends.
func regularly(ctx context.Context, do func()) {
	tick := time.NewTicker(again)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// Run sends until ctx ends.
func (n *Notifier) Run(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { regularly(ctx, func() { n.fires() }) })
	for _, r := range n.receivers {
		defer r.client.CloseIdleConnections()
		all.Go(func() { r.queue.Run(ctx, r.deliver) })
		if r.repeats {
			all.Go(func() { regularly(ctx, func() { r.queue.Add(nil) }) }) // what fires
		}
	}
	all.Wait()
}
