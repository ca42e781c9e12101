package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// Clients and tasks take what they can get: an agent that can open no file any more still ends
// its caps in time, and works again when it can.
func TestUndoesWithoutADescriptor(t *testing.T) {
	t.Parallel()
	cg := newLimited(t, "no-fd", "40000", "wait")
	dir := state(t)
	d := start(t, dir, append(settings(dir), "--config", configFile(t, dir, cg.path))...)
	const lease = 3 * time.Second
	d.capFor(cg, lease)
	until := time.Now().Add(lease)
	var old unix.Rlimit
	none := unix.Rlimit{Cur: 3, Max: 1 << 20}
	if err := unix.Prlimit(d.cmd.Process.Pid, unix.RLIMIT_NOFILE, nil, &old); err != nil {
		t.Fatal(err)
	}
	none.Max = old.Max
	if err := unix.Prlimit(d.cmd.Process.Pid, unix.RLIMIT_NOFILE, &none, nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	if _, err := d.Status(ctx); err == nil {
		t.Error("the agent takes connections: it has descriptors left, and this shows nothing")
	}
	cancel()
	quelltest.Until(t, "the limit is back", func() bool { return cg.quota() == "40000 100000" })
	// How late is measured by make fault and make bench-starved: here the machine may be busy.
	t.Logf("the limit is back %s after the lease", time.Since(until))
	if err := unix.Prlimit(d.cmd.Process.Pid, unix.RLIMIT_NOFILE, &old, nil); err != nil {
		t.Fatal(err)
	}
	quelltest.Until(t, "the agent works again", func() bool {
		s, err := d.Status(t.Context())
		return err == nil && len(s.Caps) == 0
	})
	d.capFor(cg, time.Minute)
}

// The restore, as quell-restore.timer starts it, needs few descriptors, threads and little
// memory.
func TestRestoreUnderExhaustion(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.CgroupV1, "sh")
	limits := func(controller, file, value string) func(t *testing.T) string {
		return func(t *testing.T) string {
			mount := quelltest.CgroupMount(t, controller)
			in := quelltest.MakeCgroup(t, filepath.Join(mount, fmt.Sprintf("quell-test-cmd-%d-exhausted", os.Getpid())))
			if err := os.WriteFile(filepath.Join(in, file), []byte(value), 0); err != nil {
				t.Fatal(err)
			}
			return "echo $$ > " + in + "/cgroup.procs"
		}
	}
	for _, c := range []struct {
		name  string
		limit func(t *testing.T) string // a line of shell
	}{
		{"descriptors", func(*testing.T) string { return "ulimit -n 20" }},
		{"threads", limits("pids", "pids.max", "24")},
		{"memory", limits("memory", "memory.limit_in_bytes", "268435456")},
	} {
		t.Run(c.name, func(t *testing.T) {
			cg := newLimited(t, "exhausted-"+c.name, "40000", "wait")
			dir := state(t)
			args := append(settings(dir), "--config", configFile(t, dir, cg.path))
			d := start(t, dir, args...)
			d.cap(cg)
			d.kill()
			expire(t, dir, cg)
			agent := agentCommand(t.Context(), t, append([]string{"restore", "--overdue"}, args...)...)
			cmd := exec.CommandContext(t.Context(), "sh", append([]string{"-ec", c.limit(t) + "\nexec \"$@\"", "sh", agent.Path}, agent.Args[1:]...)...)
			cmd.Env = append(os.Environ(), agent.Env...)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			err := cmd.Run()
			if err != nil || !strings.Contains(out.String(), cg.path+": restored") || cg.quota() != "40000 100000" {
				t.Errorf("%v, quota %s:\n%s", err, cg.quota(), out.String())
			}
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				t.Logf("it ended with %v", exit)
			}
		})
	}
}
