package host

import (
	"slices"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/quell-dev/quell/internal/core/sample"
)

// twoNodes is a machine with a node of memory only, whose CPU 1 is offline.
const twoNodes = `
-- proc/self/mountinfo --
-- sys/devices/system/cpu/online --
0,2-3
-- sys/devices/system/node/node10/cpulist --

-- sys/devices/system/node/node0/cpulist --
0
-- sys/devices/system/node/node2/cpulist --
2-3
-- sys/devices/system/node/possible --
0-15
`

func TestMemoryNodes(t *testing.T) {
	h := unpack(t, txtar.Parse([]byte(twoNodes)))
	topo, err := h.Topology()
	if err != nil {
		t.Fatal(err)
	}
	want := []Node{{0, sample.SetOf(0)}, {2, sample.SetOf(2, 3)}, {10, sample.SetOf()}}
	if !slices.EqualFunc(topo.Memory, want, func(a, b Node) bool {
		return a.ID == b.ID && a.CPUs.String() == b.CPUs.String()
	}) {
		t.Errorf("got %v, want %v", topo.Memory, want)
	}
	for _, c := range topo.CPUs {
		if node := map[int]int{0: 0, 2: 2, 3: 2}[c.ID]; c.Node != node {
			t.Errorf("CPU %d is in node %d, want %d", c.ID, c.Node, node)
		}
	}
}
