package fault

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/enforce"
	"github.com/quell-dev/quell/internal/machine/host"
)

// The children are this program again, and use package enforce only: one sets a
// cap every few milliseconds, one restores.

// lease is how long the child's caps last.
const lease = 3 * time.Millisecond

// capAndUncap caps a cgroup and lets the cap expire, until it is killed.
func capAndUncap(journal, dir string) error {
	h, err := host.Open("/")
	if err != nil {
		return err
	}
	e, err := enforce.Open(journal, h)
	if err != nil {
		return err
	}
	now := func() sample.Millis { return sample.At(time.Now()) }
	if _, err := e.RestoreAll(now(), "start"); err != nil && !errors.Is(err, enforce.ErrJournal) {
		return err
	}
	c := cgroup{dir: dir}
	old, err := c.get(h)
	if err != nil {
		return err
	}
	inode, err := h.Inode(dir)
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		at := now()
		err := e.Apply(at, enforce.Change{ID: strconv.Itoa(os.Getpid()) + "-" + strconv.Itoa(i), Dir: dir, Inode: inode, From: at, Until: at.Add(lease), Task: "/task",
			Writes: []host.Write{
				{File: filepath.Join(dir, "cpu.cfs_quota_us"), Old: old.quota, New: strconv.Itoa(10000 + i%5000)},
				{File: filepath.Join(dir, "cpu.cfs_period_us"), Old: old.period, New: "50000"},
			}})
		if err != nil && !errors.Is(err, enforce.ErrJournal) { // a full disk is one of the faults
			return err
		}
		for len(e.Active()) > 0 {
			for _, id := range e.Due(now()) {
				if _, err := e.Undo(now(), id, "the lease expired"); err != nil && !errors.Is(err, enforce.ErrJournal) {
					return err
				}
			}
			<-time.After(time.Millisecond)
		}
	}
}

func restoreAll(journal string) error {
	h, err := host.Open("/")
	if err != nil {
		return err
	}
	e, err := enforce.Open(journal, h)
	if err != nil {
		return err
	}
	_, err = e.RestoreAll(sample.At(time.Now()), "start")
	return errors.Join(err, e.Close())
}
