package otlp

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/quell-dev/quell/internal/cluster/notify"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
)

// closing is how long the last metrics may take when the server ends.
const closing = 2 * time.Second

// batch is a processor of OpenTelemetry's SDK that keeps records until they are exported together.
// The SDK's own queue does not count what it drops.
type batch struct{ records []sdklog.Record }

// OnEmit implements sdklog.Processor.
func (b *batch) OnEmit(_ context.Context, r *sdklog.Record) error {
	b.records = append(b.records, r.Clone())
	return nil
}

// Enabled implements sdklog.Processor.
func (b *batch) Enabled(context.Context, sdklog.EnabledParameters) bool { return true }

// Shutdown implements sdklog.Processor.
func (b *batch) Shutdown(context.Context) error { return nil }

// ForceFlush implements sdklog.Processor.
func (b *batch) ForceFlush(context.Context) error { return nil }

// noted notes the results of an exporter.
type noted struct {
	metric.Exporter
	status notify.Status
}

// Export implements metric.Exporter.
func (n *noted) Export(ctx context.Context, all *metricdata.ResourceMetrics) error {
	err := n.Exporter.Export(ctx, all)
	n.status.Note(1, err)
	return err
}

// record is an incident as a record of OpenTelemetry's log data model. Its texts come from agents.
func record(name string, e *incident.Record) (l log.Record) {
	s := e.Antagonist()
	l.SetEventName(name)
	l.SetTimestamp(e.Updated.Time())
	l.SetObservedTimestamp(time.Now())
	l.SetSeverity(log.SeverityInfo)
	text := func(key, value string) {
		if value != "" {
			l.AddAttributes(attribute.String("quell."+key, notify.Clip(value)))
		}
	}
	text("incident.id", e.ID)
	text("machine", e.Machine)
	text("signal", string(e.Signal))
	text("kind", e.Kind.String())
	text("victim.job", string(e.Victim.Job))
	text("victim.task", string(e.Victim.Name))
	text("outcome", string(e.Outcome))
	text("reason", e.Reason)
	text("advice", e.Advice)
	l.AddAttributes(attribute.Float64("quell.cost", e.Cost), attribute.Float64("quell.threshold", e.Threshold))
	body := fmt.Sprintf("%s on %s: %s", notify.JobOf(&e.Victim), notify.Clip(e.Machine), e.Kind)
	if s != nil {
		text("suspect.job", string(s.Job))
		text("suspect.task", string(s.Name))
		text("suspect.level", s.Level.String())
		body += fmt.Sprintf(", %s (%s)", notify.JobOf(&s.Task), s.Level)
		if s.Level >= detect.Likely && e.Closed == 0 && e.SpecSamples == 0 { // not by a provisional spec
			l.SetSeverity(log.SeverityWarn)
		}
	}
	profile := func(key string, t *sample.Task) {
		if i := slices.IndexFunc(e.Profiles, func(p incident.Profile) bool { return p.Task == t.Name }); i >= 0 {
			text(key, e.Profiles[i].URL)
		}
	}
	profile("victim.profile", &e.Victim)
	if s != nil {
		profile("suspect.profile", &s.Task)
	}
	l.SetBody(attribute.StringValue(body))
	return l
}
