package workload

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Launch starts a program that is not a workload in a task's cgroups, so that it has its
// share of the tree's CPU time. The cgroups are created if needed. The program may run on
// the given CPUs, on all if there are none. A Pdeathsig in its SysProcAttr takes effect
// at the tree's end or this process's. The caller waits for the program and ends it
// before Close.
func (t *Tree) Launch(task string, cmd *exec.Cmd, cpus sample.Set) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.claim(task); err != nil {
		return fmt.Errorf("launch program: %w", err)
	}
	started := make(chan error)
	t.threads <- func() { started <- t.startIn(task, cmd, cpus) }
	if err := <-started; err != nil {
		return fmt.Errorf("launch program: %w", err)
	}
	return nil
}

// startIn starts cmd from the calling thread, which is locked, and moves it into the
// task's cgroups before its first instruction: it is traced from its start (ptrace(2),
// PTRACE_TRACEME), which stops it after exec. Otherwise children that it forks
// immediately would stay outside.
func (t *Tree) startIn(task string, cmd *exec.Cmd, cpus sample.Set) error {
	attr := syscall.SysProcAttr{}
	if cmd.SysProcAttr != nil {
		attr = *cmd.SysProcAttr
	}
	attr.Ptrace = true
	cmd.SysProcAttr = &attr
	if err := startOn(cmd, cpus); err != nil {
		return err
	}
	pid := cmd.Process.Pid
	err := stopped(pid)
	if err == nil {
		err = t.enter(task, pid, cpus)
	}
	if err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	if err := unix.PtraceDetach(pid); err != nil {
		return errors.Join(fmt.Errorf("detach from process %d: %w", pid, err), cmd.Process.Kill(), cmd.Wait())
	}
	return nil
}

// stopped waits until a traced process has executed its program.
func stopped(pid int) error {
	var status unix.WaitStatus
	for {
		switch _, err := unix.Wait4(pid, &status, 0, nil); {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for process %d: %w", pid, err)
		case !status.Stopped():
			return fmt.Errorf("process %d ended before it executed its program", pid)
		default:
			return nil
		}
	}
}

// Scratch is a directory that belongs to the tree, removed with it and by Sweep.
func (t *Tree) Scratch() string { return t.scratch }

// enter puts a process into a task's cgroup in every hierarchy and then sets its CPUs
// again, if any are given: before Linux 6.2 a process that enters a cgroup with a cpuset
// gets all of its CPUs, whatever its affinity was (kernel/cgroup/cpuset.c,
// cpuset_attach).
func (t *Tree) enter(task string, pid int, cpus sample.Set) error {
	for _, dir := range t.Dirs(task) {
		if err := host.WriteFile(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("place process %d: %w", pid, err)
		}
	}
	if cpus.Len() == 0 {
		return nil
	}
	if err := host.PlaceThreads(func() ([]int, error) { return host.ThreadsOf(pid) }, cpus); err != nil {
		return fmt.Errorf("place process %d: %w", pid, err)
	}
	return nil
}
