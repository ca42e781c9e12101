package workload

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// A tree is in the hierarchies of the requested controllers and its cpusets can hold
// processes. A removed task is gone from all of them, together with its processes.
func TestTreeWithMoreControllers(t *testing.T) {
	want := []string{"cpuset", "freezer", "memory"}
	tree := openTree(t, TreeOptions{Controllers: want})
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := tree.Launch("a/b", cmd, sample.Set{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range want {
		mount, ok := h.Layout().V1[c]
		if !ok {
			continue
		}
		procs, err := os.ReadFile(filepath.Join(mount, tree.Path("a/b"), "cgroup.procs"))
		if err != nil || len(strings.Fields(string(procs))) != 1 {
			t.Errorf("%s holds %q, %v, want one process", c, procs, err)
		}
	}
	if err := tree.Remove("a/b"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("it ended with %v, want it killed", err)
	}
	for _, dir := range tree.Dirs("a/b") {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// A CPU that was off and is on again, as by the knob smt, is there for the next task, which v1's cpusets do not see to.
func TestTreeRegainsCPUs(t *testing.T) {
	quelltest.Need(t, quelltest.CgroupV1)
	tree := openTree(t, TreeOptions{Controllers: []string{"cpuset"}})
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	mount, ok := h.Layout().V1["cpuset"]
	if !ok {
		return
	}
	cpus := func(dir string) string {
		text, err := os.ReadFile(filepath.Join(mount, dir, "cpuset.cpus"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	all, err := sample.ParseSet(cpus("/"))
	if err != nil {
		t.Fatal(err)
	}
	// What the kernel does when all others go off.
	if err := host.WriteFile(filepath.Join(mount, tree.Top(), "cpuset.cpus"), strconv.Itoa(all.Numbers()[0])); err != nil {
		t.Fatal(err)
	}
	if err := tree.Add("a"); err != nil {
		t.Fatal(err)
	}
	if got := cpus(tree.Path("a")); got != all.String() {
		t.Errorf("the next task has the CPUs %s, want %s", got, all)
	}
}

// Processes that a launched program forks immediately are in the task too.
func TestLaunchedWithItsChildren(t *testing.T) {
	tree := openTree(t, TreeOptions{})
	for n := range 20 {
		task := "t" + strconv.Itoa(n)
		cmd := exec.Command("sh", "-c", "sleep 1000 & exec sleep 1000")
		if err := tree.Launch(task, cmd, sample.Set{}); err != nil {
			t.Fatal(err)
		}
		procs := filepath.Join(tree.Dirs(task)[0], "cgroup.procs")
		quelltest.Until(t, "two processes in "+task, func() bool {
			text, err := os.ReadFile(procs)
			return err == nil && len(strings.Fields(string(text))) == 2
		})
		if err := tree.Remove(task); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
	}
}

// An ungrouped tree is in no cgroup of v1's cpu controller.
func TestUngroupedTree(t *testing.T) {
	quelltest.Need(t, quelltest.CgroupV1)
	tree := openTree(t, TreeOptions{Ungrouped: true, Controllers: []string{"cpu", "freezer"}})
	cmd := exec.Command("sleep", "1000")
	if err := tree.Launch("a", cmd, sample.Set{}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	var in int
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, tree.Top()) {
			continue
		}
		in++
		if f := strings.Split(line, ":"); strings.Contains(","+f[1]+",", ",cpu,") {
			t.Errorf("it is in %s", line)
		}
	}
	if in == 0 {
		t.Errorf("it is in none of the tree's cgroups:\n%s", text)
	}
}
