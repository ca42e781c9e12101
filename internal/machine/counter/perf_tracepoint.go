package counter

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// tracefsMounts are the mount points of tracefs (tracefs.rst). The second is that of
// kernels before 4.1.
var tracefsMounts = [...]string{"/sys/kernel/tracing", "/sys/kernel/debug/tracing"}

// tracepoint finds the event that counts a tracepoint, e.g. "raw_syscalls/sys_enter".
// Its number is in tracefs. If that is not mounted, quell makes a mount that is
// attached nowhere (fsopen(2), Linux 5.2): no other process sees it, and it ends with
// its descriptor.
func tracepoint(name string) (event, error) {
	what := "tracepoint " + name
	file := "events/" + name + "/id"
	var err error
	for _, root := range tracefsMounts {
		var f *os.File
		if f, err = os.Open(root + "/" + file); err == nil {
			return readTracepoint(name, f)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			break // mounted, but not accessible
		}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return event{}, &NotSupportedError{What: what, Reason: err.Error(), Err: err,
			Remedy: "run as root, or grant CAP_DAC_READ_SEARCH"}
	}
	root, err := detachedTracefs()
	if err != nil {
		return event{}, &NotSupportedError{What: what, Reason: "tracefs is not mounted: " + err.Error(), Err: err,
			Remedy: "mount -t tracefs tracefs /sys/kernel/tracing"}
	}
	defer unix.Close(root)
	fd, err := unix.Openat(root, file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return event{}, &NotSupportedError{What: what, Reason: "open " + file + ": " + err.Error(), Err: err,
			Remedy: "use a kernel with CONFIG_FTRACE_SYSCALLS"}
	}
	return readTracepoint(name, os.NewFile(uintptr(fd), file))
}

func readTracepoint(name string, f *os.File) (event, error) {
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 64))
	if err != nil {
		return event{}, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	id, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return event{}, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	return event{name, unix.PERF_TYPE_TRACEPOINT, id}, nil
}

// detachedTracefs returns the root directory of a tracefs mount that is
// attached nowhere.
func detachedTracefs() (int, error) {
	fsfd, err := unix.Fsopen("tracefs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen tracefs: %w", err)
	}
	defer unix.Close(fsfd)
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return -1, fmt.Errorf("fsconfig tracefs: %w", err)
	}
	root, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsmount tracefs: %w", err)
	}
	return root, nil
}
