package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// testPrefix names the cgroups of this package's tests.
const testPrefix = "quell-test-workload"

// TestMain makes the test binary the program that trees start, and a program that owns a
// tree and is killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "workload":
			exit(runArgs(os.Args[2:]))
		case "own-tree":
			exit(ownTree(os.Args[2]))
		}
	}
	quelltest.Main(m)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runArgs(args []string) error {
	s, err := Parse(args)
	if err != nil {
		return err
	}
	every, err := time.ParseDuration(os.Getenv(reportEnv))
	if err != nil {
		return Run(context.Background(), s)
	}
	r := newReporter(os.Stdout, every)
	defer r.end()
	return run(context.Background(), s, os.Stdin, os.Getenv(ProgressEnv), r.served)
}

// ownTree opens a tree with one working task, prints the task's PID and waits to be
// killed.
func ownTree(prefix string) error {
	tree, err := OpenTree(prefix, TreeOptions{})
	if err != nil {
		return err
	}
	p, err := tree.Start("batch/hog", Default(Hog), StartOptions{})
	if err != nil {
		return err
	}
	if err := p.Begin(); err != nil {
		return err
	}
	fmt.Println(p.PID)
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, tree.Close())
}

// openTree opens a tree. When the test ends it closes the tree and checks that nothing is
// left.
func openTree(t testing.TB, opt TreeOptions) *Tree {
	t.Helper()
	if opt.Weight > 1 {
		quelltest.Alone(t, quelltest.CPUs)
	}
	tree, err := OpenTree(testPrefix, opt)
	if env, ok := errors.AsType[*MissingError](err); ok {
		quelltest.Skip(t, "cgroups", env)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
		if left := tree.Leftovers(); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	return tree
}

// start starts a workload and releases it.
func start(t testing.TB, tree *Tree, task string, s Spec, opt StartOptions) *Proc {
	t.Helper()
	p, err := tree.Start(task, s, opt)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Begin(); err != nil {
		t.Fatal(err)
	}
	return p
}

// cpus returns n CPUs that this process may use.
func cpus(t testing.TB, n int) []int {
	t.Helper()
	if n > 1 {
		quelltest.Need(t, quelltest.TwoCPUs)
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	var all []int
	for cpu := 0; len(all) < n; cpu++ {
		if set.IsSet(cpu) {
			all = append(all, cpu)
		}
	}
	return all
}

// limit caps a task at share CPU-s/s directly, 0 for no cap, with the kernel's default
// period of 100 ms.
func limit(t testing.TB, tree *Tree, task string, share float64) {
	t.Helper()
	dir, v1 := tree.CPUDir(task)
	quota := int(share * 100_000)
	file, text := "cpu.max", fmt.Sprintf("%d 100000", quota)
	switch {
	case v1 && share == 0:
		file, text = "cpu.cfs_quota_us", "-1"
	case v1:
		file, text = "cpu.cfs_quota_us", strconv.Itoa(quota)
	case share == 0:
		text = "max 100000"
	}
	if err := host.WriteFile(filepath.Join(dir, file), text); err != nil {
		t.Fatal(err)
	}
}

// throttled is the number of throttled periods of the task so far.
func throttled(t testing.TB, tree *Tree, task string) int {
	t.Helper()
	dir, _ := tree.CPUDir(task)
	text, err := os.ReadFile(filepath.Join(dir, "cpu.stat"))
	if err != nil {
		t.Fatal(err)
	}
	for row := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(row, "nr_throttled "); ok {
			v, err := strconv.Atoi(strings.TrimSpace(n))
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	return 0
}

// counted waits until a victim has done n transactions.
func counted(t testing.TB, p *Proc, n uint64) {
	t.Helper()
	quelltest.Until(t, fmt.Sprintf("%s has done %d transactions", p.Task, n), func() bool {
		select {
		case <-p.Done():
			t.Fatalf("%s ended: %v", p.Task, p.err)
		default:
		}
		v, err := LoadProgress(p.Progress)
		return err == nil && v >= n
	})
}
