package agent

import "path"

// groups are the cgroups, in the cpu controller's hierarchy, in which tasks are
// and those above them, with their weights. The zero value has none.
type groups struct {
	byPath map[string]*group
	root   group
	turn   uint64 // of contend
}

// group is one of them.
type group struct {
	above  *group // nil of the root
	path   string
	weight float64
	users  int // tasks in it, and groups below it

	// Set by contend:
	turn    uint64  // for which the rest is
	wants   bool    // a task that is in it wants to run
	counted bool    // its weight is among those within the group above it
	within  float64 // weights below it of what wants to run
}

// ownWeight is that of the threads in a group with groups below it, which v1 lets
// be there: of one of ordinary niceness.
const ownWeight = 100

// enter returns the group of a path, for one user more, with the weights that it
// and those above it have now; nil where one of them has none.
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
		gs.leave(above) // in which it is counted already
	}
	g.weight = w
	g.users++
	return g
}

// leave is for one user less of a group; of nil it does nothing.
func (gs *groups) leave(g *group) {
	for ; g != nil && g.above != nil; g = g.above {
		if g.users--; g.users > 0 {
			return
		}
		delete(gs.byPath, g.path)
	}
}

// contend says that tasks in these groups want to run, and only they, all of the
// time. One that is nil is left out: nothing is known of it.
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

// current forgets what is of former turns.
func (gs *groups) current(g *group) *group {
	if g.turn != gs.turn {
		g.turn, g.wants, g.counted, g.within = gs.turn, false, false, 0
	}
	return g
}

// share is what the weights entitle the tasks in a group to, of those that
// contend: the product of the shares, down the levels, that each group has of the
// one above it. 0 of nil, and of the root, whose threads have no weight together.
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
