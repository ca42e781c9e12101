package env

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/lab"
)

// agentClient is the host's side of an agent, common to containers and guests.
type agentClient struct {
	maker *Maker
	exe   string // the path of the agent's program inside
	conn  io.Closer
	wire  *wire
	hello chan struct{} // closed when the agent is up
	gone  chan struct{} // closed when the agent has ended
	thaw  func() error

	mu      sync.Mutex
	next    int
	procs   map[int]*agentProcess
	pongs   map[int]chan int64
	offset  int64         // host's clock less the agent's, ns
	unsure  time.Duration // uncertainty of offset
	foreign bool          // its clock differs from the host's
}

// newInside starts to listen to the agent, until that has ended.
func newInside(m *Maker, exe string, conn io.ReadWriteCloser, foreign bool, thaw func() error) *agentClient {
	in := &agentClient{maker: m, exe: exe, conn: conn, wire: newWire(conn), hello: make(chan struct{}), gone: make(chan struct{}), thaw: thaw,
		procs: map[int]*agentProcess{}, pongs: map[int]chan int64{}, foreign: foreign}
	go in.listen()
	return in
}

func (in *agentClient) listen() {
	defer func() {
		in.mu.Lock()
		defer in.mu.Unlock()
		for _, p := range in.procs {
			p.Ended(errors.New("the environment has ended"))
		}
		close(in.gone)
	}()
	up := sync.OnceFunc(func() { close(in.hello) })
	for {
		m, err := in.wire.receive()
		if err != nil {
			return
		}
		in.mu.Lock()
		p, pong := in.procs[m.ID], in.pongs[m.ID]
		in.mu.Unlock()
		switch {
		case m.Op == "hello":
			up()
		case m.Op == "pong" && pong != nil:
			pong <- m.NS
		case p != nil:
			p.heard(m)
		}
	}
}

// ping reads the agent's clock; offset is the middle of its possible range.
func (in *agentClient) ping(ctx context.Context) (offset int64, unsure time.Duration, err error) {
	reply := make(chan int64, 1)
	in.mu.Lock()
	in.next++
	id := in.next
	in.pongs[id] = reply
	in.mu.Unlock()
	defer func() {
		in.mu.Lock()
		delete(in.pongs, id)
		in.mu.Unlock()
	}()
	from := monotonic()
	if err := in.wire.send(message{Op: "ping", ID: id}); err != nil {
		return 0, 0, err
	}
	select {
	case ns := <-reply:
		to := monotonic()
		return from + (to-from)/2 - ns, time.Duration(to-from+1) / 2, nil
	case <-in.gone:
		return 0, 0, errors.New("the environment has ended")
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
}

// pings is the number of measurements of a clock's offset: the one with the shortest
// round trip has the least uncertainty.
const pings = 20

// measure determines the offset of the agent's clock.
func (in *agentClient) measure(ctx context.Context) error {
	if !in.foreign {
		return nil
	}
	best, least := int64(0), time.Duration(1<<62)
	for range pings {
		offset, unsure, err := in.ping(ctx)
		if err != nil {
			return fmt.Errorf("measure the clock inside: %w", err)
		}
		if unsure < least {
			best, least = offset, unsure
		}
	}
	in.mu.Lock()
	in.offset, in.unsure = best, least
	in.mu.Unlock()
	return nil
}

// agentProcess is a command inside.
type agentProcess struct {
	*lab.ReportedProcess
	in      *agentClient
	id      int
	name    string
	started chan struct{}
	missing bool // the program does not exist; known once the command has ended
}

// Start implements lab.Environment.
func (in *agentClient) Start(ctx context.Context, j lab.Job) (lab.Process, error) {
	if len(j.Argv) == 0 {
		return nil, errors.New("start: no program given")
	}
	// The clocks are compared before each start, so drift does not add up.
	if err := in.measure(ctx); err != nil {
		return nil, fmt.Errorf("start %s: %w", j.Argv[0], err)
	}
	argv := slices.Clone(j.Argv)
	if !j.WaitsForStart {
		argv = slices.Concat(in.maker.opt.Hold, argv)
	}
	// quell's own program has another path inside.
	own := in.maker.opt.Agent[0]
	for i := range argv {
		if argv[i] == own || i == 0 && samePath(argv[i], own) {
			argv[i] = in.exe
		}
	}
	p := &agentProcess{ReportedProcess: lab.NewReportedProcess(j), in: in, name: j.Argv[0], started: make(chan struct{})}
	in.mu.Lock()
	in.next++
	p.id = in.next
	in.procs[p.id] = p
	in.mu.Unlock()
	if err := in.wire.send(message{Op: "start", ID: p.id, Argv: argv, Env: j.Env, Dir: j.Dir, Waits: j.WaitsForStart}); err != nil {
		return nil, fmt.Errorf("start %s: %w", j.Argv[0], err)
	}
	select {
	case <-p.started:
		return p, nil
	case <-p.Done():
		if p.missing {
			return nil, &lab.LackError{What: fmt.Sprintf("no program %q in the environment", j.Argv[0]), Remedy: "a guest has only quell's own workloads; for other programs use the driver lxc"}
		}
		_, err := p.Outcome()
		return nil, fmt.Errorf("start %s: %w", j.Argv[0], err)
	case <-ctx.Done():
		return nil, fmt.Errorf("start %s: %w", j.Argv[0], ctx.Err())
	}
}

func samePath(a, b string) bool {
	a, err1 := exec.LookPath(a)
	b, err2 := exec.LookPath(b)
	return err1 == nil && err2 == nil && a == b
}

// heard is called by the listener only.
func (p *agentProcess) heard(m message) {
	switch m.Op {
	case "started":
		close(p.started)
	case "out":
		p.Wrote(m.FD, m.Text)
	case "exit":
		var err error
		if m.Text != "" {
			err = errors.New(m.Text)
		}
		p.missing = m.Missing
		p.Ended(err)
	}
}

// Begin implements lab.Process. The uncertainty of the time at which the message
// arrives includes that of the clock's measurement.
func (p *agentProcess) Begin() (time.Time, time.Duration, error) {
	from := time.Now()
	if err := p.in.wire.send(message{Op: "begin", ID: p.id}); err != nil {
		return from, 0, fmt.Errorf("begin %s: %w", p.name, err)
	}
	to := time.Now()
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	return to, to.Sub(from) + 2*p.in.unsure, nil
}

// Err implements lab.Process.
func (p *agentProcess) Err() error {
	stopped, err := p.Outcome()
	if stopped || err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", p.name, err)
}

// Clock implements lab.Process.
func (p *agentProcess) Clock(ns int64) time.Time {
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	return p.in.maker.at(ns + p.in.offset)
}

// Stop implements lab.Process.
func (p *agentProcess) Stop() error {
	if !p.Stopping() {
		return nil
	}
	thawed := p.in.thaw()
	if err := p.in.wire.send(message{Op: "stop", ID: p.id}); err != nil {
		return errors.Join(thawed, fmt.Errorf("stop %s: %w", p.name, err))
	}
	// The agent waits for grace; a guest that gets little CPU time needs longer.
	if !within(p.Done(), 10*grace) {
		return errors.Join(thawed, fmt.Errorf("stop %s: it still runs after %s", p.name, 10*grace))
	}
	return thawed
}
