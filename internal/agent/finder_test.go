package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// onHost starts a finder on a host of testdata/hosts, laid out as files below the
// returned root.
func onHost(t *testing.T, name, rules string, more ...string) (f *HostFinder, root string) {
	t.Helper()
	a, err := txtar.ParseFile(filepath.Join("..", "..", "testdata", "hosts", name+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	root = t.TempDir()
	for _, f := range a.Files {
		lay(t, root, f.Name, string(f.Data))
	}
	for i := 0; i+1 < len(more); i += 2 {
		lay(t, root, more[i], more[i+1])
	}
	h, err := host.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	return find(t, h, rules), root
}

func find(t *testing.T, h *host.Host, rules string) *HostFinder {
	t.Helper()
	file := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	f := NewHostFinder(h, c, nil)
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := f.Unwatched(); err != nil {
		t.Fatal(err)
	}
	return f
}

func lay(t *testing.T, root, name, text string) {
	t.Helper()
	name = filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// look returns what was found, one line each; "same" if a walk was not needed.
func look(t *testing.T, f *HostFinder, now time.Time) string {
	t.Helper()
	found, fresh, err := f.Find(now)
	if err != nil {
		t.Fatal(err)
	}
	if !fresh {
		return "same"
	}
	var b strings.Builder
	for _, x := range found {
		fmt.Fprintf(&b, "%s %s job %s %s", x.Hierarchy, x.Path, x.Job, x.Rule.Class)
		if x.Own {
			b.WriteString(" own")
		}
		b.WriteByte('\n')
		cg, err := f.Open(x)
		if err != nil {
			t.Errorf("open %s: %v", x.Path, err)
			continue
		}
		cg.Close()
		x.Inode++
		if _, err := f.Open(x); !errors.Is(err, host.ErrGone) {
			t.Errorf("open another one's inode of %s: %v", x.Path, err)
		}
	}
	return b.String()
}

const fixRules = "rules: [{match: /quell-test-fix-*/web, job: web, class: batch}, {match: /quell-test-fix-*, job: $1, class: batch}]"

// In a container with a cgroup namespace of its own and a mount of the machine's cgroups, the
// agent knows its own cgroup by its process.
func TestOwnCgroupFromInsideAContainer(t *testing.T) {
	const mount = "25 23 0:22 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"
	pid := fmt.Sprintf("4711\n%d\n", os.Getpid())
	for _, c := range []struct{ name, mounts, want string }{
		{"container", strings.Replace(mount, " / ", " /../../.. ", 1), "v2 /quell-test-fix-agent job agent batch own\n"},
		{"machine", mount, "v2 /quell-test-fix-agent job agent batch\n"}, // as an agent at the top would see another's cgroup
	} {
		t.Run(c.name, func(t *testing.T) {
			f, _ := onHost(t, "v2-two-sockets", fixRules, "proc/self/mountinfo", c.mounts, "proc/self/cgroup", "0::/\n",
				"sys/fs/cgroup/quell-test-fix-agent/cgroup.procs", pid, "sys/fs/cgroup/quell-test-fix-agent/cpu.stat", "usage_usec 1\n")
			if got := look(t, f, time.Now()); !strings.Contains(got, c.want) {
				t.Errorf("got:\n%swant:\n%s", got, c.want)
			}
		})
	}
}

// On a hybrid host a task is identified by its cgroup2 unless its processes are in the
// root there; each task is found once.
func TestFindsOnHybridHost(t *testing.T) {
	f, root := onHost(t, "hybrid", fixRules,
		"proc/self/cgroup", "3:cpuset:/\n2:cpuacct:/quell-test-fix-old\n1:cpu:/quell-test-fix-old\n0::/quell-test-fix-shop/web\n")
	now := time.Now()
	want := `v2 /quell-test-fix-batch job batch batch
v2 /quell-test-fix-shop job shop batch own
v2 /quell-test-fix-shop/web job web batch own
v2 /quell-test-fix-split job split batch
v1cpu /quell-test-fix-old job old batch own
`
	if got := look(t, f, now); got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
	if got := look(t, f, now); got != "same" {
		t.Errorf("looked again without a change: %s", got)
	}
	now = now.Add(walkWatched)
	if got := look(t, f, now); got != want {
		t.Errorf("long after:\n%swant:\n%s", got, want)
	}
	// A new cgroup is found when the kernel reports it.
	lay(t, root, "sys/fs/cgroup/unified/quell-test-fix-new/cpu.stat", "usage_usec 1\n")
	lay(t, root, "sys/fs/cgroup/unified/quell-test-fix-new/cgroup.procs", "")
	if got, line := look(t, f, now), "v2 /quell-test-fix-new job new batch\n"; !strings.Contains(got, line) {
		t.Errorf("the new one is missing in:\n%s", got)
	}
	if err := os.RemoveAll(filepath.Join(root, "sys/fs/cgroup/cpu/quell-test-fix-old")); err != nil {
		t.Fatal(err)
	}
	if got := look(t, f, now); got == "same" || strings.Contains(got, "fix-old") {
		t.Errorf("found although it is gone:\n%s", got)
	}
	var none, open []string
	for at, c := range f.known {
		switch c.decision {
		case isNone:
			none = append(none, at.Path)
		case undecided:
			open = append(open, at.Path)
		}
	}
	// The processes in batch's v1 cgroup are in several cgroups2.
	if !slices.Equal(none, []string{"/quell-test-fix-shop"}) || !slices.Equal(open, []string{"/quell-test-fix-batch"}) || len(f.undecided) != 1 {
		t.Errorf("decided against %v, undecided %v, to be asked again %v", none, open, f.undecided)
	}
}

// A v1 cgroup without processes is checked again at increasing intervals: its first
// process shows where it belongs.
func TestEmptyCgroupIsDecidedLater(t *testing.T) {
	f, root := onHost(t, "hybrid", fixRules)
	dir := "sys/fs/cgroup/cpu/quell-test-fix-later/"
	for _, file := range []string{"cgroup.procs", "tasks"} {
		lay(t, root, dir+file, "")
	}
	lay(t, root, dir+"cpu.stat", "nr_throttled 0\n")
	now := time.Now()
	if got := look(t, f, now); strings.Contains(got, "later") {
		t.Errorf("while it is empty: %s", got)
	}
	c := f.undecided[host.Place{Hierarchy: sample.V1CPU, Path: "/quell-test-fix-later"}]
	var asked []time.Duration
	for since := time.Duration(0); since < time.Minute; since += askFirst {
		if got := look(t, f, now.Add(since)); got != "same" {
			t.Errorf("while it is empty: %s", got)
		}
		if c.asked.Equal(now.Add(since)) {
			asked = append(asked, since/time.Second)
		}
	}
	if want := []time.Duration{0, 1, 3, 7, 15, 25, 35, 45, 55}; !slices.Equal(asked, want) {
		t.Errorf("asked after %d s, want %d", asked, want)
	}
	now = now.Add(time.Minute + askMost)
	lay(t, root, dir+"cgroup.procs", "777\n")
	lay(t, root, dir+"tasks", "777\n")
	lay(t, root, "proc/777/cgroup", "3:cpuset:/\n2:cpuacct:/\n1:cpu:/quell-test-fix-later\n0::/\n")
	lay(t, root, "proc/777/stat", "777 (x) S 1 1 1 0 -1 0 0 0\n")
	if got := look(t, f, now); !strings.Contains(got, "v1cpu /quell-test-fix-later job later batch\n") {
		t.Errorf("with a process:\n%s", got)
	}
	if got := look(t, f, now); got != "same" {
		t.Errorf("looked again although all is decided: %s", got)
	}
	// It stays a task, also without processes.
	lay(t, root, dir+"cgroup.procs", "")
	if got := look(t, f, now.Add(walkWatched)); !strings.Contains(got, "later") {
		t.Errorf("empty again:\n%s", got)
	}
}

func TestFindsOnOtherHosts(t *testing.T) {
	for _, c := range []struct{ host, rules, want string }{
		{"v1", "rules: [{match: /docker/*, class: batch}, {match: /machine.slice/*, class: latency-sensitive}]",
			"v1cpu /docker/4f1d2c9a7b job 4f1d2c9a7b batch\nv1cpu /machine.slice/machine-qemu-1-db.scope job machine-qemu-1-db.scope latency-sensitive\n"},
		{"v2-arm64", "rules: [{match: /kubepods.slice/besteffort.slice/*/*, job: $1, class: best-effort}, {match: /kubepods.slice/*/*, ignore: true}]",
			"v2 /kubepods.slice/besteffort.slice/pod2/c2 job pod2 best-effort\n"},
	} {
		f, _ := onHost(t, c.host, c.rules)
		if got := look(t, f, time.Now()); got != c.want {
			t.Errorf("%s: got:\n%swant:\n%s", c.host, got, c.want)
		}
	}
}

// When the kernel stops reporting changes, cgroups are walked and a reason is reported, until it reports
// them again.
func TestWalksWhenItCannotWatch(t *testing.T) {
	f, _ := onHost(t, "hybrid", fixRules)
	now := time.Now()
	first := look(t, f, now)
	f.watcher.Close() // reads fail from now on
	if got := look(t, f, now); got != first {
		t.Errorf("got:\n%s", got)
	}
	if f.Unwatched() == nil {
		t.Error("nothing is said")
	}
	if got := look(t, f, now.Add(walkUnwatched-time.Millisecond)); got != "same" {
		t.Errorf("walked too soon: %s", got)
	}
	if got := look(t, f, now.Add(walkUnwatched)); got != first {
		t.Errorf("got:\n%s", got)
	}
	now = now.Add(watchAgain)
	if got := look(t, f, now); got != first || f.Unwatched() != nil || f.Wait() == nil {
		t.Errorf("an hour later: %v, got:\n%s", f.Unwatched(), got)
	}
	if got := look(t, f, now.Add(walkUnwatched)); got != "same" {
		t.Errorf("walked while it watches: %s", got)
	}
}

// The same on this machine's own cgroups.
func TestFindsOnThisMachine(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.CgroupV1, quelltest.Cgroup2)
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	prefix := fmt.Sprintf("/quell-test-agent-%d-", os.Getpid())
	f := find(t, h, "rules: [{match: \""+prefix+"*\", job: $1, class: batch}]")
	now := time.Now()
	if got := look(t, f, now); got != "" {
		t.Fatalf("before there is any:\n%s", got)
	}
	v1, both := mkdir(t, "/sys/fs/cgroup/cpu"+prefix+"v1"), mkdir(t, "/sys/fs/cgroup/cpu"+prefix+"both")
	unified := mkdir(t, h.Layout().Unified+prefix+"both")
	want := fmt.Sprintf("v2 %sboth job both batch\n", prefix)
	if got := look(t, f, now); got != want {
		t.Errorf("while all are empty, got:\n%swant:\n%s", got, want)
	}
	enter(t, v1)
	enter(t, both, unified)
	want += fmt.Sprintf("v1cpu %sv1 job v1 batch\n", prefix)
	if got := look(t, f, now.Add(askFirst)); got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}

// mkdir makes a cgroup that is removed when the test ends.
func mkdir(t *testing.T, dir string) string {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		quelltest.Until(t, "rmdir "+dir, func() bool {
			err := os.Remove(dir)
			return err == nil || errors.Is(err, fs.ErrNotExist)
		})
	})
	return dir
}

// enter starts a process in the cgroups; it ends with the test.
func enter(t *testing.T, dirs ...string) {
	t.Helper()
	cmd := exec.Command("cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		cmd.Wait()
	})
	for _, dir := range slices.Compact(dirs) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// A v1 task's usage and limit are those of the real kernel's files.
func TestTaskOnThisMachine(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.CgroupV1)
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	prefix := fmt.Sprintf("/quell-test-agent-%d-", os.Getpid())
	f := find(t, h, "rules: [{match: \""+prefix+"*\", job: $1, class: batch}]")
	dir := mkdir(t, "/sys/fs/cgroup/cpu"+prefix+"one")
	enter(t, dir)
	found, _, err := f.Find(time.Now())
	if err != nil || len(found) != 1 {
		t.Fatalf("found %+v, %v", found, err)
	}
	cg, err := f.Open(found[0])
	if err != nil {
		t.Fatal(err)
	}
	defer cg.Close()
	places, err := cg.Places()
	if err != nil || places.CPU != prefix+"one" || places.Unified != "/" {
		t.Errorf("places %+v, %v", places, err)
	}
	at, inode, writes, err := h.CapWrites(places.CPU, 0.1, 0)
	if err != nil || at != dir || inode != found[0].Inode || len(writes) == 0 {
		t.Errorf("a cap would write %+v in %s, %v", writes, at, err)
	}
	if found[0].Hierarchy != sample.V1CPU {
		t.Errorf("found %+v", found[0])
	}
}

// Changes of cgroups that are not tasks cause no walk and no new list of tasks.
func TestOthersChangesAreNone(t *testing.T) {
	f, root := onHost(t, "hybrid", fixRules)
	now := time.Now()
	look(t, f, now)
	lay(t, root, "sys/fs/cgroup/unified/others/below/cpu.stat", "usage_usec 1\n")
	if got := look(t, f, now); got != "same" {
		t.Errorf("others made a cgroup: %s", got)
	}
	// A task that is made, removed and made again between two calls, below a directory
	// that is new as well.
	dir := filepath.Join(root, "sys/fs/cgroup/unified/quell-test-fix-twice")
	for range 2 {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"cpu.stat", "web/cpu.stat"} {
			lay(t, root, "sys/fs/cgroup/unified/quell-test-fix-twice/"+file, "usage_usec 1\n")
		}
	}
	got := look(t, f, now)
	for _, line := range []string{"v2 /quell-test-fix-twice job twice batch\n", "v2 /quell-test-fix-twice/web job web batch\n"} {
		if strings.Count(got, line) != 1 {
			t.Errorf("%q is not there once:\n%s", line, got)
		}
	}
	if err := os.RemoveAll(dir + "/web"); err != nil {
		t.Fatal(err)
	}
	if got := look(t, f, now); strings.Contains(got, "twice/web") || !strings.Contains(got, "twice job") {
		t.Errorf("one of them removed:\n%s", got)
	}
	if f.walked != now {
		t.Error("all were walked")
	}
}

// Whatever cgroups are made and removed, examining the changes finds the same as a walk
// of all.
func TestChangesFindWhatAWalkFinds(t *testing.T) {
	f, root := onHost(t, "hybrid", fixRules)
	now := time.Now()
	all, _, err := f.Find(now)
	if err != nil {
		t.Fatal(err)
	}
	seed := time.Now().UnixNano()
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	top := filepath.Join(root, "sys/fs/cgroup/unified")
	for step := range 300 {
		for range random.IntN(6) {
			dir := filepath.Join(top, fmt.Sprintf("quell-test-fix-%d", random.IntN(4)))
			if random.IntN(2) == 0 {
				dir = filepath.Join(dir, "web")
			}
			switch n := random.IntN(100); {
			case n < 50:
				os.MkdirAll(dir, 0o755)
			case n < 98:
				os.RemoveAll(dir)
			default: // this causes a walk of all
				os.Rename(dir, filepath.Join(top, fmt.Sprintf("quell-test-fix-%d", random.IntN(4))))
			}
		}
		found, fresh, err := f.Find(now)
		if err != nil {
			t.Fatal(err)
		}
		if fresh {
			all = found
		}
		twin := NewHostFinder(f.host, f.config, nil)
		want, _, err := twin.Find(now)
		if err = errors.Join(err, twin.Close()); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(all, want) {
			t.Fatalf("seed %d, step %d: found\n%v\na walk finds\n%v", seed, step, all, want)
		}
	}
}

// A tenant's cgroup with a path that no system call takes hides no task. It is counted and
// named until it is gone, if a rule could have made it a task.
func TestALongPathHidesNoTask(t *testing.T) {
	f, root := onHost(t, "hybrid", strings.Replace(fixRules, "[", "[{match: /quell-test-fix-batch/**/deep, class: batch}, ", 1))
	now := time.Now()
	want := look(t, f, now)
	dir, err := os.OpenRoot(filepath.Join(root, "sys/fs/cgroup/unified/quell-test-fix-batch"))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	const part = "a-name-that-is-long-enough-to-fill-a-path-soon-if-it-is-repeated-often-enough/"
	if err := dir.MkdirAll(strings.Repeat(part, 5000/len(part)+1), 0o755); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Second)
	if _, _, err := f.Find(now); err != nil {
		t.Fatal(err)
	}
	if u := f.Unread(); u.N != 1 || !strings.HasPrefix(u.First, "/quell-test-fix-batch/a-name") {
		t.Errorf("left out: %+v", u)
	}
	// All are found, with the long one there, also by a walk of all and by a new finder.
	if got := look(t, f, now.Add(walkWatched)); got != want {
		t.Errorf("a walk of all finds\n%s\nwant\n%s", got, want)
	}
	shallow := find(t, f.host, fixRules)
	if got := look(t, shallow, now); got != want || shallow.Unread().N != 0 {
		t.Errorf("where no rule reaches it\n%s\nis found, and %+v is left out; want\n%s", got, shallow.Unread(), want)
	}
	again := NewHostFinder(f.host, f.config, nil)
	defer again.Close()
	if err := again.Unwatched(); err != nil {
		t.Error(err)
	}
	if got := look(t, again, now); got != want {
		t.Errorf("a new finder finds\n%s\nwant\n%s", got, want)
	}
	if err := dir.RemoveAll(strings.TrimSuffix(part, "/")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Find(now.Add(3 * walkWatched)); err != nil || f.Unread().N != 0 {
		t.Errorf("after it was removed: %+v, %v", f.Unread(), err)
	}
}

// A cgroup in v1 of which it cannot be known whether its processes have a cgroup2, because it
// has so many cgroups, is a task: else a tenant could hide there.
func TestManyCgroupsHideNoTask(t *testing.T) {
	f, root := onHost(t, "hybrid", fixRules)
	for i := range 2100 {
		lay(t, root, fmt.Sprintf("sys/fs/cgroup/cpu/quell-test-fix-many/%d/cgroup.procs", i), "")
	}
	for name, text := range map[string]string{"cgroup.procs": "", "tasks": "", "cpu.stat": "nr_throttled 0\n"} {
		lay(t, root, "sys/fs/cgroup/cpu/quell-test-fix-many/"+name, text)
	}
	if got := look(t, f, time.Now()); !strings.Contains(got, "v1cpu /quell-test-fix-many job many batch\n") {
		t.Errorf("found\n%s", got)
	}
}

// TestOneUsersCgroupsAreBounded: of the cgroups that a user makes in its slice without end, a bounded number are tasks, and
// others' are.
func TestOneUsersCgroupsAreBounded(t *testing.T) {
	f, root := onHost(t, "v2-two-sockets", "rules: [{match: /user.slice/user-*.slice/user@*.service/*.slice/*.scope, job: $1, class: batch}]")
	scope := func(user, name string) string {
		return filepath.Join(root, "sys/fs/cgroup/user.slice/user-"+user+".slice/user@"+user+".service/app.slice", name+".scope")
	}
	add := func(dir string) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i := range mostOfUser + 50 {
		add(scope("1000", fmt.Sprint("a", i)))
	}
	add(scope("2000", "b"))
	now := time.Now()
	tasks := func() map[sample.JobName]int {
		found, _, err := f.Find(now)
		if err != nil {
			t.Fatal(err)
		}
		n := map[sample.JobName]int{}
		for _, x := range found {
			n[x.Job]++
		}
		return n
	}
	if got, left := tasks(), f.Unread(); got["1000"] != mostOfUser || got["2000"] != 1 || left.N != 50 {
		t.Errorf("%v; left out: %+v", got, left)
	}
	if err := os.Remove(scope("1000", "a0")); err != nil {
		t.Fatal(err)
	}
	add(scope("1000", "later"))
	if got := tasks(); got["1000"] != mostOfUser {
		t.Errorf("after one was removed: %v", got)
	}
	// A walk of all comes to this one first.
	add(scope("1000", "A"))
	now = now.Add(walkWatched)
	found, _, err := f.Find(now)
	if err != nil {
		t.Fatal(err)
	}
	is := func(name string) bool {
		return slices.ContainsFunc(found, func(x Found) bool { return strings.HasSuffix(x.Path, name) })
	}
	if len(found) != mostOfUser+1 || is("/A.scope") || !is("/later.scope") {
		t.Errorf("after a walk of all, others of %d are tasks", len(found))
	}
}

// On a hybrid host a user's cgroups may be in both hierarchies: those in one take no place of those in the other.
func TestEachHierarchyHasItsBound(t *testing.T) {
	f, root := onHost(t, "hybrid", "rules: [{match: /user.slice/user-*.slice/*.scope, job: $1, class: batch}]")
	for i := range mostOfUser {
		for _, hier := range []string{"cpu", "unified"} {
			if err := os.MkdirAll(filepath.Join(root, "sys/fs/cgroup", hier, "user.slice/user-1000.slice", fmt.Sprint(i, ".scope")), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	found, _, err := f.Find(time.Now())
	if left := f.Unread(); err != nil || len(found) != mostOfUser || left.N != 0 {
		t.Errorf("%d are tasks, %v; left out: %+v", len(found), err, left)
	}
}
