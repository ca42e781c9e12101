package host

import (
	"slices"
	"strings"
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

-- sys/devices/system/node/node10/distance --
21 40 10
-- sys/devices/system/node/node0/cpulist --
0
-- sys/devices/system/node/node0/distance --
10 21 21
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
	want := []Node{{0, sample.SetOf(0), []int{10, 21, 21}}, {2, sample.SetOf(2, 3), nil}, {10, sample.SetOf(), []int{21, 40, 10}}}
	if !slices.EqualFunc(topo.Memory, want, func(a, b Node) bool {
		return a.ID == b.ID && a.CPUs.String() == b.CPUs.String() && slices.Equal(a.Distances, b.Distances)
	}) {
		t.Errorf("got %v, want %v", topo.Memory, want)
	}
	for _, c := range topo.CPUs {
		if node := map[int]int{0: 0, 2: 2, 3: 2}[c.ID]; c.Node != node {
			t.Errorf("CPU %d is in node %d, want %d", c.ID, c.Node, node)
		}
	}
	bad := unpack(t, txtar.Parse([]byte(strings.Replace(twoNodes, "10 21 21", "10 far", 1))))
	if _, err := bad.Topology(); err == nil || !strings.Contains(err.Error(), "node0") {
		t.Errorf("distances that are no numbers: %v", err)
	}
}
