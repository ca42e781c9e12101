package enforce

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrMachine: another process limits tasks on this machine.
var ErrMachine = errors.New("the machine's cgroups are in use")

// MachineLock is held by the only process that may limit tasks on a machine. The kernel
// releases it when the process ends, however it ends.
type MachineLock struct {
	dirs []*os.File
	// Ignored are processes that hold the lock and cannot be agents: any user can lock a
	// directory that it can read. The lock then excludes no other agent.
	Ignored []Holder
}

// Holder is a process that has locked a directory.
type Holder struct {
	PID  int
	UID  int // effective; −1: the process that took the lock has ended, another one keeps it
	Name string
	// Setuid: its program has the rights of its owner, whichever user executes it. It is known of
	// processes of the agent's own user only.
	Setuid bool
}

func (h Holder) String() string { return fmt.Sprintf("pid %d (%q, uid %d)", h.PID, h.Name, h.UID) }

// LockMachine locks the directories where cgroups are mounted. The lock is on the kernel's
// directory: two agents exclude each other in different mount and pid namespaces, with
// different state directories. The error is ErrMachine if another agent has the lock.
func LockMachine(dirs []string) (*MachineLock, error) { return lockMachine(dirs, holders) }

func lockMachine(dirs []string, holders func(*os.File) ([]Holder, error)) (_ *MachineLock, err error) {
	l := &MachineLock{}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	for _, dir := range dirs {
		f, err := os.Open(dir)
		if err != nil {
			return nil, fmt.Errorf("lock cgroups: %w", err)
		}
		l.dirs = append(l.dirs, f)
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			continue
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		who, err := holders(f)
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w by another process: %w", dir, ErrMachine, err)
		}
		if len(who) == 0 { // of another pid namespace
			return nil, fmt.Errorf("lock %s: %w by a process of another container", dir, ErrMachine)
		}
		if i := slices.IndexFunc(who, Holder.privileged); i >= 0 {
			return nil, fmt.Errorf("lock %s: %w by %s", dir, ErrMachine, who[i])
		}
		l.Ignored = append(l.Ignored, who...)
	}
	return l, nil
}

// Close releases the lock.
func (l *MachineLock) Close() error {
	var errs []error
	for _, f := range l.dirs {
		errs = append(errs, f.Close())
	}
	l.dirs = nil
	return errors.Join(errs...)
}

// privileged reports whether a process could be an agent. An agent does not pass its lock on,
// so it is not one if the process that took the lock has ended. Nor is a program that makes any user
// root: one can take the lock and then execute such a program, su for example, which keeps it while it
// waits for a password.
func (h Holder) privileged() bool { return h.UID == os.Geteuid() && !h.Setuid }

// holders returns the processes of this pid namespace that have locked a file.
func holders(f *os.File) ([]Holder, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("stat: %w", err)
	}
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		return nil, err
	}
	var all []Holder
	for _, pid := range lockedBy(text, fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)) {
		h := Holder{PID: pid, UID: -1}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		switch {
		case errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH):
		case err != nil:
			return nil, err
		default:
			h.Name, h.UID = parseStatus(status)
			h.Setuid = h.UID == os.Geteuid() && setuid(pid)
		}
		all = append(all, h)
	}
	return all, nil
}

// setuid reports whether a process of the agent's own user executes a program with that mode. Programs of
// other users are not looked at: theirs may be on a file system that answers when they like. For the case
// that the process has just become such a one, the kernel answers with what it knows (AT_STATX_DONT_SYNC, statx(2)).
func setuid(pid int) bool {
	var program unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, fmt.Sprintf("/proc/%d/exe", pid), unix.AT_STATX_DONT_SYNC, unix.STATX_MODE, &program)
	return err == nil && program.Mode&unix.S_ISUID != 0
}

// lockedBy returns the processes that hold, and not those that wait for, a lock by flock(2) on
// a file: lines of /proc/locks such as "1: FLOCK  ADVISORY  WRITE 4711 00:1b:1 0 EOF"
// (proc_locks(5)).
func lockedBy(text []byte, file string) (pids []int) {
	for line := range bytes.Lines(text) {
		f := strings.Fields(string(line))
		if len(f) < 6 || f[1] != "FLOCK" || f[5] != file {
			continue
		}
		if pid, err := strconv.Atoi(f[4]); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// parseStatus reads the name and the effective user from /proc/PID/status. A name cannot
// contain a line of its own: the kernel escapes newlines.
func parseStatus(text []byte) (name string, uid int) {
	uid = -1
	for line := range bytes.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), ":\t")
		switch f := strings.Fields(value); {
		case key == "Name":
			name = value
		case key == "Uid" && len(f) == 4:
			if n, err := strconv.Atoi(f[1]); err == nil {
				uid = n
			}
		}
	}
	return name, uid
}
