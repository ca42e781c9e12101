package agent

import (
	"path"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// cgroupTree are the cgroups in the cpu controller's hierarchy that contain tasks, and the
// cgroups above those, with their weights and quotas. The zero value is empty.
type cgroupTree struct {
	byPath map[string]*cgroupNode
	root   cgroupNode
	turn   uint64 // number of calls of contend
}

// cgroupNode is one cgroup.
type cgroupNode struct {
	above  *cgroupNode // nil for the root
	path   string
	tasks  int // in it
	below  int // cgroups directly below it
	weight float64
	// weighed: it has a weight, and all cgroups above it have one.
	weighed bool

	// How long it was throttled at the window's start, -1 if it has no quota, and in the
	// window, 0 also if that is not known. It is read only if tasks are below it.
	throttledBefore, throttled time.Duration

	// Set by contend:
	generation uint64  // the call that set the fields below
	wants      bool    // a task directly in it wants to run
	counted    bool    // its weight is included in within of the group above it
	within     float64 // sum of the weights of the groups directly below it that want to run
}

// ownWeight is the weight of the threads in a group that also has groups below it,
// which v1 allows: that of one thread of normal niceness.
const ownWeight = 100

// enter returns the group of a path and adds one task to it; nil if the path is not known.
// It updates the weights of the group and of those above it.
func (ct *cgroupTree) enter(p string, weight func(path string) (float64, error)) *cgroupNode {
	g := ct.find(p, weight)
	if g != nil {
		g.tasks++
	}
	return g
}

func (ct *cgroupTree) find(p string, weight func(path string) (float64, error)) *cgroupNode {
	switch {
	case p == "/":
		return &ct.root
	case p == "" || p == ".":
		return nil
	}
	above := ct.find(path.Dir(p), weight)
	if above == nil {
		return nil
	}
	g := ct.byPath[p]
	if g == nil {
		if ct.byPath == nil {
			ct.byPath = map[string]*cgroupNode{}
		}
		g = &cgroupNode{path: p, above: above, throttledBefore: -1}
		ct.byPath[p] = g
		above.below++
	}
	w, err := weight(p)
	known := err == nil && w > 0
	if known {
		g.weight = w
	}
	g.weighed = known && above.known()
	return g
}

// leave removes one task from a group; it does nothing for nil.
func (ct *cgroupTree) leave(g *cgroupNode) {
	if g == nil {
		return
	}
	g.tasks--
	for ; g.above != nil && g.tasks == 0 && g.below == 0; g = g.above {
		delete(ct.byPath, g.path)
		g.above.below--
	}
}

// known reports whether the weights that determine the group's share are known.
func (g *cgroupNode) known() bool { return g != nil && (g.above == nil || g.weighed) }

// throttledAbove returns the cgroup above the group that was throttled longest in the
// window, and for how long; "" if none was.
func (g *cgroupNode) throttledAbove() (p string, held time.Duration) {
	if g == nil {
		return "", 0
	}
	for g = g.above; g != nil; g = g.above {
		if g.throttled > held {
			p, held = g.path, g.throttled
		}
	}
	return p, held
}

// contend declares that tasks in these groups, and only these, want to run all of the
// time. A group without a known weight is left out.
func (ct *cgroupTree) contend(first *cgroupNode, others []*cgroupNode) {
	ct.turn++
	ct.want(first)
	for _, g := range others {
		ct.want(g)
	}
}

func (ct *cgroupTree) want(g *cgroupNode) {
	if !g.known() {
		return
	}
	ct.current(g).wants = true
	for ; g.above != nil && !g.counted; g = g.above {
		g.counted = true
		ct.current(g.above).within += g.weight
	}
}

// current resets what an earlier call of contend has set.
func (ct *cgroupTree) current(g *cgroupNode) *cgroupNode {
	if g.generation != ct.turn {
		g.generation, g.wants, g.counted, g.within = ct.turn, false, false, 0
	}
	return g
}

// share is the fraction of CPU time that the weights give the tasks in a group among
// the contending groups: the product, over the levels, of each group's share of the one
// above it. It is 0 if that is not known, and for the root, whose threads have no common
// weight.
func (ct *cgroupTree) share(g *cgroupNode) float64 {
	if !g.known() || g.above == nil {
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
func (ct *cgroupTree) setFair(victim *cgroupNode, groups []*cgroupNode, names []sample.Served, keys []detect.Served) {
	if !victim.known() {
		return
	}
	ct.contend(victim, groups)
	for i, g := range groups {
		if g != victim {
			names[i].Fair = ct.share(g)
			keys[i].Fair = names[i].Fair
		}
	}
}
