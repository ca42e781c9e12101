package agent

import (
	"context"
	"net/http/httptest"
	"strings"
	"sync"
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

// TestAttackScrapesWithoutAPause: clients that ask for metrics without a pause have the agent spend an eleventh of the
// time on them, and each has values of after its question soon.
func TestAttackScrapesWithoutAPause(t *testing.T) {
	bubble(t, func(t *testing.T) {
		made := 0 // by the only one whose turn it is
		s := &scraper{turn: make(chan struct{}, 1), gather: func(context.Context) ([]byte, error) {
			text := time.Now().Format(time.RFC3339Nano)
			made++
			<-time.After(10 * time.Millisecond)
			return []byte(text), nil
		}}
		const long = 11 * time.Second
		ends := time.Now().Add(long)
		var clients sync.WaitGroup
		for range 64 {
			clients.Go(func() {
				for asked := time.Now(); asked.Before(ends); asked = time.Now() {
					text, err := s.get(t.Context())
					at, bad := time.Parse(time.RFC3339Nano, string(text))
					if err != nil || bad != nil || at.Before(asked) || time.Since(asked) > 300*time.Millisecond {
						t.Errorf("asked at %s: %s after %s, %v", asked, text, time.Since(asked), err)
						return
					}
				}
			})
		}
		clients.Wait()
		if made > 110 {
			t.Errorf("made %d times in %s", made, long)
		}
	})
}
