package runq

import (
	"cmp"
	"slices"
)

// claim is a task's claim on cgroups: its own, and those below it.
type claim struct {
	owner runqOwner
	id    uint64
	below []uint64
}

// assign says to whom each cgroup belongs. A followed cgroup below another
// followed one is its own, with all that is below it: the nearest wins, which
// of two above the same cgroup is the one with fewer below it.
func assign(claims []claim) map[uint64]runqOwner {
	claims = slices.Clone(claims)
	slices.SortStableFunc(claims, func(a, b claim) int { return cmp.Compare(len(b.below), len(a.below)) })
	owned := make(map[uint64]runqOwner, 2*len(claims))
	for _, c := range claims {
		for _, id := range c.below {
			owned[id] = c.owner
		}
	}
	for _, c := range claims {
		owned[c.id] = c.owner
	}
	return owned
}
