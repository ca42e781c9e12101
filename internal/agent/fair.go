package agent

import "path"

// groups are the cgroups in the cpu controller's hierarchy that contain tasks, and the
// cgroups above those, with their weights. The zero value is empty.
type groups struct {
	byPath map[string]*group
	root   group
	turn   uint64 // number of calls of contend
}

// group is one cgroup.
type group struct {
	above  *group // nil for the root
	path   string
	weight float64
	users  int // tasks in it, and groups directly below it

	// Set by contend:
	turn    uint64  // the call that set the fields below
	wants   bool    // a task directly in it wants to run
	counted bool    // its weight is included in within of the group above it
	within  float64 // sum of the weights of the groups directly below it that want to run
}

// ownWeight is the weight of the threads in a group that also has groups below it,
// which v1 allows: that of one thread of normal niceness.
const ownWeight = 100

// enter returns the group of a path and adds one user to it. It updates the weights of
// the group and of those above it. It returns nil if one of them has no weight.
func (gs *groups) enter(p string, weight func(path string) (float64, error)) *group {
	switch {
	case p == "/":
		return &gs.root
	case p == "" || p == ".":
		return nil
	}
	w, err := weight(p)
	if err != nil || !(w > 0) {
		return nil
	}
	above := gs.enter(path.Dir(p), weight)
	if above == nil {
		return nil
	}
	g := gs.byPath[p]
	if g == nil {
		if gs.byPath == nil {
			gs.byPath = map[string]*group{}
		}
		g = &group{path: p, above: above}
		gs.byPath[p] = g
	} else {
		gs.leave(above) // which the group is counted in already
	}
	g.weight = w
	g.users++
	return g
}

// leave removes one user from a group; it does nothing for nil.
func (gs *groups) leave(g *group) {
	for ; g != nil && g.above != nil; g = g.above {
		if g.users--; g.users > 0 {
			return
		}
		delete(gs.byPath, g.path)
	}
}

// contend declares that tasks in these groups, and only these, want to run all of the
// time. A nil group is left out because nothing is known of it.
func (gs *groups) contend(first *group, others []*group) {
	gs.turn++
	gs.want(first)
	for _, g := range others {
		gs.want(g)
	}
}

func (gs *groups) want(g *group) {
	if g == nil {
		return
	}
	gs.current(g).wants = true
	for ; g.above != nil && !g.counted; g = g.above {
		g.counted = true
		gs.current(g.above).within += g.weight
	}
}

// current resets what an earlier call of contend has set.
func (gs *groups) current(g *group) *group {
	if g.turn != gs.turn {
		g.turn, g.wants, g.counted, g.within = gs.turn, false, false, 0
	}
	return g
}

// share is the fraction of CPU time that the weights give the tasks in a group among
// the contending groups: the product, over the levels, of each group's share of the one
// above it. It is 0 for nil and for the root, whose threads have no common weight.
func (gs *groups) share(g *group) float64 {
	if g == nil || g.above == nil {
		return 0
	}
	share := 1.0
	if g.within > 0 {
		share = ownWeight / (ownWeight + g.within)
	}
	for ; g.above != nil; g = g.above {
		within := g.above.within
		if g.above.wants && g.above.above != nil {
			within += ownWeight
		}
		share *= g.weight / within
	}
	return share
}
