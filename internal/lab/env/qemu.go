package env

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/guest"
	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/host"
)

// qemuGuest is a QEMU guest with the agent as its PID 1, or one from a disk image. All of QEMU's threads are in the
// part's cgroup: the host counts its CPU time and freezes it from outside, as for any
// guest.
type qemuGuest struct {
	*agentClient
	*partCgroup
	qemu  *exec.Cmd
	ended chan struct{}
	vcpus []int      // host threads
	disk  *diskGuest // nil without an image
	dir   string     // its scratch folder
	once  sync.Once
	err   error

	mu            sync.Mutex
	pinnedPerVCPU bool // its virtual CPUs are placed one by one
	gathered      bool // its memory is where it was placed first
}

func nativeArch() guest.Arch { return guest.Arch(runtime.GOARCH) }

// kvmBootTimeout is the time limit for a guest on KVM to boot, after which KVM counts as not
// working; a boot takes two seconds.
const kvmBootTimeout = 20 * time.Second

// machine boots a guest on the first accelerator that works. Once KVM has worked, a guest that does
// not boot is that guest's failure: emulated, it would be slower than the run's stamp says.
func (m *Maker) machine(ctx context.Context, p *study.Part, l lab.Link) (lab.Environment, error) {
	wanted := accelerators(p.Environment)
	var errs []error
	for _, accel := range wanted {
		m.mu.Lock()
		known, tried := m.accel[accel]
		known = cmp.Or(known, m.accel[passedOver(accel, &p.Environment)])
		m.mu.Unlock()
		if known != nil {
			errs = append(errs, known)
			continue
		}
		e, err := m.boot(ctx, p, accel, l)
		if err == nil {
			m.judge(accel, nil)
			return e, nil
		}
		var lack *lab.LackError
		if ctx.Err() != nil || errors.As(asLackError(err), &lack) {
			return nil, err
		}
		err = fmt.Errorf("accelerator %s: %w", accel, err)
		if tried {
			return nil, err
		}
		if accel == "kvm" && (p.Environment.Image == "" || errors.Is(err, errSilent)) {
			m.judge(accel, err)
		}
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	m.mu.Lock()
	broken := m.accel["kvm"] != nil
	m.mu.Unlock()
	if broken && !slices.Contains(wanted, "tcg") {
		return nil, &lab.LackError{What: fmt.Sprintf("none of the accelerators %v works: %v", wanted, err), Remedy: "load kvm and give access to /dev/kvm, or allow tcg in the environment's accel"}
	}
	return nil, err
}

// judge remembers that an accelerator works, or why it does not.
func (m *Maker) judge(accel string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.accel[accel] = err
}

func accelerators(e study.Environment) []string {
	if len(e.Accel) == 0 {
		return []string{"kvm", "tcg"}
	}
	return e.Accel
}

// accelerator returns the accelerator that an environment's guests use, "none" if no
// guest boots. TCG is not tried, since every QEMU has it, and nor is one that has no other after it, or
// has worked: a guest that runs, runs on that. An accelerator that is passed over here is not used for
// this environment later either.
func (m *Maker) accelerator(ctx context.Context, e study.Environment) string {
	wanted := accelerators(e)
	for _, accel := range wanted {
		if accel == "tcg" || len(wanted) == 1 {
			return accel
		}
		m.mu.Lock()
		broken, tried := m.accel[accel]
		m.mu.Unlock()
		if tried && broken == nil { // by a guest of another environment
			return accel
		}
		e.Accel = []string{accel}
		g, err := m.Make(ctx, &study.Part{Role: "probe", Environment: e})
		if err == nil {
			_ = g.Close() // Maker's Close reports the error again
			return accel
		}
		if lack := (*lab.LackError)(nil); !errors.As(err, &lack) {
			m.judge(passedOver(accel, &e), err)
		}
	}
	return "none"
}

// passedOver is the key of Maker.accel for an accelerator with which the guests of one environment did
// not boot when it was stamped.
func passedOver(accel string, e *study.Environment) string { return accel + " for " + e.Name }

func (m *Maker) boot(ctx context.Context, p *study.Part, accel string, l lab.Link) (_ lab.Environment, err error) {
	limit := patienceToBoot
	if accel == "kvm" {
		fd, err := unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open /dev/kvm: %w", err)
		}
		if err := unix.Close(fd); err != nil {
			return nil, err
		}
		limit = kvmBootTimeout
	}
	b, err := m.box(p, false)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.tree.Remove(b.task))
		}
	}()
	dir, err := scratch(b.tree, b.task)
	if err != nil {
		return nil, err
	}
	var spec guest.Machine
	var k keys
	if p.Environment.Image == "" {
		spec, err = m.spec(p, accel, dir)
	} else {
		if limit = m.patience.login; accel == "kvm" {
			limit = min(limit, patienceToBoot)
		}
		spec, err = m.prepareDisk(p, accel, dir, &k, l != nil)
	}
	if err != nil {
		return nil, err
	}
	// Without the context's cancellation: a guest lives until it is closed.
	cmd, err := spec.Command(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	g := &qemuGuest{partCgroup: b, qemu: cmd, dir: dir, ended: make(chan struct{})}
	last := &tail{to: m.console(p.Name())}
	cmd.Stdout, cmd.Stderr = last, last
	if l != nil {
		tap, err := l.Tap()
		if err != nil {
			return nil, err
		}
		defer tap.Close() // QEMU has its own copy
		cmd.ExtraFiles = []*os.File{tap}
	}
	if err := b.tree.Launch(b.task, cmd, sample.Set{}); err != nil {
		return nil, err
	}
	var died error
	go func() {
		died = cmd.Wait()
		close(g.ended)
	}()
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Close(), died)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if p.Environment.Image != "" {
		return g, g.reach(ctx, m, p, dir, &k, accel == "kvm", spec.Kernel != "", last)
	}
	line, err := g.dial(ctx, filepath.Join(dir, "agent"))
	if err != nil {
		return nil, fmt.Errorf("%w%s", err, last.bootFailure())
	}
	g.agentClient = newInside(m, "/init", line, true, b.thaw)
	if err := g.findCPUs(ctx, filepath.Join(dir, "qmp")); err != nil {
		return nil, err
	}
	select {
	case <-g.Hello():
	case <-g.Gone():
		return nil, fmt.Errorf("the guest ended during boot%s", last.bootFailure())
	case <-ctx.Done():
		return nil, fmt.Errorf("no message from the guest's agent after %s%s", limit, last.bootFailure())
	}
	return g, g.measure(ctx)
}

// spec returns QEMU's configuration.
func (m *Maker) spec(p *study.Part, accel, dir string) (guest.Machine, error) {
	kernel, initramfs, err := m.boots(&p.Environment, dir, compressed)
	if err != nil {
		return guest.Machine{}, err
	}
	words := []string{rootWords}
	if accel == "tcg" {
		words = append(words, steadyClock)
	}
	words = append(append(words, "--"), m.opt.Agent[1:]...)
	words = append(words, "tty", "/dev/ttyS1")
	return guest.Machine{Arch: guest.AMD64, Kernel: kernel, Initramfs: initramfs, Append: strings.Join(words, " "),
		CPUs: guest.CPUs{Sockets: 1, Cores: p.Environment.CPUs}, MemoryMB: int(p.Environment.Memory >> 20), KVM: accel == "kvm",
		// One thread for each virtual CPU, which can be placed.
		Parallel: true,
		Args: []string{"-chardev", "socket,id=agent,path=" + comma(filepath.Join(dir, "agent")) + ",server=on,wait=off", "-serial", "chardev:agent",
			"-qmp", "unix:" + comma(filepath.Join(dir, "qmp")) + ",server=on,wait=off"}}, nil
}

// steadyClock is for TCG: there the TSC is calibrated against a timer that a loaded host
// delays; the HPET is QEMU's clock, which is the host's.
const steadyClock = "clocksource=hpet tsc=unstable"

// rootWords makes the kernel unpack the initramfs into a file system without a limit.
// The kernel's default is a tmpfs, which may use only half of the guest's memory
// (Documentation/filesystems/ramfs-rootfs-initramfs.rst): with 128 MiB that is too
// little for the program.
const rootWords = "rootfstype=ramfs"

// compressed writes an initramfs whose init is exe. A booting guest holds it packed and
// unpacked; uncompressed, that would be most of a small guest's memory.
func compressed(w io.Writer, exe string) error {
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(1<<20))
	if err != nil {
		return fmt.Errorf("write initramfs: %w", err)
	}
	return errors.Join(guest.Initramfs(z, exe, guest.Init{}), z.Close())
}

func comma(path string) string { return strings.ReplaceAll(path, ",", ",,") }

// console passes on a guest's console to Options.Console, line by line.
func (m *Maker) console(part string) io.Writer {
	if m.opt.Console == nil {
		return io.Discard
	}
	return &role.LineWriter{Line: func(text string) {
		if text = strings.TrimRight(text, "\r"); text != "" {
			m.opt.Console(part, text)
		}
	}}
}

// tail passes on the output of QEMU and of a guest's console. It keeps the end for the
// error of a guest that does not boot, and the reason of a kernel panic.
type tail struct {
	to    io.Writer
	mu    sync.Mutex
	kept  []byte
	panic string
}

// mostSaid is how many bytes of a console an error quotes. A kernel panic is followed
// by its registers, several hundred bytes.
const mostSaid = 600

const kernelPanic = "Kernel panic - not syncing: "

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	t.kept = append(t.kept, p...)
	if i := bytes.Index(t.kept, []byte(kernelPanic)); i >= 0 {
		line, _, _ := bytes.Cut(t.kept[i+len(kernelPanic):], []byte("\n"))
		t.panic = strings.TrimSpace(strings.ToValidUTF8(string(line), "?"))
	}
	if n := len(t.kept) - mostSaid; n > 0 {
		t.kept = slices.Delete(t.kept, 0, n)
	}
	t.mu.Unlock()
	return t.to.Write(p)
}

const silentConsole = " without console output"

func (t *tail) bootFailure() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.Join(strings.Fields(strings.ToValidUTF8(string(t.kept), "?")), " ")
	switch {
	case strings.Contains(t.panic, "memory"):
		return ": kernel panic: " + t.panic + "; give the environment more memory"
	case t.panic != "":
		return ": kernel panic: " + t.panic
	case text == "":
		return silentConsole
	}
	return "; end of its console: " + text
}

// dial connects to a socket that QEMU makes during its start.
func (g *qemuGuest) dial(ctx context.Context, path string) (net.Conn, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		conn, err := net.Dial("unix", path)
		if err == nil {
			return conn, nil
		}
		select {
		case <-time.After(pause):
		case <-g.ended:
			return nil, errors.New("QEMU exited immediately")
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		}
	}
}

func (g *qemuGuest) findCPUs(ctx context.Context, path string) error {
	conn, err := g.dial(ctx, path)
	if err != nil {
		return err
	}
	defer conn.Close()
	if at, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(at); err != nil {
			return err
		}
	}
	q, err := greet(conn)
	if err != nil {
		return err
	}
	g.vcpus, err = q.vcpus()
	return err
}

// Threads implements lab.Environment: the threads of the virtual CPUs, in order.
func (g *qemuGuest) Threads() ([]int, error) { return slices.Clone(g.vcpus), nil }

// Pin implements lab.Environment. With a set for each virtual CPU, QEMU's other threads
// may run on all the sets. The first placement, before the run, takes the guest's memory along.
func (g *qemuGuest) Pin(sets []sample.Set) error {
	if err := RefusePlacement(&study.Environment{Driver: study.QEMU, CPUs: len(g.vcpus)}, len(sets)); err != nil {
		return err
	}
	var all sample.Set
	for _, s := range sets {
		all = all.Union(s)
	}
	if err := g.place(all); err != nil {
		return err
	}
	g.mu.Lock()
	g.pinnedPerVCPU = len(sets) > 1
	first := !g.gathered
	g.gathered = true
	g.mu.Unlock()
	if first {
		h, err := host.Open("/")
		if err != nil {
			return err
		}
		top, err := h.Topology()
		if err != nil {
			return err
		}
		gather(g.qemu.Process.Pid, top, all)
	}
	if len(sets) == 1 {
		return nil
	}
	for i, tid := range g.vcpus {
		if err := host.SetAffinity(tid, sets[i]); err != nil {
			return fmt.Errorf("place virtual CPU %d on %s: %w", i, sets[i], err)
		}
	}
	return nil
}

// Pinned implements lab.Environment.
func (g *qemuGuest) Pinned() ([]sample.Set, error) {
	g.mu.Lock()
	apart := g.pinnedPerVCPU
	g.mu.Unlock()
	if !apart {
		return g.partCgroup.Pinned()
	}
	var sets []sample.Set
	for i, tid := range g.vcpus {
		set, err := host.Affinity(tid)
		if err != nil {
			return nil, fmt.Errorf("read where virtual CPU %d may run: %w", i, err)
		}
		sets = append(sets, set)
	}
	return sets, nil
}

// Close implements lab.Environment. A guest has nothing to save, so QEMU is killed.
func (g *qemuGuest) Close() error {
	g.once.Do(func() {
		errs := []error{g.partCgroup.thaw()}
		_ = g.qemu.Process.Kill() // has ended already: nothing to do
		<-g.ended
		if g.agentClient != nil {
			errs = append(errs, g.conn.Close())
			<-g.Gone()
		}
		if g.disk != nil {
			errs = append(errs, g.disk.close())
		}
		g.err = errors.Join(append(errs, g.tree.Remove(g.task), os.RemoveAll(g.dir))...)
	})
	return g.err
}
