package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
)

// UnreachableError is why the agent's socket could not be used.
type UnreachableError struct {
	Socket string
	Err    error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("reach the agent at %s: %v", e.Socket, e.Err)
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// Remedy says how to fix it.
func (e *UnreachableError) Remedy() string {
	switch {
	case errors.Is(e.Err, fs.ErrNotExist), errors.Is(e.Err, syscall.ECONNREFUSED):
		return "start quell-agent, or name its socket with --socket"
	case errors.Is(e.Err, fs.ErrPermission):
		return "run as root or as a member of the agent's socket_group"
	}
	return "see the agent's log"
}

// RefusedError is the answer to a request that the agent or the server did not carry out.
type RefusedError struct {
	Failure
	Status int // HTTP
}

func (e *RefusedError) Error() string { return e.Failure.Error }

// Client talks to one agent.
type Client struct {
	socket string
	http   http.Client
}

// NewClient returns a client of the agent that listens on the socket.
func NewClient(socket string) *Client {
	c := &Client{socket: socket}
	c.http.Timeout = 30 * time.Second
	c.http.Transport = &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}}
	return c
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	err := Do(ctx, &c.http, method, "http://agent"+path, "", in, out)
	var unreached *url.Error
	if !errors.As(err, &unreached) {
		return err
	}
	var op *net.OpError
	if err = unreached; errors.As(err, &op) {
		err = op.Err
	}
	return &UnreachableError{c.socket, err}
}

// Do sends a request with a token, if it is not empty, and in as JSON, if it is not nil, and
// reads the answer's JSON into out. It returns a *url.Error if there is no answer, and a
// *RefusedError if the answer is not a success.
func Do(ctx context.Context, c *http.Client, method, to, token string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, to, body)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		r := &RefusedError{Status: resp.StatusCode}
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) // what came says enough
		if json.Unmarshal(text, &r.Failure) != nil || r.Failure.Error == "" {
			line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
			r.Failure = Failure{Error: strings.TrimSuffix(fmt.Sprintf("%s: %.200s", resp.Status, line), ": "),
				Remedy: "another program or version answers there, or one that wants TLS: check the address, and whether it begins with https://"}
		}
		return r
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}

func get[T any](ctx context.Context, c *Client, path string) (T, error) {
	var v T
	err := c.call(ctx, http.MethodGet, path, nil, &v)
	return v, err
}

// Status returns the status of the agent as a whole.
func (c *Client) Status(ctx context.Context) (Status, error) { return get[Status](ctx, c, PathStatus) }

// Tasks returns the tasks that the agent follows.
func (c *Client) Tasks(ctx context.Context) ([]TaskView, error) {
	return get[[]TaskView](ctx, c, PathTasks)
}

// Incidents returns incidents that the agent's log still holds.
func (c *Client) Incidents(ctx context.Context, q logbook.Query) (Incidents, error) {
	return get[Incidents](ctx, c, PathIncidents+"?"+Query(q).Encode())
}

// Incident returns one complete incident, by its ID, part of it, or "last".
func (c *Client) Incident(ctx context.Context, id string) (incident.Record, error) {
	return get[incident.Record](ctx, c, PathIncidents+"?id="+url.QueryEscape(id))
}

// Offenders returns the jobs on which caps have helped other jobs.
func (c *Client) Offenders(ctx context.Context) ([]plan.Offender, error) {
	return get[[]plan.Offender](ctx, c, PathOffenders)
}

// Command sends a command for the agent to carry out.
func (c *Client) Command(ctx context.Context, cmd command.Command) (d Done, err error) {
	return d, c.call(ctx, http.MethodPost, PathCommands, &cmd, &d)
}

// Decisions returns what operators of this machine override and what the server has decided.
func (c *Client) Decisions(ctx context.Context) ([]Decision, error) {
	return get[[]Decision](ctx, c, PathDecisions)
}
