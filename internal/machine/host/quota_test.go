package host

import (
	"errors"
	"math"
	"os"
	"path"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
)

const quotaV2 = `
-- proc/self/mountinfo --
30 1 0:1 / /cg rw - cgroup2 cgroup2 rw
-- cg/cgroup.controllers --
cpu io
-- cg/slice/cpu.max --
150000 100000
-- cg/slice/cpu.stat --
usage_usec 5
nr_throttled 3
throttled_usec 1500
-- cg/slice/pod/cpu.max --
max 100000
-- cg/slice/pod/cpu.stat --
usage_usec 5
nr_throttled 2
throttled_usec 1400
-- cg/slice/pod/app/cpu.max --
100000 50000
-- cg/slice/pod/app/deep/cpu.max --
30000 100000
-- cg/slice/bare/cgroup.procs --
-- cg/free/cpu.max --
max 100000
-- cg/free/bare/cgroup.procs --
-- cg/twins/cpu.max --
50000 100000
-- cg/twins/a/cpu.max --
25000 50000
`

const quotaV1 = `
-- proc/self/mountinfo --
30 1 0:1 / /cpu rw - cgroup cgroup rw,cpu
-- cpu/pod/cpu.cfs_quota_us --
50000
-- cpu/pod/cpu.cfs_period_us --
100000
-- cpu/pod/cpu.stat --
nr_periods 9
nr_throttled 3
throttled_time 1500
-- cpu/pod/app/cpu.cfs_quota_us --
-1
-- cpu/pod/app/cpu.cfs_period_us --
100000
`

// The limit that applies is the lowest on the way up.
func TestQuotaIsTheLowestOfAllAbove(t *testing.T) {
	inf := math.Inf(1)
	for _, c := range []struct {
		host, path string
		rate       float64
	}{
		{quotaV2, "/slice", 1.5},
		{quotaV2, "/slice/pod", 1.5},
		{quotaV2, "/slice/pod/app", 1.5},
		{quotaV2, "/slice/pod/app/deep", 0.3},
		{quotaV2, "/slice/bare", 1.5},
		{quotaV2, "/free", inf},
		{quotaV2, "/free/bare", inf},
		{quotaV2, "/twins/a", 0.5},
		{quotaV1, "/pod/app", 0.5},
	} {
		h := unpack(t, txtar.Parse([]byte(c.host)))
		hier, _ := h.layout.CPU()
		mount := h.trees[treeOf(hier)].dir
		own, err := h.readBandwidth(hier, path.Join(mount, c.path))
		if errors.Is(err, ErrNoLimit) {
			own = bandwidth{quota: -1, period: 1}
		}
		b, err := h.lowest(hier, mount, c.path, own)
		rate := inf
		if b.limited() {
			rate = float64(b.quota) / float64(b.period)
		}
		if err != nil || rate != c.rate {
			t.Errorf("%s: %v, %v; want %v", c.path, rate, err, c.rate)
		}
	}
}

func TestThrottled(t *testing.T) {
	v2, v1 := unpack(t, txtar.Parse([]byte(quotaV2))), unpack(t, txtar.Parse([]byte(quotaV1)))
	if d, err := v2.Throttled("/slice"); err != nil || d != 1500*time.Microsecond {
		t.Errorf("v2: %v, %v", d, err)
	}
	if d, err := v1.Throttled("pod"); err != nil || d != 1500*time.Nanosecond {
		t.Errorf("v1: %v, %v", d, err)
	}
	for p, want := range map[string]error{"/slice/no": ErrGone, "/": ErrNoLimit, "/slice/pod": ErrNoLimit, "/slice/bare": ErrNoLimit} {
		if _, err := v2.Throttled(p); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", p, err, want)
		}
	}
}

// An error about a file that this process may not write includes a remedy. Root
// may write everything, so the test constructs the error.
func TestPermissionError(t *testing.T) {
	err := orNotPermitted("/cg/a/cpu.max", &os.PathError{Op: "open", Path: "/cg/a/cpu.max", Err: os.ErrPermission})
	var refused *PermissionError
	if !errors.As(err, &refused) || !errors.Is(err, os.ErrPermission) || refused.File != "/cg/a/cpu.max" ||
		!strings.Contains(err.Error(), "chown") {
		t.Errorf("got %v", err)
	}
	if err := orNotPermitted("/x", os.ErrNotExist); errors.As(err, &refused) {
		t.Errorf("a file that is missing: %v", err)
	}
}

const ioV2 = `
-- proc/self/mountinfo --
30 1 0:1 / /cg rw - cgroup2 cgroup2 rw
-- cg/cgroup.controllers --
cpu io
-- cg/cgroup.subtree_control --
cpu
-- cg/a#b/io.max --
8:0 rbps=4096 wbps=max riops=max wiops=120
-- cg/new/cpu.stat --

-- cg/new/io.max --

-- cg/off/cpu.max --
max 100000
-- cg/odd/io.max --
8:0 rbps=many
-- sys/dev/block/8:0/size --
1000
-- sys/dev/block/8:1/partition --
1
`

func TestIOWrites(t *testing.T) {
	disk := Device{8, 0}
	for _, c := range []struct {
		name, path string
		dev        Device
		limit      IOLimit
		old, new   string
		want       error
		says       string
	}{
		{name: "the first limit", path: "/new", dev: disk, limit: IOLimit{Wbps: 1 << 20},
			old: "rbps=max wbps=max riops=max wiops=max", new: "rbps=max wbps=1048576 riops=max wiops=max"},
		{name: "what is not asked for stays", path: "/a#b", dev: disk, limit: IOLimit{Riops: 10},
			old: "rbps=4096 wbps=max riops=max wiops=120", new: "rbps=4096 wbps=max riops=10 wiops=120"},
		{name: "lower", path: "/a#b", dev: disk, limit: IOLimit{Rbps: 1024, Wiops: 120},
			old: "rbps=4096 wbps=max riops=max wiops=120", new: "rbps=1024 wbps=max riops=max wiops=120"},
		{name: "higher", path: "/a#b", dev: disk, limit: IOLimit{Rbps: 8192, Wbps: 1}, want: ErrNotLower},
		{name: "the same", path: "/a#b", dev: disk, limit: IOLimit{Rbps: 4096}, want: ErrNotLower},
		{name: "nothing", path: "/a#b", dev: disk, want: ErrNotLower},
		{name: "not enabled", path: "/off", dev: disk, limit: IOLimit{Rbps: 1}, want: ErrNoLimit, says: "write +io to cgroup.subtree_control of /"},
		{name: "the top", path: "/", dev: disk, limit: IOLimit{Rbps: 1}, want: ErrNoLimit},
		{name: "gone", path: "/no", dev: disk, limit: IOLimit{Rbps: 1}, want: ErrGone},
		{name: "a partition", path: "/new", dev: Device{8, 1}, limit: IOLimit{Rbps: 1}, says: "partition"},
		{name: "no such device", path: "/new", dev: Device{9, 9}, limit: IOLimit{Rbps: 1}, want: ErrNoDevice, says: "find block device"},
		{name: "more than the kernel counts", path: "/new", dev: disk, limit: IOLimit{Riops: 1 << 32}, says: "bad limit"},
		{name: "a file that is not understood", path: "/odd", dev: disk, limit: IOLimit{Rbps: 1}, says: "rbps=many"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := unpack(t, txtar.Parse([]byte(ioV2)))
			dir, _, w, err := h.IOWrites(c.path, c.dev, c.limit)
			if c.new == "" {
				if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("got %v, %v; want an error that is %v and says %q", w, err, c.want, c.says)
				}
				return
			}
			want := Write{File: "/cg" + c.path + "/io.max#8:0", Old: c.old, New: c.new}
			if err != nil || dir != "/cg"+c.path || len(w) != 1 || w[0] != want {
				t.Fatalf("got %s, %+v, %v; want %+v", dir, w, err, want)
			}
			apply(t, h, w)
			if text, err := os.ReadFile(h.Path("/cg" + c.path + "/io.max")); err != nil || strings.TrimSpace(string(text)) != "8:0 "+c.new {
				t.Errorf("the file holds %q, %v", text, err)
			}
			undo(t, h, w)
		})
	}
	if _, err := unpack(t, txtar.Parse([]byte(quotaV1))).IOLimit("/pod", disk); !errors.Is(err, ErrNoLimit) {
		t.Errorf("on v1: %v", err)
	}
}

func FuzzIOMax(f *testing.F) {
	f.Add("8:0 rbps=max wbps=max riops=max wiops=max\n259:1 rbps=1 wbps=2 riops=3 wiops=4\n", "259:1")
	f.Add("", "8:0")
	f.Fuzz(func(t *testing.T, text, device string) {
		l, err := parseIOLimit(ofDevice("io.max", text, device))
		if err != nil {
			return
		}
		// A parsed limit is unchanged after it is written and parsed again.
		if again, err := parseIOLimit(l.String()); err != nil || again != l {
			t.Errorf("%+v reads back as %+v, %v", l, again, err)
		}
	})
}
