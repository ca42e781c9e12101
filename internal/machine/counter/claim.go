package counter

import (
	"cmp"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Claim is a task's claim on cgroups, by their ids as sample.CgroupID makes
// them: its own, and those below it.
type Claim[Owner any] struct {
	Owner Owner
	ID    uint64
	Below []uint64
	Depth int // of its directory
	// Partial: there are more below it, which are not known (host.ErrCrowded).
	Partial bool
}

// ClaimOf returns a target's claim. ok is false if its cgroups are not known. A
// cgroup that is gone has none below it.
func ClaimOf[Owner any](t *Target, owner Owner) (c Claim[Owner], ok bool) {
	below, err := t.Below()
	crowded := errors.Is(err, host.ErrCrowded)
	if err != nil && !crowded && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return c, false
	}
	c = Claim[Owner]{Owner: owner, ID: t.Key.CgroupID(), Depth: strings.Count(t.Dir, "/"), Partial: crowded}
	for _, id := range below {
		c.Below = append(c.Below, sample.CgroupID(t.Key.Hierarchy, id))
	}
	return c, true
}

// Assign returns the owner of each cgroup. A followed cgroup below another followed one
// belongs to its own task, with all that is below it: the nearest claim wins. Of two
// claims above the same cgroup the nearest is the one with fewer cgroups below it or, if those are
// not all known, the deeper one.
func Assign[Owner any](claims []Claim[Owner]) map[uint64]Owner {
	claims = slices.Clone(claims)
	slices.SortStableFunc(claims, func(a, b Claim[Owner]) int {
		return cmp.Or(cmp.Compare(len(b.Below), len(a.Below)), cmp.Compare(a.Depth, b.Depth))
	})
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

// AssignUpTo is Assign for a map of the kernel with room for max cgroups. If there are more,
// every claim gets its own cgroup and the same number of those below it, except that none gets
// more than it has: a task that makes many cgroups takes no other's place. crowded are the
// owners that did not get all, or have more than are known.
func AssignUpTo[Owner comparable](claims []Claim[Owner], max int) (owned map[uint64]Owner, crowded map[Owner]bool) {
	owned = Assign(claims)
	crowded = map[Owner]bool{}
	for _, c := range claims {
		if c.Partial {
			crowded[c.Owner] = true
		}
	}
	if len(owned) <= max {
		return owned, crowded
	}
	type part struct {
		owner Owner
		ids   []uint64
	}
	parts := make([]part, 0, len(claims))
	for _, c := range claims {
		p := part{owner: c.Owner}
		for i, id := range append([]uint64{c.ID}, c.Below...) {
			if owned[id] == c.Owner && (i == 0 || id != c.ID) {
				p.ids = append(p.ids, id)
			}
		}
		parts = append(parts, p)
	}
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(len(a.ids), len(b.ids)) })
	for i, p := range parts {
		n := min(len(p.ids), (max+len(parts)-i-1)/(len(parts)-i))
		for _, id := range p.ids[n:] {
			delete(owned, id)
			crowded[p.owner] = true
		}
		max -= n
	}
	return owned, crowded
}
