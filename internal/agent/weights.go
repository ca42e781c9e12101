package agent

import (
	"path"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// weightTree are the cgroups in the cpu controller's hierarchy that contain tasks, and the
// cgroups above those, with their weights. The zero value is empty.
type weightTree struct {
	byPath map[string]*weightNode
	root   weightNode
	turn   uint64 // number of calls of contend
}

// weightNode is one cgroup.
type weightNode struct {
	above  *weightNode // nil for the root
	path   string
	weight float64
	refs   int // tasks in it, and groups directly below it

	// Set by contend:
	generation uint64  // the call that set the fields below
	wants      bool    // a task directly in it wants to run
	counted    bool    // its weight is included in within of the group above it
	within     float64 // sum of the weights of the groups directly below it that want to run
}

// ownWeight is the weight of the threads in a group that also has groups below it,
// which v1 allows: that of one thread of normal niceness.
const ownWeight = 100

// enter returns the group of a path and adds one user to it. It updates the weights of
// the group and of those above it. It returns nil if one of them has no weight.
func (gs *weightTree) enter(p string, weight func(path string) (float64, error)) *weightNode {
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
			gs.byPath = map[string]*weightNode{}
		}
		g = &weightNode{path: p, above: above}
		gs.byPath[p] = g
	} else {
		gs.leave(above) // which the group is counted in already
	}
	g.weight = w
	g.refs++
	return g
}

// leave removes one user from a group; it does nothing for nil.
func (gs *weightTree) leave(g *weightNode) {
	for ; g != nil && g.above != nil; g = g.above {
		if g.refs--; g.refs > 0 {
			return
		}
		delete(gs.byPath, g.path)
	}
}

// contend declares that tasks in these groups, and only these, want to run all of the
// time. A nil group is left out because nothing is known of it.
func (gs *weightTree) contend(first *weightNode, others []*weightNode) {
	gs.turn++
	gs.want(first)
	for _, g := range others {
		gs.want(g)
	}
}

func (gs *weightTree) want(g *weightNode) {
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
func (gs *weightTree) current(g *weightNode) *weightNode {
	if g.generation != gs.turn {
		g.generation, g.wants, g.counted, g.within = gs.turn, false, false, 0
	}
	return g
}

// share is the fraction of CPU time that the weights give the tasks in a group among
// the contending groups: the product, over the levels, of each group's share of the one
// above it. It is 0 for nil and for the root, whose threads have no common weight.
func (gs *weightTree) share(g *weightNode) float64 {
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

// setFair sets the share that the weights give each served task when it competes with a
// task in the victim's group; groups are those of the served tasks. Within the same group
// the share depends on their threads and is not known.
func (gs *weightTree) setFair(victim *weightNode, groups []*weightNode, names []sample.Served, keys []detect.Served) {
	if victim == nil {
		return
	}
	gs.contend(victim, groups)
	for i, g := range groups {
		if g != victim {
			names[i].Fair = gs.share(g)
			keys[i].Fair = names[i].Fair
		}
	}
}
