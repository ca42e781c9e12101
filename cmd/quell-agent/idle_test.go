package main

import (
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestIdleClients: 700 idle connections to /metrics, which any user can make, leave the agent
// the descriptors to undo a cap in time and to answer, although its limit is 512.
func TestIdleClients(t *testing.T) {
	c := newLimited(t, "idle", "-1", "wait")
	dir := state(t)
	d := startLimited(t, dir, 512, append(settings(dir), "--config", configFile(t, dir, c.path))...)
	m := regexp.MustCompile(`metrics=(127\.0\.0\.1:\d+)`).FindStringSubmatch(d.log.String())
	if m == nil {
		t.Fatalf("the log does not say where the metrics are:\n%s", d.log.String())
	}
	d.capFor(c, 5*time.Second)
	for i := range 700 {
		conn, err := net.Dial("tcp", m[1])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if i%2 == 0 {
			fmt.Fprint(conn, "GET /metrics HTTP/1.1\r\nX-Slow: ")
		}
	}
	quelltest.Until(t, "the cap is undone", func() bool { return c.quota() == "-1 100000" })
	resp, err := http.Get("http://" + m[1] + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK || strings.Contains(d.log.String(), "too many open files") {
		t.Errorf("%s; the log:\n%s", resp.Status, d.log.String())
	}
}
