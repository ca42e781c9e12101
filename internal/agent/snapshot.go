package agent

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"
)

// snapshot is the text of /metrics as of the loop's last iteration: a scrape does not
// wait for the loop, nor the loop for a scrape. Metrics that only a window changes are
// written when one ends, the others, some 40 series, after each iteration.
type snapshot struct {
	ofTick, ofWindow []metric
	tick, window     exposition // used by the loop only

	mu   sync.Mutex
	text []byte
	at   time.Time
}

// staleAfter is how long the loop may be stalled before /metrics fails instead of
// repeating old values. The loop sleeps longestSleep at most.
const staleAfter = 6 * longestSleep

var errNoTurn = errors.New("the agent's loop has not run yet")

func newSnapshot() snapshot {
	return snapshot{ofTick: append(tickMetrics(), uplinkMetrics()...), ofWindow: windowMetrics()}
}

func (s *snapshot) takeWindow(a *Agent) {
	s.window.reset()
	for i := range s.ofWindow {
		s.window.collect(a, &s.ofWindow[i])
	}
}

func (s *snapshot) take(a *Agent, now time.Time) {
	s.tick.reset()
	for i := range s.ofTick {
		s.tick.collect(a, &s.ofTick[i])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(append(s.text[:0], s.tick.text...), s.window.text...)
	s.at = now
}

// read appends the snapshot to a scrape's buffer.
func (s *snapshot) read(to []byte, now time.Time) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch age := now.Sub(s.at); {
	case s.at.IsZero():
		return to, errNoTurn
	case age > staleAfter:
		return to, fmt.Errorf("the agent's loop has not run for %s", age.Round(time.Second))
	}
	return append(to, s.text...), nil
}

// MetricsServer serves /metrics and /healthz.
func (a *Agent) MetricsServer() *http.Server {
	process := prometheus.NewRegistry()
	process.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector())
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) { a.serveMetrics(w, process) })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, req *http.Request) {
		if err := a.Alive(req.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	return &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
}

// serveMetrics writes the snapshot, then the metrics of the process and of Go's
// runtime. It is not compressed: that costs more than all the rest.
func (a *Agent) serveMetrics(w http.ResponseWriter, process prometheus.Gatherer) {
	var err error
	select {
	case <-a.done:
		err = ErrStopped
	default:
	}
	var text []byte
	if err == nil {
		text, err = a.snapshot.read(nil, time.Now())
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	_, _ = w.Write(text) // on an error the client has gone
	families, err := process.Gather()
	if err != nil {
		a.Log.Debug("read the process's own metrics", "reason", err)
	}
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(w, f); err != nil {
			return
		}
	}
}
