package xen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Tools runs Xen's tools in the first domain. The zero value runs those on PATH.
type Tools struct {
	// Run runs a program and returns its output; nil: os/exec.
	Run func(ctx context.Context, argv ...string) ([]byte, error)
	// Dir is the folder for temporary files, which are large; "": the system's.
	Dir string
}

// ErrNoDomain says that there is no such domain.
var ErrNoDomain = errors.New("domain does not exist")

// Config is a paravirtualised guest.
type Config struct {
	Name    string
	Kernel  string // path of its kernel, an ELF image or a bzImage
	Ramdisk string
	Command string // the kernel's command line
	Memory  int    // MiB
	VCPUs   int
	// Weight is its share of the CPUs relative to others, 0 for the scheduler's default
	// 256. Cap is its maximum, in per cent of one CPU, 0 for no limit. Both are for the
	// Credit scheduler, Cap for Credit2 too.
	Weight, Cap int
	// Vif is the program that Xen calls when the other end of its network card, vifID.0, is
	// there (xl-network-configuration(5), script); "": it has no card.
	Vif string
}

// text returns the file that xl create reads (xl.cfg(5)).
func (c *Config) text() []byte {
	var b bytes.Buffer
	word := func(key, value string) { fmt.Fprintf(&b, "%s = %q\n", key, value) }
	number := func(key string, n int) {
		if n > 0 {
			fmt.Fprintf(&b, "%s = %d\n", key, n)
		}
	}
	word("name", c.Name)
	word("type", "pv")
	word("kernel", c.Kernel)
	word("ramdisk", c.Ramdisk)
	word("extra", c.Command)
	number("memory", c.Memory)
	number("vcpus", c.VCPUs)
	number("cpu_weight", c.Weight)
	number("cap", c.Cap)
	if c.Vif != "" {
		fmt.Fprintf(&b, "vif = [ %q ]\n", "script="+c.Vif)
	}
	// A failure must stay visible; the domain must not start again.
	word("on_crash", "destroy")
	word("on_reboot", "destroy")
	return b.Bytes()
}

func (t Tools) run(ctx context.Context, argv ...string) ([]byte, error) {
	return t.within(ctx, 2*time.Second, nil, argv...) // xl leaves a process behind that watches the domain
}

// within is run with the time that a program has to end when ctx does, and its own to close
// their output when it has ended.
func (t Tools) within(ctx context.Context, delay time.Duration, attr *syscall.SysProcAttr, argv ...string) ([]byte, error) {
	if t.Run != nil {
		return t.Run(ctx, argv...)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr = attr
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(syscall.SIGTERM) }, delay
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(argv[:min(2, len(argv))], " "), err, bytes.TrimSpace(problems.Bytes()))
	}
	return out.Bytes(), nil
}

// Create makes a paused domain and returns its id.
func (t Tools) Create(ctx context.Context, c Config) (id int, err error) {
	f, err := os.CreateTemp(t.Dir, "quell-xen-*.cfg")
	if err != nil {
		return 0, fmt.Errorf("create domain: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(c.text())
	if err := errors.Join(err, f.Close()); err != nil {
		return 0, fmt.Errorf("create domain: %w", err)
	}
	if _, err := t.run(ctx, "xl", "create", "-q", "-p", f.Name()); err != nil {
		return 0, fmt.Errorf("create domain %s: %w", c.Name, err)
	}
	return t.ID(ctx, c.Name)
}

// ID returns the id of a domain by name; the error is ErrNoDomain if there is none.
func (t Tools) ID(ctx context.Context, name string) (int, error) {
	all, err := t.List(ctx)
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(all, func(g Guest) bool { return g.Name == name })
	if i < 0 {
		return 0, fmt.Errorf("find domain %s: %w", name, ErrNoDomain)
	}
	return all[i].ID, nil
}

// List lists the domains. A domain that is being created or destroyed may have no
// configuration for a moment, and then no name.
func (t Tools) List(ctx context.Context) ([]Guest, error) {
	out, err := t.run(ctx, "xl", "list", "-l")
	if err != nil {
		return nil, fmt.Errorf("list domains: %w", err)
	}
	return ParseList(bytes.NewReader(out))
}

// VCPUs lists the virtual CPUs of a domain, by number.
func (t Tools) VCPUs(ctx context.Context, name string) ([]VCPU, error) {
	out, err := t.run(ctx, "xl", "vcpu-list", name)
	if err != nil {
		return nil, fmt.Errorf("list virtual CPUs of %s: %w", name, err)
	}
	return ParseVCPUs(bytes.NewReader(out))
}

// Pin sets the physical CPUs ("0-3", "all") on which a virtual CPU may run.
func (t Tools) Pin(ctx context.Context, name string, vcpu int, cpus string) error {
	if _, err := t.run(ctx, "xl", "vcpu-pin", name, strconv.Itoa(vcpu), cpus); err != nil {
		return fmt.Errorf("pin virtual CPU %d of %s to %s: %w", vcpu, name, cpus, err)
	}
	return nil
}

// CPUs returns the number of Xen's physical CPUs.
func (t Tools) CPUs(ctx context.Context) (int, error) {
	out, err := t.run(ctx, "xl", "info", "nr_cpus")
	if err != nil {
		return 0, fmt.Errorf("read number of CPUs from xl info: %w", err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil || n < 1 {
		return 0, fmt.Errorf("read number of CPUs from xl info: %q", out)
	}
	return n, nil
}

// Hertz returns the rate of the time stamps in traces.
func (t Tools) Hertz(ctx context.Context) (float64, error) {
	out, err := t.run(ctx, "xl", "info")
	if err != nil {
		return 0, fmt.Errorf("run xl info: %w", err)
	}
	return ParseHertz(bytes.NewReader(out))
}

// Pause pauses a domain or continues it.
func (t Tools) Pause(ctx context.Context, name string, stop bool) error {
	word := "unpause"
	if stop {
		word = "pause"
	}
	if _, err := t.run(ctx, "xl", word, name); err != nil {
		return fmt.Errorf("%s %s: %w", word, name, err)
	}
	return nil
}

// Destroy ends a domain at once. It succeeds if the domain does not exist.
func (t Tools) Destroy(ctx context.Context, name string) error {
	_, err := t.run(ctx, "xl", "destroy", name)
	if err == nil {
		return nil
	}
	if _, there := t.ID(ctx, name); errors.Is(there, ErrNoDomain) {
		return nil
	}
	return fmt.Errorf("destroy %s: %w", name, err)
}

// ConsoleOf returns the terminal of a domain's console, which xenconsoled makes some
// time after the domain.
func (t Tools) ConsoleOf(ctx context.Context, id int) (string, error) {
	for {
		out, err := t.run(ctx, "xenstore", "read", fmt.Sprintf("/local/domain/%d/console/tty", id))
		if path := strings.TrimSpace(string(out)); err == nil && path != "" {
			return path, nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("find the console of domain %d: %w", id, errors.Join(ctx.Err(), err))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// traced are the classes of records that Measure reads: those of the scheduler, of page
// tables and grants, and of paravirtualised guests (xen/include/public/trace.h).
const traced = 0x0002f000 | 0x0010f000 | 0x0020f000

// Recording is a running xentrace. A machine has one at a time.
type Recording struct {
	dir  string
	hz   float64
	stop context.CancelFunc
	done chan error
}

// Record starts to record.
func (t Tools) Record(ctx context.Context) (*Recording, error) {
	hz, err := t.Hertz(ctx)
	if err != nil {
		return nil, err
	}
	r := &Recording{hz: hz, done: make(chan error, 1)}
	if r.dir, err = os.MkdirTemp(t.Dir, "quell-xen-"); err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	ctx, r.stop = context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		// It ends with this process too, however that ends, or its file would grow until the disk is
		// full. The kernel signals the end of the thread that started it (prctl(2)): this goroutine
		// keeps that thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		// -D: without an earlier trace's data in the buffers; -S: pages per CPU. At its end it
		// writes what the buffers have, and switches tracing off.
		_, err := t.within(ctx, time.Minute, &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}, "xentrace", "-D", "-S", "256", "-e", fmt.Sprintf("%#x", traced), r.file())
		r.done <- err
	}()
	return r, nil
}

func (r *Recording) file() string { return filepath.Join(r.dir, "trace") }

// Stop ends the recording and measures it. It is called once.
func (r *Recording) Stop() (*Trace, error) {
	defer os.RemoveAll(r.dir)
	r.stop()
	if err := <-r.done; err != nil && !errors.Is(err, context.Canceled) {
		return nil, fmt.Errorf("trace: %w", err)
	}
	f, err := os.Open(r.file())
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	defer f.Close()
	return Measure(f, r.hz)
}
