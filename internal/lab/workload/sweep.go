package workload

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/machine/host"
)

// Sweep removes the trees of this prefix whose owner is dead: killed, crashed, or gone
// with its terminal. It returns the directories that it removed. Trees of living owners
// are not touched. An owner in another PID namespace looks dead, so sweep only in the
// namespace where trees are made.
func Sweep(prefix string) (removed []string, err error) {
	h, err := host.Open("/")
	if err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	var all []error
	for _, root := range append(sweepable(h.Layout()), os.TempDir()) {
		entries, err := os.ReadDir(root)
		if err != nil {
			all = append(all, err)
			continue
		}
		for _, e := range entries {
			if !e.IsDir() || !Abandoned(e.Name(), prefix) {
				continue
			}
			dir := filepath.Join(root, e.Name())
			gone := true
			if root == os.TempDir() {
				gone, err = removeScratch(dir)
			} else {
				err = RemoveCgroups(dir)
			}
			if err != nil {
				all = append(all, err)
			} else if gone {
				removed = append(removed, dir)
			}
		}
	}
	if err := errors.Join(all...); err != nil {
		return removed, fmt.Errorf("sweep: %w", err)
	}
	return removed, nil
}

// own is the beginning of the names of what this process makes, by which Abandoned knows it.
func own(prefix string) (string, error) {
	start, err := startTime(os.Getpid())
	return fmt.Sprintf("%s-%d-%d", prefix, os.Getpid(), start), err
}

// Scratch makes a temporary directory, which the caller removes. What killed processes have left of
// this prefix is removed first.
func Scratch(prefix string) (string, error) {
	entries, err := os.ReadDir(os.TempDir())
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if e.IsDir() && Abandoned(e.Name(), prefix) {
			_, _ = removeScratch(filepath.Join(os.TempDir(), e.Name())) // the next one tries again
		}
	}
	name, err := own(prefix)
	if err != nil {
		return "", err
	}
	return os.MkdirTemp("", name+".")
}

// Abandoned reports whether a name is that of a tree of prefix, or of something in it, whose owner
// is dead: PREFIX-PID-START, or that with ".ANYTHING".
func Abandoned(name, prefix string) bool {
	rest, ok := strings.CutPrefix(name, prefix+"-")
	if !ok {
		return false
	}
	rest, _, _ = strings.Cut(rest, ".")
	pid, start, ok := strings.Cut(rest, "-")
	if !ok {
		return false
	}
	p, err1 := strconv.ParseUint(pid, 10, 31)
	began, err2 := strconv.ParseUint(start, 10, 64)
	if err1 != nil || err2 != nil || p == 0 {
		return false
	}
	now, err := startTime(int(p))
	return errors.Is(err, fs.ErrNotExist) || err == nil && now != began
}

// removeScratch removes a directory of progress files if this user owns it: its parent is
// writable by all users, and one of them must not keep the others' labs from running.
func removeScratch(dir string) (gone bool, err error) {
	var st unix.Stat_t
	switch err := unix.Lstat(dir, &st); {
	case errors.Is(err, fs.ErrNotExist): // another Sweep has removed it
		return true, nil
	case err != nil:
		return false, fmt.Errorf("stat %s: %w", dir, err)
	}
	if int(st.Uid) != os.Geteuid() {
		return false, nil
	}
	return true, os.RemoveAll(dir)
}

// startTime is the process's start in clock ticks since boot. Together with the pid it
// identifies a process uniquely. A dead process or a zombie gives fs.ErrNotExist.
func startTime(pid int) (uint64, error) {
	s, err := host.ReadProcessStat(fmt.Sprintf("/proc/%d/stat", pid))
	switch {
	case errors.Is(err, unix.ESRCH):
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	case s.State == 'Z', s.State == 'X':
		err = fmt.Errorf("a zombie: %w", fs.ErrNotExist)
	}
	if err != nil {
		return 0, fmt.Errorf("read start time of process %d: %w", pid, err)
	}
	return s.Start, nil
}

// RemoveCgroups kills all processes in a cgroup and below and removes it. It retries for
// some time. A missing directory counts as removed.
func RemoveCgroups(dir string) error {
	for deadline := time.Now().Add(teardownTimeout); ; {
		err := tryRemove(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("remove cgroup: %w", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// tryRemove is one attempt: EBUSY means that processes are still dying.
func tryRemove(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			// Another Sweep may have removed it, and not yet what is above it.
			if err := tryRemove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	// A process that v1's freezer has frozen does not die.
	_ = host.WriteFile(filepath.Join(dir, "freezer.state"), "THAWED")
	// cgroup.kill exists in cgroup v2 since Linux 5.14.
	if host.WriteFile(filepath.Join(dir, "cgroup.kill"), "1") != nil {
		killMembers(dir)
	}
	return unix.Rmdir(dir)
}

// killMembers kills each process in a cgroup, but no process that has reused a PID in the
// meantime.
func killMembers(dir string) {
	for _, pid := range members(dir) {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		for _, still := range members(dir) {
			if still == pid {
				_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			}
		}
		_ = unix.Close(fd)
	}
}

func members(dir string) []int {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil
	}
	var pids []int
	for _, f := range strings.Fields(string(text)) {
		// 0 means a process of another PID namespace.
		if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}
