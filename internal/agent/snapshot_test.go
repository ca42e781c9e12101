package agent

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// A scrape does not wait for the loop, whatever the loop does: it gets the values of
// the loop's last iteration and, if that is long ago, an error.
func TestAScrapeDoesNotWaitForTheLoop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.add("/batch/job-1", 0.5)
		r.start()
		r.pass(10 * time.Second)
		scrape := func() (int, string) {
			t.Helper()
			w := httptest.NewRecorder()
			before := time.Now()
			r.agent.MetricsServer().Handler.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
			if waited := time.Since(before); waited != 0 {
				t.Errorf("a scrape waited for %s", waited)
			}
			return w.Code, w.Body.String()
		}
		held := make(chan struct{})
		go r.agent.ask(t.Context(), func() {
			close(held)
			<-time.After(staleAfter + 30*time.Second)
		})
		<-held
		if code, text := scrape(); code != 200 || !strings.Contains(text, "\nquell_tasks 1\n") {
			t.Errorf("while the loop is busy: %d %s", code, text)
		}
		<-time.After(staleAfter + time.Second)
		if code, text := scrape(); code != 503 || !strings.Contains(text, "has not run for 1m") {
			t.Errorf("when it has been busy for long: %d %s", code, text)
		}
		r.pass(time.Minute)
		if code, _ := scrape(); code != 200 {
			t.Errorf("when it goes on: %d", code)
		}
		// A scrape after an operator's command shows its effect before the loop's next
		// iteration.
		r.do(enforcing("off", "test"))
		if _, text := scrape(); !strings.Contains(text, "\nquell_enforcement_mode 0\n") {
			t.Error("the mode is not the one that was just set")
		}
		r.stop()
		if code, _ := scrape(); code != 503 {
			t.Errorf("stopped: %d", code)
		}
	})
}
