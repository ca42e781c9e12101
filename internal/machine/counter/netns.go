package counter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strconv"

	"github.com/quell-dev/quell/internal/machine/host"
	"golang.org/x/sys/unix"
)

// errNoNetwork says that a process's network could not be entered because the process
// has ended.
var errNoNetwork = errors.New("the process is gone")

// dialLoopback connects to a port of the loopback device that a process sees. A socket
// belongs permanently to the network namespace of its thread at creation. For a literal
// address net.Dialer creates it on the calling goroutine.
func dialLoopback(ctx context.Context, proc string, pid, port int) (net.Conn, error) {
	return inNetwork(proc, pid, func() (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if errors.Is(err, unix.ECONNREFUSED) {
			if conn6, err6 := d.DialContext(ctx, "tcp6", fmt.Sprintf("[::1]:%d", port)); err6 == nil {
				return conn6, nil
			}
		}
		return conn, err
	})
}

// inNetwork calls dial in a process's network namespace. If that is the agent's own it
// needs no privilege, else CAP_SYS_ADMIN (setns(2)) and a thread until dial returns.
func inNetwork(proc string, pid int, dial func() (net.Conn, error)) (conn net.Conn, err error) {
	var own, its unix.Stat_t
	const self = "/proc/thread-self/ns/net"
	name := proc + "/" + strconv.Itoa(pid) + "/ns/net"
	if err := unix.Stat(self, &own); err != nil {
		return nil, fmt.Errorf("stat the agent's network namespace: %w", err)
	}
	if err := unix.Stat(name, &its); err != nil {
		return nil, networkError(pid, err)
	}
	if its.Dev == own.Dev && its.Ino == own.Ino {
		return dial()
	}
	ns, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, networkError(pid, err)
	}
	defer unix.Close(ns)
	done := make(chan struct{})
	host.OwnThread(func() {
		defer close(done)
		back, openErr := unix.Open(self, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if openErr != nil {
			runtime.UnlockOSThread()
			err = fmt.Errorf("open the agent's network namespace: %w", openErr)
			return
		}
		defer unix.Close(back)
		if enterErr := unix.Setns(ns, unix.CLONE_NEWNET); enterErr != nil {
			runtime.UnlockOSThread()
			err = networkError(pid, enterErr)
			return
		}
		conn, err = dial()
		// A thread that cannot go back stays locked, and ends with this goroutine.
		if unix.Setns(back, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	})
	<-done
	return conn, err
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
	const name = "tasks' networks"
	ns, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		runtime.LockOSThread()
		err = unix.Setns(ns, unix.CLONE_NEWNET) // the current namespace
		runtime.UnlockOSThread()
		unix.Close(ns)
	}
	if err != nil {
		return host.Missing(name, "setns: "+err.Error()+"; only tasks in the agent's network namespace can be scraped", "grant CAP_SYS_ADMIN")
	}
	return host.Present(name, "counters of containers can be scraped")
}
