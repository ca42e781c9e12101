package agent

import (
	"cmp"
	"path"
	"slices"

	"github.com/quell-dev/quell/internal/sample"
)

// roster is all tasks that are followed, and those that ended in the open window,
// in one order: by when they were found. What follows from which tasks there
// are, and from nothing else, is worked out when that changes and not in each
// window.
type roster struct {
	order []*task
	stale bool // tasks came or went since settle
}

// add takes in a task.
func (c *roster) add(t *task) {
	c.order = append(c.order, t)
	c.stale = true
}

// dropEnded takes out the tasks that have ended, and gives each to gone.
func (c *roster) dropEnded(gone func(*task)) {
	c.order = slices.DeleteFunc(c.order, func(t *task) bool {
		if t.ended {
			gone(t)
			c.stale = true
		}
		return t.ended
	})
}

// settle brings the roster in order.
func (c *roster) settle() {
	if !c.stale {
		return
	}
	c.stale = false
	slices.SortFunc(c.order, func(x, y *task) int {
		return cmp.Or(cmp.Compare(x.Key.FirstSeen, y.Key.FirstSeen), cmp.Compare(x.Key.Inode, y.Key.Inode), cmp.Compare(x.Key.Hierarchy, y.Key.Hierarchy))
	})
	type place struct {
		hierarchy sample.Hierarchy
		path      string
	}
	follows := make(map[place]bool, len(c.order))
	for _, t := range c.order {
		follows[place{t.Key.Hierarchy, string(t.Name)}] = true
	}
	for i, t := range c.order {
		t.index, t.inner = i, false
		for p := path.Dir(string(t.Name)); p != "/" && p != "." && !t.inner; p = path.Dir(p) {
			t.inner = follows[place{t.Key.Hierarchy, p}]
		}
	}
}
