package env

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/helper"
	"github.com/quell-dev/quell/internal/machine/host"
)

// AgentMain is PID 1 of a container or a guest, or a program in a guest from a disk
// image: it runs the lab's commands there and
// sends their output to the lab, until the connection to the lab ends. Its words are
//
//	socket PATH	a unix socket on which the lab listens
//	tty PATH [ADDRESS]	a serial line, in a guest: AgentMain first mounts /proc and so on,
//		and gives the guest's network card the address
//	stdio LEASE	standard input and output, in a guest with an init of its own
//
// In a guest it ends by turning the power off. watch observes runs inside; nil: nothing does.
func AgentMain(words []string, watch helper.Watch) error {
	if len(words) != 2 && (len(words) != 3 || words[0] != "tty") {
		return errors.New("agent: want socket PATH, tty PATH [ADDRESS] or stdio LEASE")
	}
	switch kind, path := words[0], words[1]; kind {
	case "socket":
		conn, err := net.Dial("unix", path)
		if err != nil {
			return fmt.Errorf("agent: %w", err)
		}
		defer conn.Close()
		return serve(conn, false, nil)
	case "stdio":
		return serve(stdio{os.Stdin, os.Stdout}, true, watch)
	case "tty":
		if os.Getpid() != 1 {
			return errors.New("agent: tty works only as PID 1 of a guest: at the end it powers the machine off")
		}
		if err := inGuest(path, words[2:], watch); err != nil {
			fmt.Println("agent:", err)
		}
		return fmt.Errorf("agent: power off: %w", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
	default:
		return fmt.Errorf("agent: unknown word %q", kind)
	}
}

// inGuest sets up a guest, with an address or without, and serves the lab there.
func inGuest(tty string, address []string, watch helper.Watch) error {
	for _, m := range [][2]string{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"}, {"cgroup2", "/sys/fs/cgroup"}} {
		if err := os.MkdirAll(m[1], 0o755); err != nil {
			return err
		}
		// The kernel may have mounted devtmpfs itself.
		if err := unix.Mount(m[0], m[1], m[0], 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m[1], err)
		}
	}
	for _, a := range address {
		if err := joinNetwork(a); err != nil {
			return fmt.Errorf("join the network: %w", err)
		}
	}
	// Blocking, since the runtime's poller does not support terminals.
	fd, err := unix.Open(tty, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", tty, err)
	}
	line := os.NewFile(uintptr(fd), tty)
	defer line.Close()
	if err := raw(fd); err != nil {
		return fmt.Errorf("set up %s: %w", tty, err)
	}
	return serve(line, true, watch)
}

type stdio struct {
	io.Reader
	io.Writer
}

// raw configures a serial line to pass bytes unchanged: cfmakeraw(3).
func raw(fd int) error {
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return err
	}
	t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	t.Cflag = t.Cflag&^(unix.CSIZE|unix.PARENB|unix.CBAUD) | unix.CS8 | unix.B115200
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	return unix.IoctlSetTermios(fd, unix.TCSETS, t)
}

func serve(conn io.ReadWriter, guest bool, watch helper.Watch) error {
	return helper.ServeEnvironment(context.Background(), conn, newAgent(guest), watch)
}

// inside is the environment as the agent sees it: it starts programs. The host does the
// rest from outside, so the lab asks for nothing else.
type inside struct {
	lab.Environment
	guest    bool // its kernel is its own
	mu       sync.Mutex
	children []*child

	starts chan func() // on the thread that starts programs
	over   chan struct{}
	once   sync.Once // of over
}

// newAgent starts the thread that starts programs: they die with it (PR_SET_PDEATHSIG), so it lives
// as long as the agent. Others end with what they observe.
func newAgent(guest bool) *inside {
	in := &inside{guest: guest, starts: make(chan func()), over: make(chan struct{})}
	host.OwnThread(func() {
		for {
			select {
			case f := <-in.starts:
				f()
			case <-in.over:
				return
			}
		}
	})
	return in
}

// launch starts a command on that thread.
func (in *inside) launch(cmd *exec.Cmd) error {
	started := make(chan error)
	select {
	case in.starts <- func() { started <- cmd.Start() }:
		return <-started
	case <-in.over:
		return errEnded
	}
}

// Start implements lab.Environment.
func (in *inside) Start(_ context.Context, j lab.Job) (lab.Process, error) {
	cmd := exec.Command(j.Argv[0], j.Argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = j.Dir, j.Stdout, j.Stderr
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp"}, j.Env...)
	c, err := newChild(j.Argv, j.WaitsForStart, cmd, in.launch)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		return nil, &lab.LackError{What: fmt.Sprintf("no program %q in the environment", j.Argv[0]), Remedy: "a guest without image has only quell's own workloads; a container sees the host's programs"}
	}
	if err != nil {
		return nil, err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.children = append(in.children, c)
	if in.guest && j.Stdout != nil {
		return countInside(c, j.Stdout), nil
	}
	return c, nil
}

// Close implements lab.Environment.
func (in *inside) Close() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, c := range in.children {
		c.end()
	}
	in.once.Do(func() { close(in.over) })
	return nil
}
