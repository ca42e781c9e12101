package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

var (
	cgroupCount = flag.Int("cgroups", 60, "cgroups in TestFewDescriptors")
	fdLimit     = flag.Int("nofile", 256, "RLIMIT_NOFILE of the agent in TestFewDescriptors")
)

// If its file descriptors do not suffice for every task the agent runs, reports the
// shortage and how to fix it, and counts each task within the windows that it states. Only
// without eBPF a task takes descriptors.
func TestFewDescriptors(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2, quelltest.PerfSoftware, quelltest.Tracepoints, "setpriv")
	name := fmt.Sprintf("quell-test-fds-%d", os.Getpid())
	top := quelltest.MakeCgroup(t, filepath.Join(quelltest.CgroupMount(t, ""), name))
	for i := range *cgroupCount {
		quelltest.MakeCgroup(t, fmt.Sprintf("%s/c%d", top, i))
	}
	dir := state(t)
	file := filepath.Join(dir, "agent.yaml")
	rules := fmt.Sprintf("rules: [{match: %q, job: many, class: batch}]\n", "/"+name+"/*")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append(settings(dir, "signals=cpi,cps", "sampling.max_tax=0", "tick=20ms", "sampling.duration=100ms", "sampling.period=250ms"), "--config", file)
	cmd := agentCommand(context.Background(), t, args...)
	// In a separate mount namespace, where tracefs is mounted as on most machines.
	const script = `mount -t tracefs tracefs /sys/kernel/tracing; ulimit -n "$1"; shift
exec setpriv --bounding-set -bpf,-sys_admin "$@"`
	cmd.Args = append([]string{"sh", "-c", script, "sh", strconv.Itoa(*fdLimit), cmd.Path}, cmd.Args[1:]...)
	cmd.Path, cmd.SysProcAttr = "/bin/sh", &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	d := startCommand(t, dir, cmd)
	most := 0
	within := 0
	var last string
	quelltest.Until(t, "every task was counted", quelltest.Paced(func() bool {
		s, err := d.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, len(fds))
		tasks, err := d.Tasks(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		waiting := 0
		for _, v := range tasks {
			if never.MatchString(v.Note) {
				waiting++
			}
		}
		for _, sig := range s.Signals {
			if sig.OK && sig.Tasks == *cgroupCount {
				within = sig.Within
				last = fmt.Sprintf("%d of %d %s at once, each within %d intervals; after %d intervals coverage %.2f", sig.Counted, sig.Tasks, sig.Signal, sig.Within, s.Intervals, sig.Coverage)
			}
		}
		if within > 0 && waiting > 0 && int(s.Intervals) > within+1 {
			t.Fatalf("%d tasks were not counted in %d intervals: %s", waiting, s.Intervals, last)
		}
		return within > 0 && waiting == 0
	}))
	t.Logf("limit %d: %s; up to %d descriptors open", *fdLimit, last, most)
	s, err := d.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(s.Degraded, "\n"); !strings.Contains(got, "raise the limit (LimitNOFILE) to ") {
		t.Errorf("degraded: %s", got)
	}
	if log := d.log.String(); strings.Contains(log, "too many open files") {
		t.Errorf("it ran out of descriptors:\n%s", log)
	}
}

// never matches the note of a task that a signal has not counted yet.
var never = regexp.MustCompile(`counted in 0 of`)

// startLimited is start with a limit on file descriptors.
func startLimited(t *testing.T, dir string, limit int, args ...string) *running {
	t.Helper()
	cmd := agentCommand(context.Background(), t, args...)
	cmd.Args = append([]string{"sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, limit), cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	return startCommand(t, dir, cmd)
}
