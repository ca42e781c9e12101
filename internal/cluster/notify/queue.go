package notify

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// queued is how many messages wait for a receiver, and most how many are sent together.
const queued, most = 256, 64

// Results counts what became of messages, by receiver and result.
type Results struct{ *prometheus.CounterVec }

// NewResults makes the metric.
func NewResults() Results {
	return Results{prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quell_server_notifications_total",
		Help: "Messages to other systems, by receiver (webhook, alertmanager, kubernetes, otlp, otlp-metrics) and result: sent, failed, dropped for lack of room, or left-out in a cool-down."},
		[]string{"receiver", "result"})}
}

// Status says whether a receiver works: in the log when that changes, and in the metric.
type Status struct {
	Name    string
	Results Results
	Log     *slog.Logger
	failing bool
}

// Note notes the result of sending n messages. One goroutine at a time uses it.
func (s *Status) Note(n int, err error) {
	if err == nil {
		s.Results.WithLabelValues(s.Name, "sent").Add(float64(n))
		if s.failing {
			s.Log.Info("the receiver of notifications works again", "receiver", s.Name)
		}
		s.failing = false
		return
	}
	s.Results.WithLabelValues(s.Name, "failed").Add(float64(n))
	if !s.failing {
		s.Log.Warn("notifications fail; logged once until one is sent", "receiver", s.Name, "reason", withoutURL(err))
	}
	s.failing = true
}

// withoutURL removes the URL, which may be a secret, from an error of net/http.
func withoutURL(err error) error {
	if u := (*url.Error)(nil); errors.As(err, &u) {
		return u.Err
	}
	return err
}

// Budget bounds the messages of each machine in an hour, so that one that invents incidents does not
// take the room of others.
type Budget struct {
	Most int
	hour time.Time // when it began
	used map[string]int
}

// Take takes one message from a machine's budget, and reports whether there was one.
func (b *Budget) Take(machine string, now time.Time) bool {
	if b.used == nil || now.Sub(b.hour) >= time.Hour {
		b.hour, b.used = now, map[string]int{}
	}
	if b.used[machine] >= b.Most {
		return false
	}
	b.used[machine]++
	return true
}

// Queue passes messages to a receiver that may be slow or down. Adding one never waits: what
// does not find room is counted.
type Queue[T any] struct {
	name    string
	results Results
	waiting chan T
}

// NewQueue makes a queue; Run empties it.
func NewQueue[T any](name string, results Results) *Queue[T] {
	for _, r := range []string{"sent", "failed", "dropped"} {
		results.WithLabelValues(name, r) // visible from the start
	}
	return &Queue[T]{name, results, make(chan T, queued)}
}

// Add adds a message, or counts that there is no room.
func (q *Queue[T]) Add(m T) {
	select {
	case q.waiting <- m:
	default:
		q.Drop()
	}
}

// Drop counts a message that is not added.
func (q *Queue[T]) Drop() { q.results.WithLabelValues(q.name, "dropped").Inc() }

// Run calls send with what waits, until ctx ends.
func (q *Queue[T]) Run(ctx context.Context, send func(context.Context, []T)) {
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-q.waiting:
			send(ctx, append([]T{m}, q.rest()...))
		}
	}
}

// rest takes what waits, as far as it is sent together.
func (q *Queue[T]) rest() (all []T) {
	for len(all) < most-1 {
		select {
		case m := <-q.waiting:
			all = append(all, m)
		default:
			return all
		}
	}
	return all
}
