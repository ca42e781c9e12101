package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/plan"
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

// SocketServer answers the control socket.
func (a *Agent) SocketServer() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+api.PathStatus, func(w http.ResponseWriter, r *http.Request) { answer(a, w, r, a.status) })
	mux.HandleFunc("GET "+api.PathTasks, func(w http.ResponseWriter, r *http.Request) { answer(a, w, r, a.taskViews) })
	mux.HandleFunc("GET "+api.PathIncidents, api.IncidentsHandler(a.disk.incidents))
	mux.HandleFunc("GET "+api.PathOffenders, func(w http.ResponseWriter, r *http.Request) { answer(a, w, r, a.offenders) })
	mux.HandleFunc("POST "+api.PathCommands, a.serveCommand)
	mux.HandleFunc("POST /v1/{other}", func(w http.ResponseWriter, r *http.Request) {
		api.Fail(w, http.StatusNotFound, fmt.Errorf("unknown path %s", r.URL.Path), "use quell of the agent's version, "+a.Version)
	})
	return &http.Server{Handler: mux, ConnContext: withPeer, ReadHeaderTimeout: 10 * time.Second}
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

// serveCommand reads a command and carries it out in the loop's goroutine. The result
// is in the audit log before the answer is sent.
func (a *Agent) serveCommand(w http.ResponseWriter, r *http.Request) {
	operator, _ := r.Context().Value(peerKey{}).(string)
	var c command.Command
	unread := api.Decode(http.MaxBytesReader(w, r.Body, maxBody), &c)
	var done api.Done
	var refused error
	err := a.ask(r.Context(), func() {
		now := sample.At(a.now())
		if refused = unread; unread != nil {
			a.audit(now, unreadEntry(operator, ""), errors.New(cut(unread.Error())))
			return
		}
		done, refused = a.operate(now, operator, &c)
	})
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

func (a *Agent) status() api.Status {
	s := api.Status{Version: a.Version, PID: os.Getpid(), Machine: a.config.MachineName(), Platform: a.Platform,
		Started: a.started, Now: sample.At(a.now()), Rule: string(a.pipeline.Params().Method), Mode: a.pipeline.Policy().Mode,
		Signals: a.signals(), Tasks: len(a.tasks), Outside: a.window.outside, Caps: []api.CapView{}, Open: a.pipeline.OpenCount(), Intervals: a.stats.intervals}
	for _, c := range a.pipeline.Caps() {
		s.Caps = append(s.Caps, api.CapView{ID: c.ID, Task: c.Task.Name, Rate: c.Rate, IO: c.IO, Net: c.Net, From: c.From, Until: c.Until,
			By: c.By, Why: c.Why, Incident: c.Incident})
	}
	for what, why := range a.degraded {
		s.Degraded = append(s.Degraded, what+": "+why)
	}
	slices.Sort(s.Degraded)
	return s
}

func (a *Agent) offenders() []plan.Offender { return a.pipeline.Offenders(sample.At(a.now())) }

func (a *Agent) taskViews() []api.TaskView {
	views := make([]api.TaskView, 0, len(a.tasks))
	roles := a.pipeline.Roles()
	for _, t := range a.tasks {
		views = append(views, api.TaskView{Task: t.Task, CPU: t.cpu, Flags: t.flags.String(), Role: roles[t.Key],
			Capped: a.pipeline.Capped(t.Key), Note: a.note(t), Costs: slices.Clone(t.views)})
	}
	slices.SortFunc(views, func(x, y api.TaskView) int { return strings.Compare(string(x.Name), string(y.Name)) })
	return views
}
