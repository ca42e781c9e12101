package otlp

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.opentelemetry.io/otel/log"
	logspb "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	metricspb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"google.golang.org/protobuf/proto"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/cluster/notify"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// receiver decodes requests by OpenTelemetry's own definitions.
type receiver struct {
	t       *testing.T
	mu      sync.Mutex
	metrics map[string]float64
	events  []string
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	var in io.Reader = q.Body
	if q.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(q.Body)
		if err != nil {
			r.t.Error(err)
			return
		}
		in = z
	}
	body, err := io.ReadAll(in)
	if err != nil {
		r.t.Error(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch q.URL.Path {
	case "/base/v1/metrics":
		var m metricspb.ExportMetricsServiceRequest
		if err := proto.Unmarshal(body, &m); err != nil {
			r.t.Error(err)
		}
		for _, resource := range m.ResourceMetrics {
			for _, scope := range resource.ScopeMetrics {
				for _, one := range scope.Metrics {
					r.metrics[one.Name] = one.GetGauge().GetDataPoints()[0].GetAsDouble()
				}
			}
		}
	case "/base/v1/logs":
		var l logspb.ExportLogsServiceRequest
		if err := proto.Unmarshal(body, &l); err != nil {
			r.t.Error(err)
		}
		for _, resource := range l.ResourceLogs {
			for _, scope := range resource.ScopeLogs {
				for _, one := range scope.LogRecords {
					var attributes []string
					for _, a := range one.Attributes {
						v := a.Value.GetStringValue()
						if v == "" {
							v = fmt.Sprint(a.Value.GetDoubleValue())
						}
						attributes = append(attributes, strings.TrimPrefix(a.Key, "quell.")+"="+v)
					}
					slices.Sort(attributes)
					r.events = append(r.events, fmt.Sprintf("%s %s %q %s", one.EventName, one.SeverityNumber, one.Body.GetStringValue(), strings.Join(attributes, " ")))
				}
			}
		}
	default:
		r.t.Errorf("%s", q.URL)
	}
}

// exporter makes an Exporter that sends metrics at its end only.
func exporter(t *testing.T, url string) (*Exporter, notify.Results) {
	t.Helper()
	results := notify.NewResults()
	e, err := New(Options{Config: config.ServerOTLP{URL: url, Every: time.Hour}, Version: "test", Results: results, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	e.closing = 4 * time.Minute // a guard: what the metrics at the end are is tested, and not when
	return e, results
}

// A decoder of OpenTelemetry's own definitions gets metrics and events. make test-otlp has a
// collector in its place.
func TestMetricsAndIncidentsAreExported(t *testing.T) {
	r := &receiver{t: t, metrics: map[string]float64{}}
	s := httptest.NewServer(r)
	defer s.Close()
	registry := prom.NewRegistry()
	g := prom.NewGauge(prom.GaugeOpts{Name: "quell_server_segments", Help: "Segments."})
	g.Set(7)
	registry.MustRegister(g)
	e, results := exporter(t, s.URL+"/base")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { e.Run(ctx, registry); close(ended) }()
	hog := detect.Suspect{Task: sample.Task{Name: "/hog/1", Job: "hog"}, Grounds: detect.Grounds{Level: detect.Possible}}
	inc := incident.Record{Incident: plan.Incident{ID: "inc-1", Machine: "m\x1b1", Signal: sample.CPI, Victim: sample.Task{Name: "/web/1", Job: "web"}, Updated: 1000,
		Analysis: plan.Analysis{Result: detect.Result{Kind: detect.Nobody, Cost: 3, Threshold: 1.5}}}}
	e.Incident(&inc)
	e.Incident(&inc) // nothing new
	inc.Kind, inc.Suspects, inc.Findings = detect.Neighbour, []detect.Suspect{hog}, []plan.Finding{{Suspect: hog}}
	e.Incident(&inc)
	inc.Suspects[0].Level, inc.Antagonists = detect.Likely, 1
	inc.Profiles = []incident.Profile{{Task: "/hog/1", URL: "https://p.example/hog"}}
	e.Incident(&inc)
	inc.Closed, inc.Outcome = 2000, plan.TruePositive
	e.Incident(&inc)
	quelltest.Until(t, "the events are sent", func() bool { return testutil.ToFloat64(results.WithLabelValues("otlp", "sent")) == 4 })
	stop()
	<-ended
	if r.metrics["quell_server_segments"] != 7 || len(r.metrics) != 1 {
		t.Errorf("metrics %v", r.metrics)
	}
	const about = `incident.id=inc-1 kind=neighbour machine=m\x1b1`
	const victim = `threshold=1.5 victim.job=web victim.task=/web/1`
	want := []string{
		`quell.incident.opened SEVERITY_NUMBER_INFO "web on m\\x1b1: nobody" cost=3 incident.id=inc-1 kind=nobody machine=m\x1b1 signal=cpi ` + victim,
		`quell.incident.changed SEVERITY_NUMBER_INFO "web on m\\x1b1: neighbour, hog (possible)" cost=3 ` + about + ` signal=cpi suspect.job=hog suspect.level=possible suspect.task=/hog/1 ` + victim,
		`quell.incident.changed SEVERITY_NUMBER_WARN "web on m\\x1b1: neighbour, hog (likely)" cost=3 ` + about + ` signal=cpi suspect.job=hog suspect.level=likely suspect.profile=https://p.example/hog suspect.task=/hog/1 ` + victim,
		`quell.incident.closed SEVERITY_NUMBER_INFO "web on m\\x1b1: neighbour, hog (likely)" cost=3 ` + about + ` outcome=true-positive signal=cpi suspect.job=hog suspect.level=likely suspect.profile=https://p.example/hog suspect.task=/hog/1 ` + victim,
	}
	if !slices.Equal(r.events, want) {
		t.Errorf("events\n%s\nwant\n%s", strings.Join(r.events, "\n"), strings.Join(want, "\n"))
	}
	if len(e.said) != 0 {
		t.Errorf("closed incidents are remembered: %v", e.said)
	}
}

// What is found by a provisional spec is no warning, until the spec is ready.
func TestAProvisionalIncidentIsNoWarning(t *testing.T) {
	e, _ := exporter(t, "http://127.0.0.1:1")
	hog := detect.Suspect{Task: sample.Task{Name: "/hog/1", Job: "hog"}, Grounds: detect.Grounds{Level: detect.Likely}}
	inc := incident.Record{Incident: plan.Incident{ID: "inc-1", Machine: "m1", Victim: sample.Task{Name: "/web/1", Job: "web"},
		Analysis: plan.Analysis{Result: detect.Result{Kind: detect.Neighbour, Suspects: []detect.Suspect{hog}, Antagonists: 1}}}}
	for samples, want := range map[int64]log.Severity{27: log.SeverityInfo, 0: log.SeverityWarn} {
		inc.SpecSamples = samples
		e.Incident(&inc)
		if l := record("quell.incident.changed", &inc); l.Severity() != want || e.said[key{"m1", "inc-1"}].provisional != (samples > 0) {
			t.Errorf("%d samples: %s, remembered as %+v", samples, l.Severity(), e.said)
		}
	}
}

// Nothing waits for a collector, and what agents name is bounded.
func TestAFloodIsBounded(t *testing.T) {
	e, results := exporter(t, "http://127.0.0.1:1")
	for i := range mostOpen + 10 {
		e.Incident(&incident.Record{Incident: plan.Incident{ID: fmt.Sprint(i, strings.Repeat("\x1b", 5000)), Machine: "m"}})
	}
	if len(e.said) > mostOpen {
		t.Errorf("%d incidents are remembered", len(e.said))
	}
	for k := range e.said {
		if len(k.id) > 300 {
			t.Fatalf("a name has %d bytes", len(k.id))
		}
	}
	if got := testutil.ToFloat64(results.WithLabelValues("otlp", "dropped")); got < mostOpen-mostOfMachine {
		t.Errorf("%v were dropped", got)
	}
}

// TestAttackIncidentsThatDisplaceOthers: a machine that invents incidents does not have those of others forgotten. Else each
// further record of these would be another event, until their machines had used up what they may send.
func TestAttackIncidentsThatDisplaceOthers(t *testing.T) {
	e, _ := exporter(t, "http://127.0.0.1:1")
	honest := &incident.Record{Incident: plan.Incident{ID: "1", Machine: "m2"}}
	e.Incident(honest)
	for i := range 2 * mostOpen {
		e.Incident(&incident.Record{Incident: plan.Incident{ID: fmt.Sprint(i), Machine: "liar"}})
	}
	if _, known := e.said[key{"m2", "1"}]; !known || len(e.said) != 1+mostOfMachine {
		t.Errorf("%d incidents are remembered, that of another machine: %v", len(e.said), known)
	}
	// An event for which there was no room comes later.
	e.budget = notify.Budget{Most: mostOfMachine}
	e.Incident(&incident.Record{Incident: plan.Incident{ID: fmt.Sprint(mostOpen), Machine: "liar"}})
	if _, known := e.said[key{"liar", fmt.Sprint(mostOpen)}]; !known {
		t.Error("an incident is never said to be open")
	}
}

func TestNothingIsConfigured(t *testing.T) {
	if e, err := New(Options{}); e != nil || err != nil {
		t.Errorf("%v, %v", e, err)
	}
}

// A collector that refuses is counted and logged once, without what it says or the token.
func TestARefusal(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		io.WriteString(w, q.Header.Get("Authorization"))
	}))
	defer s.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("hidden"), 0o600); err != nil {
		t.Fatal(err)
	}
	log, results := &quelltest.Output{}, notify.NewResults()
	e, err := New(Options{Config: config.ServerOTLP{URL: s.URL, Every: time.Hour, ServerPeer: config.ServerPeer{TokenFile: token}}, Results: results, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { e.Run(ctx, prom.NewRegistry()); close(ended) }()
	for i := range 3 {
		e.Incident(&incident.Record{Incident: plan.Incident{ID: fmt.Sprint(i), Machine: "m"}})
		quelltest.Until(t, "the refusal is counted", func() bool { return testutil.ToFloat64(results.WithLabelValues("otlp", "failed")) == float64(i+1) })
	}
	stop()
	<-ended
	if text := log.String(); strings.Count(text, "receiver=otlp ") != 1 || !strings.Contains(text, "403 Forbidden") || strings.Contains(text, "hidden") {
		t.Error(text)
	}
}
