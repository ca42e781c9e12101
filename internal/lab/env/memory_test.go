package env

import (
	"os"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

// The nodes of a guest's CPUs, on two sockets whose CPUs are numbered in turn.
func TestNodesOfCPUs(t *testing.T) {
	two := host.Topology{Memory: []host.Node{{ID: 0, CPUs: sample.SetOf(0, 2, 4, 6)}, {ID: 1, CPUs: sample.SetOf(1, 3, 5, 7)}, {ID: 2}}}
	many := host.Topology{Memory: []host.Node{{ID: 0, CPUs: sample.SetOf(0)}, {ID: 64, CPUs: sample.SetOf(1)}}}
	for _, c := range []struct {
		name      string
		top       host.Topology
		cpus      sample.Set
		all, near uint64
	}{
		{"the second socket", two, sample.SetOf(1, 5), 0b111, 0b10},
		{"both", two, sample.SetOf(0, 1), 0b111, 0b11},
		{"no node is known", host.Topology{}, sample.SetOf(0), 0, 0},
		{"too many", many, sample.SetOf(1), 0, 0},
	} {
		if all, near := nodesOf(c.top, c.cpus); all != c.all || near != c.near {
			t.Errorf("%s: %b, %b, want %b, %b", c.name, all, near, c.all, c.near)
		}
	}
	gather(os.Getpid(), two, sample.SetOf(1, 5)) // whatever nodes there are here
}
