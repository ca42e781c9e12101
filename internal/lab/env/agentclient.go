package env

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/helper"
)

// agentClient is the host's side of an agent, common to containers and guests.
type agentClient struct {
	*helper.Client
	maker   *Maker
	conn    io.Closer
	exe     string // the path of the agent's program inside
	foreign bool   // its clock differs from the host's
	thaw    func() error
}

var errEnded = errors.New("the environment has ended")

// newInside starts to listen to the agent, until that has ended.
func newInside(m *Maker, exe string, conn io.ReadWriteCloser, foreign bool, thaw func() error) *agentClient {
	c := helper.Connect(conn, conn, helper.ClientOptions{Lost: func(error, time.Duration) error { return errEnded }})
	return &agentClient{Client: c, maker: m, conn: conn, exe: exe, foreign: foreign, thaw: thaw}
}

// Inside is the inside of a guest, where a run can also be observed; nil for a container, which
// has this machine's kernel.
func (in *agentClient) Inside() lab.Watchable {
	if !in.foreign {
		return nil
	}
	return in.Client
}

// measure determines the offset of the agent's clock.
func (in *agentClient) measure(ctx context.Context) error {
	if !in.foreign {
		return nil
	}
	return in.MeasureClock(ctx)
}

// agentProcess is a command inside.
type agentProcess struct {
	*helper.Process
	in   *agentClient
	name string
}

// Start implements lab.Environment.
func (in *agentClient) Start(ctx context.Context, j lab.Job) (lab.Process, error) {
	if len(j.Argv) == 0 {
		return nil, errors.New("start: no program given")
	}
	name := j.Argv[0]
	// The clocks are compared before each start, so drift does not add up.
	if err := in.measure(ctx); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
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
	j.Argv = argv
	p, err := in.Environment().Run(ctx, j)
	var lack *lab.LackError
	switch {
	case errors.As(err, &lack):
		return nil, lack
	case err != nil:
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return &agentProcess{p, in, name}, nil
}

func samePath(a, b string) bool {
	a, err1 := exec.LookPath(a)
	b, err2 := exec.LookPath(b)
	return err1 == nil && err2 == nil && a == b
}

// Begin implements lab.Process. It does not wait for the agent, so that the parts of a
// run begin at nearly the same time. The uncertainty of the time at which the message
// arrives includes that of the clock's measurement.
func (p *agentProcess) Begin() (time.Time, time.Duration, error) {
	from := time.Now()
	if err := p.Release(); err != nil {
		return from, 0, fmt.Errorf("begin %s: %w", p.name, err)
	}
	to := time.Now()
	_, unsure := p.in.Clock()
	return to, to.Sub(from) + 2*unsure, nil
}

// Err implements lab.Process.
func (p *agentProcess) Err() error {
	if err := p.Process.Err(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// Stop implements lab.Process.
func (p *agentProcess) Stop() error {
	thawed := p.in.thaw()
	// The agent waits for grace; a guest that gets little CPU time needs longer.
	ctx, cancel := context.WithTimeout(context.Background(), 10*grace)
	defer cancel()
	err := p.StopWithin(ctx)
	switch {
	case err == nil, errors.Is(err, errEnded):
		return thawed
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("it still runs after %s", 10*grace)
	}
	return errors.Join(thawed, fmt.Errorf("stop %s: %w", p.name, err))
}
