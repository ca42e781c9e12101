//go:build otlp

package otlp

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// OpenTelemetry's collector ($QUELL_OTELCOL; make test-otlp builds it) receives the metrics and the
// events, and prints them.
func TestCollector(t *testing.T) {
	dir, address := t.TempDir(), quelltest.FreeAddress(t)
	conf := filepath.Join(dir, "collector.yaml")
	text := fmt.Sprintf(`receivers: {otlp: {protocols: {http: {endpoint: "%s"}}}}
exporters: {debug: {verbosity: detailed}}
service:
  telemetry: {metrics: {level: none}}
  pipelines:
    metrics: {receivers: [otlp], exporters: [debug]}
    logs: {receivers: [otlp], exporters: [debug]}
`, address)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	printed := &quelltest.Output{}
	cmd := exec.Command(os.Getenv("QUELL_OTELCOL"), "--config="+conf)
	cmd.Stdout, cmd.Stderr = printed, printed
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() { cmd.Wait(); close(gone) }()
	t.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt)
		<-gone
		if t.Failed() {
			t.Logf("the collector printed\n%s", printed)
		}
	})
	quelltest.Until(t, "the collector listens", func() bool {
		select {
		case <-gone:
			t.Fatal("the collector has ended")
		default:
		}
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	e, results := exporter(t, "http://"+address)
	registry := prom.NewRegistry()
	registry.MustRegister(results)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { e.Run(ctx, registry); close(ended) }()
	hog := detect.Suspect{Task: sample.Task{Name: "/hog\x1b[2J\nEventName: fake/1", Job: "hog"}, Grounds: detect.Grounds{Level: detect.Proven}}
	e.Incident(&incident.Record{Incident: plan.Incident{ID: "inc-1", Machine: "m1", Signal: sample.CPI, Victim: sample.Task{Name: "/web/1", Job: "web"}, Updated: 1000,
		Analysis: plan.Analysis{Result: detect.Result{Kind: detect.Neighbour, Cost: 3, Threshold: 1.5, Suspects: []detect.Suspect{hog}, Antagonists: 1}}}})
	quelltest.Until(t, "the event is sent", func() bool { return testutil.ToFloat64(results.WithLabelValues("otlp", "sent")) == 1 })
	stop()
	<-ended // the metrics are sent at the end
	if got := testutil.ToFloat64(results.WithLabelValues("otlp-metrics", "sent")); got != 1 {
		t.Errorf("metrics were sent %v times", got)
	}
	all := []string{"EventName: quell.incident.opened", "SeverityNumber: Warn(13)", "Body: Str(web on m1: neighbour, hog (proven))", "quell.incident.id: Str(inc-1)",
		`quell.suspect.task: Str(/hog\x1b[2J\nEventName: fake/1)`, "quell.cost: Double(3)", "service.name: Str(quell-server)",
		"Name: quell_server_notifications_total", "receiver: Str(otlp)", "result: Str(sent)"}
	for _, want := range all {
		quelltest.Until(t, "the collector prints "+want, func() bool { return strings.Contains(strings.ReplaceAll(printed.String(), "-> ", ""), want) })
	}
	if strings.Contains(printed.String(), "\nEventName: fake") {
		t.Error("a task's name made an event")
	}
}
