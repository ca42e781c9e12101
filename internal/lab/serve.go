package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/lab/study"
)

// answering is an environment that can report when a server in it accepts connections
// on a port.
type answering interface {
	Answers(ctx context.Context, port int) error
}

// patienceToServe is the time limit for a server to answer: a server of files takes
// milliseconds, on a busy machine some seconds; in an emulated guest, which makes its own
// certificate, half a minute.
const patienceToServe = 2 * time.Minute

// webPort is the port on which all of the lab's web servers listen.
const webPort = 80

// portOf is the port on which a workload listens once it serves; 0 if it is not a server.
func portOf(w *study.Workload) int {
	if w.Builtin == study.HTTPServer {
		return webPort
	}
	return w.Serves
}

// serve starts servers before the barrier and waits until they answer; otherwise the
// clients would measure the server's start-up time.
func (s *execution) serve(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, patienceToServe)
	defer cancel()
	var servers []*partRun
	for _, a := range s.actors {
		if !a.busy() || portOf(&a.part.Workload) == 0 {
			continue
		}
		servers = append(servers, a)
		at, _, err := a.process.Begin()
		if err != nil {
			return fmt.Errorf("begin %s: %w", a.part.Name(), err)
		}
		a.began = at
	}
	for _, a := range servers {
		e, ok := a.env.(answering)
		if !ok && a.part.Workload.Serves == 0 {
			continue
		}
		wait := Listens
		if ok {
			wait = e.Answers
		}
		err := a.serves(limit, wait)
		if err == nil {
			continue
		}
		if ctx.Err() != nil { // the run ends, not the server
			err = errors.Join(err, ctx.Err())
		}
		return fmt.Errorf("wait until %s serves: %w", a.part.Name(), err)
	}
	if slices.ContainsFunc(servers, func(a *partRun) bool { return a.part.Workload.Serves > 0 }) {
		return pause(ctx, settle)
	}
	return nil
}

// serves waits until the part's server answers. A server that has ended, or that does not
// answer in time, is an error of its own: not that of the context by which the wait ends, which
// would say that the study was stopped or that the run's time is over.
func (a *partRun) serves(ctx context.Context, wait func(ctx context.Context, port int) error) error {
	living, ended := context.WithCancel(ctx)
	defer ended()
	go func() {
		defer ended()
		select {
		case <-a.process.Done():
		case <-living.Done():
		}
	}()
	port := portOf(&a.part.Workload)
	err := wait(living, port)
	if err == nil || living.Err() == nil {
		return err
	}
	select {
	case <-a.process.Done():
		if err := a.process.Err(); err != nil {
			return fmt.Errorf("it ended before it had port %d: %w", port, err)
		}
		return fmt.Errorf("it ended before it had port %d", port)
	default:
		return fmt.Errorf("it does not have port %d after %s", port, patienceToServe)
	}
}

// settle is the time that a command that serves gets between its first socket and its first
// client: sockperf drops what comes before it has warmed up.
const settle = 500 * time.Millisecond

// Listens waits until a program of this machine, or of this thread's network namespace, listens
// on a TCP or UDP port. It makes no connection: some servers count that as their client.
func Listens(ctx context.Context, port int) error {
	const listen, unconnected = "0A", "07" // the states of TCP and UDP sockets (linux/net/tcp_states.h)
	local := fmt.Sprintf(":%04X", port)
	for {
		for file, state := range map[string]string{"tcp": listen, "tcp6": listen, "udp": unconnected, "udp6": unconnected} {
			text, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // without IPv6 there is no tcp6
				return err
			}
			for line := range strings.Lines(string(text)) {
				if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1], local) && f[3] == state {
					return nil
				}
			}
		}
		if err := pause(ctx, look); err != nil {
			return fmt.Errorf("nothing listens on port %d: %w", port, err)
		}
	}
}
