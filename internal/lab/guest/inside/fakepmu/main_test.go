//go:build inguest

package fakepmu

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// Paths in the guest.
const (
	agentProg  = "/bin/quell-agent"
	cgroupRoot = "/sys/fs/cgroup"
	table      = "/proc/fakepmu"
)

// TestMain makes the test binary the program that trees start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "workload" {
		s, err := workload.Parse(os.Args[2:])
		if err == nil {
			err = workload.Run(context.Background(), s)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 2 && (os.Args[1] == "ping" || os.Args[1] == "echo") {
		if err := pass(os.Args[1] == "ping"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	quelltest.Main(m)
}

// pmu sets these parameters of the PMU's module for the length of the test: "evmask=0x3
// ncnt=2".
func pmu(t *testing.T, params string) {
	t.Helper()
	for param := range strings.FieldsSeq(params) {
		name, value, _ := strings.Cut(param, "=")
		file := "/sys/module/fakepmu/parameters/" + name
		before := read(t, file)
		write(t, file, value)
		t.Cleanup(func() { write(t, file, before) })
	}
}

// model is the module's model of a cgroup; see the first comment of the module. MPKI is
// misses of the last-level cache per 1000 instructions.
type model struct{ CPI, MPKI, Pressure, Sens, Noise float64 }

// set configures the model of a cgroup in the module.
func (m model) set(t *testing.T, dir string) {
	t.Helper()
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	milli := func(x float64) int { return int(1000*x + 0.5) }
	write(t, table, fmt.Sprintf("set %d cpi %d mpki %d pressure %d sens %d noise %d", info.Sys().(*syscall.Stat_t).Ino,
		milli(m.CPI), milli(m.MPKI), milli(m.Pressure), milli(m.Sens), milli(m.Noise)))
}

func write(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatalf("write %q to %s: %v", text, path, err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// wait polls only once per interval: the guest's CPUs are slow and must be free for the
// tasks.
func wait(t *testing.T, every, limit time.Duration, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for end := time.Now().Add(limit); !cond(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain until %s", limit, what)
		}
	}
}

// usage is the CPU time that a cgroup has used.
func usage(t *testing.T, dir string) time.Duration {
	t.Helper()
	var us int64
	if _, err := fmt.Sscanf(read(t, dir+"/cpu.stat"), "usage_usec %d", &us); err != nil {
		t.Fatal(err)
	}
	return time.Duration(us) * time.Microsecond
}

func openTree(t *testing.T) *workload.Tree {
	t.Helper()
	tree, err := workload.OpenTree("quell-test-fakepmu", workload.TreeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	return tree
}

// play starts a workload as a task on one CPU, and holds it. This kernel resets the
// affinity of a process that enters a cgroup; the tree restores it.
func play(t *testing.T, tree *workload.Tree, task string, s workload.Spec, cpu int) *workload.Proc {
	t.Helper()
	p, err := tree.Start(task, s, workload.StartOptions{CPUs: sample.SetOf(cpu), Stderr: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	if got := allowed(t, p.PID); got != fmt.Sprint(cpu) {
		t.Errorf("%s may run on CPUs %s, want %d", task, got, cpu)
	}
	return p
}

// allowed is the list of CPUs on which a process's main thread may run.
func allowed(t *testing.T, pid int) string {
	t.Helper()
	_, rest, _ := strings.Cut(read(t, fmt.Sprintf("/proc/%d/status", pid)), "Cpus_allowed_list:")
	list, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(list)
}

func begin(t *testing.T, p *workload.Proc) {
	t.Helper()
	if err := p.Begin(); err != nil {
		t.Fatal(err)
	}
}
