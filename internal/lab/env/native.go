package env

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/study"
)

// native is an environment of the host's own processes.
type native struct {
	*partCgroup
	maker *Maker
	mu    sync.Mutex
	procs []*process
	gone  bool
}

func (m *Maker) native(p *study.Part) (*native, error) {
	b, err := m.box(p, p.Environment.Driver == study.Bare)
	if err != nil {
		return nil, err
	}
	return &native{partCgroup: b, maker: m}, nil
}

// process is a command in the cgroup.
type process struct {
	*child
	env *native
}

// Start implements lab.Environment.
func (n *native) Start(_ context.Context, j lab.Job) (lab.Process, error) {
	if len(j.Argv) == 0 {
		return nil, errors.New("start: no program given")
	}
	if _, err := exec.LookPath(j.Argv[0]); err != nil {
		return nil, &lab.LackError{What: fmt.Sprintf("no program %q: %v", j.Argv[0], err), Remedy: "install it, or name it by its path"}
	}
	argv := j.Argv
	if !j.WaitsForStart {
		argv = slices.Concat(n.maker.opt.Hold, j.Argv)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = j.Dir, j.Stdout, j.Stderr
	cmd.Env = append(os.Environ(), j.Env...)
	n.partCgroup.mu.Lock()
	cpus := n.cpus
	n.partCgroup.mu.Unlock()
	c, err := newChild(j.Argv, j.WaitsForStart, cmd, func(cmd *exec.Cmd) error { return n.tree.Launch(n.task, cmd, cpus) })
	if err != nil {
		return nil, err
	}
	c.clock = n.maker.at
	p := &process{c, n}
	n.mu.Lock()
	n.procs = append(n.procs, p)
	n.mu.Unlock()
	return p, nil
}

// Stop implements lab.Process.
func (p *process) Stop() error {
	err := p.env.thaw()
	p.end()
	return err
}

// Close implements lab.Environment.
func (n *native) Close() error {
	n.mu.Lock()
	procs, gone := n.procs, n.gone
	n.gone = true
	n.mu.Unlock()
	if gone {
		return nil
	}
	errs := []error{n.thaw()}
	for _, p := range procs {
		p.end()
	}
	return errors.Join(append(errs, n.tree.Remove(n.task))...)
}
