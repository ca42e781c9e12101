package duck

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// inside is set in the environment of a process that re-executed itself inside the
// fences. Its value names them.
const inside = "QUELL_QUERY_FENCES"

// sandbox restricts the process and re-executes it: Landlock applies to a thread, and
// after exec that thread is the whole process. System calls are restricted after that.
func sandbox(dir string) ([]string, error) {
	if up, ok := os.LookupEnv(inside); ok {
		fences := strings.Fields(up)
		calls, err := restrictCalls()
		if calls {
			fences = append(fences, "seccomp")
		}
		return fences, err
	}
	runtime.LockOSThread()
	// No file can grow: a write beyond is a signal, which Go turns into an error.
	for _, r := range []int{unix.RLIMIT_FSIZE, unix.RLIMIT_CORE} {
		if err := unix.Setrlimit(r, &unix.Rlimit{}); err != nil {
			return nil, fmt.Errorf("set resource limit: %w", err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("set no_new_privs: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	up := ""
	switch err := landlock(self, dir); {
	case err == nil:
		up = "landlock"
	case !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EOPNOTSUPP):
		return nil, err
	}
	return nil, fmt.Errorf("run inside the sandbox: %w", syscall.Exec(self, os.Args, []string{inside + "=" + up}))
}

// limit sets the limits that depend on the query.
func limit(l *Limits) error {
	memory := uint64(l.MemoryMB) << 20
	seconds := uint64(l.Time.Seconds()+1) * uint64(max(1, l.Threads)+1)
	for r, v := range map[int]uint64{
		unix.RLIMIT_DATA:   memory + memory/2 + 768<<20, // Go's heap, stacks and memory that DuckDB does not count
		unix.RLIMIT_CPU:    seconds,
		unix.RLIMIT_NOFILE: 4096,
	} {
		var now unix.Rlimit
		if err := unix.Getrlimit(r, &now); err != nil {
			return err
		}
		v = min(v, now.Max)
		if err := unix.Setrlimit(r, &unix.Rlimit{Cur: v, Max: v}); err != nil {
			return fmt.Errorf("set resource limit: %w", err)
		}
	}
	return nil
}

// landlock restricts this thread, and what it executes, to reading the program itself,
// the system's libraries and the store. It also bars TCP where the kernel supports that
// (Documentation/userspace-api/landlock.rst).
func landlock(program, dir string) error {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return errno
	}
	attr := unix.LandlockRulesetAttr{Handled_access_fs: unix.LANDLOCK_ACCESS_FS_REFER - 1} // all rights of version 1 are below it
	if version >= 2 {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if version >= 3 {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	size := unsafe.Sizeof(attr.Handled_access_fs) // supported by the oldest kernels
	if version >= 4 {
		attr.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
		size += unsafe.Sizeof(attr.Handled_access_net)
	}
	rules, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return fmt.Errorf("make Landlock rules: %w", errno)
	}
	defer unix.Close(int(rules))
	const read = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	const run = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_EXECUTE
	allowed := map[string]uint64{program: run, dir: read}
	// DuckDB reads its memory limit there and fails without access. A file of /proc is another one
	// after the kernel has dropped it from its caches, and the rule is not of that: so it stays open,
	// also in what is executed.
	own := fmt.Sprintf("/proc/%d/cgroup", os.Getpid())
	if _, err := unix.Open(own, unix.O_PATH, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("open %s: %w", own, err)
	}
	allowed[own], allowed["/sys/fs/cgroup"] = unix.LANDLOCK_ACCESS_FS_READ_FILE, unix.LANDLOCK_ACCESS_FS_READ_FILE
	for _, lib := range []string{"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache"} {
		allowed[lib] = run
	}
	for path, access := range allowed {
		if err := permit(int(rules), path, access); err != nil && !(errors.Is(err, unix.ENOENT) && path != dir && path != program) {
			return fmt.Errorf("allow the query to read %s: %w", path, err)
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, rules, 0, 0); errno != 0 {
		return fmt.Errorf("apply Landlock rules: %w", errno)
	}
	return nil
}

func permit(rules int, path string, access uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	rule := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(rules), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
