package agent

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// A scrape waits for the loop, but not for ever, and has the values of the present instant.
func TestAScrapeOfABusyLoop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.add("/batch/job-1", 0.5)
		r.start()
		r.pass(10 * time.Second)
		scrape := func() (int, string, time.Duration) {
			t.Helper()
			w := httptest.NewRecorder()
			before := time.Now()
			r.agent.MetricsServer().Handler.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
			return w.Code, w.Body.String(), time.Since(before)
		}
		held := make(chan struct{})
		go r.agent.ask(t.Context(), func() {
			close(held)
			<-time.After(maxScrapeWait + 3*time.Second)
		})
		<-held
		if code, text, waited := scrape(); code != 503 || !strings.Contains(text, "ask the agent's loop") || waited != maxScrapeWait {
			t.Errorf("when the loop is busy for long: %d %s after %s", code, text, waited)
		}
		if code, text, waited := scrape(); code != 200 || !strings.Contains(text, "\nquell_tasks 1\n") || waited != 3*time.Second {
			t.Errorf("when it goes on: %d %s after %s", code, text, waited)
		}
		// A scrape after an operator's command shows its effect before the loop's next
		// iteration.
		r.do(enforcing("off", "test"))
		if _, text, _ := scrape(); !strings.Contains(text, "\nquell_enforcement_mode 0\n") {
			t.Error("the mode is not the one that was just set")
		}
		r.stop()
		if code, _, _ := scrape(); code != 503 {
			t.Errorf("stopped: %d", code)
		}
	})
}
