package agent

import (
	"cmp"
	"path"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
)

// roster is all followed tasks, and those that ended in the open window, in the order
// in which they were found. Values that depend only on which tasks exist are computed
// when that changes and not in each window.
type roster struct {
	order []*task
	stale bool // tasks came or ended since settle
}

// add adds a task.
func (c *roster) add(t *task) {
	c.order = append(c.order, t)
	c.stale = true
}

// dropEnded removes the tasks that have ended and calls gone for each.
func (c *roster) dropEnded(gone func(*task)) {
	c.order = slices.DeleteFunc(c.order, func(t *task) bool {
		if t.ended {
			gone(t)
			c.stale = true
		}
		return t.ended
	})
}

// settle sorts the roster.
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
