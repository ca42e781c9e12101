//go:build guests

package guest

import (
	"fmt"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
)

// TestTopology boots machines with two sockets and one memory node for each.
func TestTopology(t *testing.T) {
	for _, c := range []CPUs{
		{Sockets: 2, Cores: 2, Threads: 2},
		{Sockets: 2, Dies: 2, Cores: 2, Threads: 2},
	} {
		dies := max(1, c.Dies)
		t.Run(fmt.Sprintf("%dx%dx%dx%d", c.Sockets, dies, c.Cores, c.Threads), func(t *testing.T) {
			var nodes []Node
			half := c.Total() / 2
			for n, far := range [][]int{{10, 21}, {21, 10}} {
				var cpus []int
				for cpu := range half {
					cpus = append(cpus, n*half+cpu)
				}
				nodes = append(nodes, Node{CPUs: sample.SetOf(cpus...), Distances: far})
			}
			box{
				// Under TCG only Intel models have SMT siblings.
				Machine: Machine{Arch: AMD64, CPU: "Skylake-Server,enforce=off", CPUs: c, MemoryMB: 1024, Nodes: nodes},
				Init:    Init{Env: []string{fmt.Sprintf("MACHINE=%d %d %d %d", c.Sockets, dies, c.Cores, c.Threads)}},
				tests:   []insideTest{{pkg: "internal/lab/guest/inside/topology"}},
			}.run(t)
		})
	}
}
