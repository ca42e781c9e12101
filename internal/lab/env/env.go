package env

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/guest"
	"github.com/quell-dev/quell/internal/lab/image"
	"github.com/quell-dev/quell/internal/lab/load"
	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/lab/xen"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Options configure the environments.
type Options struct {
	// Hold is the command line that calls WaitAndExec with the words that follow it.
	Hold []string
	// Agent is the command line that calls AgentMain with the words that follow it. Its
	// first word is a static program. The program is taken into containers and guests
	// and is also used there for Hold.
	Agent []string
	// Guard thaws stopped parts when the lab is killed; nil for none.
	Guard *load.Guard
	// Prefix is the prefix of the names of everything that is made; "": quell-lab.
	Prefix string
	// Kernel finds the kernel of guests that name none; nil: guest.Find.
	Kernel func() (guest.Kernel, error)
	// Xen are the tools for guests of the driver xen.
	Xen xen.Tools
	// Console receives the console output of guests and containers; nil drops it.
	Console func(part, line string)
}

// Maker makes environments. It is safe for use by several goroutines.
type Maker struct {
	opt    Options
	layout host.Layout
	base   time.Time // an instant, to convert CLOCK_MONOTONIC to time.Time
	baseNS int64

	mu    sync.Mutex
	trees map[bool]*workload.Tree // by ungrouped
	made  int
	envs  []lab.Environment
	accel map[string]error // of QEMU's, by name, and by passedOver: nil if it works

	patience patience
	settled  string // file by which cloud-init says that it has ended
}

// patience is how long guests from images may take.
type patience struct {
	login   time.Duration // to let the lab in
	withKey time.Duration // with an SSH that has another key than the seed's
	console time.Duration // without console output on KVM
}

// Open finds out how cgroups are mounted; it makes nothing.
func Open(o Options) (*Maker, error) {
	if len(o.Hold) == 0 || len(o.Agent) == 0 {
		return nil, errors.New("open environments: Options.Hold and Options.Agent are required")
	}
	if o.Prefix == "" {
		o.Prefix = "quell-lab"
	}
	if o.Kernel == nil {
		o.Kernel = func() (guest.Kernel, error) { return guest.Find(nativeArch()) }
	}
	h, err := host.Open("/")
	if err != nil {
		return nil, fmt.Errorf("open environments: %w", err)
	}
	m := &Maker{opt: o, layout: h.Layout(), trees: map[bool]*workload.Tree{}, accel: map[string]error{},
		patience: patience{login: patienceToLogin, withKey: patienceWithKey, console: kvmBootTimeout}, settled: "/run/cloud-init/result.json"}
	m.base, m.baseNS = role.Instant()
	return m, nil
}

// at converts an instant of the host's CLOCK_MONOTONIC.
func (m *Maker) at(ns int64) time.Time { return m.base.Add(time.Duration(ns - m.baseNS)) }

// Make makes and, for a guest or a container, boots a part's environment. A capability
// that the machine lacks is a *lab.LackError.
func (m *Maker) Make(ctx context.Context, p *study.Part) (lab.Environment, error) {
	return m.MakeOn(ctx, p, nil)
}

// MakeOn implements lab.Linker for containers, for guests from a disk image and for Xen's.
func (m *Maker) MakeOn(ctx context.Context, p *study.Part, l lab.Link) (lab.Environment, error) {
	var e lab.Environment
	facts := m.facts()
	err := facts.Refuse(p)
	if err != nil {
		return nil, fmt.Errorf("make environment of %s: %w", p.Name(), err)
	}
	switch d := p.Environment.Driver; d {
	case study.Bare, study.Cgroup:
		e, err = m.native(p)
	case study.LXC:
		e, err = m.container(ctx, p, l)
	case study.QEMU:
		e, err = m.machine(ctx, p, l)
	case study.Xen:
		e, err = m.domain(ctx, p, l)
	default:
		return nil, fmt.Errorf("make environment %s: unknown driver %q", p.Environment.Name, d)
	}
	if err != nil {
		return nil, fmt.Errorf("make environment of %s: %w", p.Name(), asLackError(err))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.envs = append(m.envs, e)
	return e, nil
}

// asLackError converts other packages' errors about missing things to the engine's error.
func asLackError(err error) error {
	var env *workload.MissingError
	var missing *guest.MissingError
	switch {
	case errors.As(err, &env):
		return &lab.LackError{What: env.What, Remedy: env.Remedy}
	case errors.As(err, &missing):
		return &lab.LackError{What: missing.What + " is missing", Remedy: missing.Remedy}
	}
	return err
}

// tree returns the cgroups that contain the parts, made at the first call.
func (m *Maker) tree(ungrouped bool) (*workload.Tree, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.trees[ungrouped]; t != nil {
		return t, nil
	}
	t, err := workload.OpenTree(m.prefix(ungrouped), workload.TreeOptions{Ungrouped: ungrouped, Controllers: []string{"freezer", "cpuset", "memory"}})
	if err != nil {
		return nil, err
	}
	m.trees[ungrouped] = t
	return t, nil
}

func (m *Maker) prefix(ungrouped bool) string {
	if ungrouped {
		return m.opt.Prefix + "-host"
	}
	return m.opt.Prefix
}

// name returns the name of a new task, unique and one path element.
func (m *Maker) name(p *study.Part) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.made++
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '.'
	}, p.Name())
	return fmt.Sprintf("e%d.%s", m.made, clean)
}

// Stamp returns the conditions of a study's environments that its records must contain,
// since results under different conditions must not be mixed: e.g. that guests run on
// TCG, which is found out by booting one, and which disk image they have.
func (m *Maker) Stamp(ctx context.Context, envs map[string]study.Environment) []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(envs)) {
		switch e := envs[name]; {
		case e.Driver == study.Bare && m.layout.Kind == host.V2:
			all = append(all, "bare=in-a-scheduling-group")
		case e.Driver == study.QEMU:
			all = append(all, "accel="+m.accelerator(ctx, e))
			if i, err := image.Find(e.Image, e.Kernel); e.Image != "" && err == nil {
				all = append(all, "image="+filepath.Base(e.Image)+"-"+i.ID())
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Sweep removes what dead labs have left: processes, guests, containers, cgroups,
// sockets. It does not touch those of living labs.
func (m *Maker) Sweep() error {
	var all []error
	if firstDomain() == nil {
		all = append(all, sweepDomains(m.opt.Xen, m.prefix(false)))
	}
	for _, ungrouped := range []bool{false, true} {
		removed, err := workload.Sweep(m.prefix(ungrouped))
		all = append(all, err)
		for _, dir := range removed {
			all = append(all, removeStrays(filepath.Base(dir)))
		}
	}
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("sweep environments: %w", err)
	}
	return nil
}

// Close ends every environment and removes everything.
func (m *Maker) Close() error {
	m.mu.Lock()
	envs, trees := m.envs, m.trees
	m.envs, m.trees = nil, map[bool]*workload.Tree{}
	m.mu.Unlock()
	var all []error
	for _, e := range envs {
		all = append(all, e.Close())
	}
	for _, t := range trees {
		all = append(all, t.Close())
	}
	return errors.Join(all...)
}

// program is the path of quell's static program, which is taken into containers and
// guests.
func (m *Maker) program() (string, error) {
	exe, err := exec.LookPath(m.opt.Agent[0])
	if err == nil {
		exe, err = filepath.Abs(exe)
	}
	if err != nil {
		return "", &lab.LackError{What: fmt.Sprintf("no program %q: %v", m.opt.Agent[0], err)}
	}
	return exe, nil
}

// boots finds the kernel of a guest and writes its initramfs, with the program as init,
// to a directory.
func (m *Maker) boots(e *study.Environment, dir string, write func(w io.Writer, exe string) error) (kernel, initramfs string, err error) {
	k, err := m.kernel(e)
	if err != nil {
		return "", "", err
	}
	exe, err := m.program()
	if err != nil {
		return "", "", err
	}
	f, err := os.Create(filepath.Join(dir, "initramfs"))
	if err != nil {
		return "", "", err
	}
	return k.Image, f.Name(), errors.Join(write(f, exe), f.Close())
}

// kernel finds the kernel of a guest.
func (m *Maker) kernel(e *study.Environment) (guest.Kernel, error) {
	if e.Kernel != "" {
		return guest.At(e.Kernel), nil
	}
	return m.opt.Kernel()
}

// scratch makes a directory for a part, removed with the tree.
func scratch(t *workload.Tree, name string) (string, error) {
	dir := t.Scratch() + "/" + name
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	return dir, nil
}
