package host

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/quell-dev/quell/internal/core/sample"
)

const ioV1 = `
-- proc/self/mountinfo --
30 1 0:1 / /cpu rw - cgroup cgroup rw,cpu
31 1 0:2 / /blkio rw - cgroup cgroup rw,blkio
32 1 0:3 / /cg rw - cgroup2 cgroup2 rw
-- cg/cgroup.controllers --

-- blkio/new/blkio.throttle.read_bps_device --

-- blkio/new/blkio.throttle.write_bps_device --

-- blkio/new/blkio.throttle.read_iops_device --

-- blkio/new/blkio.throttle.write_iops_device --

-- blkio/new/empty/cgroup.procs --

-- blkio/has/blkio.throttle.read_bps_device --
8:0 4096
-- blkio/has/blkio.throttle.write_bps_device --
8:16 777
-- blkio/has/blkio.throttle.read_iops_device --

-- blkio/has/blkio.throttle.write_iops_device --
8:0 120
-- blkio/above/blkio.throttle.read_bps_device --

-- blkio/above/blkio.throttle.write_bps_device --

-- blkio/above/blkio.throttle.read_iops_device --

-- blkio/above/blkio.throttle.write_iops_device --

-- blkio/above/below/cgroup.procs --
12
-- blkio/bare/cgroup.procs --

-- blkio/odd/blkio.throttle.read_bps_device --
8:0 many
-- sys/dev/block/8:0/size --
1000
`

func TestIOWritesOnV1(t *testing.T) {
	disk := Device{8, 0}
	for _, c := range []struct {
		name, path string
		limit      IOLimit
		w          [][3]string // file, old, new
		want       error
		says       string
	}{
		{name: "the first limit", path: "/new", limit: IOLimit{Rbps: 1 << 20, Wbps: 1 << 20, Riops: 20, Wiops: 20}, w: [][3]string{
			{"read_bps", "0", "1048576"}, {"write_bps", "0", "1048576"}, {"read_iops", "0", "20"}, {"write_iops", "0", "20"}}},
		{name: "what is not asked for stays", path: "/has", limit: IOLimit{Riops: 10}, w: [][3]string{{"read_iops", "0", "10"}}},
		{name: "lower; another disk's limit is another's", path: "/has", limit: IOLimit{Rbps: 1024, Wbps: 1024, Wiops: 120}, w: [][3]string{
			{"read_bps", "4096", "1024"}, {"write_bps", "0", "1024"}}},
		{name: "higher", path: "/has", limit: IOLimit{Rbps: 8192, Wbps: 1}, want: ErrNotLower},
		{name: "the same", path: "/has", limit: IOLimit{Rbps: 4096}, want: ErrNotLower},
		{name: "the top", path: "/", limit: IOLimit{Rbps: 1}, want: ErrNoLimit},
		{name: "gone", path: "/no", limit: IOLimit{Rbps: 1}, want: ErrGone},
		{name: "a kernel without throttling", path: "/bare", limit: IOLimit{Rbps: 1}, want: ErrNoLimit, says: "CONFIG_BLK_DEV_THROTTLING"},
		{name: "processes below, which it would not hold", path: "/above", limit: IOLimit{Rbps: 1}, says: "/above/below below it has processes too"},
		{name: "a file that is not understood", path: "/odd", limit: IOLimit{Rbps: 1}, says: "many"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := unpack(t, txtar.Parse([]byte(ioV1)))
			dir, _, w, err := h.IOWrites(c.path, disk, c.limit)
			if c.w == nil {
				if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("got %v, %v; want an error that is %v and says %q", w, err, c.want, c.says)
				}
				return
			}
			var want []Write
			for _, f := range c.w {
				want = append(want, Write{File: "/blkio" + c.path + "/blkio.throttle." + f[0] + "_device#8:0", Old: f[1], New: f[2]})
			}
			if err != nil || dir != "/blkio"+c.path || !slices.Equal(w, want) {
				t.Fatalf("got %s, %+v, %v; want %+v", dir, w, err, want)
			}
			before, err := h.IOLimit(c.path, disk)
			if err != nil {
				t.Fatal(err)
			}
			apply(t, h, w)
			for _, f := range c.w {
				file, _ := splitDevice("/blkio" + c.path + "/blkio.throttle." + f[0] + "_device")
				if text, err := os.ReadFile(h.Path(file)); err != nil || strings.TrimSpace(string(text)) != "8:0 "+f[2] {
					t.Errorf("%s holds %q, %v", file, text, err)
				}
			}
			undo(t, h, w)
			if after, err := h.IOLimit(c.path, disk); err != nil || after != before {
				t.Errorf("undone, the limit is %+v, %v; was %+v", after, err, before)
			}
		})
	}
}

func TestWhichHierarchyLimitsIO(t *testing.T) {
	for _, c := range []struct {
		host, mount string
		v1          bool
	}{{ioV1, "/blkio", true}, {ioV2, "/cg", false}, {quotaV1, "", false}} {
		if mount, v1 := unpack(t, txtar.Parse([]byte(c.host))).Layout().IO(); mount != c.mount || v1 != c.v1 {
			t.Errorf("%q, %v; want %q, %v", mount, v1, c.mount, c.v1)
		}
	}
}

// A task's I/O is limited in its processes' cgroup in blkio, if all of them are
// there and no others are.
func TestIOPlace(t *testing.T) {
	const procs = `
-- proc/self/mountinfo --
30 1 0:1 / /cpu rw - cgroup cgroup rw,cpu
31 1 0:2 / /blkio rw - cgroup cgroup rw,blkio
-- cpu/a/cgroup.procs --
12
-- cpu/a/cpu.stat --

-- cpu/a/tasks --
12
-- cpu/b/cgroup.procs --
13
-- cpu/b/cpu.stat --

-- cpu/b/tasks --
13
-- cpu/c/cgroup.procs --
14
-- cpu/c/cpu.stat --

-- cpu/c/tasks --
14
-- cpu/empty/cgroup.procs --

-- cpu/empty/cpu.stat --

-- cpu/empty/tasks --

-- blkio/x/cgroup.procs --
12
-- blkio/x/tasks --
12
-- blkio/shared/cgroup.procs --
13
15
-- blkio/shared/tasks --
13
15
-- proc/12/cgroup --
2:blkio:/x
1:cpu:/a
-- proc/13/cgroup --
2:blkio:/shared
1:cpu:/b
-- proc/14/cgroup --
2:blkio:/
1:cpu:/c
-- proc/15/cgroup --
2:blkio:/shared
1:cpu:/other
-- proc/15/stat --
15 (x) S 1 1 1 0 -1 4194304 0
`
	h := unpack(t, txtar.Parse([]byte(procs)))
	for p, want := range map[string]string{"/a": "/x", "/b": "process 15", "/c": "at the top", "/empty": "no processes"} {
		c := open(t, h, sample.V1CPU, p)
		place, err := c.IOPlace()
		if strings.HasPrefix(want, "/") {
			if place != want || err != nil {
				t.Errorf("%s: %q, %v; want %q", p, place, err, want)
			}
		} else if !errors.Is(err, ErrNoLimit) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v; want ErrNoLimit and %q", p, place, err, want)
		}
	}
	c := open(t, unpack(t, txtar.Parse([]byte(ioV2))), sample.Unified, "/new")
	if place, err := c.IOPlace(); place != "/new" || err != nil {
		t.Errorf("in cgroup2: %q, %v", place, err)
	}
	c = open(t, unpack(t, txtar.Parse([]byte(quotaV1))), sample.V1CPU, "/pod")
	if _, err := c.IOPlace(); !errors.Is(err, ErrNoLimit) {
		t.Errorf("without the controller: %v", err)
	}
}
