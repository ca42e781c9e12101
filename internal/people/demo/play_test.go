package demo

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func leftOvers(t *testing.T) []string {
	t.Helper()
	var left []string
	for _, pattern := range []string{"/sys/fs/cgroup/*/" + treePrefix + "-*", "/sys/fs/cgroup/" + treePrefix + "-*",
		filepath.Join(os.TempDir(), treePrefix+"-*")} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, found...)
	}
	return slices.DeleteFunc(left, someoneElses)
}

// someoneElses reports whether a tree belongs to another live process: a demo that runs
// on this machine at the same time.
func someoneElses(path string) bool {
	rest := strings.TrimPrefix(filepath.Base(path), treePrefix+"-")
	pid, _, _ := strings.Cut(rest, "-")
	if pid == strconv.Itoa(os.Getpid()) {
		return false
	}
	if _, err := os.Stat("/proc/" + pid); err == nil {
		return true
	}
	_, err := os.Lstat(path)
	return err != nil // it has ended since it was listed, and its tree with it
}

// The whole loop on this machine: on a busy machine it may abstain, but it may never
// name an innocent or leave anything behind.
func TestTheDemoNamesNoInnocentAndLeavesNothing(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.EBPF, quelltest.TwoCPUs)
	var story []string
	agent := quelltest.Program(t, "quell-agent")
	quelltest.Alone(t, quelltest.CPUs)
	r, err := Run(t.Context(), Options{Channel: CPU, Mode: plan.On, Seed: 1, Agent: agent,
		Show: func(e Event) { story = append(story, e.Text) }})
	if err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(story, "\n"))
	}
	if r.Named != "" && r.Named != r.Antagonist || len(r.LeftBehind) > 0 {
		t.Errorf("%+v\n%s", r, strings.Join(story, "\n"))
	}
	// Of a cap in which no interval of the victim could be judged the relative cost is not known.
	if r.Named == r.Antagonist && r.RelativeCost >= 1 {
		t.Errorf("named and capped, but the relative cost is %v\n%s", r.RelativeCost, strings.Join(story, "\n"))
	}
	if left := leftOvers(t); len(left) > 0 {
		t.Errorf("left behind: %s", left)
	}
	t.Logf("%s (correlation %.2f, relative cost %.2f)", r.Verdict, float64(r.Correlation), float64(r.RelativeCost))
}

func TestAnInterruptedDemoLeavesNothing(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.EBPF, quelltest.TwoCPUs)
	agent := quelltest.Program(t, "quell-agent")
	quelltest.Alone(t, quelltest.CPUs)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := Run(ctx, Options{Channel: CPU, Mode: plan.On, Seed: 2, Agent: agent, pace: quick, Show: func(e Event) {
		if e.Of > 0 { // the agent is up and learning
			cancel()
		}
	}})
	if err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
		t.Errorf("got %v, want canceled", err)
	}
	if left := leftOvers(t); len(left) > 0 {
		t.Errorf("left behind: %s", left)
	}
}

func TestAnAgentThatDoesNotStartIsSaidAndNothingIsLeft(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.TwoCPUs)
	_, err := Run(t.Context(), Options{Channel: CPU, Mode: plan.On, Agent: "/bin/false", Show: func(Event) {}})
	if err == nil || !strings.Contains(err.Error(), "agent") {
		t.Errorf("got %v", err)
	}
	if left := leftOvers(t); len(left) > 0 {
		t.Errorf("left behind: %s", left)
	}
	if _, err := workload.Sweep(treePrefix); err != nil {
		t.Error(err)
	}
}

// A demo is killed while a cap is on (an operator's, so that nothing must be learnt before):
// its agent undoes the cap and exits, its tasks die, and the next demo removes the rest of
// the tree.
func TestAKilledDemoIsSweptByTheNext(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.EBPF, quelltest.TwoCPUs)
	agent := quelltest.Program(t, "quell-agent")
	quelltest.Alone(t, quelltest.CPUs)
	cmd := exec.Command(os.Args[0], "play", agent)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	socket, started := "", false
	for lines := bufio.NewScanner(out); !started && lines.Scan(); {
		socket, started = strings.CutPrefix(lines.Text(), socketLine)
	}
	client := api.NewClient(socket)
	var task sample.TaskName
	quelltest.Until(t, "the agent to follow "+antagonistName, func() bool {
		all, err := client.Tasks(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all, func(v api.TaskView) bool { return v.Job == antagonistName })
		if i >= 0 {
			task = all[i].Name
		}
		return i >= 0
	})
	if _, err := client.Command(t.Context(), command.CapTask(string(task), 0.1, time.Minute, "to be undone")); err != nil {
		t.Fatal(err)
	}
	if !limited(t, task) {
		t.Error("no cap is in force")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the error is expected: it was killed
	quelltest.Until(t, "the orphaned agent to leave", func() bool { return !running(t, agent) })
	if limited(t, task) {
		t.Error("the cap was not undone")
	}
	if _, err := workload.Sweep(treePrefix); err != nil {
		t.Error(err)
	}
	if left := leftOvers(t); len(left) > 0 {
		t.Errorf("left behind: %s", left)
	}
}

// limited reports whether the kernel limits the CPU time of a task.
func limited(t *testing.T, task sample.TaskName) bool {
	t.Helper()
	var files []string
	for _, pattern := range []string{"/sys/fs/cgroup/*" + string(task) + "/cpu.cfs_quota_us", "/sys/fs/cgroup" + string(task) + "/cpu.max"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) == 0 {
		t.Fatalf("%s has no file of a limit", task)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return !strings.HasPrefix(string(text), "-1") && !strings.HasPrefix(string(text), "max")
	})
}

// running reports whether a process runs the program.
func running(t *testing.T, exe string) bool {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(links, func(link string) bool {
		target, err := os.Readlink(link)
		return err == nil && target == exe
	})
}
