package runq

import (
	"context"
	"fmt"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/bpftest"
)

// A neighbour that goes on in cgroups that it makes in an open window, within each other, is served while
// the task waits, as before, and its own waits are counted.
func TestAttackNewCgroups(t *testing.T) {
	a, b := unified(t, "a"), unified(t, "b")
	a.burn(t, burner{cpu: 1})
	x := b.burn(t, burner{cpu: 1})
	p, dir, n := program(t, maxTasks, a, b), b.Dir, 0
	expect(t, p, []*group{a, b}, func(context.Context) {
		n++
		dir = bpftest.Moved(t, dir, fmt.Sprint("made", n), x.Child)
	}, func(m []measured) []band {
		return []band{
			{"a's cost", m[0].Cost, 0.85, 1.2}, {"b's cost", m[1].Cost, 0.85, 1.2},
			{"b's share of a's wait", m[0].by(b.Key), 0.9, 1}, {"a's share of b's wait", m[1].by(a.Key), 0.9, 1},
		}
	})
}
