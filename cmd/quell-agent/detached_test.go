package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// Between windows the agent is not on the kernel's paths: no eBPF program is attached. In
// a window those of each signal are, which shows that the test can detect them.
func TestDetachedBetweenWindows(t *testing.T) {
	t.Parallel()
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2, quelltest.Tracepoints, quelltest.EBPF)
	name := fmt.Sprintf("quell-test-detached-%d", os.Getpid())
	quelltest.StartChild(t, exec.Command("cat"), quelltest.MakeCgroup(t, filepath.Join(quelltest.CgroupMount(t, ""), name)))
	conf := filepath.Join(state(t), "agent.yaml")
	rules := fmt.Sprintf("rules: [{match: %q, job: a, class: batch}]\n", "/"+name)
	if err := os.WriteFile(conf, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		signals, duration string
		intervals         uint64
		attached          bool
	}{
		{"cps", "10m", 0, true},
		{"runq", "10m", 0, true},
		{"cps,runq", "200ms", 1, false}, // the next window begins in an hour
	} {
		dir := state(t)
		d := start(t, dir, append(settings(dir, "signals="+c.signals, "sampling.period=1h", "sampling.duration="+c.duration,
			"detect.outlier_window=3h", "detect.window=3h"), "--config", conf)...)
		if c.attached {
			quelltest.Until(t, "the window is open", func() bool {
				return onKernelPaths(t, d.cmd.Process.Pid) > 0
			})
			d.kill()
			continue
		}
		quelltest.Until(t, "the window is over", quelltest.Paced(func() bool {
			s, err := d.Status(t.Context())
			return err == nil && s.Intervals >= c.intervals && s.Tasks == 1
		}))
		if links := onKernelPaths(t, d.cmd.Process.Pid); links != 0 {
			t.Errorf("between windows %d links are open", links)
		}
	}
}

// onKernelPaths counts a process's links of eBPF programs except iterators, which run only
// when they are read.
func onKernelPaths(t *testing.T, pid int) (links int) {
	t.Helper()
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	fds, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		what, err := os.Readlink(filepath.Join(proc, "fd", fd.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		if strings.Contains(what, "bpf_link") || strings.Contains(what, "bpf-link") {
			info, err := os.ReadFile(filepath.Join(proc, "fdinfo", fd.Name()))
			if err == nil && !strings.Contains(string(info), "link_type:\titer") {
				links++
			}
		}
	}
	return links
}
