package env

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// AgentMain is PID 1 of a container or a guest: it runs the lab's commands there and
// sends their output to the lab, until the connection to the lab ends. Its words are
//
//	socket PATH	a unix socket on which the lab listens
//	tty PATH	a serial line, in a guest: AgentMain first mounts /proc and so on,
//		and then loads modules and sets an address as further words say
//
// In a guest it ends by turning the power off.
func AgentMain(words []string) error {
	if len(words) < 2 || words[0] != "tty" && len(words) > 2 {
		return errors.New("agent: want socket PATH or tty PATH")
	}
	switch kind, path := words[0], words[1]; kind {
	case "socket":
		conn, err := net.Dial("unix", path)
		if err != nil {
			return fmt.Errorf("agent: %w", err)
		}
		defer conn.Close()
		return newAgent(conn).serve()
	case "tty":
		if os.Getpid() != 1 {
			return errors.New("agent: tty works only as PID 1 of a guest: at the end it powers the machine off")
		}
		err := inGuest(path, words[2:])
		fmt.Println("agent:", err)
		return fmt.Errorf("agent: power off: %w", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
	default:
		return fmt.Errorf("agent: unknown word %q", kind)
	}
}

// inGuest sets up a guest and serves it.
func inGuest(tty string, words []string) error {
	for _, m := range [][2]string{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"}, {"cgroup2", "/sys/fs/cgroup"}} {
		if err := os.MkdirAll(m[1], 0o755); err != nil {
			return err
		}
		// The kernel may have mounted devtmpfs itself.
		if err := unix.Mount(m[0], m[1], m[0], 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m[1], err)
		}
	}
	if err := runBootWords(words); err != nil {
		return err
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
	return newAgent(line).serve()
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

// agent serves one lab.
type agent struct {
	wire     *wire
	children map[int]*child
}

func newAgent(rw io.ReadWriter) *agent {
	return &agent{wire: newWire(rw), children: map[int]*child{}}
}

func (a *agent) serve() error {
	if err := a.wire.send(message{Op: "hello"}); err != nil {
		return err
	}
	defer func() {
		for _, c := range a.children {
			c.end()
		}
	}()
	for {
		m, err := a.wire.receive()
		if err != nil {
			return err
		}
		if err := a.obey(m); err != nil {
			return err
		}
	}
}

func (a *agent) obey(m message) error {
	c := a.children[m.ID]
	switch m.Op {
	case "ping":
		return a.wire.send(message{Op: "pong", ID: m.ID, NS: monotonic()})
	case "start":
		c, err := a.start(m)
		if err != nil {
			return a.wire.send(message{Op: "exit", ID: m.ID, Text: err.Error(), Missing: errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound)})
		}
		a.children[m.ID] = c
		if err := a.wire.send(message{Op: "started", ID: m.ID}); err != nil {
			return err
		}
		go func() {
			<-c.done
			end := message{Op: "exit", ID: m.ID}
			if err := c.Err(); err != nil {
				end.Text = err.Error()
			}
			_ = a.wire.send(end) // serve notices the end of the lab
		}()
	case "begin":
		if c != nil {
			_ = c.begin() // an error means that it has ended, which is reported
		}
	case "stop":
		if c != nil {
			go c.end()
		}
	}
	return nil
}

func (a *agent) start(m message) (*child, error) {
	if len(m.Argv) == 0 {
		return nil, errors.New("no program given")
	}
	argv := m.Argv
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = m.Dir
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp"}, m.Env...)
	cmd.Stdout, cmd.Stderr = &outlet{wire: a.wire, id: m.ID, fd: 1}, &outlet{wire: a.wire, id: m.ID, fd: 2}
	return newChild(argv, m.Waits, cmd, func(cmd *exec.Cmd) error { return cmd.Start() })
}

// outlet sends a program's output, one message per line; an incomplete last line is
// lost.
type outlet struct {
	wire    *wire
	id, fd  int
	partial []byte
}

// Write implements io.Writer.
func (o *outlet) Write(p []byte) (int, error) {
	o.partial = append(o.partial, p...)
	for {
		line, rest, ok := bytes.Cut(o.partial, []byte("\n"))
		if !ok && len(o.partial) > mostLine {
			line, rest, ok = o.partial, nil, true
		}
		if !ok {
			return len(p), nil
		}
		o.partial = rest
		if err := o.wire.send(message{Op: "out", ID: o.id, FD: o.fd, Text: string(line)}); err != nil {
			return 0, err
		}
	}
}
