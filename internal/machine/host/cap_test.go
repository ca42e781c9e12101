package host

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/quell-dev/quell/internal/core/sample"
)

// model reproduces the kernel's checks of a written CPU limit, after
// tg_set_bandwidth and tg_cfs_schedulable_down in kernel/sched/core.c.
type model struct {
	v1     bool
	groups map[string]*modelGroup // by path; "/" is not in it
}

type modelGroup struct{ quota, period, burst int64 } // µs, quota -1 for none

func (m *model) clone() *model {
	c := &model{v1: m.v1, groups: make(map[string]*modelGroup)}
	for p, g := range m.groups {
		copied := *g
		c.groups[p] = &copied
	}
	return c
}

// legal returns why the kernel would refuse this state.
func (m *model) legal() error {
	const unlimited = 1<<64 - 1
	rate := map[string]uint64{"/": unlimited}
	for _, p := range slices.Sorted(maps.Keys(m.groups)) { // parents first
		g := m.groups[p]
		if g.period < 1000 || g.period > 1_000_000 {
			return fmt.Errorf("%s: period %d", p, g.period)
		}
		up := rate[path.Dir(p)]
		rate[p] = up
		if g.quota < 0 {
			continue
		}
		if g.quota < 1000 || g.burst > g.quota {
			return fmt.Errorf("%s: quota %d, burst %d", p, g.quota, g.burst)
		}
		own := uint64(g.quota) << 20 / uint64(g.period)
		if m.v1 && up != unlimited && own > up {
			return fmt.Errorf("%s: %d/%d is over its parent's", p, g.quota, g.period)
		}
		rate[p] = min(own, up)
	}
	return nil
}

// write applies a value as the kernel does.
func (m *model) write(mount string, w Write, value string) error {
	p := strings.TrimPrefix(path.Dir(w.File), mount)
	next := m.clone()
	g := next.groups[p]
	if g == nil {
		return fmt.Errorf("%s: no such cgroup", p)
	}
	n, err := strconv.ParseInt(value, 10, 64)
	switch path.Base(w.File) {
	case "cpu.cfs_quota_us":
		g.quota = n
	case "cpu.cfs_period_us":
		g.period = n
	case "cpu.cfs_burst_us", "cpu.max.burst":
		g.burst = n
	case "cpu.max":
		var quota string
		if _, err = fmt.Sscan(value, &quota, &g.period); err == nil {
			g.quota = -1
			if quota != "max" {
				g.quota, err = strconv.ParseInt(quota, 10, 64)
			}
		}
	default:
		err = errors.New("no such file")
	}
	if err == nil {
		err = next.legal()
	}
	if err == nil {
		m.groups = next.groups
	}
	return err
}

// looser describes a group that may use more than in o, "" if there is none.
func (m *model) looser(o *model) string {
	for p, g := range m.groups {
		was := o.groups[p]
		if was.quota >= 0 && (g.quota < 0 || g.quota*was.period > was.quota*g.period) || g.burst > was.burst {
			return fmt.Sprintf("%s: %+v, was %+v", p, *g, *was)
		}
	}
	return ""
}

// effective returns the lowest rate of a group and those above it.
func (m *model) effective(p string) float64 {
	rate := 1e9
	for ; p != "/"; p = path.Dir(p) {
		if g := m.groups[p]; g.quota >= 0 {
			rate = min(rate, float64(g.quota)/float64(g.period))
		}
	}
	return rate
}

// files writes the model as the files of a host.
func (m *model) files(t testing.TB) *Host {
	const v1, v2 = "30 1 0:1 / /cg rw - cgroup cgroup rw,cpu\n", "30 1 0:1 / /cg rw - cgroup2 cgroup2 rw\n"
	add := func(a *txtar.Archive, name, data string) {
		a.Files = append(a.Files, txtar.File{Name: name, Data: []byte(data + "\n")})
	}
	a := new(txtar.Archive)
	if m.v1 {
		add(a, "proc/self/mountinfo", v1)
	} else {
		add(a, "proc/self/mountinfo", v2)
		add(a, "cg/cgroup.controllers", "cpu")
	}
	for p, g := range m.groups {
		for file, value := range m.values(g) {
			add(a, "cg"+p+"/"+file, value)
		}
	}
	return unpack(t, a)
}

func (m *model) values(g *modelGroup) map[string]string {
	burst := strconv.FormatInt(g.burst, 10)
	switch {
	case m.v1:
		return map[string]string{"cpu.cfs_quota_us": strconv.FormatInt(g.quota, 10),
			"cpu.cfs_period_us": strconv.FormatInt(g.period, 10), "cpu.cfs_burst_us": burst}
	case g.quota < 0:
		return map[string]string{"cpu.max": fmt.Sprintf("max %d", g.period), "cpu.max.burst": burst}
	default:
		return map[string]string{"cpu.max": fmt.Sprintf("%d %d", g.quota, g.period), "cpu.max.burst": burst}
	}
}

// randomModel returns a legal tree of up to six cgroups.
func randomModel(r *rand.Rand, v1 bool) *model {
	m := &model{v1: v1, groups: make(map[string]*modelGroup)}
	paths := []string{"/"}
	for len(paths) < 2+r.IntN(6) {
		p := path.Join(paths[max(r.IntN(len(paths)), r.IntN(len(paths)))], string(rune('a'+len(paths))))
		g := &modelGroup{quota: -1, period: 100_000}
		if r.IntN(3) > 0 {
			g.period = []int64{1000, 5000, 10_000, 33_333, 50_000, 100_000, 250_000, 1_000_000}[r.IntN(8)]
		}
		if r.IntN(3) > 0 {
			rate := []float64{0.0011, 0.02, 0.1, 0.25, 1. / 3, 0.5, 1, 1.5, 4}[r.IntN(9)]
			g.quota = int64(rate * float64(g.period))
		}
		if r.IntN(3) == 0 {
			g.burst = r.Int64N(max(g.quota, 50_000))
		}
		m.groups[p] = g
		if m.legal() != nil {
			delete(m.groups, p)
			continue
		}
		paths = append(paths, p)
	}
	return m
}

func TestCapWritesPassOnlyThroughLegalStatesThatAreNotLooser(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("QUELL_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	t.Logf("QUELL_SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	outcomes := make(map[string]int)
	wanted := []string{"capped", ErrNotLower.Error(), ErrTooLow.Error(), "children lowered", "wish not met"}
	never := func() (unseen []string) {
		return slices.DeleteFunc(slices.Clone(wanted), func(outcome string) bool { return outcomes[outcome] > 0 })
	}
	// The rarest outcome is about one in 130.
	for n := 0; n < 600 || n < 6000 && len(never()) > 0; n++ {
		m := randomModel(r, r.IntN(4) > 0)
		paths := slices.Sorted(maps.Keys(m.groups))
		p := paths[r.IntN(len(paths)/2+1)] // preferably one that has others below it
		rate := []float64{0.0009, 0.001, 0.01, 0.05, 0.1, 0.123456, 1. / 3, 0.5, 1, 2.5}[r.IntN(10)]
		period := []time.Duration{0, 0, time.Millisecond, 5 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, time.Second}[r.IntN(7)]
		outcomes[checkCap(t, m, p, rate, period)]++
		if t.Failed() {
			for _, p := range paths {
				t.Logf("%s %+v", p, *m.groups[p])
			}
			t.Fatalf("CapWrites(%q, %v, %v), v1 %v", p, rate, period, m.v1)
		}
	}
	t.Log(outcomes)
	if unseen := never(); len(unseen) > 0 {
		t.Errorf("never seen: %q", unseen)
	}
}

// checkCap checks one call of CapWrites and returns its outcome.
func checkCap(t *testing.T, m *model, p string, rate float64, period time.Duration) string {
	h := m.files(t)
	inode, _ := h.Inode("/cg" + p)
	dir, gotInode, writes, err := h.CapWrites(p, rate, period)
	own := m.groups[p].period
	if period > 0 {
		own = period.Microseconds()
	}
	if errors.Is(err, ErrTooLow) {
		if rate >= 0.001 {
			t.Errorf("%v, but in 1 s the quota is enough", err)
		}
		return ErrTooLow.Error()
	}
	if errors.Is(err, ErrNotLower) {
		// Rounded to whole µs, the rate may equal the present limit.
		if before := m.effective(p); before > rate+1.01/float64(min(own, m.groups[p].period)) {
			t.Errorf("%v, but %v is", err, before)
		}
		return ErrNotLower.Error()
	}
	if err != nil {
		t.Error(err)
		return "error"
	}
	if dir != "/cg"+p || gotInode != inode {
		t.Errorf("dir %s inode %d, want %s %d", dir, gotInode, "/cg"+p, inode)
	}
	outcome := "capped"
	state := m.clone()
	for i, w := range writes {
		file := path.Base(w.File)
		at := strings.TrimPrefix(path.Dir(w.File), "/cg")
		if at != p {
			outcome = "children lowered"
			if !strings.HasPrefix(at, p+"/") {
				t.Errorf("write %d is to %s", i, at)
			}
		}
		if have := state.values(state.groups[at])[file]; have != w.Old {
			t.Errorf("write %d %+v finds %q", i, w, have)
		}
		if w.Old == w.New {
			t.Errorf("write %d %+v changes nothing", i, w)
		}
		if err := state.write("/cg", w, w.New); err != nil {
			t.Errorf("write %d %+v: the kernel says %v", i, w, err)
		}
		if what := state.looser(m); what != "" {
			t.Errorf("after write %d %+v looser: %s", i, w, what)
		}
	}
	got := state.groups[p]
	if got.period != own {
		outcome = "wish not met"
	}
	if now := state.effective(p); now > rate*(1+1e-9) || now < rate-1.01/float64(got.period) {
		t.Errorf("held to %v, want %v", now, rate)
	}
	for i := len(writes) - 1; i >= 0; i-- {
		if err := state.write("/cg", writes[i], writes[i].Old); err != nil {
			t.Errorf("undo of write %d %+v: the kernel says %v", i, writes[i], err)
		}
		if what := state.looser(m); what != "" {
			t.Errorf("after the undo of write %d %+v looser: %s", i, writes[i], what)
		}
	}
	for p, g := range state.groups {
		if *g != *m.groups[p] {
			t.Errorf("%s is %+v after all is undone, was %+v", p, *g, *m.groups[p])
		}
	}
	return outcome
}

// The same on this machine's kernel, which makes its own checks.
func TestCapWritesOnTheKernel(t *testing.T) {
	h, hier := realCPU(t)
	mount := h.trees[treeOf(hier)].dir
	top := mkcgroup(t, h, treeOf(hier), "cap")
	if hier == sample.Unified {
		put(t, h, "", "/", "cgroup.subtree_control", "+cpu")
		put(t, h, "", top, "cgroup.subtree_control", "+cpu")
	}
	r := rand.New(rand.NewPCG(1, 1))
	capped := 0
	for range 60 {
		m := randomModel(r, hier == sample.V1CPU)
		paths := slices.Sorted(maps.Keys(m.groups))
		for _, p := range paths {
			dir := path.Join(mount, top, p)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if hier == sample.Unified {
				put(t, h, "", path.Join(top, p), "cgroup.subtree_control", "+cpu")
			}
			g := m.groups[p]
			// The quota is last: without a quota the kernel accepts any burst.
			if hier == sample.V1CPU {
				put(t, h, "cpu", path.Join(top, p), "cpu.cfs_period_us", strconv.FormatInt(g.period, 10))
				put(t, h, "cpu", path.Join(top, p), "cpu.cfs_burst_us", strconv.FormatInt(g.burst, 10))
				put(t, h, "cpu", path.Join(top, p), "cpu.cfs_quota_us", strconv.FormatInt(g.quota, 10))
			} else {
				values := m.values(g)
				put(t, h, "", path.Join(top, p), "cpu.max.burst", values["cpu.max.burst"])
				put(t, h, "", path.Join(top, p), "cpu.max", values["cpu.max"])
			}
		}
		p := paths[r.IntN(len(paths))]
		before := snapshot(t, filepath.Join(mount, top))
		_, _, writes, err := h.CapWrites(path.Join(top, p), []float64{0.01, 0.05, 0.123456, 0.3}[r.IntN(4)],
			[]time.Duration{0, 5 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond}[r.IntN(4)])
		if err == nil {
			capped++
			apply(t, h, writes)
			if maps.Equal(snapshot(t, filepath.Join(mount, top)), before) {
				t.Error("nothing changed")
			}
			for _, w := range writes {
				if now, err := h.ReadValue(w.File); err != nil || now != w.New {
					t.Errorf("%s reads back %q (%v), wrote %q", w.File, now, err, w.New)
				}
			}
			undo(t, h, writes)
			if after := snapshot(t, filepath.Join(mount, top)); !maps.Equal(after, before) {
				t.Errorf("after the undo %v, before %v", after, before)
			}
		} else if !errors.Is(err, ErrNotLower) && !errors.Is(err, ErrTooLow) {
			t.Error(err)
		}
		slices.Reverse(paths)
		for _, p := range paths {
			rmcgroup(t, path.Join(mount, top, p))
		}
	}
	if capped < 10 {
		t.Errorf("only %d of 60 trees were capped", capped)
	}
}

// snapshot reads every limit below a directory.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		switch filepath.Base(p) {
		case "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us", "cpu.max", "cpu.max.burst":
			text, err := os.ReadFile(p)
			all[p] = string(text)
			return err
		}
		return nil
	})
	if err != nil || len(all) == 0 {
		t.Fatalf("%d limits below %s: %v", len(all), dir, err)
	}
	return all
}

func TestCapWritesRefuses(t *testing.T) {
	m := &model{v1: true, groups: map[string]*modelGroup{
		"/a":   {quota: 20_000, period: 100_000},
		"/a/b": {quota: -1, period: 10_000},
	}}
	h := m.files(t)
	for _, c := range []struct {
		path   string
		rate   float64
		period time.Duration
		want   error
	}{
		{"/", 0.1, 0, ErrNoLimit},
		{"/no/such", 0.1, 0, ErrGone},
		{"/a", 0.2, 0, ErrNotLower},
		{"/a/b", 0.2, 0, ErrNotLower}, // limited by the one above it
		{"/a/b", 0.0009, 0, ErrTooLow},
	} {
		if _, _, _, err := h.CapWrites(c.path, c.rate, c.period); !errors.Is(err, c.want) {
			t.Errorf("CapWrites(%q, %v): %v, want %v", c.path, c.rate, err, c.want)
		}
	}
	for _, rate := range []float64{0, -1, 1e300} {
		if _, _, _, err := h.CapWrites("/a", rate, 0); err == nil {
			t.Errorf("rate %v was accepted", rate)
		}
	}
	if _, _, _, err := h.CapWrites("/a", 0.1, 2*time.Second); err == nil {
		t.Error("a period of 2 s was accepted")
	}
	none := unpack(t, txtar.Parse([]byte("-- proc/self/mountinfo --\n30 1 0:1 / /cg rw - cgroup2 cgroup2 rw\n-- cg/a/cgroup.procs --\n")))
	if _, _, _, err := none.CapWrites("/a", 0.1, 0); !errors.Is(err, ErrNoLimit) {
		t.Errorf("without a cpu controller: %v", err)
	}
}

// TestManyQuotasBelow: a task that makes a cgroup after the other in its own, with a quota or without one, next to each
// other or within each other, does not have the agent read and lower them without end.
func TestManyQuotasBelow(t *testing.T) {
	long := "/" + strings.Repeat("x", 250)
	for _, c := range []struct {
		name  string
		below map[string]int64 // quotas
		room  int              // the least that suffices
	}{
		{"two to lower", map[string]int64{"/a": 50_000, "/a/b": 50_000, "/c": 1_000}, 3 + 2},
		{"without quotas", map[string]int64{"/a": -1, "/a/b": -1, "/c": -1}, 3},
		{"long paths", map[string]int64{long: -1, long + long: -1, long + long + long: -1}, 2 + 2 + 3},
	} {
		m := &model{v1: true, groups: map[string]*modelGroup{"/pod": {quota: -1, period: 100_000}}}
		for p, quota := range c.below {
			m.groups["/pod"+p] = &modelGroup{quota: quota, period: 100_000}
		}
		h := m.files(t)
		for room, want := range map[int]error{c.room: nil, c.room - 1: ErrCrowded, 0: ErrCrowded} {
			left := room
			_, _, err := h.lowerBelow("/cg/pod", bandwidth{quota: 10_000, period: 100_000}, &left)
			if !errors.Is(err, want) {
				t.Errorf("%s, room for %d: %v; want %v", c.name, room, err, want)
			}
		}
	}
}

// A rate for which the cgroup's own period is too short, as with a kubelet's --cpu-cfs-quota-period=10ms, has a longer one.
func TestALowRateHasALongerPeriod(t *testing.T) {
	m := &model{groups: map[string]*modelGroup{"/pod": {quota: 2_000, period: 10_000}}}
	for _, wish := range []time.Duration{0, 5 * time.Millisecond} {
		_, _, got, err := m.files(t).CapWrites("/pod", 0.01, wish)
		want := []Write{{File: "/cg/pod/cpu.max", Old: "2000 10000", New: "1000 100000"}}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("wish %v: %v, %v", wish, got, err)
		}
	}
}

func TestCapWritesOrder(t *testing.T) {
	m := &model{v1: true, groups: map[string]*modelGroup{
		"/pod":       {quota: 200_000, period: 100_000, burst: 50_000},
		"/pod/a":     {quota: -1, period: 100_000},
		"/pod/a/sub": {quota: 50_000, period: 50_000},
		"/pod/b":     {quota: 5_000, period: 100_000},
	}}
	h := m.files(t)
	sub, err := h.Inode("/cg/pod/a/sub")
	if err != nil {
		t.Fatal(err)
	}
	_, _, got, err := h.CapWrites("/pod", 0.1, 0)
	want := []Write{
		{File: "/cg/pod/a/sub/cpu.cfs_quota_us", Old: "50000", New: "5000", Inode: sub},
		{File: "/cg/pod/cpu.cfs_burst_us", Old: "50000", New: "0"},
		{File: "/cg/pod/cpu.cfs_quota_us", Old: "200000", New: "10000"},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("v1: %v, %v", got, err)
	}
	m.v1 = false
	_, _, got, err = m.files(t).CapWrites("/pod", 0.1, 250*time.Millisecond)
	want = []Write{
		{File: "/cg/pod/cpu.max.burst", Old: "50000", New: "0"},
		{File: "/cg/pod/cpu.max", Old: "200000 100000", New: "25000 250000"},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("v2: %v, %v", got, err)
	}
}
