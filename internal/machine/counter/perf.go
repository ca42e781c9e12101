package counter

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// perfSyscalls is the part of the kernel that counts: perf_event_open(2) and the calls on its
// descriptors. Tests replace it.
type perfSyscalls interface {
	// open opens an event of the cgroup (a directory's descriptor, or anyCgroup) on a CPU;
	// leader is the descriptor of the group to join, -1 to lead a new one.
	open(attr *unix.PerfEventAttr, cgroup, cpu, leader int) (int, error)
	// toggle starts or stops an event. While its leader is on, a group counts those
	// members that are on.
	toggle(fd int, on bool) error
	read(fd int, buf []byte) (int, error)
	close(fd int)
}

type linux struct{}

func (linux) open(attr *unix.PerfEventAttr, cgroup, cpu, leader int) (int, error) {
	flags := unix.PERF_FLAG_FD_CLOEXEC
	if cgroup != anyCgroup {
		flags |= unix.PERF_FLAG_PID_CGROUP
	}
	return unix.PerfEventOpen(attr, cgroup, cpu, leader, flags)
}

func (linux) toggle(fd int, on bool) error {
	req := uint(unix.PERF_EVENT_IOC_DISABLE)
	if on {
		req = unix.PERF_EVENT_IOC_ENABLE
	}
	return unix.IoctlSetInt(fd, req, 0) // of this event, not of its whole group
}

func (linux) read(fd int, buf []byte) (int, error) { return unix.Read(fd, buf) }

// close ignores the error: close(2) of a perf descriptor frees it either way.
func (linux) close(fd int) { unix.Close(fd) }

// event is one thing that perf counts.
type event struct {
	name   string
	kind   uint32 // PERF_TYPE_*
	config uint64
}

var taskClock = event{"task-clock", unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_TASK_CLOCK}

// attr asks for counting with times. No exclude_ bit is set: above all not
// exclude_guest, under which a virtual machine as a task counts nothing.
func (e event) attr() *unix.PerfEventAttr {
	return &unix.PerfEventAttr{
		Type:        e.kind,
		Size:        uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Config:      e.config,
		Bits:        unix.PerfBitDisabled,
		Read_format: unix.PERF_FORMAT_GROUP | unix.PERF_FORMAT_TOTAL_TIME_ENABLED | unix.PERF_FORMAT_TOTAL_TIME_RUNNING,
	}
}

// notSupported turns an error of perf_event_open into a NotSupportedError if it says
// something about the machine, and wraps it if it may be transient.
func notSupported(what string, err error) error {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return fmt.Errorf("open %s: %w", what, err)
	}
	e := &NotSupportedError{What: what, Err: err}
	name := unix.ErrnoName(errno)
	switch errno {
	case unix.ENOENT, unix.ENXIO, unix.EOPNOTSUPP:
		e.Reason = "perf_event_open: " + name + ": the CPU, or the hypervisor, offers no such event"
		e.Remedy = "use a machine or VM type that exposes a performance monitoring unit"
	case unix.ENODEV:
		e.Reason = "perf_event_open: " + name + ": none of the given CPUs can count it"
		e.Remedy = "use a machine or VM type that exposes a performance monitoring unit"
	case unix.EINVAL:
		e.Reason = "perf_event_open: " + name + ": the kernel refuses the event or a group of this size"
	case unix.EBUSY:
		e.Reason = "perf_event_open: " + name + ": another process has exclusive use of the counters"
		e.Remedy = "stop the other profiler, or free the NMI watchdog's counter: sysctl kernel.nmi_watchdog=0"
	case unix.EACCES, unix.EPERM:
		e.Reason = "perf_event_open: " + name + ": not permitted"
		e.Remedy = "grant CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8, or set the sysctl kernel.perf_event_paranoid to 2 where Debian has it at 3 or Ubuntu at 4) and allow perf_event_open in the seccomp profile"
	case unix.ENOSYS:
		e.Reason = "perf_event_open: " + name + ": the kernel was built without CONFIG_PERF_EVENTS, or seccomp forbids the call"
		e.Remedy = "allow perf_event_open in the seccomp profile"
	default:
		return fmt.Errorf("open %s: perf_event_open: %w", what, err)
	}
	return e
}

func outOfFDs(err error) bool { return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) }
