package fault

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// call is a system call that a traced process is about to make.
type call struct {
	pid  int // of the thread
	nr   uint64
	args [6]uint64
}

// bytes copies memory of the process: n bytes from address at, at most 4 KiB.
func (c call) bytes(at, n uint64) []byte {
	b := make([]byte, min(n, 4096))
	if len(b) == 0 {
		return nil
	}
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	got, err := unix.ProcessVMReadv(c.pid, local, []unix.RemoteIovec{{Base: uintptr(at), Len: len(b)}}, 0)
	if err != nil {
		return nil
	}
	return b[:got]
}

// ended is how a traced process ended.
type ended struct {
	killed bool
	code   int
}

// syscallInfo is struct ptrace_syscall_info of linux/ptrace.h, for an entry.
type syscallInfo struct {
	op   uint8
	_    [3]byte
	arch uint32
	ip   uint64
	sp   uint64
	nr   uint64
	args [6]uint64
	_    [2]uint64 // room for the data of other kinds of stop
}

// action is what happens to a call that is about to be made. The zero value lets it be made.
type action struct {
	kill  bool          // the process gets SIGKILL before
	errno unix.Errno    // it fails with this
	after bool          // with errno: it is made nevertheless
	short bool          // a write writes half
	delay time.Duration // no call of the process is made for so long
}

const (
	ptraceGetSyscallInfo = 0x420e // ptrace(2), Linux 5.3
	syscallEntry         = 1
	syscallExit          = 2
	syscallStop          = unix.SIGTRAP | 0x80 // PTRACE_O_TRACESYSGOOD
)

// trace runs an unmodified program and calls at before each system call of each
// of its threads, which says what happens to the call. The program dies with this one. Its standard streams must be files,
// since no goroutine waits for copies.
func trace(cmd *exec.Cmd, started func(pid int), at func(call) action) (ended, error) {
	// ptrace belongs to a thread: only the one that started the program can trace
	// it, and Wait4 below (WNOTHREAD) waits for this thread's children only.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return ended{}, fmt.Errorf("start traced: %w", err)
	}
	leader := cmd.Process.Pid
	defer cmd.Process.Release()
	var status unix.WaitStatus
	if _, err := unix.Wait4(leader, &status, unix.WALL, nil); err != nil || !status.Stopped() {
		return ended{}, fmt.Errorf("wait for exec: %v, %w", status, err)
	}
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL
	if err := unix.PtraceSetOptions(leader, options); err != nil {
		return ended{}, errors.Join(fmt.Errorf("set trace options: %w", err), unix.Kill(leader, unix.SIGKILL))
	}
	started(leader)
	known := map[int]bool{leader: true}
	resume := func(tid int, sig unix.Signal) { _ = unix.PtraceSyscall(tid, int(sig)) } // ESRCH: killed meanwhile
	resume(leader, 0)
	failing := map[int]unix.Errno{} // by thread, in a call
	for {
		tid, err := unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return ended{}, fmt.Errorf("wait for traced: %w", err)
		case status.Exited() || status.Signaled():
			if tid == leader {
				return ended{status.Signaled() && status.Signal() == unix.SIGKILL, status.ExitStatus()}, nil
			}
			continue
		case !status.Stopped():
			continue
		}
		first := !known[tid]
		known[tid] = true
		switch sig := status.StopSignal(); {
		case sig == syscallStop:
			if err := stopped(leader, tid, failing, at); err != nil && !errors.Is(err, unix.ESRCH) { // ESRCH: killed meanwhile
				return ended{}, errors.Join(fmt.Errorf("change a call: %w", err), unix.Kill(leader, unix.SIGKILL))
			}
			resume(tid, 0)
		case sig == unix.SIGTRAP, sig == unix.SIGSTOP && first: // a clone, and the new thread's first stop
			resume(tid, 0)
		default:
			resume(tid, sig)
		}
	}
}

// stopped handles the beginning or the end of a thread's call.
func stopped(leader, tid int, failing map[int]unix.Errno, at func(call) action) error {
	c, op := stoppedAt(tid)
	if op == syscallExit {
		errno, fails := failing[tid]
		if delete(failing, tid); fails {
			return setResult(tid, errno)
		}
		return nil
	}
	if op != syscallEntry {
		return nil
	}
	do := at(c)
	if do.kill {
		_ = unix.Kill(leader, unix.SIGKILL) // ESRCH: it has ended already
		return nil
	}
	if do.delay > 0 {
		<-time.After(do.delay)
	}
	if do.short && c.args[2] > 1 {
		return setLength(tid, c.args[2]/2)
	}
	if do.errno != 0 {
		failing[tid] = do.errno
		if !do.after {
			return skip(tid)
		}
	}
	return nil
}

// stoppedAt returns the system call at which a thread is stopped, and whether it is about to
// make it (syscallEntry) or has made it (syscallExit).
func stoppedAt(tid int) (call, uint8) {
	var info syscallInfo
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, ptraceGetSyscallInfo, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 {
		return call{}, 0
	}
	return call{tid, info.nr, info.args}, info.op
}
