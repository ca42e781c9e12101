package quelltest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
)

// Command makes the test binary a program with that command, for tests that start a process of this program: if it is
// called with the command and one argument, it runs it, prints its error and ends. With -race os.Exit sleeps a second
// first, and a process that is started without its parent's environment has no GORACE of Main's.
func Command(name string, run func(argument string) error) {
	if len(os.Args) != 3 || os.Args[1] != name {
		return
	}
	code := 0
	if err := run(os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT_GROUP, uintptr(code), 0, 0)
}

// Child is a process that talks in lines and must end when its input ends.
type Child struct {
	PID int
	t   testing.TB
	in  io.Writer
	out *bufio.Scanner
	end func()
}

// StartChild starts a command in a cgroup's directory, of either version, or in
// this test's own for "". It is killed when the test ends.
func StartChild(t testing.TB, cmd *exec.Cmd, cgroup string) *Child {
	t.Helper()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	if cgroup != "" {
		dir, err := os.Open(cgroup)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		// A process can be started directly in a cgroup of version 2 only.
		if _, err := os.Stat(filepath.Join(cgroup, "cgroup.controllers")); err == nil {
			cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
		}
	}
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		// The child is killed when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG), as
		// threads of host.OwnThread do: this goroutine keeps that thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		started <- cmd.Start()
		<-ended
	}()
	if err := <-started; err != nil {
		close(ended)
		t.Fatal(err)
	}
	c := &Child{cmd.Process.Pid, t, in, bufio.NewScanner(out), sync.OnceFunc(func() {
		in.Close()
		_ = cmd.Wait() // the error may be "signal: killed"
		close(ended)
	})}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		c.End()
	})
	if cgroup != "" && !cmd.SysProcAttr.UseCgroupFD {
		if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(c.PID)), 0); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// End ends the child's input, and waits until it is gone.
func (c *Child) End() { c.end() }

// Hear waits for the child's next line and returns it.
func (c *Child) Hear() string {
	c.t.Helper()
	if !c.out.Scan() {
		c.t.Fatalf("child %d exited: %v", c.PID, c.out.Err())
	}
	return c.out.Text()
}

// Ask writes words to the child as a line, and returns the line that it answers.
func (c *Child) Ask(words ...any) string {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.in, words...); err != nil {
		c.t.Fatal(err)
	}
	return c.Hear()
}
