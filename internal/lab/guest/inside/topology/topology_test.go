//go:build inguest

package topology

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// machine is QEMU's configuration: "sockets dies cores threads", CPUs numbered in this
// order, and a memory node for each socket with distance 21 to the others.
func machine(t *testing.T) (sockets, dies, cores, threads int) {
	t.Helper()
	if _, err := fmt.Sscan(os.Getenv("MACHINE"), &sockets, &dies, &cores, &threads); err != nil {
		t.Fatalf("MACHINE: %v", err)
	}
	return sockets, dies, cores, threads
}

// run is the set of n CPUs from the first one.
func run(first, n int) sample.Set {
	var all []int
	for i := range n {
		all = append(all, first+i)
	}
	return sample.SetOf(all...)
}

// expect compares a topology with QEMU's configuration; CPUs that are offline are in no
// set.
func expect(t *testing.T, online sample.Set) {
	t.Helper()
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	got, err := h.Topology()
	if err != nil {
		t.Fatal(err)
	}
	sockets, dies, cores, threads := machine(t)
	only := func(s sample.Set) string {
		return sample.SetOf(slices.DeleteFunc(s.Numbers(), func(n int) bool { return !online.Has(n) })...).String()
	}
	if _, _, smt := got.Units(); got.Online.String() != online.String() || smt != (threads > 1) || len(got.CPUs) != online.Len() {
		t.Errorf("online %v, SMT %t, %d CPUs; want %v", got.Online, smt, len(got.CPUs), online)
	}
	type place struct{ pkg, core int }
	names := map[place]string{}
	caches := map[int]string{}
	for _, c := range got.CPUs {
		onCore, onDie, onSocket := c.ID/threads, c.ID/(threads*cores), c.ID/(threads*cores*dies)
		siblings, die := run(onCore*threads, threads), run(onDie*threads*cores, threads*cores)
		if c.Package != onSocket || c.Node != onSocket || c.Siblings.String() != only(siblings) || c.LLC.CPUs.String() != only(die) || c.LLC.Size == 0 {
			t.Errorf("CPU %d: %+v; want package and node %d, siblings %s, a cache for %s", c.ID, c, onSocket, only(siblings), only(die))
		}
		// A core's number is unique within its package.
		at := place{c.Package, c.Core}
		if was, ok := names[at]; ok && was != c.Siblings.String() {
			t.Errorf("CPU %d: core %d of package %d is that of CPUs %s too", c.ID, c.Core, c.Package, was)
		}
		names[at] = c.Siblings.String()
		if was, ok := caches[c.LLC.ID]; ok && was != c.LLC.CPUs.String() {
			t.Errorf("CPU %d: cache %d is that of CPUs %s too", c.ID, c.LLC.ID, was)
		}
		caches[c.LLC.ID] = c.LLC.CPUs.String()
	}
	if len(caches) != sockets*dies {
		t.Errorf("caches %v, want %d", caches, sockets*dies)
	}
	if len(got.Memory) != sockets {
		t.Fatalf("memory nodes %+v, want %d", got.Memory, sockets)
	}
	for i, n := range got.Memory {
		if n.ID != i || n.CPUs.String() != only(run(i*dies*cores*threads, dies*cores*threads)) {
			t.Errorf("memory node %+v, want node %d", n, i)
		}
	}
	t.Logf("figure: %d CPUs online of %d: packages %d, LLCs %d, nodes %d, as QEMU was told", got.Online.Len(), sockets*dies*cores*threads, sockets, len(caches), len(got.Memory))
}

func TestTopology(t *testing.T) {
	sockets, dies, cores, threads := machine(t)
	expect(t, run(0, sockets*dies*cores*threads))
}

// A CPU that goes offline is in no set, and returns to its place when it is online again.
func TestHotplug(t *testing.T) {
	sockets, dies, cores, threads := machine(t)
	all := run(0, sockets*dies*cores*threads)
	last := all.Numbers()[all.Len()-1]
	set := func(cpu int, online bool) {
		t.Helper()
		value := "0"
		if online {
			value = "1"
		}
		if err := os.WriteFile("/sys/devices/system/cpu/cpu"+strconv.Itoa(cpu)+"/online", []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, off := range [][]int{{last}, {1, 2}} {
		t.Run("without "+strings.Trim(fmt.Sprint(off), "[]"), func(t *testing.T) {
			left := all.Numbers()
			for _, cpu := range off {
				set(cpu, false)
				defer set(cpu, true)
				left = slices.DeleteFunc(left, func(n int) bool { return n == cpu })
			}
			expect(t, sample.SetOf(left...))
		})
	}
	expect(t, all)
}
