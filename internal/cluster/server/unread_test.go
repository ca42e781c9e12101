package server

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestAttackAnswersThatNobodyReads: a client that reads none of its answers is disconnected, whatever it
// asks for, with or without a token: it would else hold one of limits.connections for as long as it likes.
func TestAttackAnswersThatNobodyReads(t *testing.T) {
	const head = " HTTP/1.1\r\nHost: localhost\r\n"
	for name, ask := range map[string]string{
		"an answer":       "GET /openapi.json" + head + "\r\n",
		"a refusal":       "GET /v1/tasks" + head + "\r\n",
		"an unknown path": "GET /unknown" + head + "\r\n",
		"another method":  "DELETE /healthz" + head + "\r\n",
		"a redirection":   "GET //" + head + "\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(p *Options) {
				p.Tokens = tokens(t)
				p.Config.Limits.PerSecond, p.Config.Limits.Burst = 100_000, 100_000
			})
			b.patience = time.Millisecond
			var closed atomic.Bool
			web := httptest.NewUnstartedServer(b)
			web.Config.ConnState = func(_ net.Conn, s http.ConnState) {
				if s == http.StateClosed {
					closed.Store(true)
				}
			}
			web.Start()
			c := connected(t, web)
			go func() {
				many := strings.Repeat(ask, 1000)
				for err := error(nil); err == nil; { // until it is disconnected
					_, err = io.WriteString(c, many)
				}
			}()
			quelltest.Until(t, "it is disconnected", closed.Load)
		})
	}
}

// dated is an answer whose deadline for writing is recorded.
type dated struct {
	*httptest.ResponseRecorder
	until time.Time
}

// SetWriteDeadline is used by http.ResponseController.
func (a *dated) SetWriteDeadline(at time.Time) error {
	a.until = at
	return nil
}

// asked is a body that records the deadline for writing when it is read: net/http writes then that the client
// may send it (RFC 9110, section 10.1.1).
type asked struct {
	io.Reader
	answer *dated
	until  time.Time
}

// Read implements io.Reader.
func (a *asked) Read(p []byte) (int, error) {
	a.until = a.answer.until
	return a.Reader.Read(p)
}

// TestLeaveToSendABodyHasADeadline: what net/http writes before an answer must be taken in time as well.
func TestLeaveToSendABodyHasADeadline(t *testing.T) {
	b := newBench(t, nil)
	w := &dated{ResponseRecorder: httptest.NewRecorder()}
	body := &asked{Reader: strings.NewReader(`{"sql":"SELECT 1"}`), answer: w}
	r := httptest.NewRequest("POST", "/v1/query", body)
	r.RemoteAddr, r.Host = "127.0.0.1:4711", "localhost:9781"
	r.Header.Set("Content-Type", "application/json")
	if b.ServeHTTP(w, r); w.Code != http.StatusOK || body.until.IsZero() {
		t.Errorf("status %d, and the deadline is %v when the body is read", w.Code, body.until)
	}
}

// TestAttackAReaderThatKeepsASlot: the query of a client that does not read ends when its time is over, and
// others get its slot then: one list of the server's own runs at a time.
func TestAttackAReaderThatKeepsASlot(t *testing.T) {
	for _, path := range []string{"/v1/query", "/v1/incidents"} {
		t.Run(path, func(t *testing.T) {
			f := &flood{rows: 60_000}
			b := newBench(t, func(p *Options) {
				p.Asker, p.Config.Limits.AnswersMB, p.Config.Query.Time = f, 16, time.Millisecond
			})
			b.patience = time.Hour
			c := connected(t, httptest.NewServer(b))
			ask := "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n"
			if path == "/v1/query" {
				ask = "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 18\r\n\r\n" + `{"sql":"SELECT 1"}`
			}
			if _, err := io.WriteString(c, ask); err != nil {
				t.Fatal(err)
			}
			quelltest.Until(t, "the query is over", func() bool { return f.running.Load() == 0 && f.most.Load() == 1 })
		})
	}
}
