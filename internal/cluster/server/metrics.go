package server

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/quell-dev/quell/internal/cluster/store"
)

// metrics are the server's own metrics.
type metrics struct {
	registry *prometheus.Registry
	handler  http.Handler
	requests *prometheus.CounterVec
	seconds  *prometheus.CounterVec
	refused  prometheus.Counter
}

// storeMetric is a metric derived from the store's counts.
type storeMetric struct {
	name, help string
	kind       prometheus.ValueType
	value      func(*store.Stats) float64
}

var storeMetrics = []storeMetric{
	{"quell_server_batches_total", "Batches accepted.", prometheus.CounterValue, func(s *store.Stats) float64 { return float64(s.Batches) }},
	{"quell_server_duplicate_batches_total", "Batches dropped because they were accepted before.", prometheus.CounterValue, func(s *store.Stats) float64 { return float64(s.Duplicates) }},
	{"quell_server_jumped_batches_total", "Batches dropped because their number is too far ahead of the sender's last one, or of too many runs of the sender.", prometheus.CounterValue, func(s *store.Stats) float64 { return float64(s.Jumped) }},
	{"quell_server_samples_total", "Samples accepted.", prometheus.CounterValue, func(s *store.Stats) float64 { return float64(s.Samples) }},
	{"quell_server_records_total", "Incidents, actions, audit entries and specs accepted.", prometheus.CounterValue, func(s *store.Stats) float64 { return float64(s.Records) }},
	{"quell_server_rejected_samples_total", "Samples and records rejected: too old to be kept, or of too many hours.", prometheus.CounterValue, func(s *store.Stats) float64 { return float64(s.Rejected) }},
	{"quell_server_redated_samples_total", "Samples and records from more than an hour in the future, which got the server's time: a clock was set back.", prometheus.CounterValue, func(s *store.Stats) float64 { return float64(s.Redated) }},
	{"quell_server_commits_total", "Commits of the store.", prometheus.CounterValue, func(s *store.Stats) float64 { return float64(s.Commits) }},
	{"quell_server_merged_segments_total", "Segments replaced by larger ones.", prometheus.CounterValue, func(s *store.Stats) float64 { return float64(s.Merged) }},
	{"quell_server_expired_segments_total", "Segments removed after their retention time.", prometheus.CounterValue, func(s *store.Stats) float64 { return float64(s.Expired) }},
	{"quell_server_segments", "Segments in the store.", prometheus.GaugeValue, func(s *store.Stats) float64 { return float64(s.Segments) }},
	{"quell_server_stored_rows", "Rows in the store.", prometheus.GaugeValue, func(s *store.Stats) float64 { return float64(s.Rows) }},
	{"quell_server_stored_bytes", "Size of the segments in the store, bytes.", prometheus.GaugeValue, func(s *store.Stats) float64 { return float64(s.Bytes) }},
	{"quell_server_pending_rows", "Samples and records accepted and not yet committed.", prometheus.GaugeValue, func(s *store.Stats) float64 { return float64(s.Pending) }},
}

func newMetrics(s *Server) *metrics {
	r := prometheus.NewRegistry()
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quell_server_requests_total", Help: "Answers of the API, by path and status."}, []string{"path", "status"}),
		seconds:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quell_server_request_seconds_total", Help: "Time spent on answers of the API, s, by path."}, []string{"path"}),
		refused:  prometheus.NewCounter(prometheus.CounterOpts{Name: "quell_server_refused_total", Help: "Requests and bus clients that were refused."}),
	}
	r.MustRegister(m.requests, m.seconds, m.refused, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), &storeCollector{s})
	r.MustRegister(s.Collectors...)
	m.registry = r
	m.handler = promhttp.HandlerFor(r, promhttp.HandlerOpts{})
	return m
}

func (m *metrics) request(rt *route, status int, took time.Duration) {
	m.requests.WithLabelValues(rt.path, strconv.Itoa(status)).Inc()
	m.seconds.WithLabelValues(rt.path).Add(took.Seconds())
}

// storeCollector reads the store at each collection.
type storeCollector struct{ s *Server }

func (c *storeCollector) Describe(chan<- *prometheus.Desc) {} // unchecked: the table describes them

func (c *storeCollector) Collect(out chan<- prometheus.Metric) {
	st := c.s.Store.Stats()
	for _, m := range storeMetrics {
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc(m.name, m.help, nil, nil), m.kind, m.value(&st))
	}
	c.s.specs.mu.Lock()
	known, took, at := len(c.s.specs.by), c.s.specs.took, c.s.specs.at
	leftOut := 0
	for _, v := range c.s.specs.by {
		if v.MachinesOut > 0 {
			leftOut++
		}
	}
	c.s.specs.mu.Unlock()
	gauge := func(name, help string, v float64) {
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, v)
	}
	gauge("quell_server_specs", "Specs in any state.", float64(known))
	gauge("quell_server_specs_left_out", "Specs from which machines were left out because their costs are far from those of the others.", float64(leftOut))
	gauge("quell_server_spec_seconds", "Time that the newest computation of specs took, s.", took.Seconds())
	gauge("quell_server_spec_timestamp_seconds", "Time of the newest computation of specs, s since 1970; 0 before the first.", float64(at)/1000)
	ends := map[string]time.Time{} // the last one of each name
	for _, e := range c.s.expiries() {
		if e.Ends.After(ends[e.What]) {
			ends[e.What] = e.Ends
		}
	}
	for what, at := range ends {
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc("quell_server_expiry_timestamp_seconds", "Time when a certificate or token expires, s since 1970; none if it does not.", []string{"what"}, nil),
			prometheus.GaugeValue, float64(at.Unix()), what)
	}
	gauge("quell_server_answer_bytes", "Memory of requests and answers in progress, bytes; at most limits.answers_mb.", float64(c.s.memory.held()))
	if c.s.Backlog != nil {
		b := c.s.Backlog()
		gauge("quell_server_waiting_bytes", "Agents' messages in memory that are not read yet, bytes; at most bus.waiting_mb and a quarter.", float64(b.Bytes))
		gauge("quell_server_oldest_message_seconds", "How long the oldest message has waited to be stored, s; its agent sends no other until then.", b.Oldest.Seconds())
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc("quell_server_refused_deliveries_total", "Deliveries of agents for which there was no room in memory; they are sent again.", nil, nil),
			prometheus.CounterValue, float64(b.Refused))
	}
	if c.s.Credentials != nil {
		now := c.s.Credentials()
		expires := 0.0
		if !now.Expires.IsZero() {
			expires = float64(now.Expires.Unix())
		}
		gauge("quell_server_credentials_expire_timestamp_seconds", "When the server's own credentials for the bus expire, s since 1970; 0 if never.", expires)
		gauge("quell_server_credentials_due", "Holders of credentials for the bus that should get new ones.", float64(now.Due))
	}
	gauge("quell_server_event_streams", "Open event streams.", float64(c.s.hub.count()))
}

// Gatherer returns the server's metrics.
func (s *Server) Gatherer() prometheus.Gatherer { return s.metrics.registry }

func (s *Server) serveMetrics(w http.ResponseWriter, r *request) error {
	s.metrics.handler.ServeHTTP(w, r.Request)
	return nil
}
