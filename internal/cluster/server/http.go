package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/duck"
	"github.com/quell-dev/quell/internal/core/sample"
)

// request is an authorised request of a known caller.
type request struct {
	*http.Request
	caller caller
	whole  func() // called when it has been read completely
}

// httpError is an error answer.
type httpError struct {
	status  int
	message string
	remedy  string
}

func (e *httpError) Error() string { return e.message }

func bad(format string, args ...any) error {
	return &httpError{http.StatusBadRequest, fmt.Sprintf(format, args...), "see /openapi.json"}
}

// ServeHTTP implements http.Handler. What net/http and the mux write by themselves, such as a redirection or
// the leave to send a body, must be taken in time too.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	seen := &watched{ResponseWriter: w, status: http.StatusOK, patience: s.patience}
	seen.expect(0)
	defer seen.expect(0) // net/http still writes the end
	seen.Header().Set("X-Content-Type-Options", "nosniff")
	s.mux.ServeHTTP(seen, r)
}

// guard checks authorisation, bounds what a request takes, and counts the answers.
func (s *Server) guard(rt *route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		begun := time.Now()
		seen := w.(*watched)
		// Otherwise the time limit for reading a request would end its context, and thus
		// every query and stream that takes longer.
		q := &request{Request: r, whole: func() { _ = http.NewResponseController(w).SetReadDeadline(time.Time{}) }} // tests have no deadline
		size := int64(0)
		if r.Body == http.NoBody {
			q.whole()
		} else if rt.in != nil { // other routes do not read it
			if size = r.ContentLength; size < 0 || size > s.maxBody() {
				size = s.maxBody()
			}
		}
		r.Body = http.MaxBytesReader(seen, r.Body, s.maxBody())
		err := s.identify(q, rt)
		if err == nil {
			err = s.withMemory(q, size, func() error { return rt.serve(s, seen, q) })
		}
		cut := err != nil && seen.begun
		if err != nil && !cut {
			fail(seen, err, s)
		}
		s.metrics.request(rt, seen.status, time.Since(begun))
		if cut {
			s.Log.Debug("an answer was cut off", "path", rt.path, "from", q.caller.from, "reason", err)
			panic(http.ErrAbortHandler)
		}
	}
}

func (s *Server) maxBody() int64 { return int64(s.Config.Limits.BodyKB) << 10 }

// withMemory does what takes n bytes while it runs, or refuses. What is small does not count:
// it is possible also while others take all memory that they may.
func (s *Server) withMemory(q *request, n int64, do func() error) error {
	if n <= piece {
		return do()
	}
	if !s.memory.take(q.caller.key, n) {
		return &httpError{http.StatusServiceUnavailable, "the requests and answers in progress take too much memory", "read answers as they come, and try again later"}
	}
	defer s.memory.give(q.caller.key, n)
	return do()
}

// identify determines the caller and checks its permission.
func (s *Server) identify(q *request, rt *route) error {
	q.caller.from, _, _ = net.SplitHostPort(q.RemoteAddr)
	header := q.Header.Get("Authorization")
	secret, bearer := strings.CutPrefix(header, "Bearer ")
	why := "a token is required"
	switch {
	case header != "" && !bearer:
		why = "Authorization is not of the form Bearer TOKEN"
	case bearer:
		var k token
		q.caller.sum = sumOf(strings.TrimSpace(secret))
		k, why = s.Tokens.find(q.caller.sum, s.Now())
		q.caller.name, q.caller.scope = k.name, k.scope
	case !s.Tokens.Required && local(q.Request):
		q.caller.scope = Viewer
	}
	known := q.caller.name != "" && q.caller.scope != Public
	q.caller.key = network(q.caller.from)
	if known {
		q.caller.key = "token " + q.caller.name
	}
	// A server whose probes are refused is killed, and others of the prober's network may have sent too many.
	if _, probe := rt.out.(Health); !s.callers.allow(q.caller.key, known) && !probe {
		return &httpError{http.StatusTooManyRequests, "too many requests", "send fewer requests"}
	}
	if q.caller.scope.allows(rt.scope) {
		if rt.scope == Public {
			return nil
		}
		err := s.fromAPage(q, rt)
		if err != nil {
			s.refuse(q, rt, err.Error())
		}
		return err
	}
	if q.caller.scope != Public {
		s.refuse(q, rt, "the token's scope is "+string(q.caller.scope))
		return &httpError{http.StatusForbidden, fmt.Sprintf("scope %s is required, the caller has %s", rt.scope, q.caller.scope), s.howToGet(rt.scope, true)}
	}
	s.refuse(q, rt, why)
	return &httpError{http.StatusUnauthorized, why, s.howToGet(rt.scope, bearer)}
}

// howToGet says how a caller gets a token with a scope. given: it has one, which does not do.
func (s *Server) howToGet(scope Scope, given bool) string {
	switch {
	case !s.Tokens.Required:
		return fmt.Sprintf("the server has no tokens_file, so it knows no token: set that key in its configuration, with the line that `quell-server token NAME %s` prints", scope)
	case given:
		return fmt.Sprintf("ask the server's operators for another token: `quell-server token NAME %s` prints one", scope)
	}
	return "set QUELL_TOKEN, or the header Authorization: Bearer TOKEN"
}

// network is what counts as one caller without a token: an address, of IPv6 its /64, of which a client has all.
func network(from string) string {
	at, err := netip.ParseAddr(from)
	if err != nil || at.Unmap().Is4() {
		return from
	}
	return netip.PrefixFrom(at.WithZone(""), 64).Masked().String()
}

// fromAPage refuses a request that a browser sends for a page of another site. A body must be
// JSON: a page can send any other type to any address without being asked for permission
// (https://fetch.spec.whatwg.org/#cors-safelisted-request-header).
func (s *Server) fromAPage(q *request, rt *route) error {
	acting := *q.Request
	acting.Method = http.MethodPost // reading takes queries too
	if err := s.origins.Check(&acting); err != nil {
		return &httpError{http.StatusForbidden, "the request comes from a page of another site", "use a program that is no browser, such as quell or curl"}
	}
	if rt.in == nil {
		return nil
	}
	if kind, _, err := mime.ParseMediaType(q.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return &httpError{http.StatusUnsupportedMediaType, "the request's Content-Type is not application/json", "set the header Content-Type: application/json"}
	}
	return nil
}

func (s *Server) refuse(q *request, rt *route, why string) {
	a := q.caller.audit(rt.method + " " + rt.path)
	a.Outcome = why
	s.Refused(a)
}

// local reports whether a request comes from a program on this machine that addresses
// this server deliberately. A web page whose own domain name resolves to this address
// (DNS rebinding) sends that name as Host and is rejected.
func local(r *http.Request) bool {
	from, _, _ := net.SplitHostPort(r.RemoteAddr)
	if ip := net.ParseIP(from); ip == nil || !ip.IsLoopback() {
		return false
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// audit returns an entry of the audit log for a request of the caller.
func (c *caller) audit(what string) store.Audit {
	return store.Audit{Who: c.name, From: c.from, Scope: string(c.scope), What: what}
}

// fail answers with an error.
func fail(w http.ResponseWriter, err error, s *Server) {
	status, f := http.StatusInternalServerError, api.Failure{Error: err.Error()}
	var own *httpError
	var asked *duck.Error
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &own):
		status, f.Remedy = own.status, own.remedy
	case errors.As(err, &large):
		status, f.Remedy = http.StatusRequestEntityTooLarge, "send a smaller request"
	case errors.As(err, &asked):
		f.Remedy = asked.Remedy()
		switch asked.Kind {
		case duck.Refused, duck.Wrong:
			status = http.StatusBadRequest
		case duck.Exceeded:
			status = http.StatusUnprocessableEntity
		}
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if status == http.StatusInternalServerError {
		s.Log.Error("answer", "reason", err)
	}
	_ = reply(w, status, f) // on failure the client has disconnected
}

func reply(w http.ResponseWriter, status int, v any) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// body reads a request's JSON, strictly.
func body(q *request, v any) error {
	err := api.Decode(q.Body, v)
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return err
	}
	if err != nil {
		return bad("%v", err)
	}
	q.whole()
	return nil
}

// when parses a time of a request: RFC 3339, a day, or how long ago ("24h").
func when(name, text string, now sample.Millis) (sample.Millis, error) {
	if text == "" {
		return 0, nil
	}
	if at, ok := sample.ParseTime(text, now); ok {
		return at, nil
	}
	return 0, bad("%s: %.40q: want a time such as 2026-11-21T13:00:00Z, a day, or how long ago, such as 24h", name, text)
}

// span parses since and until.
func span(since, until string, now sample.Millis) (from, to sample.Millis, err error) {
	if from, err = when("since", since, now); err != nil {
		return 0, 0, err
	}
	if to, err = when("until", until, now); err == nil && to > 0 && to < from {
		err = bad("until %s is before since %s", until, since)
	}
	return from, to, err
}
