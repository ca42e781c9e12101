package env

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/study"
)

// container is an LXC container: its own namespaces and cgroups for the host's
// programs, which it sees read-only, with the agent as its init. It needs no template
// and no image.
type container struct {
	*agentClient
	*partCgroup
	monitor *exec.Cmd // lxc-start
	ended   chan struct{}
	once    sync.Once
	err     error
}

// patienceToBoot is the time limit for the agent's first message.
const patienceToBoot = 2 * time.Minute

// Paths of the agent in a container.
const (
	insideExe  = "/quell/program"
	insideDir  = "/quell/lab"
	socketName = "agent"
)

func (m *Maker) container(ctx context.Context, p *study.Part, l lab.Link) (_ lab.Environment, err error) {
	lxc, err := exec.LookPath("lxc-start")
	if err != nil {
		return nil, err
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
	config, err := m.lxcConfig(p, b, dir, l)
	if err != nil {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "lab", socketName), Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	c := &container{partCgroup: b, ended: make(chan struct{})}
	log := filepath.Join(dir, "log")
	c.monitor = exec.Command(lxc, "-P", dir, "-n", b.task, "-f", config, "-F", "-o", log, "-l", "WARN")
	c.monitor.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// The monitor makes the cgroups of both. It starts in a sibling cgroup, where
	// cgroup2 permits children with controllers.
	if err := b.tree.Launch(monitorTask(b.task), c.monitor, sample.Set{}); err != nil {
		return nil, err
	}
	go func() {
		_ = c.monitor.Wait() // 137 when it was killed; its log has the details
		close(c.ended)
	}()
	defer func() {
		if err != nil {
			text, _ := os.ReadFile(log)
			if c.agentClient != nil {
				err = errors.Join(err, c.conn.Close()) // the agent ends with it, and end waits for that
			}
			err = errors.Join(fmt.Errorf("%w; log of lxc-start: %s", err, strings.TrimSpace(string(text))), c.end())
		}
	}()
	conn, err := c.accept(ctx, listener)
	if err != nil {
		return nil, err
	}
	c.agentClient = newInside(m, insideExe, conn, false, b.thaw)
	select {
	case <-c.Hello():
	case <-c.Gone():
		return nil, errors.New("the agent in the container exited immediately")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	threads, err := b.Threads()
	if err == nil && len(threads) == 0 {
		err = fmt.Errorf("LXC did not place the container in cgroup %s", b.all)
	}
	return c, err
}

func monitorTask(task string) string { return task + ".monitor" }

// accept waits for the agent, or for an early end of the container.
func (c *container) accept(ctx context.Context, l *net.UnixListener) (net.Conn, error) {
	early := make(chan struct{})
	defer close(early)
	go func() {
		select {
		case <-c.ended:
		case <-ctx.Done():
		case <-early:
			return
		}
		_ = l.SetDeadline(time.Unix(1, 0))
	}()
	if err := l.SetDeadline(time.Now().Add(patienceToBoot)); err != nil {
		return nil, err
	}
	conn, err := l.Accept()
	if err != nil {
		return nil, fmt.Errorf("start container: its agent did not connect: %w", errors.Join(err, ctx.Err()))
	}
	return conn, nil
}

// lxcConfig makes the container's root and writes its configuration
// (lxc.container.conf(5)). The root contains empty directories. The host's directories
// are mounted onto them in the container's own mount namespace, read-only.
func (m *Maker) lxcConfig(p *study.Part, b *partCgroup, dir string, l lab.Link) (string, error) {
	exe, err := m.program()
	if err != nil {
		return "", err
	}
	root := filepath.Join(dir, "root")
	for _, d := range []string{filepath.Join(dir, "lab"), root} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return "", err
		}
	}
	var text strings.Builder
	set := func(key, value string) { fmt.Fprintf(&text, "lxc.%s = %s\n", key, value) }
	mount := func(from, to, options string) {
		set("mount.entry", fmt.Sprintf("%s %s %s 0 0", octal(from), octal(strings.TrimPrefix(to, "/")), options))
	}
	set("uts.name", "quell")
	set("rootfs.path", "dir:"+root)
	if l == nil {
		set("net.0.type", "empty")
	} else {
		set("namespace.share.net", l.Path())
	}
	set("apparmor.profile", "unconfined")
	set("mount.auto", "proc:mixed sys:ro")
	set("autodev", "1")
	set("tty.max", "0")
	set("console.path", "none")
	set("cgroup.dir.container", strings.TrimPrefix(b.tree.Path(b.task), "/")+"/c")
	set("cgroup.dir.monitor", strings.TrimPrefix(b.tree.Path(monitorTask(b.task)), "/")+"/m")
	words := append([]string{insideExe}, m.opt.Agent[1:]...)
	set("init.cmd", strings.Join(append(words, "socket", insideDir+"/"+socketName), " "))
	dirs := []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/usr", "/etc", "/opt", "/var"}
	for _, d := range dirs {
		info, err := os.Lstat(d)
		if err != nil {
			continue
		}
		if info.Mode()&os.ModeSymlink != 0 {
			to, err := os.Readlink(d)
			if err == nil {
				err = os.Symlink(to, filepath.Join(root, d))
			}
			if err != nil {
				return "", err
			}
			continue
		}
		mount(d, d, "none bind,ro,create=dir")
	}
	mount("tmpfs", "/tmp", "tmpfs rw,create=dir")
	// The folder of the study's command, e.g. /bench; of one in /tmp or / the program alone, since the
	// container has its own of these.
	if w := p.Workload.Command; len(w) > 0 && filepath.IsAbs(w[0]) {
		at, kind := filepath.Dir(w[0]), "dir"
		if at == "/tmp" || at == "/" {
			at, kind = w[0], "file"
		}
		if !slices.ContainsFunc(dirs, func(d string) bool { return strings.HasPrefix(at+"/", d+"/") }) {
			mount(at, at, "none bind,ro,create="+kind)
		}
	}
	mount(exe, insideExe, "none bind,ro,create=file")
	mount(filepath.Join(dir, "lab"), insideDir, "none bind,create=dir")
	path := filepath.Join(dir, "config")
	return path, os.WriteFile(path, []byte(text.String()), 0o600)
}

// octal escapes a path as fstab(5) does.
func octal(path string) string {
	return strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`).Replace(path)
}

// Close implements lab.Environment.
func (c *container) Close() error {
	c.once.Do(func() { c.err = errors.Join(c.partCgroup.thaw(), c.conn.Close(), c.end()) })
	return c.err
}

// end makes sure that the container and its monitor have ended, and removes their cgroups
// and what LXC has made in hierarchies outside the tree. The monitor removes its own files
// if it may, so it gets the time for that.
func (c *container) end() error {
	if c.agentClient != nil {
		<-c.Gone()
	}
	if !within(c.ended, grace) {
		_ = c.monitor.Process.Kill()
		<-c.ended
	}
	// The strays come last: a killed monitor's container is still in them until Remove has seen
	// that no process of it is left.
	return errors.Join(c.tree.Remove(c.task), c.tree.Remove(monitorTask(c.task)), removeStrays(c.tree.Top()))
}

// removeStrays removes the cgroups of a path in all v1 hierarchies, also in those
// without a controller; they contain no processes any more.
func removeStrays(top string) error {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) > 2 && f[2] == "cgroup" {
			prune(filepath.Join(f[1], top))
		}
	}
	return nil
}

// prune removes cgroups from the bottom up; those in use stay.
func prune(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() {
			prune(filepath.Join(dir, e.Name()))
		}
	}
	_ = syscall.Rmdir(dir)
}
