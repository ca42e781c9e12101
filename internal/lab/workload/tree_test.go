package workload

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestAWorkloadIsPlacedBeforeItBegins(t *testing.T) {
	tree := openTree(t, TreeOptions{})
	on := cpus(t, 1)[0]
	p, err := tree.Start("web/0", Default(Serve), StartOptions{CPUs: sample.SetOf(on)})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.PID))
	if err != nil {
		t.Fatal(err)
	}
	var in int
	for row := range strings.Lines(string(text)) {
		if strings.HasSuffix(strings.TrimSpace(row), ":"+tree.Path("web/0")) {
			in++
		}
	}
	if in != len(tree.Dirs("web/0")) {
		t.Errorf("in %s of %d hierarchies, want %d:\n%s", tree.Path("web/0"), in, len(tree.Dirs("web/0")), text)
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p.PID))
	if err != nil || len(tasks) == 0 {
		t.Fatal(tasks, err)
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			t.Fatal(err)
		}
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(tid, &set); err != nil || set.Count() != 1 || !set.IsSet(on) {
			t.Errorf("thread %d may run on %d CPUs, want CPU %d only: %v", tid, set.Count(), on, err)
		}
	}
	if pg, err := unix.Getpgid(p.PID); err != nil || pg != p.PID {
		t.Errorf("process group %d, %v, want its own", pg, err)
	}
	if _, err := os.Stat(p.Progress); !os.IsNotExist(err) {
		t.Errorf("it has begun: %v", err)
	}
	if err := p.Begin(); err != nil {
		t.Fatal(err)
	}
	counted(t, p, 3)
	if s, err := p.Sched(); err != nil || s.CPU < 5*time.Millisecond {
		t.Errorf("three requests of 2 ms took %v of CPU, %v", s.CPU, err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

// A demo under nice(1) must be the same demo: the agent does not accuse others of what a niced
// victim waits.
func TestATreeWithAWeightDoesNotInheritNiceness(t *testing.T) {
	quelltest.Need(t, quelltest.Root)
	before, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // 20 less the niceness
	if err != nil {
		t.Fatal(err)
	}
	renice := func(niceness int) {
		tids, err := host.ThreadsOf(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		for _, tid := range tids {
			if err := unix.Setpriority(unix.PRIO_PROCESS, tid, niceness); err != nil && !errors.Is(err, unix.ESRCH) {
				t.Fatal(err)
			}
		}
	}
	renice(20 - before + 1)
	defer renice(20 - before)
	p, err := openTree(t, TreeOptions{Weight: 100}).Start("web", Default(Serve), StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := unix.Getpriority(unix.PRIO_PROCESS, p.PID); err != nil || got != 20 {
		t.Errorf("niceness %d, %v, want 0", 20-got, err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

func TestTwoTreesOfOnePrefixDoNotHarmEachOther(t *testing.T) {
	tree := openTree(t, TreeOptions{})
	p := start(t, tree, "web", Default(Serve), StartOptions{})
	if _, err := OpenTree(testPrefix, TreeOptions{}); err == nil {
		t.Error("the same tree was opened twice")
	}
	// An earlier run of these tests may have been killed: its trees are swept.
	removed, err := Sweep(testPrefix)
	if err != nil || strings.Contains(strings.Join(removed, " "), tree.Top()) {
		t.Errorf("swept %v of a living owner, %v", removed, err)
	}
	counted(t, p, 2)
}

func TestTreeRefuses(t *testing.T) {
	tree := openTree(t, TreeOptions{})
	for _, task := range []string{"", ".", "..", "a/../b", "/a", "a/", "a b", "a\nb"} {
		if _, err := tree.Start(task, Default(Spin), StartOptions{}); err == nil {
			t.Errorf("started in task %q", task)
		}
	}
	if _, err := tree.Start("a", Spec{Kind: Serve}, StartOptions{}); err == nil {
		t.Error("started a serve without work")
	}
	if _, err := tree.Start("a", Default(Spin), StartOptions{CPUs: sample.SetOf(1023)}); err == nil || !strings.Contains(err.Error(), "CPU 1023") {
		t.Errorf("started on CPU 1023: %v", err)
	}
	if _, err := OpenTree("a/b", TreeOptions{}); err == nil {
		t.Error("opened a tree with a slash in its name")
	}
	if _, err := OpenTree("a", TreeOptions{Weight: 101}); err == nil {
		t.Error("opened a tree of weight 101")
	}
	if err := tree.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := tree.Start("a", Default(Spin), StartOptions{}); err == nil {
		t.Error("started in a closed tree")
	}
}

// A process may be in the directory of one hierarchy only, where there is no cgroup.kill,
// and it may not have been started by the tree.
func TestCloseEndsStrangersToo(t *testing.T) {
	tree := openTree(t, TreeOptions{})
	start(t, tree, "web/0", Default(Serve), StartOptions{})
	dir, _ := tree.CPUDir("web/0")
	stranger := exec.Command(os.Args[0], "workload", "spin")
	stdin, err := stranger.StdinPipe() // it waits for a line that is never sent
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	if err := host.WriteFile(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(stranger.Process.Pid)); err != nil {
		t.Error(err)
	}
	ended := make(chan error)
	go func() { ended <- stranger.Wait() }()
	if err := tree.Close(); err != nil {
		t.Error(err)
		_ = stranger.Process.Kill()
	}
	<-ended
	if left := tree.Leftovers(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestSweepRemovesWhatAKilledOwnerLeft(t *testing.T) {
	openTree(t, TreeOptions{}) // skips where no tree is possible; its owner lives
	const prefix = testPrefix + "-owner"
	owner := exec.Command(os.Args[0], "own-tree", prefix)
	owner.Stderr = os.Stderr
	stdin, err := owner.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	said, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(said))
	if err != nil {
		t.Fatal(err)
	}
	if removed, err := Sweep(prefix); err != nil || len(removed) > 0 {
		t.Errorf("swept %v of a living owner, %v", removed, err)
	}
	born, err := startTime(pid)
	if err != nil {
		t.Fatalf("the hog of a living owner: %v", err)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait() // "signal: killed"
	quelltest.Until(t, "the hog has died with its owner", func() bool {
		now, err := startTime(pid)
		return err != nil || now != born
	})
	removed, err := Sweep(prefix)
	if err != nil {
		t.Fatal(err)
	}
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	m, err := findMounts(h.Layout())
	if err != nil {
		t.Fatal(err)
	}
	roots := append(m.all(), os.TempDir())
	if len(removed) != len(roots) {
		t.Errorf("swept %v, want one directory in each of %v", removed, roots)
	}
	for _, root := range roots {
		if left, _ := filepath.Glob(filepath.Join(root, prefix+"-*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

// Labs that begin at the same time remove the same leftovers: neither fails because the other
// was first.
func TestTwoSweepsAtOnce(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	const prefix = testPrefix + "-two"
	for n := range 200 { // the pid is above the kernel's pid_max
		if err := os.Mkdir(filepath.Join(os.TempDir(), fmt.Sprintf("%s-2147483647-%d", prefix, n+1)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := Sweep(prefix)
			ended <- err
		}()
	}
	if err := errors.Join(<-ended, <-ended); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// A temporary directory outlives the process that was killed, and not the next one. Another user's,
// who chose such a name, is left where it is and is no error.
func TestScratch(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	const prefix = testPrefix + "-scratch"
	old := filepath.Join(os.TempDir(), prefix+"-2147483647-1.x")
	theirs := filepath.Join(os.TempDir(), prefix+"-2147483647-2")
	if err := errors.Join(os.Mkdir(old, 0o700), os.Mkdir(theirs, 0o700)); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(theirs, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	mine, err := Scratch(prefix)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Scratch(prefix)
	if err != nil || again == mine {
		t.Errorf("%s, %v", again, err)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Errorf("a living process's: %v", err)
	}
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a dead process's: %v", err)
	}
	if os.Geteuid() == 0 {
		if _, err := os.Stat(theirs); err != nil {
			t.Errorf("another user's: %v", err)
		}
		if removed, err := Sweep(prefix); err != nil || len(removed) > 0 {
			t.Errorf("swept %v, %v", removed, err)
		}
	}
}

func TestAbandoned(t *testing.T) {
	me := os.Getpid()
	born, err := startTime(me)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		fmt.Sprintf("x-%d-%d", me, born):   false,
		fmt.Sprintf("x-%d-%d", me, born+1): true, // another process had the PID
		fmt.Sprintf("y-%d-%d", me, born+1): false,
		fmt.Sprintf("x-y-%d-%d", me, born): false,
		"x-2147483647-1":                   true, // above the kernel's pid_max
		"x-2147483647-1.e1.vm":             true, // e.g. a domain of Xen
		"x-0-1":                            false,
		"x-1":                              false,
		"x-a-b":                            false,
		"x":                                false,
	} {
		if got := Abandoned(name, "x"); got != want {
			t.Errorf("Abandoned(%q) = %v, want %v", name, got, want)
		}
	}
}

// A burst is an amount of work: under a cap it lasts longer and does the same amount.
func TestAHogsBurstIsFixedWorkAlsoUnderACap(t *testing.T) {
	// With a large weight only the cap delays it, not other load on this machine.
	tree := openTree(t, TreeOptions{Weight: 100})
	s := Spec{Kind: Hog, Work: 200 * time.Millisecond, Pause: time.Hour}
	for _, share := range []float64{0, 0.2} {
		p, err := tree.Start("hog", s, StartOptions{CPUs: sample.SetOf(cpus(t, 1)[0])})
		if err != nil {
			t.Fatal(err)
		}
		limit(t, tree, "hog", share)
		quelltest.Until(t, "the hog waits for its line", func() bool { return asleep(t, p.PID) })
		idle, err := p.Sched()
		if err != nil {
			t.Fatal(err)
		}
		before, began := throttled(t, tree, "hog"), time.Now()
		if err := p.Begin(); err != nil {
			t.Fatal(err)
		}
		var work time.Duration
		quelltest.Until(t, "the burst is over", func() bool {
			if !asleep(t, p.PID) { // before what it did is read, or the rest is missing
				return false
			}
			sched, err := p.Sched()
			if err != nil {
				t.Fatal(err)
			}
			work = sched.CPU - idle.CPU
			return work > s.Work/2
		})
		took := time.Since(began)
		// The hog's own CPU clock includes threads that have ended, schedstat does not.
		if work < s.Work*9/10 || work > 2*s.Work {
			t.Errorf("share %v: a burst of %v took %v of CPU", share, s.Work, work)
		}
		if n := throttled(t, tree, "hog") - before; share > 0 && (n < 3 || took < 2*s.Work) {
			t.Errorf("share %v: throttled %d times in %v: the cap did not bite", share, n, took)
		}
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}
}

// asleep reports whether no thread of the process is runnable. A throttled thread is: it
// stays in state R.
func asleep(t *testing.T, pid int) bool {
	t.Helper()
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		t.Fatalf("process %d is gone: %v", pid, err)
	}
	return !slices.ContainsFunc(stats, func(path string) bool {
		s, err := host.ReadProcessStat(path)
		return err == nil && s.State != 'S' // or the thread has just ended
	})
}
