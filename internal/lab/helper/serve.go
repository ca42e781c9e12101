package helper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Maker makes environments; *env.Maker is one.
type Maker interface {
	Make(ctx context.Context, p *study.Part) (lab.Environment, error)
	Sweep() error
	Close() error
}

// self is the placeholder for the helper's own program in commands.
const self = "{quell}"

// LeastLease is the shortest allowed lease: a quarter of it must be enough to kill and
// remove what runs.
const LeastLease = 2 * time.Second

// helper serves one lab on its host.
type helper struct {
	wire  *wire
	maker Maker
	exe   string
	lease time.Duration
	eyes  Watch
	heard atomic.Int64 // CLOCK_MONOTONIC

	mu    sync.Mutex
	next  int // environment
	envs  map[int]lab.Environment
	procs map[int]lab.Process
	on    *observation // the run that is observed; nil for none

	making sync.WaitGroup // calls of maker.Make; none begins once ending is true
	ending bool
}

// Watch starts the observation of a run where the helper is.
type Watch func(lab.Observed) (lab.Observer, error)

// ErrLease is the error of a helper that has ended everything because its lease expired.
var ErrLease = errors.New("the lease expired without a message from the lab: everything was stopped")

// Serve is the helper: it executes requests from in and answers on out, until in ends or
// nothing was received for three quarters of the lease. exe is its own program, watch
// observes runs.
// Everything it has made is removed when it returns.
func Serve(ctx context.Context, in io.Reader, out io.Writer, maker Maker, watch Watch, exe string, lease time.Duration) error {
	if lease < LeastLease {
		return fmt.Errorf("serve a lab: lease %s: want %s or more", lease, LeastLease)
	}
	h := &helper{wire: newWire(in, out), maker: maker, eyes: watch, exe: exe, lease: lease, envs: map[int]lab.Environment{}, procs: map[int]lab.Process{}}
	h.heard.Store(host.Monotonic())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := maker.Sweep(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- h.listen(ctx) }()
	err := h.watch(ctx, ended)
	cancel() // an environment that is being made is given up
	return errors.Join(err, h.end())
}

// ServeEnvironment is a helper for one existing environment, which belongs to the lab: it
// only starts programs, has no lease and ends with the connection.
func ServeEnvironment(ctx context.Context, conn io.ReadWriter, e lab.Environment, watch Watch) error {
	h := &helper{wire: newWire(conn, conn), eyes: watch, exe: self, envs: map[int]lab.Environment{0: e}, procs: map[int]lab.Process{}}
	return errors.Join(h.listen(ctx), h.unwatch(), e.Close())
}

// watch waits for the end of the input or of the lease.
func (h *helper) watch(ctx context.Context, ended <-chan error) error {
	// The last quarter of the lease is reserved for ending.
	limit := h.lease * 3 / 4
	look := time.NewTicker(h.lease / 40)
	defer look.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
			if time.Duration(host.Monotonic()-h.heard.Load()) > limit {
				return ErrLease
			}
		}
	}
}

// end kills all processes first, because a regular stop may take long, and then removes
// everything.
func (h *helper) end() error {
	errs := []error{h.unwatch()}
	h.mu.Lock()
	h.ending = true
	for _, e := range h.envs {
		errs = append(errs, e.Freeze(false))
		// A process that forks between the listing and the kill is found in the next
		// round.
		for range 3 {
			threads, err := e.Threads()
			if err != nil || len(threads) == 0 {
				break // Close reports it
			}
			for _, tid := range threads {
				_ = unix.Kill(tid, unix.SIGKILL) // kills its whole process; it may be gone
			}
		}
	}
	h.mu.Unlock()
	// What is made after the maker was closed would stay. A Make that does not end with its context
	// must not keep the rest; then the next lab's sweep removes what it has made.
	made := make(chan struct{})
	go func() {
		h.making.Wait()
		close(made)
	}()
	select {
	case <-made:
	case <-time.After(h.lease / 8):
		errs = append(errs, errors.New("end the helper: an environment is still being made"))
	}
	return errors.Join(append(errs, h.maker.Close())...)
}

// listen answers until the input ends, which is not an error: the lab is done.
func (h *helper) listen(ctx context.Context) error {
	if err := h.wire.send(frame{Op: "hello", Text: machine()}); err != nil {
		return err
	}
	for {
		f, err := h.wire.receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		h.heard.Store(host.Monotonic())
		switch f.Op {
		case "beat":
			go func() { _ = h.wire.send(frame{Op: "beat"}) }() // watch detects a lab that is gone
		case "ping":
			// Answer at once: a delay would count as travel time.
			if err := h.wire.send(frame{Op: "answer", ID: f.ID, NS: host.Monotonic()}); err != nil {
				return err
			}
		case "bye":
			return nil
		default:
			go func() {
				a := h.obey(ctx, &f)
				a.Op, a.ID = "answer", f.ID
				_ = h.wire.send(a)
			}()
		}
	}
}

// obey executes a request and returns the answer.
func (h *helper) obey(ctx context.Context, f *frame) (a frame) {
	fail := func(err error) frame { return frame{Failed: failureOf(err)} }
	if f.Op == "make" {
		return h.make(ctx, f.Part)
	}
	h.mu.Lock()
	e, p := h.envs[f.Env], h.procs[f.Proc]
	h.mu.Unlock()
	switch {
	case f.Op == "begin" && p != nil:
		return h.begin(p, f.NS)
	case f.Op == "stop" && p != nil:
		return fail(p.Stop())
	case f.Op == "observe":
		return frame{Text: platform(), Failed: failureOf(h.observe(f))}
	case f.Op == "window", f.Op == "conclude", f.Op == "energy":
		return h.observed(f)
	case f.Op == "listens":
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		return fail(lab.Listens(ctx, f.Port))
	case e == nil:
		return fail(fmt.Errorf("%s: unknown environment or process", f.Op))
	}
	var err error
	switch f.Op {
	case "start":
		return h.start(ctx, e, f.Proc, f.Job)
	case "pin":
		sets, bad := setsOf(f.Sets)
		if err = bad; err == nil {
			err = e.Pin(sets)
		}
	case "pinned":
		sets, bad := e.Pinned()
		a.Sets, err = textsOf(sets), bad
	case "usage":
		u, bad := e.Usage()
		a.Usage, err = &u, bad
	case "threads":
		a.Threads, err = e.Threads()
	case "ready":
		a.Yes, err = e.Ready()
	case "freeze":
		err = e.Freeze(f.Yes)
	case "close":
		err = e.Close()
	default:
		err = fmt.Errorf("unknown operation %q", f.Op)
	}
	a.Failed = failureOf(err)
	return a
}

func (h *helper) make(ctx context.Context, p *study.Part) frame {
	if p == nil || h.maker == nil {
		return frame{Failed: &failure{Text: "make: no part, or no environments are made here"}}
	}
	h.mu.Lock()
	if h.ending {
		h.mu.Unlock()
		return frame{Failed: &failure{Text: "make: the helper ends"}}
	}
	h.making.Add(1)
	h.mu.Unlock()
	defer h.making.Done()
	e, err := h.maker.Make(ctx, p)
	if err != nil {
		return frame{Failed: failureOf(err)}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next++
	h.envs[h.next] = e
	return frame{Env: h.next}
}

// start starts a process under the number that the lab gave it.
func (h *helper) start(ctx context.Context, e lab.Environment, id int, j *job) frame {
	if j == nil || len(j.Argv) == 0 {
		return frame{Failed: &failure{Text: "start: no program given"}}
	}
	for i := range j.Argv {
		if j.Argv[i] == self {
			j.Argv[i] = h.exe
		}
	}
	p, err := e.Start(ctx, lab.Job{Name: j.Name, Argv: j.Argv, Dir: j.Dir, Env: j.Env, WaitsForStart: j.Waits,
		Stdout: h.outlet(id, 1), Stderr: h.outlet(id, 2)})
	if err != nil {
		return frame{Failed: failureOf(err)}
	}
	h.mu.Lock()
	h.procs[id] = p
	h.mu.Unlock()
	go func() {
		<-p.Done()
		_ = h.wire.send(frame{Op: "exit", Proc: id, Failed: failureOf(p.Err())})
	}()
	return frame{}
}

// begin releases a process at an instant of this host's clock, 0 for now.
func (h *helper) begin(p lab.Process, at int64) frame {
	if wait := at - host.Monotonic(); at != 0 && wait > 0 {
		if time.Duration(wait) > h.lease {
			return frame{Failed: &failure{Text: "begin: the start time is after the lease expires"}}
		}
		time.Sleep(time.Duration(wait))
	}
	from := host.Monotonic()
	_, _, err := p.Begin()
	to := host.Monotonic()
	return frame{NS: to, Within: to - from, Failed: failureOf(err)}
}

// outlet sends what a program writes, one line a frame. A last line without a newline is
// lost.
func (h *helper) outlet(proc, fd int) io.Writer {
	return &role.LineWriter{Most: mostText, Line: func(line string) {
		_ = h.wire.send(frame{Op: "out", Proc: proc, FD: fd, Text: line}) // listen detects a lab that is gone
	}}
}
