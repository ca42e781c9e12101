package blockio

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/bpftest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// Requests from cgroups of a task, also from those that are made in an open window, are the task's, and
// there is one account of who was served for all of them: many would take the room of others.
func TestAttackManyCgroupsThatAreServed(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.EBPF, quelltest.Cgroup2)
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	bpftest.EachHierarchy(t, func(t *testing.T, hier sample.Hierarchy) {
		task, inner := bpftest.Task(t, h, hier, "task"), bpftest.Task(t, h, hier, "task/inner")
		s, k := open(t, task)
		a, b := start(t, inner.Dir), start(t, task.Dir)
		unseen := hidden(t, k.Programs()[:1], k.Programs()[1:])
		bpftest.Start(t, s)
		b.Ask("r", 100)
		path := "/" + filepath.Base(task.Dir) + "/made"
		bpftest.Moved(t, task.Dir, "made", b)
		b.Ask("r", 100)
		together([]func(){func() { a.Ask("r", 200) }, func() { b.Ask("r", 200) }})
		served := map[uint64]bool{}
		if _, err := k.Served(func(waits, by uint64, _ time.Duration) { served[waits], served[by] = true, true }); err != nil {
			t.Fatal(err)
		}
		r := bpftest.Stop(t, s)[task.Key]
		missing := unseen()
		if n := bpftest.Count(r, sample.IOOps); n < 600-missing || n > 1.1*600 {
			t.Errorf("%v requests, want 600; %v were hidden", n, missing)
		}
		made, err := h.OpenCgroup(hier, path)
		if err != nil {
			t.Fatal(err)
		}
		defer made.Close()
		for _, id := range []uint64{inner.Key.CgroupID(), sample.CgroupID(hier, made.Inode())} {
			if served[id] {
				t.Errorf("cgroup %#x of task %#x has an account of its own", id, task.Key.CgroupID())
			}
		}
	})
}
