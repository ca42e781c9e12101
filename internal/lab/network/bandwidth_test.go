package network

import (
	"math"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// An environment sends at its burst rate while it has credit, and then at its baseline.
func TestBound(t *testing.T) {
	quelltest.Need(t, "root")
	f := open(t, map[string]study.Network{"lan": {}})
	bounded, free := join(t, f, "lan", "10.77.0.1/16"), join(t, f, "lan", "10.77.1.1/16")
	b := study.Bandwidth{Baseline: 16e6, Burst: 64e6, Credit: 600e3}
	can(t, bounded.LimitRate(b))
	l, err := bounded.space.link.LinkByName(port)
	if err != nil {
		t.Fatal(err)
	}
	classes, err := bounded.space.link.ClassList(l, netlink.MakeHandle(1, 0))
	if err != nil || len(classes) != 1 {
		t.Fatalf("classes %v, %v", classes, err)
	}
	c, ok := classes[0].(*netlink.HtbClass)
	if !ok {
		t.Fatalf("a class of %T", classes[0])
	}
	// The kernel stores the bucket as its time at the baseline: 0.3 s.
	if credit := float64(c.Buffer) / netlink.TickInUsec() / 1e6 * 16e6 / 8; c.Rate != 2e6 || c.Ceil != 8e6 || math.Abs(credit-600e3) > 1e3 {
		t.Errorf("the kernel has %v, a credit of %.0f bytes", c, credit)
	}
	// Of 2 MiB, credit and burst, 0.8 MB together, take 0.1 s, and 1.3 MB at the
	// baseline 0.65 s. A busy machine is slower, never faster.
	if took, _ := transfer(t, bounded, free, "10.77.1.1:7000"); took < 0.5 {
		t.Errorf("it sent 2 MiB in %.3f s, past its credit", took)
	}
}
