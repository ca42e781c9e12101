//go:build helm

package chart

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/cluster/notify"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestEvents: a real API server takes the server's events with the chart's rights, and not before
// it has them.
func TestEvents(t *testing.T) {
	c := startCluster(t, t.TempDir())
	for _, name := range []string{"shop", "etl", "quell"} {
		c.namespace(name, "privileged")
	}
	c.definitions()
	c.kubectl("", "-n", "quell", "create", "serviceaccount", "quell-server")
	token := c.kubectl("", "-n", "quell", "create", "token", "quell-server")
	log := &quelltest.Output{}
	conf := config.DefaultServer().Notify
	conf.Kubernetes.URL, conf.Kubernetes.CA, conf.Kubernetes.TokenFile = c.url, c.dir+"/certs/apiserver.crt", c.write("server-token", token)
	n, err := notify.New(notify.Options{Config: conf, Results: notify.NewResults(), Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); n.Run(ctx) }()
	defer func() { cancel(); <-done }()

	count := func(result string) float64 {
		return testutil.ToFloat64(n.Results.WithLabelValues("kubernetes", result))
	}
	fire := func(id string) {
		r := persistent("m1", "encode-7")
		r.ID, r.Escalation, r.Signal, r.Cost, r.Threshold = id, nil, sample.CPI, 3, 1.5
		r.Victim.Name, r.Victim.Job = "shop/web-5d8f7c9b6d-x7k2p/app", sample.JobName("shop/"+id+"/app") // a pair for each, else they cool down
		r.Suspects[0].Name, r.Suspects[0].Job, r.Advice = "etl/encode-7/main", "etl/encode/main", strings.Repeat("\x1b[2J\n", 1000)
		n.Incident(r)
	}
	fire("0")
	quelltest.Until(t, "the account may not yet create events", func() bool { return strings.Contains(log.String(), "403 Forbidden") })
	c.kubectl(rendered(t, "testdata/full.yaml", "server.events=true"), "apply", "--server-side", "--force-conflicts", "-f", "-")
	for i := 0; count("sent") == 0; i++ { // until the authorizer knows the role
		failed := count("failed")
		fire(fmt.Sprint("w", i))
		quelltest.Until(t, "the API server has answered", func() bool { return count("sent") > 0 || count("failed") > failed })
	}
	if strings.Contains(log.String(), token) {
		t.Error("the token is in the log")
	}
	var got struct{ Items []object }
	for _, path := range []string{"/apis/events.k8s.io/v1/namespaces/shop/events",
		// What kubectl events --for pod/NAME asks for.
		"/api/v1/namespaces/shop/events?fieldSelector=involvedObject.kind=Pod,involvedObject.name=web-5d8f7c9b6d-x7k2p"} {
		text, err := c.get(path)
		if err != nil || json.Unmarshal(text, &got) != nil || len(got.Items) != 1 {
			t.Fatalf("%s: %v, %s", path, err, text)
		}
		if strings.HasPrefix(path, "/api/") {
			continue
		}
		e := got.Items[0]
		if at(e, "regarding", "name") != "web-5d8f7c9b6d-x7k2p" || at(e, "related", "namespace") != "etl" || e["type"] != "Warning" || e["reason"] != "NoisyNeighbour" || e["reportingController"] != "quell-server" ||
			!strings.Contains(e["note"].(string), `is slowed by etl/encode/main (proven): cpi is 3, its threshold 1.5. \x1b[2J\n`) {
			t.Errorf("%+v", e)
		}
	}
}
