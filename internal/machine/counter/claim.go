package counter

import (
	"cmp"
	"errors"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Claim is a task's claim on cgroups, by their ids as sample.CgroupID makes
// them: its own, and those below it.
type Claim[Owner any] struct {
	Owner Owner
	ID    uint64
	Below []uint64
}

// ClaimOf returns a target's claim. ok is false if not all of its cgroups are known. A
// cgroup that is gone has none below it.
func ClaimOf[Owner any](t *Target, owner Owner) (c Claim[Owner], ok bool) {
	below, err := t.Below()
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return c, false
	}
	c = Claim[Owner]{Owner: owner, ID: t.Key.CgroupID()}
	for _, id := range below {
		c.Below = append(c.Below, sample.CgroupID(t.Key.Hierarchy, id))
	}
	return c, true
}

// Assign returns the owner of each cgroup. A followed cgroup below another followed one
// belongs to its own task, with all that is below it: the nearest claim wins. Of two
// claims above the same cgroup the nearest is the one with fewer cgroups below it.
func Assign[Owner any](claims []Claim[Owner]) map[uint64]Owner {
	claims = slices.Clone(claims)
	slices.SortStableFunc(claims, func(a, b Claim[Owner]) int { return cmp.Compare(len(b.Below), len(a.Below)) })
	owned := make(map[uint64]Owner, 2*len(claims))
	for _, c := range claims {
		for _, id := range c.Below {
			owned[id] = c.Owner
		}
	}
	for _, c := range claims {
		owned[c.ID] = c.Owner
	}
	return owned
}
