// Package otlp exports the server's metrics, and incidents as log events, to OpenTelemetry by
// OTLP over HTTP. The server does it and not the agent: OpenTelemetry's SDK adds 7.7 MB to a
// program of 16 MB, and agents' records pass the server anyway.
package otlp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
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
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/format/printable"
)

// mostOpen bounds the incidents whose last event is remembered: agents name them.
const mostOpen = 10_000

// Exporter sends until Close. Nothing waits for the collector: OpenTelemetry's SDK keeps 2,048
// events, and drops the oldest.
type Exporter struct {
	metrics *metric.MeterProvider
	logs    *sdklog.LoggerProvider
	logger  log.Logger

	mu   sync.Mutex
	said map[string]state // by machine and ID of open incidents
}

// state is what makes another event of an incident.
type state struct {
	suspect, outcome string
	level            detect.Level
}

// New starts the export of what is gathered.
func New(ctx context.Context, c *config.ServerOTLP, version string, gather prom.Gatherer, report *slog.Logger) (*Exporter, error) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { report.Warn("export to OpenTelemetry", "reason", err) }))
	base, err := url.Parse(c.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("otlp.endpoint: %w", err)
	}
	of := resource.NewSchemaless(attribute.String("service.name", "quell-server"), attribute.String("service.version", version))
	metrics, err := otlpmetrichttp.New(ctx, otlpmetrichttp.WithEndpointURL(base.JoinPath("v1/metrics").String()))
	if err != nil {
		return nil, fmt.Errorf("export metrics: %w", err)
	}
	logs, err := otlploghttp.New(ctx, otlploghttp.WithEndpointURL(base.JoinPath("v1/logs").String()))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("export events: %w", err), metrics.Shutdown(ctx))
	}
	reader := metric.NewPeriodicReader(metrics, metric.WithInterval(c.Every), metric.WithProducer(bridge.NewMetricProducer(bridge.WithGatherer(gather))))
	e := &Exporter{metrics: metric.NewMeterProvider(metric.WithReader(reader), metric.WithResource(of)),
		logs: sdklog.NewLoggerProvider(sdklog.WithProcessor(sdklog.NewBatchProcessor(logs)), sdklog.WithResource(of)), said: map[string]state{}}
	e.logger = e.logs.Logger("quell")
	return e, nil
}

// Close sends what is left, until ctx ends.
func (e *Exporter) Close(ctx context.Context) error {
	return errors.Join(e.metrics.Shutdown(ctx), e.logs.Shutdown(ctx))
}

// Incident makes an event of an incident that is new, that names another suspect or is surer
// of it, that has another outcome, or that has ended.
func (e *Exporter) Incident(r *incident.Record) {
	key, name := r.Machine+"/"+r.ID, ""
	now := state{outcome: string(r.Outcome)}
	s := r.Antagonist()
	if s != nil {
		now.suspect, now.level = s.Name.String(), s.Level
	}
	e.mu.Lock()
	before, known := e.said[key]
	switch {
	case r.Closed != 0:
		name = "quell.incident.closed"
		delete(e.said, key)
	case !known && len(e.said) < mostOpen:
		name = "quell.incident.opened"
		e.said[key] = now
	case before != now:
		name = "quell.incident.changed"
		if known {
			e.said[key] = now
		}
	}
	e.mu.Unlock()
	if name != "" {
		e.logger.Emit(context.Background(), event(name, r, s))
	}
}

// event is an incident as a record of OpenTelemetry's log data model.
func event(name string, r *incident.Record, s *detect.Suspect) (l log.Record) {
	l.SetEventName(name)
	l.SetTimestamp(r.Updated.Time())
	l.SetObservedTimestamp(time.Now())
	l.SetSeverity(log.SeverityInfo)
	text := func(key, value string) {
		if value != "" {
			l.AddAttributes(attribute.String("quell."+key, printable.Text(value)))
		}
	}
	text("incident.id", r.ID)
	text("machine", r.Machine)
	text("signal", string(r.Signal))
	text("kind", r.Kind.String())
	text("victim.job", string(r.Victim.Job))
	text("victim.task", r.Victim.Name.String())
	text("outcome", string(r.Outcome))
	text("reason", r.Reason)
	text("advice", r.Advice)
	l.AddAttributes(attribute.Float64("quell.cost", r.Cost), attribute.Float64("quell.threshold", r.Threshold))
	body := fmt.Sprintf("%s on %s: %s", printable.Text(string(r.Victim.Job)), printable.Text(r.Machine), r.Kind)
	if s != nil {
		text("suspect.job", string(s.Job))
		text("suspect.task", s.Name.String())
		text("suspect.level", s.Level.String())
		body += fmt.Sprintf(", %s (%s)", printable.Text(string(s.Job)), s.Level)
		if s.Level >= detect.Likely && r.Closed == 0 {
			l.SetSeverity(log.SeverityWarn)
		}
	}
	for _, p := range r.Profiles {
		if p.Task == r.Victim.Name {
			text("victim.profile", p.URL)
		} else if s != nil && p.Task == s.Name {
			text("suspect.profile", p.URL)
		}
	}
	l.SetBody(attribute.StringValue(body))
	return l
}
