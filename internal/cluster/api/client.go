package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/incident"
)

// Client sends requests to one server. Its errors have a Remedy, or are *api.RefusedError.
type Client struct {
	URL       string            // http://HOST:PORT or https://HOST:PORT
	Token     string            // "" for none; never sent without TLS except to loopback
	TokenFile string            // holds the token instead
	transport http.RoundTripper // nil: http.DefaultTransport
}

// Error is why the server was not asked, or could not be reached.
type Error struct {
	Err    error
	remedy string
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Remedy says how to fix it.
func (e *Error) Remedy() string { return e.remedy }

// limit is longer than any request may take with the server's defaults.
const limit = 2 * time.Minute

// call sends a request and reads the answer's JSON into out.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	token := c.Token
	if c.TokenFile != "" {
		text, err := os.ReadFile(c.TokenFile)
		if err != nil {
			return &Error{fmt.Errorf("read token: %w", err), "name a readable file with --token-file"}
		}
		token = strings.TrimSpace(string(text))
	}
	to := strings.TrimRight(c.URL, "/") + path
	u, err := url.Parse(to)
	if err != nil {
		return &Error{fmt.Errorf("ask %s: %w", c.URL, err), "name the server as http://HOST:PORT or https://HOST:PORT"}
	}
	// An eavesdropper could read the token.
	if ip := net.ParseIP(u.Hostname()); token != "" && u.Scheme != "https" && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return &Error{fmt.Errorf("ask %s: a token is not sent without TLS", c.URL), "use https://"}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	// A redirection could lead to an address without TLS, or to another server.
	asks := &http.Client{Transport: c.transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	err = api.Do(ctx, asks, method, to, token, in, out)
	if _, unreached := errors.AsType[*url.Error](err); unreached {
		return &Error{fmt.Errorf("reach quell-server: %w", err), howToReach(err)}
	}
	return err
}

// howToReach says what to do about a server that did not answer.
func howToReach(err error) string {
	if _, unverified := errors.AsType[*tls.CertificateVerificationError](err); unverified {
		return "name the server as its certificate does; if a CA of yours has signed that, name a file with the CA's certificate in $SSL_CERT_FILE"
	}
	if errors.Is(err, http.ErrSchemeMismatch) {
		return "begin the server's address with http://"
	}
	return "start quell-server, or name it with --server or $QUELL_SERVER"
}

// get requests a list by path and filters; empty filters are left out.
func get[T any](ctx context.Context, c *Client, path string, by map[string]string) (list []T, err error) {
	q := url.Values{}
	for key, value := range by {
		if value != "" {
			q.Set(key, value)
		}
	}
	if len(q) > 0 {
		path += "?" + q.Encode()
	}
	return list, c.call(ctx, http.MethodGet, path, nil, &list)
}

// Machines lists the machines that sent something in the last 30 days.
func (c *Client) Machines(ctx context.Context) ([]Machine, error) {
	return get[Machine](ctx, c, PathMachines, nil)
}

// Tasks lists a machine's tasks of the last 10 minutes with their newest samples.
func (c *Client) Tasks(ctx context.Context, machine string) ([]Task, error) {
	return get[Task](ctx, c, PathTasks, map[string]string{"machine": machine})
}

// Specs lists the newest versions, optionally of one job or platform.
func (c *Client) Specs(ctx context.Context, job, platform string) ([]Spec, error) {
	return get[Spec](ctx, c, PathSpecs, map[string]string{"job": job, "platform": platform})
}

// IncidentQuery filters a list of incidents; the server parses the times (docs/server.md).
type IncidentQuery struct {
	ID, Job, Machine, Since, Until string
	Open                           bool
}

// Incidents lists incidents in their current state, newest first; cut: there are more, for which there was no room.
func (c *Client) Incidents(ctx context.Context, q IncidentQuery) (all []incident.Record, cut bool, err error) {
	by := map[string]string{"id": q.ID, "job": q.Job, "machine": q.Machine, "since": q.Since, "until": q.Until}
	if q.Open {
		by["open"] = "true"
	}
	own, seen := *c, header{}
	own.transport = &seen
	all, err = get[incident.Record](ctx, &own, PathIncidents, by)
	return all, seen.cut || len(all) >= MostIncidents, err
}

// header is a transport that reads whether a list was cut off.
type header struct{ cut bool }

// RoundTrip implements http.RoundTripper.
func (h *header) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(r)
	h.cut = err == nil && resp.Header.Get(TruncatedTrailer) == "true"
	return resp, err
}

// Pairs lists jobs that should not share a machine.
func (c *Client) Pairs(ctx context.Context, job, since string) ([]Pair, error) {
	return get[Pair](ctx, c, PathPairs, map[string]string{"job": job, "since": since})
}

// Queries lists the canned queries.
func (c *Client) Queries(ctx context.Context) ([]Canned, error) {
	return get[Canned](ctx, c, PathQueries, nil)
}

// Query runs an SQL or canned query.
func (c *Client) Query(ctx context.Context, q Query) (a Answer, err error) {
	return a, c.call(ctx, http.MethodPost, PathQuery, &q, &a)
}

// Decisions returns what stands, for all machines first.
func (c *Client) Decisions(ctx context.Context) ([]Decision, error) {
	return get[Decision](ctx, c, PathDecisions, nil)
}

// Command decides something for one machine, or for all.
func (c *Client) Command(ctx context.Context, cmd Command) (r Replies, err error) {
	return r, c.call(ctx, http.MethodPost, PathCommands, &cmd, &r)
}

// Revoke takes back what was learnt from a machine or about a job.
func (c *Client) Revoke(ctx context.Context, r Revocation) (d Done, err error) {
	return d, c.call(ctx, http.MethodPost, PathRevoke, &r, &d)
}

// Compute makes the server compute all specs now.
func (c *Client) Compute(ctx context.Context, why string) (d Done, err error) {
	return d, c.call(ctx, http.MethodPost, PathCompute, Reason{why}, &d)
}
