package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
)

// ListenSocket opens the control socket for root, the agent's own user and, if one is
// named, a group. A stale socket of a dead agent is replaced; a live agent's is not.
func ListenSocket(path, group string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make socket directory: %w", err)
	}
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return nil, fmt.Errorf("listen on %s: another agent answers there", path)
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("replace old socket: %w", err)
	case info.Mode()&os.ModeSocket == 0:
		return nil, fmt.Errorf("listen on %s: the file exists and is not a socket", path)
	default:
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("replace old socket: %w", err)
		}
	}
	gid, mode := -1, os.FileMode(0o600)
	if group != "" {
		mode = 0o660
		g, err := user.LookupGroup(group)
		if err != nil {
			return nil, fmt.Errorf("find socket_group: %w", err)
		}
		if gid, err = strconv.Atoi(g.Gid); err != nil {
			return nil, fmt.Errorf("find socket_group: %w", err)
		}
	}
	old := unix.Umask(0o177) // no other user may connect before chmod
	l, err := net.Listen("unix", path)
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := errors.Join(os.Chown(path, -1, gid), os.Chmod(path, mode)); err != nil {
		l.Close()
		return nil, fmt.Errorf("set owner of %s: %w", path, err)
	}
	return l, nil
}

type peerKey struct{}

// withPeer stores the identity of the connected process (unix(7): SO_PEERCRED).
func withPeer(ctx context.Context, c net.Conn) context.Context {
	who := "unknown user"
	if u, ok := c.(*net.UnixConn); ok {
		if raw, err := u.SyscallConn(); err == nil {
			raw.Control(func(fd uintptr) {
				if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
					who = fmt.Sprintf("uid %d (pid %d)", cred.Uid, cred.Pid)
					if usr, err := user.LookupId(strconv.Itoa(int(cred.Uid))); err == nil {
						who = fmt.Sprintf("%s (uid %d, pid %d)", usr.Username, cred.Uid, cred.Pid)
					}
				}
			})
		}
	}
	return context.WithValue(ctx, peerKey{}, who)
}

// SocketServer answers the control socket. Its caller bounds connections and times, as for MetricsServer.
func (a *Agent) SocketServer() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+api.PathStatus, func(w http.ResponseWriter, r *http.Request) { answer(a, w, r, a.view.status) })
	mux.HandleFunc("GET "+api.PathTasks, func(w http.ResponseWriter, r *http.Request) { answer(a, w, r, a.view.taskViews) })
	mux.HandleFunc("GET "+api.PathIncidents, api.IncidentsHandler(a.recorder.disk.incidents))
	mux.HandleFunc("GET "+api.PathOffenders, func(w http.ResponseWriter, r *http.Request) { answer(a, w, r, a.view.offenders) })
	mux.HandleFunc("GET "+api.PathDecisions, func(w http.ResponseWriter, r *http.Request) { answer(a, w, r, a.view.decisions) })
	mux.HandleFunc("POST "+api.PathCommands, a.serveCommand)
	mux.HandleFunc("POST /v1/{other}", func(w http.ResponseWriter, r *http.Request) {
		api.Fail(w, http.StatusNotFound, fmt.Errorf("unknown path %s", r.URL.Path), "use quell of the agent's version, "+a.Version)
	})
	return &http.Server{Handler: mux, ConnContext: withPeer}
}

// answer replies with what get returns in the loop's goroutine.
func answer[T any](a *Agent, w http.ResponseWriter, r *http.Request, get func() T) {
	var v T
	if err := a.ask(r.Context(), func() { v = get() }); err != nil {
		api.Fail(w, http.StatusServiceUnavailable, err, "")
		return
	}
	api.Reply(w, http.StatusOK, v)
}

// maxBody is the largest request to the socket, in bytes.
const maxBody = 64 << 10

// submit carries out an operator's command in the loop's goroutine, unless unread says why it
// could not be read. The result is in the audit log before submit returns. stopped is
// ErrStopped or the context's error.
func (a *Agent) submit(ctx context.Context, name string, c *command.Command, unread error) (done api.Done, refused, stopped error) {
	stopped = a.ask(ctx, func() {
		now := sample.At(a.clock.now())
		if unread != nil {
			a.recorder.audit(now, unreadEntry(name, ""), errors.New(cut(unread.Error())))
			refused = unread
			return
		}
		done, refused = a.operator.operate(now, name, c)
	})
	return done, refused, stopped
}

// serveCommand reads a command and carries it out.
func (a *Agent) serveCommand(w http.ResponseWriter, r *http.Request) {
	name, _ := r.Context().Value(peerKey{}).(string)
	var c command.Command
	unread := api.Decode(http.MaxBytesReader(w, r.Body, maxBody), &c)
	done, refused, err := a.submit(r.Context(), name, &c, unread)
	var none *notFoundError
	var invalid *command.InvalidError
	switch {
	case err != nil:
		api.Fail(w, http.StatusServiceUnavailable, err, "")
	case errors.As(refused, &invalid):
		api.Fail(w, http.StatusBadRequest, refused, "")
	case unread != nil:
		api.Fail(w, http.StatusBadRequest, unread, "use quell of the agent's version, "+a.Version)
	case errors.As(refused, &none):
		api.Fail(w, http.StatusNotFound, refused, "see `quell top --once` for the tasks' names")
	case refused != nil:
		api.Fail(w, http.StatusConflict, refused, "")
	default:
		api.Reply(w, http.StatusOK, done)
	}
}

// Decided makes the agent follow what the server has decided (Uplink.Decisions). Outcomes are
// in the audit log, and on their way to the server, when it returns.
func (a *Agent) Decided(ctx context.Context) {
	// An error means that the agent stops: its next run has the decisions too.
	_ = a.ask(ctx, func() {
		a.operator.standing.overrides.decided(a.Uplink.Decisions(), a.Version)
		a.health.degrade("decisions", a.operator.standing.reconcile(sample.At(a.clock.now())))
	})
}

// Alive returns nil once the loop has served the request, else why it has not.
func (a *Agent) Alive(ctx context.Context) error { return a.ask(ctx, func() {}) }

// Degrade makes what fails outside the loop one of the agent's problems, until it is called without an error.
func (a *Agent) Degrade(ctx context.Context, what string, err error) {
	_ = a.ask(ctx, func() { a.health.degrade(what, err) }) // else the agent stops
}

// MetricsServer serves /metrics and /healthz.
func (a *Agent) MetricsServer() *http.Server {
	mux := http.NewServeMux()
	for path, gather := range map[string]func(context.Context) ([]byte, error){
		"/metrics": a.metricsText,
		"/healthz": func(ctx context.Context) ([]byte, error) { return nil, a.Alive(ctx) },
	} {
		shared := &scraper{gather: gather, turn: make(chan struct{}, 1)}
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), maxScrapeWait)
			defer cancel()
			text, err := shared.get(ctx)
			if err != nil {
				http.Error(w, "ask the agent's loop: "+err.Error(), http.StatusServiceUnavailable)
				return
			}
			w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
			_, _ = w.Write(text) // the client may have gone
		})
	}
	return &http.Server{Handler: mux}
}

// maxScrapeWait is how long a request for metrics or health waits for the loop: Prometheus' default timeout.
const maxScrapeWait = 10 * time.Second

// scraper shares what requests wait for, made after they came, and makes the next after ten times as long as that took:
// any user of the machine can ask without a pause, and it is the agent that is charged.
type scraper struct {
	gather      func(context.Context) ([]byte, error)
	turn        chan struct{}
	text        []byte
	begun, next time.Time
}

func (s *scraper) get(ctx context.Context) (text []byte, err error) {
	asked := time.Now()
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	if s.begun.After(asked) || ctx.Err() != nil {
		return s.text, ctx.Err()
	}
	<-time.After(time.Until(s.next)) // a second at most
	begun := time.Now()
	if text, err = s.gather(ctx); err == nil {
		s.text, s.begun = text, begun
	}
	s.next = time.Now().Add(min(10*time.Since(begun), time.Second))
	return text, err
}

// metricsText writes the metrics of the agent, its process and Go's runtime. It is not compressed: that costs most.
func (a *Agent) metricsText(ctx context.Context) ([]byte, error) {
	var values prometheus.Gatherers
	if err := a.ask(ctx, func() { values = a.view.scrape(a.clock.now()) }); err != nil {
		return nil, err
	}
	families, err := values.Gather()
	var text bytes.Buffer
	for _, f := range families {
		_, bad := expfmt.MetricFamilyToText(&text, f)
		err = errors.Join(err, bad)
	}
	if err != nil {
		a.Log.Debug("collect metrics", "reason", err)
	}
	return text.Bytes(), nil
}
