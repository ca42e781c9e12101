package usage

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

const childEnv = "QUELL_USAGE_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
		return
	}
	quelltest.Main(m)
}

// child burns a CPU in two threads from its first line of input to its end.
func child() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if lines.Text() == "burn" {
			for range 2 {
				go func() {
					for n := uint64(1); n != 0; n += 2 { // it burns: n stays odd
					}
				}()
			}
		}
		fmt.Println(lines.Text())
	}
}

func start(t testing.TB, dir string) *quelltest.Child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=1", "GOMAXPROCS=3")
	c := quelltest.StartChild(t, cmd, dir)
	c.Ask("there")
	return c
}

// pair is two hosts of this machine: one reads accounts, the other files.
type pair struct {
	accounts, files *host.Host
	*Accounts
}

func open(t testing.TB, rows int) *pair {
	t.Helper()
	quelltest.Need(t, quelltest.Root, quelltest.EBPF, quelltest.Cgroup2)
	p := &pair{}
	for _, h := range []**host.Host{&p.accounts, &p.files} {
		var err error
		if *h, err = host.Open("/"); err != nil {
			t.Fatal(err)
		}
	}
	if rows > 0 {
		p.load(t, rows)
	}
	return p
}

// load loads the programs, with room for so many cgroups.
func (p *pair) load(t testing.TB, rows int, follow ...*group) {
	t.Helper()
	var err error
	if p.Accounts, err = load(p.accounts.AccountMounts(), rows); err != nil {
		t.Fatal(err)
	}
	p.accounts.UseAccounts(p.Accounts, math.MaxInt32)
	t.Cleanup(func() {
		if err := p.accounts.CloseAccounts(); err != nil {
			t.Error(err)
		}
	})
	for _, g := range follow {
		if err := g.byAccount.KeepOpen(true); err != nil {
			t.Fatal(err)
		}
	}
}

// group is one cgroup, read in both ways.
type group struct {
	name              string
	byAccount, byFile *host.Cgroup
	dirs              []string // in all hierarchies
}

// group makes a cgroup of an identity; in v1 in the hierarchies of cpu and cpuacct.
func (p *pair) group(t testing.TB, hier sample.Hierarchy, name string) *group {
	t.Helper()
	mounts := []string{p.files.Layout().Unified}
	if hier == sample.V1CPU {
		quelltest.Need(t, quelltest.CgroupV1)
		mounts = []string{quelltest.CgroupMount(t, "cpu")}
		if dir := quelltest.CgroupMount(t, "cpuacct"); dir != mounts[0] {
			mounts = append(mounts, dir)
		}
	}
	g := &group{name: fmt.Sprintf("/quell-test-usage-%d-%s", os.Getpid(), name)}
	for _, m := range mounts {
		g.dirs = append(g.dirs, quelltest.MakeCgroup(t, filepath.Join(m, g.name)))
	}
	g.open(t, p, hier)
	return g
}

func (g *group) open(t testing.TB, p *pair, hier sample.Hierarchy) {
	t.Helper()
	var err error
	if g.byAccount, err = p.accounts.OpenCgroup(hier, g.name); err != nil {
		t.Fatal(err)
	}
	if g.byFile, err = p.files.OpenCgroup(hier, g.name); err != nil {
		t.Fatal(err)
	}
	if err := g.byAccount.KeepOpen(true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.byAccount.Close(); g.byFile.Close() })
}

// enter moves a process into the cgroup.
func (g *group) enter(t testing.TB, pid int) {
	t.Helper()
	for _, dir := range g.dirs {
		if err := os.WriteFile(dir+"/cgroup.procs", []byte(strconv.Itoa(pid)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []*host.Cgroup{g.byAccount, g.byFile} {
		if _, err := c.Places(); err != nil {
			t.Fatal(err)
		}
	}
}

// slack is by how much a pressure file may be behind: the kernel weighs a CPU by whole jiffies. It weighs
// the CPUs by how busy they were since it last did so, which is when the file was read: what was a second
// of waiting may be less once another CPU has been busy too. So a file may also be behind by the time
// between two readings of it.
const slack = 20 * time.Millisecond

// check compares: what is read at once lies between what files say before and after. It returns
// that.
func (p *pair) check(t testing.TB, all ...*group) []host.Usage {
	t.Helper()
	type reading struct {
		host.Usage
		stalled time.Duration
		noPSI   bool
	}
	read := func(g *group, c *host.Cgroup) (r reading) {
		var err error
		if r.Usage, err = c.Usage(); err != nil {
			t.Fatalf("%s: %v", g.name, err)
		}
		r.stalled, err = c.Stalled("cpu")
		if r.noPSI = errors.Is(err, host.ErrNoPSI); err != nil && !r.noPSI {
			t.Fatalf("%s: %v", g.name, err)
		}
		return r
	}
	before, got, usages := make([]reading, len(all)), make([]reading, len(all)), make([]host.Usage, len(all))
	began := time.Now()
	for i, g := range all {
		before[i] = read(g, g.byFile)
	}
	if err := p.accounts.ReadAccounts(); err != nil {
		t.Fatal(err)
	}
	for i, g := range all {
		if _, ok := p.Row(g.row(p)); !ok {
			t.Fatalf("%s was not read with the others", g.name)
		}
		got[i] = read(g, g.byAccount)
		if n := g.byAccount.OpenFiles(); n != 0 {
			t.Errorf("%s: %d files are open", g.name, n)
		}
	}
	p.accounts.EndAccounts()
	for i, g := range all {
		after := read(g, g.byFile)
		usages[i] = got[i].Usage
		within := func(what string, a, x, b time.Duration) {
			if x < a || x >= b+time.Microsecond { // cpu.stat has µs
				t.Errorf("%s: %s %v is not in %v to %v", g.name, what, x, a, b)
			}
		}
		within("usage", before[i].CPU, got[i].CPU, after.CPU)
		within("throttling", before[i].Throttled, got[i].Throttled, after.Throttled)
		within("pressure", before[i].stalled, got[i].stalled, after.stalled+slack+time.Since(began))
		if got[i].noPSI != after.noPSI {
			t.Errorf("%s: pressure is missing: %v, by files %v", g.name, got[i].noPSI, after.noPSI)
		}
	}
	return usages
}

// row is the one of the cgroup's usage, -1 if it has none.
func (g *group) row(p *pair) int {
	dir := g.dirs[len(g.dirs)-1]
	inode, err := p.files.Inode(dir)
	if err != nil {
		return -1
	}
	for mount, in := range p.trees {
		if f := p.used[inode|in.number]; f != nil && strings.HasPrefix(dir, mount+"/") {
			return f.row
		}
	}
	return -1
}

// The kernel's accounts are as its files say, for tasks that burn, sleep since before the programs
// were loaded, move, throttle and end; of nested cgroups the outer one has what the inner one has,
// once.
func TestAsTheFilesSay(t *testing.T) {
	for _, hier := range []sample.Hierarchy{sample.Unified, sample.V1CPU} {
		t.Run(hier.String(), func(t *testing.T) {
			p := open(t, 0)
			outer := p.group(t, hier, "outer")
			inner := p.group(t, hier, "outer/inner")
			other := p.group(t, hier, "other")
			asleep := p.group(t, hier, "asleep")
			sleeper := quelltest.StartChild(t, exec.Command("cat"), asleep.dirs[0])
			asleep.enter(t, sleeper.PID)
			quelltest.Until(t, "cat waits for input", func() bool {
				stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", sleeper.PID))
				return err == nil && strings.Contains(string(stat), "(cat) S")
			})
			p.load(t, 64, outer, inner, other, asleep)
			burner := start(t, inner.dirs[0])
			inner.enter(t, burner.PID)
			if err := os.WriteFile(inner.dirs[0]+"/cpu.cfs_quota_us", []byte("20000"), 0o644); (err != nil) != (hier == sample.Unified) {
				t.Fatal(err)
			}
			all := []*group{outer, inner, other, asleep}
			first := p.check(t, all...)
			burner.Ask("burn")
			quelltest.Until(t, "the burner has run for 0.1 s", func() bool {
				now := p.check(t, all...)
				if now[3] != first[3] {
					t.Errorf("the sleeper went from %v to %v", first[3], now[3])
				}
				return now[1].CPU-first[1].CPU > 100*time.Millisecond && (hier == sample.Unified || now[1].Throttled > first[1].Throttled)
			})
			for range 5 { // moves in both directions: its time stays where it was used
				other.enter(t, burner.PID)
				left := p.check(t, all...)
				quelltest.Until(t, "it runs in the other cgroup", func() bool {
					now := p.check(t, all...)
					if now[0].CPU != left[0].CPU || now[1].CPU != left[1].CPU {
						t.Errorf("cgroups that it left went on: %v to %v", left[:2], now[:2])
					}
					return now[2].CPU-left[2].CPU > 5*time.Millisecond
				})
				inner.enter(t, burner.PID)
				p.check(t, all...)
			}
			used := p.check(t, all...)
			burner.End()
			ended := p.check(t, all...)
			if ended[0].CPU < used[0].CPU || ended[1].CPU < used[1].CPU {
				t.Errorf("what ended is not kept: %v, then %v", used, ended)
			}
		})
	}
}

// Two tasks on one CPU wait for each other.
func TestPressureAsTheFilesSay(t *testing.T) {
	p := open(t, 8)
	if _, err := p.files.PSI("cpu"); err != nil {
		quelltest.Skip(t, "psi", err)
	}
	one, two := p.group(t, sample.Unified, "one"), p.group(t, sample.Unified, "two")
	for _, g := range []*group{one, two} {
		c := start(t, g.dirs[0])
		if out, err := exec.Command("taskset", "-a", "-p", "1", strconv.Itoa(c.PID)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		c.Ask("burn")
	}
	stalled := func() time.Duration {
		if err := p.accounts.ReadAccounts(); err != nil {
			t.Fatal(err)
		}
		defer p.accounts.EndAccounts()
		d, err := one.byAccount.Stalled("cpu")
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	began := stalled()
	quelltest.Until(t, "one has waited for a second", func() bool { return stalled()-began > time.Second })
	p.check(t, one, two)
}

// A cgroup that is gone is ErrGone, and its row tells nothing of the next cgroup that gets it.
func TestARowIsUsedAgain(t *testing.T) {
	p := open(t, 1)
	first := p.group(t, sample.Unified, "first")
	c := start(t, first.dirs[0])
	p.check(t, first)
	c.End()
	if err := p.accounts.ReadAccounts(); err != nil {
		t.Fatal(err)
	}
	second := p.group(t, sample.Unified, "second")
	if second.row(p) >= 0 {
		t.Fatal("there is a row for two")
	}
	if n := second.byAccount.OpenFiles(); n == 0 {
		t.Error("without a row, no file is open")
	}
	if _, err := second.byAccount.Usage(); err != nil {
		t.Errorf("without a row: %v", err)
	}
	if err := os.Remove(first.dirs[0]); err != nil {
		t.Fatal(err)
	}
	if err := p.accounts.ReadAccounts(); err != nil {
		t.Fatal(err)
	}
	if _, err := first.byAccount.Usage(); !errors.Is(err, host.ErrGone) {
		t.Errorf("usage of a removed cgroup: %v", err)
	}
	if err := first.byAccount.Close(); err != nil {
		t.Fatal(err)
	}
	row, ok := p.Follow(p.files.Layout().Unified, second.byAccount.Inode())
	if _, read := p.Row(row); !ok || read {
		t.Errorf("the next cgroup has row %v, and it is read: %v", ok, read)
	}
	if err := p.accounts.ReadAccounts(); err != nil {
		t.Fatal(err)
	}
	if a, read := p.Row(row); !read || !a.HasCPU || a.CPU != 0 {
		t.Errorf("the next cgroup: %v, %v", a, read)
	}
	if err := p.Unfollow(row); err != nil {
		t.Error(err)
	}
	third := p.group(t, sample.Unified, "third")
	if _, read := p.Row(third.row(p)); read {
		t.Error("the row has what was just read of a cgroup that is still there")
	}
	p.check(t, third)
}

// What a cgroup costs, by accounts and by files that are kept open.
func BenchmarkRead(b *testing.B) {
	const n = 1000
	p := open(b, n)
	var all []*group
	for i := range n {
		all = append(all, p.group(b, sample.Unified, fmt.Sprint("many-", i)))
	}
	read := func(byAccount bool) time.Duration {
		begin := time.Now()
		if byAccount {
			if err := p.accounts.ReadAccounts(); err != nil {
				b.Fatal(err)
			}
		}
		for _, g := range all {
			c := g.byFile
			if byAccount {
				c = g.byAccount
			}
			_, err := c.Usage()
			_, stalled := c.Stalled("cpu")
			if err != nil || stalled != nil && !errors.Is(stalled, host.ErrNoPSI) {
				b.Fatal(err, stalled)
			}
		}
		p.accounts.EndAccounts()
		return time.Since(begin)
	}
	least := map[bool]time.Duration{}
	for b.Loop() {
		for _, by := range []bool{true, false} {
			if d := read(by); least[by] == 0 || d < least[by] {
				least[by] = d
			}
		}
	}
	b.ReportMetric(float64(least[true])/n, "accounts-ns/cgroup")
	b.ReportMetric(float64(least[false])/n, "files-ns/cgroup")
	b.ReportMetric(float64(least[false])/float64(least[true]), "files/accounts")
}
