package env

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/guest"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/lab/xen"
)

// xenGuest is a Xen guest with the agent as its PID 1, reached over its console. It is in
// no cgroup: the hypervisor schedules it and reports its state.
type xenGuest struct {
	*agentClient
	tools xen.Tools
	name  string
	id    int
	dir   string
	cpus  int // physical ones of the machine
	still atomic.Bool
	once  sync.Once
	err   error
}

// patienceToAnswer is the time limit for one answer of Xen's tools: under TCG on a busy
// machine they take seconds.
const patienceToAnswer = time.Minute

// patienceToBootXen is longer than patienceToBoot: the hypervisor itself may be
// emulated, and then a guest takes two minutes on a busy machine.
const patienceToBootXen = 5 * time.Minute

func ask() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patienceToAnswer)
}

// firstDomain checks that this is Xen's first domain, which creates the others.
func firstDomain() error {
	text, err := os.ReadFile("/proc/xen/capabilities")
	if err != nil || !strings.Contains(string(text), "control_d") {
		return &lab.LackError{What: "this is not the first domain of a Xen machine", Remedy: "boot Xen, or mount xenfs on /proc/xen"}
	}
	if _, err := exec.LookPath("xl"); err != nil {
		return &lab.LackError{What: "xl is missing", Remedy: "install Xen's tools (xen-utils), and have xl in PATH"}
	}
	return nil
}

func (m *Maker) domain(ctx context.Context, p *study.Part, l lab.Link) (_ *xenGuest, err error) {
	if err := firstDomain(); err != nil {
		return nil, err
	}
	tree, err := m.tree(false)
	if err != nil {
		return nil, err
	}
	task := m.name(p)
	d := &xenGuest{tools: m.opt.Xen, name: filepath.Base(tree.Top()) + "." + task}
	if d.dir, err = scratch(tree, task); err != nil {
		return nil, err
	}
	d.tools.Dir = d.dir // of a killed lab the next one removes it
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	c, err := m.config(p, d, l != nil)
	if err != nil {
		return nil, err
	}
	if d.id, err = d.tools.Create(ctx, c); err != nil {
		return nil, err
	}
	if l != nil {
		if err := l.Adopt(fmt.Sprintf("vif%d.0", d.id)); err != nil {
			return nil, err
		}
	}
	if d.cpus, err = d.tools.CPUs(ctx); err != nil {
		return nil, err
	}
	tty, err := d.tools.ConsoleOf(ctx, d.id)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(tty, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the console of %s: %w", d.name, err)
	}
	if err := errors.Join(raw(fd), unix.SetNonblock(fd, true)); err != nil {
		return nil, errors.Join(fmt.Errorf("set up the console of %s: %w", d.name, err), unix.Close(fd))
	}
	// Non-blocking, so that Close ends a read of it.
	d.agentClient = newInside(m, "/init", os.NewFile(uintptr(fd), tty), true, func() error { return nil })
	if err := d.Freeze(false); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patienceToBootXen)
	defer cancel()
	select {
	case <-d.Hello():
	case <-d.Gone():
		return nil, errors.New("the guest ended during boot")
	case <-ctx.Done():
		return nil, fmt.Errorf("no message from the guest's agent after %s", patienceToBootXen)
	}
	return d, d.measure(ctx)
}

// vifScript is what Xen calls with the other end of a guest's network card. That is moved to
// the guest's network afterwards (Link.Adopt), so it only says that all is well.
const vifScript = `#!/bin/sh
[ "$1" = online ] || exit 0
exec xenstore write "$XENBUS_PATH/hotplug-status" connected
`

// config returns the configuration of a part's guest, and writes the files that it names.
func (m *Maker) config(p *study.Part, d *xenGuest, linked bool) (xen.Config, error) {
	e := &p.Environment
	words := []string{"console=hvc0", "quiet", "loglevel=1", "rdinit=/init", rootWords}
	if debug := os.Getenv("GODEBUG"); debug != "" { // for the same program in the guest
		words = append(words, "GODEBUG="+debug)
	}
	words = slices.Concat(words, []string{"--"}, m.opt.Agent[1:], []string{"tty", "/dev/hvc0"})
	c := xen.Config{Name: d.name, VCPUs: max(1, e.CPUs), Memory: int(e.Memory >> 20), Weight: e.Weight, Cap: int(math.Round(float64(e.Cap) * 100))}
	if c.Memory == 0 {
		c.Memory = 256
	}
	var modules []guest.File
	if linked {
		var err error
		if modules, err = m.card(e); err != nil {
			return c, err
		}
		c.Vif = filepath.Join(d.dir, "vif")
		if err := os.WriteFile(c.Vif, []byte(vifScript), 0o700); err != nil {
			return c, err
		}
		words = append(words, p.Address)
	}
	c.Command = strings.Join(words, " ")
	var err error
	c.Kernel, c.Ramdisk, err = m.boots(e, d.dir, func(w io.Writer, exe string) error { return guest.Initramfs(w, exe, guest.Init{}, modules...) })
	return c, err
}

// card returns the modules of the driver of a Xen guest's network card.
func (m *Maker) card(e *study.Environment) ([]guest.File, error) {
	kernel, err := m.kernel(e)
	if err != nil {
		return nil, err
	}
	modules, err := kernel.Module("xen-netfront")
	for i := range modules { // loaded in the order of their names
		modules[i].Path = fmt.Sprintf("%s/%02d-%s", guestModules, i, filepath.Base(modules[i].Path))
	}
	return modules, err
}

// Pin implements lab.Environment, for the physical CPUs as Xen numbers them.
func (d *xenGuest) Pin(sets []sample.Set) error {
	ctx, cancel := ask()
	defer cancel()
	all, err := d.tools.VCPUs(ctx, d.name)
	if err != nil {
		return err
	}
	if err := RefusePlacement(&study.Environment{Driver: study.Xen, CPUs: len(all)}, len(sets)); err != nil {
		return err
	}
	for i := range all {
		if err := d.tools.Pin(ctx, d.name, i, sets[min(i, len(sets)-1)].String()); err != nil {
			return err
		}
	}
	return nil
}

// Pinned implements lab.Environment.
func (d *xenGuest) Pinned() ([]sample.Set, error) {
	ctx, cancel := ask()
	defer cancel()
	all, err := d.tools.VCPUs(ctx, d.name)
	if err != nil {
		return nil, err
	}
	var sets []sample.Set
	for _, v := range all {
		list := v.Hard
		if list == "all" {
			list = "0-" + strconv.Itoa(d.cpus-1)
		}
		set, err := sample.ParseSet(list)
		if err != nil {
			return nil, fmt.Errorf("read where virtual CPU %d may run: %w", v.Number, err)
		}
		sets = append(sets, set)
	}
	return sets, nil
}

// Usage implements lab.Environment, to a tenth of a second. The hypervisor does not
// separate user time from system time, so all of it counts as user time.
func (d *xenGuest) Usage() (lab.Usage, error) {
	ctx, cancel := ask()
	defer cancel()
	all, err := d.tools.VCPUs(ctx, d.name)
	var u lab.Usage
	for _, v := range all {
		u.User += time.Duration(v.Seconds * float64(time.Second))
	}
	return u, err
}

// Domain is by what, and as which, package observe measures the guest.
func (d *xenGuest) Domain() (xen.Tools, int) { return d.tools, d.id }

// Threads implements lab.Environment: a Xen guest has no threads on the host.
func (d *xenGuest) Threads() ([]int, error) { return nil, nil }

// Ready implements lab.Environment: a virtual CPU that is neither blocked nor offline
// runs or waits for a CPU, unless its domain is paused, which xl vcpu-list does not
// show.
func (d *xenGuest) Ready() (bool, error) {
	if d.still.Load() {
		return false, nil
	}
	ctx, cancel := ask()
	defer cancel()
	all, err := d.tools.VCPUs(ctx, d.name)
	for _, v := range all {
		if !strings.ContainsAny(v.State, "bp") {
			return true, err
		}
	}
	return false, err
}

// Freeze implements lab.Environment.
func (d *xenGuest) Freeze(stop bool) error {
	ctx, cancel := ask()
	defer cancel()
	if err := d.tools.Pause(ctx, d.name, stop); err != nil {
		return err
	}
	d.still.Store(stop)
	return nil
}

// Close implements lab.Environment. A guest has nothing to save.
func (d *xenGuest) Close() error {
	d.once.Do(func() {
		ctx, cancel := ask()
		defer cancel()
		errs := []error{d.tools.Destroy(ctx, d.name)}
		if d.agentClient != nil {
			errs = append(errs, d.conn.Close())
			<-d.Gone()
		}
		d.err = errors.Join(append(errs, os.RemoveAll(d.dir))...)
	})
	return d.err
}

// sweepDomains destroys the guests of dead labs, which it knows by their names: what else a lab has
// left may be gone already, after a sweep at which xl failed.
func sweepDomains(t xen.Tools, prefix string) error {
	if os.Geteuid() != 0 { // it has made none, and xl answers root only
		return nil
	}
	ctx, cancel := ask()
	defer cancel()
	all, err := t.List(ctx)
	for _, g := range all {
		if workload.Abandoned(g.Name, prefix) {
			err = errors.Join(err, t.Destroy(ctx, g.Name))
		}
	}
	return err
}
