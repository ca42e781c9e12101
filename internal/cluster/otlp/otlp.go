// Package otlp exports the server's metrics, and incidents as log events, to OpenTelemetry, by OTLP
// over HTTP. The server does it and not the agent: agents stay small, need neither the collector's
// address nor its token, and their incidents pass the server anyway.
package otlp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/log"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/cluster/notify"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
)

// Agents name incidents. mostOpen bounds those whose last event is remembered, mostOfMachine the
// events of a machine in an hour.
const mostOpen, mostOfMachine = 10_000, 600

// Options configure an Exporter.
type Options struct {
	Config  config.ServerOTLP
	Version string
	Results notify.Results
	Log     *slog.Logger
}

// Exporter makes events of incidents and sends them and metrics while it runs. Nothing waits for
// the collector: what its queue does not take is counted.
type Exporter struct {
	Options
	client  *http.Client
	host    string
	metrics *otlpmetrichttp.Exporter
	logs    *otlploghttp.Exporter
	queue   *notify.Queue[log.Record]
	closing time.Duration

	mu     sync.Mutex
	said   map[key]state // of open incidents
	budget notify.Budget
}

type key struct{ machine, id string }

// state is what makes another event of an incident.
type state struct {
	suspect, outcome string
	level            detect.Level
	provisional      bool
}

// New makes an Exporter; nil if no collector is configured. Run sends.
func New(o Options) (*Exporter, error) {
	if o.Config.URL == "" {
		return nil, nil
	}
	client, err := notify.NewClient("otlp", &o.Config.ServerPeer)
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	e := &Exporter{Options: o, client: client, host: host, queue: notify.NewQueue[log.Record]("otlp", o.Results), closing: closing, said: map[key]state{}, budget: notify.Budget{Most: mostOfMachine}}
	ctx, base := context.Background(), strings.TrimSuffix(o.Config.URL, "/")
	if e.metrics, err = otlpmetrichttp.New(ctx, otlpmetrichttp.WithEndpointURL(base+"/v1/metrics"), otlpmetrichttp.WithHTTPClient(client),
		otlpmetrichttp.WithCompression(otlpmetrichttp.GzipCompression)); err != nil {
		return nil, fmt.Errorf("otlp: metrics: %w", err)
	}
	if e.logs, err = otlploghttp.New(ctx, otlploghttp.WithEndpointURL(base+"/v1/logs"), otlploghttp.WithHTTPClient(client),
		otlploghttp.WithCompression(otlploghttp.GzipCompression)); err != nil {
		return nil, fmt.Errorf("otlp: events: %w", err)
	}
	return e, nil
}

// Incident makes an event of an incident that is new, that names another suspect or is surer of it,
// that has another outcome, whose spec is ready, or that has ended.
func (e *Exporter) Incident(r *incident.Record) {
	k, name := key{r.Machine, notify.Clip(r.ID)}, ""
	now := state{outcome: notify.Clip(string(r.Outcome)), provisional: r.SpecSamples > 0}
	if s := r.Antagonist(); s != nil {
		now.suspect, now.level = notify.Clip(string(s.Name)), s.Level
	}
	e.mu.Lock()
	before, known := e.said[k]
	switch {
	case r.Closed != 0:
		name = "quell.incident.closed"
		delete(e.said, k)
	case !known:
		name = "quell.incident.opened"
	case before != now:
		name = "quell.incident.changed"
	}
	room := name == "" || e.budget.Take(r.Machine, time.Now())
	if room && r.Closed == 0 { // what is not said is not remembered: a machine that invents incidents displaces no others
		if !known && len(e.said) >= mostOpen {
			clear(e.said) // the next event of each calls it opened again
		}
		e.said[k] = now
	}
	e.mu.Unlock()
	switch {
	case !room:
		e.queue.Drop()
	case name != "":
		e.queue.Add(record(name, r))
	}
}

// Run sends events and what is gathered until ctx ends, and then the metrics once more.
func (e *Exporter) Run(ctx context.Context, gather prom.Gatherer) {
	defer e.client.CloseIdleConnections()
	// Results are noted where they arise. What else the SDK reports is about single metrics.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { e.Log.Debug("export to OpenTelemetry", "reason", err) }))
	of := resource.NewSchemaless(attribute.String("service.name", "quell-server"), attribute.String("service.version", e.Version),
		attribute.String("service.instance.id", e.host))
	status := func(name string) notify.Status { return notify.Status{Name: name, Results: e.Results, Log: e.Log} }
	reader := metric.NewPeriodicReader(&noted{Exporter: e.metrics, status: status("otlp-metrics")}, metric.WithInterval(e.Config.Every),
		metric.WithProducer(bridge.NewMetricProducer(bridge.WithGatherer(gather))))
	metrics := metric.NewMeterProvider(metric.WithReader(reader), metric.WithResource(of))
	batch, events := &batch{}, status("otlp")
	logger := sdklog.NewLoggerProvider(sdklog.WithProcessor(batch), sdklog.WithResource(of)).Logger("quell")
	e.queue.Run(ctx, func(ctx context.Context, all []log.Record) {
		batch.records = nil
		for i := range all {
			logger.Emit(ctx, all[i])
		}
		if err := e.logs.Export(ctx, batch.records); ctx.Err() == nil {
			events.Note(len(all), err)
		}
	})
	shut, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.closing)
	defer cancel()
	if err := errors.Join(metrics.Shutdown(shut), e.logs.Shutdown(shut)); err != nil {
		e.Log.Debug("end the export to OpenTelemetry", "reason", err)
	}
}
