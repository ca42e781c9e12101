package enforce

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// quotaTree is a tree of nested v1 cgroups with quotas, in µs per 100 ms.
type quotaTree struct {
	t    *testing.T
	h    *host.Host
	path string // of the topmost, in the hierarchy
	dir  string
}

var quotasBefore = map[string]string{"": "50000", "a": "40000", "a/b": "-1", "a/b/c": "30000", "d": "10000"}

func newQuotaTree(t *testing.T) *quotaTree {
	t.Helper()
	quelltest.Need(t, quelltest.Root, quelltest.CgroupV1)
	h, err := host.Open("/")
	must(t, err)
	path := fmt.Sprintf("/quell-test-enforce-%d", os.Getpid())
	q := &quotaTree{t, h, path, filepath.Join(h.Layout().V1["cpu"], path)}
	for _, p := range []string{"", "a", "a/b", "a/b/c", "d"} {
		dir := filepath.Join(q.dir, p)
		must(t, os.Mkdir(dir, 0o755))
		t.Cleanup(func() {
			quelltest.Until(t, dir+" can be removed", func() bool { return os.Remove(dir) == nil || q.quotas()[p] == "" })
		})
		must(t, q.set(p, quotasBefore[p]))
	}
	return q
}

func (q *quotaTree) set(p, quota string) error {
	return q.h.WriteValue(filepath.Join(q.dir, p, "cpu.cfs_quota_us"), quota)
}

func (q *quotaTree) quotas() map[string]string {
	all := map[string]string{}
	for p := range quotasBefore {
		if v, err := q.h.ReadValue(filepath.Join(q.dir, p, "cpu.cfs_quota_us")); err == nil {
			all[p] = v
		}
	}
	return all
}

// cap limits the topmost to 0.2 CPU-s/s through an enforcer.
func (q *quotaTree) cap(e *Enforcer) {
	q.t.Helper()
	dir, inode, writes, err := q.h.CapWrites(q.path, 0.2, 0)
	must(q.t, err)
	must(q.t, e.Apply(2000, Change{ID: "A", Dir: dir, Inode: inode, Writes: writes, From: 1000, Until: 9000}))
	want := map[string]string{"": "20000", "a": "20000", "a/b": "-1", "a/b/c": "20000", "d": "10000"}
	if got := q.quotas(); !maps.Equal(got, want) {
		q.t.Errorf("capped, the quotas are %v, want %v", got, want)
	}
	if err := q.set("d", "30000"); !errors.Is(err, syscall.EINVAL) {
		q.t.Errorf("a quota above the cap, below it: %v, want the kernel to refuse", err)
	}
}

// A v1 kernel refuses a quota lower than one below (sched/core.c, tg_cfs_schedulable_down):
// those below are lowered with it, and each is restored separately.
func TestCapAboveQuotasOnTheKernel(t *testing.T) {
	tests := []struct {
		name  string
		edit  func(*quotaTree) error
		want  Result
		note  string            // a part of it
		other map[string]string // quotas that differ afterwards; "": no cgroup
	}{
		{"no other writer", func(*quotaTree) error { return nil }, Restored, "", nil},
		{"another process set one below", func(q *quotaTree) error { return q.set("a/b/c", "5000") }, Restored,
			`/a/b/c/cpu.cfs_quota_us holds "5000", neither our "20000" nor the old "30000"`, map[string]string{"a/b/c": "5000"}},
		{"one below was removed", func(q *quotaTree) error { return os.Remove(filepath.Join(q.dir, "a/b/c")) }, Restored,
			"/a/b/c was removed", map[string]string{"a/b/c": ""}},
		{"one below was made again", func(q *quotaTree) error {
			dir := filepath.Join(q.dir, "a/b/c")
			return errors.Join(os.Remove(dir), os.Mkdir(dir, 0o755), q.set("a/b/c", "20000"))
		}, Restored, "/a/b/c was removed and made again", map[string]string{"a/b/c": "20000"}},
		{"another process set its own", func(q *quotaTree) error { return q.set("", "70000") }, TakenOver, `holds "70000"`, map[string]string{"": "70000"}},
	}
	for _, tt := range tests {
		for _, killed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, killed %v", tt.name, killed), func(t *testing.T) {
				q := newQuotaTree(t)
				if err := q.set("", "20000"); !errors.Is(err, syscall.EINVAL) {
					t.Fatalf("the kernel lets a cgroup have less than one below it: %v", err)
				}
				dir := filepath.Join(t.TempDir(), "journal")
				e, err := Open(dir, q.h)
				must(t, err)
				q.cap(e)
				must(t, tt.edit(q))
				if killed { // the next one has only what this one leaves on disk
					must(t, e.journal.close())
					e, err = Open(dir, q.h)
					must(t, err)
				}
				out, err := e.RestoreAll(sample.Millis(3000), "test")
				must(t, err)
				must(t, e.Close())
				if len(out) != 1 || out[0].Result != tt.want || !strings.Contains(out[0].Note, tt.note) {
					t.Errorf("outcomes %+v, want %v %q", out, tt.want, tt.note)
				}
				want := maps.Clone(quotasBefore)
				for p, v := range tt.other {
					if want[p] = v; v == "" {
						delete(want, p)
					}
				}
				if got := q.quotas(); !maps.Equal(got, want) {
					t.Errorf("afterwards the quotas are %v, want %v", got, want)
				}
			})
		}
	}
}

// If another process set a limit lower than the old one below, the kernel
// refuses the old one. It is restored when there is room.
func TestNoRoomForAnOldQuotaOnTheKernel(t *testing.T) {
	q := newQuotaTree(t)
	e, err := Open(filepath.Join(t.TempDir(), "journal"), q.h)
	must(t, err)
	defer e.Close()
	q.cap(e)
	must(t, q.set("", "25000"))
	if _, err := e.Undo(3000, "A", "lease over"); !errors.Is(err, syscall.EINVAL) || len(e.Stuck()) != 1 {
		t.Fatalf("undo: %v; stuck %v", err, e.Stuck())
	}
	must(t, q.set("", "60000"))
	out, err := e.Undo(4000, "A", "again")
	must(t, err)
	want := maps.Clone(quotasBefore)
	want[""] = "60000"
	if got := q.quotas(); out.Result != TakenOver || !maps.Equal(got, want) {
		t.Errorf("%v %q: the quotas are %v, want %v", out.Result, out.Note, got, want)
	}
}

// A v1 cgroup that is renamed while it is limited gets its quotas back, and so do those below it. One that is
// made at its path is left alone.
func TestRenamedCgroupIsRestored(t *testing.T) {
	q := newQuotaTree(t)
	e, err := Open(filepath.Join(t.TempDir(), "journal"), q.h)
	must(t, err)
	q.cap(e)
	must(t, os.Rename(q.dir, q.dir+"-renamed"))
	must(t, os.Mkdir(q.dir, 0o755))
	if over := e.Check(); len(over) != 0 {
		t.Errorf("%q are no longer in force", over)
	}
	out, err := e.Undo(3000, "A", "test")
	must(t, errors.Join(err, os.Remove(q.dir), os.Rename(q.dir+"-renamed", q.dir), e.Close()))
	if got := q.quotas(); out.Result != Restored || !maps.Equal(got, quotasBefore) {
		t.Errorf("%+v, the quotas are %v, want %v", out, got, quotasBefore)
	}
}
