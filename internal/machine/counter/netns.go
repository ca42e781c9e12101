package counter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/quell-dev/quell/internal/machine/host"
	"golang.org/x/sys/unix"
)

// errNoNetwork says that a process's network could not be entered because the process
// has ended.
var errNoNetwork = errors.New("the process is gone")

// dialLoopback connects to a port of the loopback device that a process sees. A socket
// belongs permanently to the network namespace of its thread at creation, so only that
// call runs in the process's namespace.
func dialLoopback(ctx context.Context, proc string, pid, port int) (net.Conn, error) {
	conn, err := dialOne(ctx, proc, pid, unix.AF_INET, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	if errors.Is(err, unix.ECONNREFUSED) {
		addr := &unix.SockaddrInet6{Port: port}
		addr.Addr[15] = 1
		if conn6, err6 := dialOne(ctx, proc, pid, unix.AF_INET6, addr); err6 == nil {
			return conn6, nil
		}
	}
	return conn, err
}

func dialOne(ctx context.Context, proc string, pid, family int, addr unix.Sockaddr) (net.Conn, error) {
	fd, err := socketOf(proc, pid, family)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close() // the connection has a duplicate
	if err := connect(ctx, f, addr); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return net.FileConn(f)
}

// connect waits for the connection as long as the context allows.
func connect(ctx context.Context, f *os.File, addr unix.Sockaddr) error {
	if d, ok := ctx.Deadline(); ok {
		if err := f.SetWriteDeadline(d); err != nil {
			return err
		}
	}
	defer context.AfterFunc(ctx, func() { f.SetWriteDeadline(time.Unix(1, 0)) })()
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	asked := false
	var result error
	waitErr := raw.Write(func(fd uintptr) (done bool) {
		if !asked {
			asked = true
			result = unix.Connect(int(fd), addr)
			return !errors.Is(result, unix.EINPROGRESS)
		}
		n, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		switch {
		case err != nil:
			result = err
		case n != 0:
			result = unix.Errno(n)
		default:
			result = nil
		}
		return true
	})
	return errors.Join(waitErr, result)
}

// socketOf makes a TCP socket in a process's network namespace. If that is the
// agent's own it needs no privilege, else CAP_SYS_ADMIN (setns(2)).
func socketOf(proc string, pid, family int) (int, error) {
	var own, its unix.Stat_t
	name := proc + "/" + strconv.Itoa(pid) + "/ns/net"
	if err := unix.Stat("/proc/thread-self/ns/net", &own); err != nil {
		return -1, fmt.Errorf("stat the agent's network namespace: %w", err)
	}
	if err := unix.Stat(name, &its); err != nil {
		return -1, networkError(pid, err)
	}
	const kind = unix.SOCK_STREAM | unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC
	if its.Dev == own.Dev && its.Ino == own.Ino {
		return unix.Socket(family, kind, 0)
	}
	ns, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, networkError(pid, err)
	}
	defer unix.Close(ns)
	type made struct {
		fd  int
		err error
	}
	result := make(chan made, 1)
	go func() {
		runtime.LockOSThread()
		back, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			runtime.UnlockOSThread()
			result <- made{-1, fmt.Errorf("stat the agent's network namespace: %w", err)}
			return
		}
		defer unix.Close(back)
		if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			result <- made{-1, networkError(pid, err)}
			return
		}
		fd, err := unix.Socket(family, kind, 0)
		// A thread that cannot go back stays locked, and ends with this goroutine.
		if unix.Setns(back, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		result <- made{fd, err}
	}()
	m := <-result
	return m.fd, m.err
}

func networkError(pid int, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESRCH):
		return errNoNetwork
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return &NotSupportedError{What: "counters in the network namespace of process " + strconv.Itoa(pid), Reason: err.Error(), Err: err,
			Remedy: "grant CAP_SYS_PTRACE, and CAP_SYS_ADMIN where the task has a network namespace of its own"}
	}
	return fmt.Errorf("enter the network namespace of process %d: %w", pid, err)
}

// NetworkCapability reports whether counters of tasks with a network of their own can
// be scraped.
func NetworkCapability() host.Capability {
	c := host.Capability{Name: "tasks' networks"}
	ns, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		runtime.LockOSThread()
		err = unix.Setns(ns, unix.CLONE_NEWNET) // the current namespace
		runtime.UnlockOSThread()
		unix.Close(ns)
	}
	if c.OK = err == nil; c.OK {
		c.Detail = "counters of containers can be scraped"
		return c
	}
	c.Reason = "setns: " + err.Error() + "; only tasks in the agent's network namespace can be scraped"
	c.Remedy = "grant CAP_SYS_ADMIN"
	return c
}
