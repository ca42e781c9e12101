package runq

import (
	"context"
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
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) {
	if os.Getenv("RUNQ_OPEN") != "" {
		sayOpen()
		return
	}
	quelltest.Main(m)
}

// burner is a shell that only burns CPU time: one thread, and no runtime with threads
// of its own, whose waits would count too.
type burner struct {
	cpu  int
	nice int
	echo bool // sleep until a line is written to it, answer it, repeat
	// policy is the scheduling policy, 0 for the ordinary one; a real-time policy gets
	// the lowest priority.
	policy uint32
	loop   string // shell loop, if it is to do something else
}

// anyCPU does not pin a burner.
const anyCPU = -1

type burning struct {
	*quelltest.Child
	echo bool
}

// start begins to burn inside the cgroup, until the test's end.
func (b burner) start(t testing.TB, cgroup string) *burning {
	t.Helper()
	loop := "while :; do :; done"
	if b.echo {
		loop = "while read line; do echo; done"
	}
	if b.loop != "" {
		loop = b.loop
	}
	cmd := exec.Command("/bin/sh", "-c", "read line; echo burning; "+loop)
	x := &burning{quelltest.StartChild(t, cmd, ""), b.echo} // it joins its cgroup after it is pinned
	if b.cpu != anyCPU {
		x.pin(t, b.cpu)
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, x.PID, b.nice); err != nil {
		t.Fatal(err)
	}
	toCgroup(t, cgroup, x.PID)
	if b.policy == unix.SCHED_FIFO || b.policy == unix.SCHED_RR || b.policy == unix.SCHED_DEADLINE {
		if quelltest.Probe(quelltest.CgroupV1) == nil { // there only the root has a real-time budget
			toCgroup(t, quelltest.CgroupMount(t, "cpu"), x.PID)
		}
	}
	if b.policy != 0 {
		x.schedule(t, unix.SchedAttr{Policy: b.policy})
	}
	x.ask()
	return x
}

// ask waits until it has answered a line.
func (b *burning) ask() { b.Ask("line") }

// cpuTime returns the process's CPU time, by its CPU clock: clock_getcpuclockid(3).
func (b *burning) cpuTime(t testing.TB) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^b.PID<<3|2), &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

func (b *burning) pin(t testing.TB, cpu int) { pin(t, b.PID, cpu) }

// schedule changes its scheduling policy.
func (b *burning) schedule(t testing.TB, a unix.SchedAttr) {
	t.Helper()
	a.Size = unix.SizeofSchedAttr
	if a.Policy == unix.SCHED_DEADLINE {
		a.Runtime, a.Deadline, a.Period = 3e6, 10e6, 10e6 // ns
	}
	if a.Policy == unix.SCHED_FIFO || a.Policy == unix.SCHED_RR {
		a.Priority = 1
	}
	err := unix.SchedSetAttr(b.PID, &a, 0)
	if a.Policy == unix.SCHED_DEADLINE && err != nil {
		quelltest.Skip(t, "deadline", err)
	}
	if err != nil {
		t.Fatalf("schedule by policy %d: %v", a.Policy, err)
	}
}

// pin binds the process's thread, or for 0 the calling thread, to a CPU.
func pin(t testing.TB, pid, cpu int) {
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(pid, &set); err != nil {
		t.Fatal(err)
	}
}

// group is a cgroup made for a test, as a target.
type group struct {
	counter.Target
	burners []*burning
	quota   bool
}

// newGroup makes a cgroup below a directory; settings are its files' contents.
func newGroup(t testing.TB, h sample.Hierarchy, parent, name string, settings ...string) *group {
	t.Helper()
	dir := filepath.Join(parent, name)
	quelltest.MakeCgroup(t, dir)
	for _, s := range settings {
		file, value, _ := strings.Cut(s, "=")
		if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	g := &group{}
	g.Target = counter.Target{
		Key: sample.TaskKey{Hierarchy: h, Inode: inode(t, dir), FirstSeen: 1},
		Dir: dir,
		Members: func() (pids []int, err error) {
			for _, b := range g.burners {
				pids = append(pids, b.PID)
			}
			return pids, nil
		},
		Below: func() ([]uint64, error) { return nil, nil },
	}
	return g
}

func (g *group) burn(t testing.TB, b burner) *burning {
	t.Helper()
	x := b.start(t, g.Dir)
	g.burners = append(g.burners, x)
	return x
}

// haveRun waits until each of its burners has run from now on, except for those that sleep, and
// for those with a quota, which may hold a thread back for a minute.
func (g *group) haveRun(t testing.TB) {
	t.Helper()
	for _, b := range g.burners {
		ran := b.cpuTime(t)
		quelltest.Until(t, "a burner runs", func() bool { return g.quota || b.echo || b.cpuTime(t) > ran })
	}
}

func inode(t testing.TB, dir string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// unified and v1cpu make a cgroup in either hierarchy.
func unified(t testing.TB, name string) *group {
	t.Helper()
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2)
	prefer(t)
	return newGroup(t, sample.Unified, quelltest.CgroupMount(t, ""), testName(name))
}

func v1cpu(t testing.TB, name string, settings ...string) *group {
	t.Helper()
	quelltest.Need(t, quelltest.Root, quelltest.CgroupV1)
	prefer(t)
	return newGroup(t, sample.V1CPU, quelltest.CgroupMount(t, "cpu"), testName(name), append(settings, mostShares)...)
}

// capped makes a cgroup with a quota in ms of each 100 ms, in v1 if that has the cpu
// controller.
func capped(t testing.TB, name string, quota int) *group {
	t.Helper()
	if quelltest.Probe(quelltest.CgroupV1) == nil {
		g := v1cpu(t, name, "cpu.cfs_period_us=100000", fmt.Sprintf("cpu.cfs_quota_us=%d000", quota))
		g.quota = true
		return g
	}
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2CPU)
	g := unified(t, name)
	if err := os.WriteFile(filepath.Join(g.Dir, "cpu.max"), fmt.Appendf(nil, "%d000 100000", quota), 0); err != nil {
		quelltest.Skip(t, quelltest.Cgroup2CPU, err)
	}
	g.quota = true
	return g
}

const mostShares = "cpu.shares=262144"

// prefer moves this process, and so the burners that are started later, into a cgroup
// of large weight for the rest of the test. The machine's other work is then hardly a
// neighbour. Nice values would not do, since sessions are autogroups.
func prefer(t testing.TB) {
	t.Helper()
	if quelltest.Probe(quelltest.CgroupV1) != nil {
		return
	}
	name := testName("preferred")
	cgroup, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(cgroup), name) {
		return
	}
	root := quelltest.CgroupMount(t, "cpu")
	home := root
	for line := range strings.Lines(string(cgroup)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if slices.Contains(strings.Split(f[1], ","), "cpu") {
			home = filepath.Join(root, f[2])
		}
	}
	g := newGroup(t, sample.V1CPU, root, name, mostShares)
	toCgroup(t, g.Dir, os.Getpid())
	t.Cleanup(func() { toCgroup(t, home, os.Getpid()) })
}

func toCgroup(t testing.TB, dir string, pid int) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		t.Error(err)
	}
}

func testName(name string) string { return fmt.Sprintf("quell-test-runq-%d-%s", os.Getpid(), name) }

// measured is what one window measured of one group, in seconds per second.
type measured struct {
	cpu                    float64
	other, self, throttled float64
	counter.Reading
}

// selfCost is the wait behind the group's own threads for each CPU second.
func (m measured) selfCost() float64 { return m.self / m.cpu }

func (m measured) String() string {
	return fmt.Sprintf("cpu %.3f, wait other %.3f self %.3f throttled %.3f, cost %.3f, coverage %.3f",
		m.cpu, m.other, m.self, m.throttled, m.Cost, m.Coverage)
}

// measure opens one window on a source that follows the groups. during, if not
// nil, runs until the window's context is done.
func measure(t testing.TB, src counter.Source, length time.Duration, groups []*group, during func(context.Context)) []measured {
	t.Helper()
	base := map[sample.TaskKey]time.Duration{}
	used := func(g *group) (sum time.Duration) {
		for _, b := range g.burners {
			sum += b.cpuTime(t)
		}
		return sum
	}
	if err := src.Start(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for _, g := range groups {
		base[g.Key] = used(g)
	}
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	if during != nil {
		during(ctx)
	}
	<-ctx.Done()
	spent := map[sample.TaskKey]time.Duration{}
	var wall float64
	got := map[sample.TaskKey]counter.Reading{}
	err := src.Stop(counter.WindowEnd{CPU: func(k sample.TaskKey) (time.Duration, bool) {
		if wall == 0 { // the first call: the window is over now
			wall = time.Since(began).Seconds()
			for _, g := range groups {
				spent[g.Key] = used(g) - base[g.Key]
			}
		}
		d, ok := spent[k]
		return d, ok
	}}, func(k sample.TaskKey, r counter.Reading) { got[k] = r })
	if err != nil {
		t.Fatal(err)
	}
	out := make([]measured, len(groups))
	for i, g := range groups {
		r, ok := got[g.Key]
		if !ok {
			t.Fatalf("no reading for %s", g.Dir)
		}
		share := func(e sample.Extra) float64 {
			v, _ := r.Extras.Get(e)
			return v / wall
		}
		checkServed(t, g, r)
		out[i] = measured{cpu: spent[g.Key].Seconds() / wall, other: share(sample.WaitOther),
			self: share(sample.WaitSelf), throttled: share(sample.WaitThrottled), Reading: r}
	}
	return out
}

// needThrottledClock skips without that clock: the twin needs it for what quotas hold.
func needThrottledClock(t *testing.T) {
	t.Helper()
	if !throttledClock(t) {
		quelltest.Skip(t, "throttled-clock", errors.New("it comes with Linux 6.6"))
	}
}

// weighted makes a cgroup with a weight by the available controller; 100 is ordinary.
func weighted(t testing.TB, name string, weight int) *group {
	t.Helper()
	if quelltest.Probe(quelltest.CgroupV1) == nil {
		g := v1cpu(t, name)
		writeFile(t, g.Dir, "cpu.shares", fmt.Sprint(weight*2000))
		return g
	}
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2CPU)
	g := unified(t, name)
	writeFile(t, g.Dir, "cpu.weight", fmt.Sprint(weight))
	return g
}
