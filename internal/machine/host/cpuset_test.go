package host

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// cpusetV1 and cpusetV2 are hosts of eight CPUs, of which 7 is offline.
const cpusetV1 = `
-- proc/self/mountinfo --
30 1 0:1 / /cg rw - cgroup cgroup rw,cpuset
31 1 0:2 / /cpu rw - cgroup cgroup rw,cpu
-- cg/cpuset.cpus --
0-6
-- cg/cpuset.effective_cpus --
0-6
-- cg/pod/cpuset.cpus --
0-3,5
-- cg/pod/cpuset.effective_cpus --
0-3,5
-- cg/pod/a/cpuset.cpus --
1-2
-- cg/pod/a/cpuset.effective_cpus --
1-2
-- cg/pod/none/cpuset.cpus --

-- cg/pod/none/cpuset.effective_cpus --

-- cg/pod/odd/notify_on_release --
0
-- cpu/pod/cpu.cfs_quota_us --
-1
`

const cpusetV2 = `
-- proc/self/mountinfo --
30 1 0:1 / /cg rw - cgroup2 cgroup2 rw
-- cg/cgroup.controllers --
cpuset cpu
-- cg/cpuset.cpus.effective --
0-6
-- cg/pod/cpuset.cpus --

-- cg/pod/cpuset.cpus.effective --
0-6
-- cg/slice/cpuset.cpus --
0-3,7
-- cg/slice/cpuset.cpus.effective --
0-3
-- cg/slice/cpuset.cpus.partition --
member
-- cg/slice/a/cpuset.cpus --
1-2
-- cg/slice/a/cpuset.cpus.effective --
1-2
-- cg/slice/off/cpu.max --
max 100000
-- cg/alone/cpuset.cpus --
4
-- cg/alone/cpuset.cpus.partition --
isolated
`

const noCpuset = `
-- proc/self/mountinfo --
30 1 0:1 / /cg rw - cgroup2 cgroup2 rw
-- cg/cgroup.controllers --
cpu memory
-- cg/a/cpu.max --
max 100000
`

func TestCPUSetWrites(t *testing.T) {
	set := sample.SetOf
	for _, c := range []struct {
		name, host, path string
		cpus             sample.Set
		old, new         string // of the one write
		want             error
		says             string // in the error
	}{
		{name: "v1, fewer", host: cpusetV1, path: "/pod/a", cpus: set(2), old: "1-2", new: "2"},
		{name: "v1, others, spelt as the kernel does", host: cpusetV1, path: "pod/a/", cpus: set(5, 0, 1, 2), old: "1-2", new: "0-2,5"},
		{name: "v1, just those of the cgroups below", host: cpusetV1, path: "/pod", cpus: set(1, 2), old: "0-3,5", new: "1-2"},
		{name: "v1, the top", host: cpusetV1, path: "/", cpus: set(1), want: ErrNoLimit},
		{name: "v1, gone", host: cpusetV1, path: "/pod/no", cpus: set(1), want: ErrGone},
		{name: "v1, without the file", host: cpusetV1, path: "/pod/odd", cpus: set(1), want: ErrNoLimit},
		{name: "v1, there already", host: cpusetV1, path: "/pod/a", cpus: set(1, 2), want: ErrPlaced},
		{name: "v1, nowhere", host: cpusetV1, path: "/pod/a", says: "no CPUs"},
		{name: "v1, not the parent's", host: cpusetV1, path: "/pod/a", cpus: set(3, 4), says: "not a subset of 0-3,5"},
		{name: "v1, offline", host: cpusetV1, path: "/pod", cpus: set(1, 2, 7), says: "not a subset of 0-6"},
		{name: "v1, leaves out one below", host: cpusetV1, path: "/pod", cpus: set(2, 3), says: "do not include all of 1-2, the CPUs of /cg/pod/a"},
		{name: "v1, empty so far", host: cpusetV1, path: "/pod/none", cpus: set(1), says: "can hold no processes"},

		{name: "v2, fewer than one below has", host: cpusetV2, path: "/slice", cpus: set(2, 3), old: "0-3,7", new: "2-3"},
		{name: "v2, more", host: cpusetV2, path: "/slice/a", cpus: set(0, 1, 2, 3), old: "1-2", new: "0-3"},
		{name: "v2, the top", host: cpusetV2, path: "/", cpus: set(1), want: ErrNoLimit},
		{name: "v2, gone", host: cpusetV2, path: "/no", cpus: set(1), want: ErrGone},
		{name: "v2, not enabled", host: cpusetV2, path: "/slice/off", cpus: set(1), want: ErrNoLimit},
		{name: "v2, there already", host: cpusetV2, path: "/slice/a", cpus: set(1, 2), want: ErrPlaced},
		{name: "v2, in the parent's list and not effective", host: cpusetV2, path: "/slice/a", cpus: set(1, 7), says: "not a subset of 0-3"},
		{name: "v2, empty so far", host: cpusetV2, path: "/pod", cpus: set(1), old: "", new: "1"},
		{name: "v2, empty so far, all that the parent has", host: cpusetV2, path: "/pod", cpus: set(0, 1, 2, 3, 4, 5, 6), want: ErrPlaced},
		{name: "v2, empty so far, not the parent's", host: cpusetV2, path: "/pod", cpus: set(1, 7), says: "not a subset of 0-6"},
		{name: "v2, a partition", host: cpusetV2, path: "/alone", cpus: set(5), says: "partition (isolated)"},
		{name: "no controller", host: noCpuset, path: "/a", cpus: set(1), want: ErrNoLimit},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := unpack(t, txtar.Parse([]byte(c.host)))
			dir, inode, writes, err := h.CPUSetWrites(c.path, c.cpus)
			if c.new == "" {
				if err == nil || !errors.Is(err, c.want) && c.want != nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("got %v, %v; want an error that is %v and says %q", writes, err, c.want, c.says)
				}
				if c.want == nil && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNoLimit)) {
					t.Errorf("%v: the fixture lacks a file", err)
				}
				return
			}
			at := path.Join("/cg", c.path)
			want := []Write{{File: at + "/cpuset.cpus", Old: c.old, New: c.new, Empty: c.old == ""}}
			if err != nil || dir != at || !slices.Equal(writes, want) {
				t.Fatalf("got %s, %v, %v; want %s, %v", dir, writes, err, at, want)
			}
			if ino, err := h.Inode(dir); err != nil || ino != inode {
				t.Errorf("inode %d, want %d, %v", inode, ino, err)
			}
			apply(t, h, writes)
			undo(t, h, writes)
		})
	}
}

// The same on this machine's kernel. It accepts, reads back and reverts the
// listed writes, and the process moves. What is refused for a reason of the
// kernel's own, the kernel refuses too.
func TestCPUSetWritesOnTheKernel(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.TwoCPUs)
	h := real(t)
	tree, hier := "cpuset", sample.V1CPU
	if _, ok := h.trees[tree]; !ok {
		tree, hier = "", sample.Unified
		if !slices.Contains(h.layout.Controllers, "cpuset") {
			quelltest.Skip(t, "cgroup-cpuset", errors.New("no mounted hierarchy has the cpuset controller"))
		}
	}
	mount := h.trees[tree].dir
	top := mkcgroup(t, h, tree, "cpuset")
	if hier == sample.Unified {
		put(t, h, tree, "/", "cgroup.subtree_control", "+cpuset")
		put(t, h, tree, top, "cgroup.subtree_control", "+cpuset")
	}
	p := mkcgroup(t, h, tree, top+"/task")
	effective := "cpuset.cpus.effective"
	if hier == sample.V1CPU {
		effective = "cpuset.effective_cpus"
	}
	all, err := h.readSet(path.Join(mount, effective))
	if err != nil || all.Len() < 2 {
		quelltest.Skip(t, quelltest.TwoCPUs, errors.New("the top cpuset has "+all.String()))
	}
	_, _, writes, err := h.CPUSetWrites(p, sample.SetOf(all.Numbers()[0]))
	if hier == sample.V1CPU && (err == nil || !strings.Contains(err.Error(), "can hold no processes")) {
		t.Errorf("a new v1 cgroup, which has no list: %v", err)
	}
	if hier == sample.Unified {
		if err != nil {
			t.Fatal(err)
		}
		apply(t, h, writes)
		undo(t, h, writes)
		if text, err := os.ReadFile(h.Path(writes[0].File)); err != nil || string(text) != "\n" {
			t.Errorf("after the undo a list that was empty is %q, %v", text, err)
		}
	}
	for _, at := range []string{top, p} {
		put(t, h, tree, at, "cpuset.cpus", all.String())
		if hier == sample.V1CPU {
			mems, err := h.ReadValue(path.Join(mount, "cpuset.mems"))
			if err != nil {
				t.Fatal(err)
			}
			put(t, h, tree, at, "cpuset.mems", mems)
		}
	}
	pid := child(t, "wait")
	move(t, h, tree, p, pid)
	allowed := func() string {
		t.Helper()
		text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
		if err != nil {
			t.Fatal(err)
		}
		cpus, err := parseAllowed(text)
		if err != nil {
			t.Fatal(err)
		}
		return cpus.String()
	}
	first, last := sample.SetOf(all.Numbers()[0]), sample.SetOf(all.Numbers()[all.Len()-1])
	for _, cpus := range []sample.Set{first, last} {
		dir, _, writes, err := h.CPUSetWrites(p, cpus)
		if err != nil || dir != path.Join(mount, p) {
			t.Fatalf("%s: %v", dir, err)
		}
		apply(t, h, writes)
		if got := allowed(); got != cpus.String() {
			t.Errorf("process may run on %s, want %s", got, cpus)
		}
		if now, err := h.ReadValue(writes[0].File); err != nil || now != writes[0].New {
			t.Errorf("reads back %q (%v), wrote %q", now, err, writes[0].New)
		}
		if _, _, _, err := h.CPUSetWrites(p, cpus); !errors.Is(err, ErrPlaced) {
			t.Errorf("once more: %v", err)
		}
		if hier == sample.V1CPU {
			// The cgroup above must keep the CPUs of the one below.
			other := first
			if cpus.Has(first.Numbers()[0]) {
				other = last
			}
			if _, _, w, err := h.CPUSetWrites(top, other); err == nil {
				t.Errorf("above it: %v was listed", w)
			}
			if err := h.WriteValue(path.Join(mount, top, "cpuset.cpus"), other.String()); err == nil {
				t.Error("the kernel takes what CPUSetWrites refuses: the reason is gone")
			}
		}
		undo(t, h, writes)
		if got := allowed(); got != all.String() {
			t.Errorf("after the undo the process may run on %s, want %s", got, all)
		}
		if now, err := h.ReadValue(writes[0].File); err != nil || now != writes[0].Old {
			t.Errorf("after the undo it reads %q (%v), was %q", now, err, writes[0].Old)
		}
	}
	// Two in a row, undone in reverse.
	_, _, one, err := h.CPUSetWrites(p, first)
	if err != nil {
		t.Fatal(err)
	}
	apply(t, h, one)
	_, _, two, err := h.CPUSetWrites(top, first)
	if err != nil {
		t.Fatal(err)
	}
	apply(t, h, two)
	if _, _, w, err := h.CPUSetWrites(p, last); err == nil {
		t.Errorf("not in the cgroup above: %v was listed", w)
	}
	undo(t, h, append(one, two...))
	if got := allowed(); got != all.String() {
		t.Errorf("after both are undone the process may run on %s, want %s", got, all)
	}
	if _, _, _, err := h.CPUSetWrites(p, all.With(1<<10)); err == nil {
		t.Error("a CPU that the machine does not have was accepted")
	}
}
