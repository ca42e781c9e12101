package place

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/host"
)

// server is a machine with the given packages, cores in each, and threads in each core,
// numbered as by Linux: all first threads, then all second ones. Each package has the
// given number of last-level caches.
func server(packages, cores, threads, caches int) (host.Topology, sample.Set) {
	var t host.Topology
	n := packages * cores
	for id := range n * threads {
		k := id % n
		var siblings sample.Set
		for s := range threads {
			siblings = siblings.With(k + s*n)
		}
		p := k / cores
		t.CPUs = append(t.CPUs, host.CPU{ID: id, Package: p, Core: k % cores, Node: p, Siblings: siblings,
			LLC: host.Cache{ID: p*caches + k%cores*caches/cores}})
		t.Online = t.Online.With(id)
	}
	return t, t.Online
}

func TestRelations(t *testing.T) {
	for _, c := range []struct {
		name     string
		shape    [4]int // packages, cores, threads, caches
		relation string
		want     string // per slot, or what is missing
	}{
		// Figure 1 of paper 003: 2 chips of 8 cores of 2 threads.
		{"figure 1a", [4]int{2, 8, 2, 1}, "neutral", "0-31 0-31"},
		{"figure 1b", [4]int{2, 8, 2, 1}, "per-chip", "0-7,16-23 8-15,24-31"},
		{"figure 1c", [4]int{2, 8, 2, 1}, "per-core", "0-3,8-11,16-19,24-27 4-7,12-15,20-23,28-31"},
		{"figure 1d", [4]int{2, 8, 2, 1}, "per-thread", "0-15 16-31"},
		{"siblings", [4]int{1, 4, 2, 1}, "smt-sibling", "0 4"},
		{"one thread", [4]int{1, 4, 2, 1}, "same-thread", "0 0"},
		{"one core", [4]int{1, 4, 2, 1}, "same-core", "0,4 0,4"},
		{"one cache", [4]int{1, 4, 2, 2}, "same-llc", "0,4 1,5"},
		{"one package", [4]int{2, 4, 1, 1}, "same-package", "0-1 2-3"},
		{"two packages", [4]int{2, 4, 1, 1}, "cross-package", "0-3 4-7"},
		{"one node", [4]int{2, 4, 1, 1}, "same-numa", "0-1 2-3"},
		{"this box: two cores", [4]int{1, 2, 1, 1}, "per-core", "0 1"},
		{"three on four cores", [4]int{1, 4, 1, 1}, "same-package", "0 1 2-3"},
		{"no second chip", [4]int{1, 2, 1, 1}, "per-chip", "placement per-chip needs 2 packages, this machine has 1"},
		{"no threads", [4]int{1, 2, 1, 1}, "per-thread", "placement per-thread needs 2 threads in each core, this machine has 1"},
		{"caches too small", [4]int{1, 2, 1, 2}, "same-llc", "placement same-llc needs 2 cores in one last-level cache, this machine has at most 1"},
	} {
		top, all := server(c.shape[0], c.shape[1], c.shape[2], c.shape[3])
		slots := max(2, len(strings.Fields(c.want)))
		if strings.HasPrefix(c.want, "placement") {
			slots = 2
		}
		var got []string
		var failed error
		for s := range slots {
			sets, err := Relation(top, all, c.relation, s, slots)
			if err != nil {
				failed = err
				break
			}
			got = append(got, sets[0].String())
		}
		text := strings.Join(got, " ")
		if failed != nil {
			var missing *MissingError
			if text = failed.Error(); !errors.As(failed, &missing) {
				t.Errorf("%s: %v is no MissingError", c.name, failed)
			}
		}
		if text != c.want {
			t.Errorf("%s: got %s, want %s", c.name, text, c.want)
		}
	}
}

// Where the machine does not tell its caches, as guests do, no two cores are said to share one.
func TestCachesThatAreNotKnown(t *testing.T) {
	top, all := server(2, 4, 1, 1)
	for i := range top.CPUs {
		top.CPUs[i].LLC = host.Cache{ID: -1}
	}
	var missing *MissingError
	if sets, err := Relation(top, all, "same-llc", 0, 2); !errors.As(err, &missing) {
		t.Errorf("%v, %v", sets, err)
	}
}

// For every machine and relation, slots get allowed CPUs only, the same number plus or
// minus a core, and no CPU of another slot unless the relation shares CPUs.
func TestRelationsShareWhatTheyShall(t *testing.T) {
	shared := map[string]bool{"neutral": true, study.Packed: true, "same-thread": true, "same-core": true}
	for _, shape := range [][4]int{{1, 2, 1, 1}, {2, 8, 2, 1}, {2, 6, 2, 3}, {4, 3, 1, 1}, {1, 16, 4, 2}} {
		top, all := server(shape[0], shape[1], shape[2], shape[3])
		for _, relation := range []string{"neutral", "per-chip", "per-core", "per-thread", "same-thread", "smt-sibling", "same-core", "same-llc", "same-package", "cross-package", "same-numa", study.Packed} {
			for slots := 1; slots <= 4; slots++ {
				var seen sample.Set
				for s := range slots {
					sets, err := Relation(top, all, relation, s, slots)
					var missing *MissingError
					if errors.As(err, &missing) {
						break
					}
					if err != nil || len(sets) != 1 || sets[0].Len() == 0 {
						t.Fatalf("%v %s %d/%d: %v, %v", shape, relation, s, slots, sets, err)
					}
					for _, n := range sets[0].Numbers() {
						if !all.Has(n) {
							t.Errorf("%v %s: CPU %d is not allowed", shape, relation, n)
						}
					}
					if !shared[relation] && seen.Intersects(sets[0]) {
						t.Errorf("%v %s %d/%d: %s meets %s", shape, relation, s, slots, sets[0], seen)
					}
					for _, n := range sets[0].Numbers() {
						seen = seen.With(n)
					}
				}
			}
		}
	}
}

func TestMappedAndListed(t *testing.T) {
	part := func(role, cpus string) study.Part {
		return study.Part{Role: role, CPUs: cpus, Slots: 4, Environment: study.Environment{CPUs: 1}}
	}
	guest := func(d study.Driver, cpus int) study.Part {
		return study.Part{Role: "vm", Slots: 1, Environment: study.Environment{Driver: d, CPUs: cpus}}
	}
	four := []study.Part{part("vm1", ""), part("vm2", ""), part("vm3", ""), part("vm4", "")}
	for _, c := range []struct {
		name  string
		shape [4]int
		cell  study.Cell
		want  string
	}{
		// Paper 000, section 5: two cores with threads, one machine per thread.
		{"threads", [4]int{1, 2, 2, 1}, study.Cell{Parts: four, Mapping: map[string]int{"vm1/0": 0, "vm2/0": 1, "vm3/0": 0, "vm4/0": 1}}, "[0] [1] [2] [3]"},
		{"no threads", [4]int{1, 2, 1, 1}, study.Cell{Parts: four, Mapping: map[string]int{"vm1/0": 0, "vm2/0": 0, "vm3/0": 1, "vm4/0": 1}}, "[0] [0] [1] [1]"},
		{"too few cores", [4]int{1, 1, 2, 1}, study.Cell{Parts: four, Mapping: map[string]int{"vm1/0": 0, "vm2/0": 1}}, "placement mapping needs 2 cores, this machine has 1"},
		// A guest of two virtual CPUs, one of them on one core with a host process.
		{"a mix", [4]int{1, 2, 1, 1}, study.Cell{Parts: []study.Part{part("vm", ""), part("native", "")}, Mapping: map[string]int{"vm/0": 0, "vm/1": 1, "native/0": 1}}, "[0 1] [1]"},
		{"many", [4]int{1, 11, 1, 1}, study.Cell{Parts: []study.Part{part("vm", "")}, Mapping: map[string]int{"vm/0": 0, "vm/1": 1, "vm/2": 2, "vm/3": 3, "vm/4": 4,
			"vm/5": 5, "vm/6": 6, "vm/7": 7, "vm/8": 8, "vm/9": 9, "vm/10": 10}}, "[0 1 2 3 4 5 6 7 8 9 10]"},
		{"lists", [4]int{1, 4, 1, 1}, study.Cell{Parts: []study.Part{part("a", "0-1"), part("b", "2;3")}}, "[0-1] [2 3]"},
		{"lists by placement", [4]int{1, 4, 1, 1}, study.Cell{Parts: []study.Part{part("a", "")}, Place: study.Placement{CPUs: map[string]string{"a": "3"}}}, "[3]"},
		// The mappings are of two of eight cores, so "default" is on those two as well.
		{"default", [4]int{2, 4, 2, 1}, study.Cell{Parts: []study.Part{{Role: "vm1", Cores: 2}, {Role: "other", Slots: 1}}, Place: study.Placement{Name: study.Unpinned, Relation: "neutral"}}, "[0-1,8-9] [0-15]"},
		{"default of too few", [4]int{1, 1, 2, 1}, study.Cell{Parts: []study.Part{{Role: "vm1", Cores: 2}}}, "placement default needs 2 cores, this machine has 1"},
		// Two instances of two virtual CPUs each have one core each; two threads on metal
		// have any. A third instance of three has the rest of the first package.
		{"packed", [4]int{2, 4, 2, 1}, study.Cell{Place: study.Placement{Relation: study.Packed}, Parts: []study.Part{guest(study.QEMU, 2), guest(study.QEMU, 2), guest(study.LXC, 4)}}, "[0 8] [1 9] [2-3,10-11]"},
		{"metal next to packed", [4]int{2, 4, 2, 1}, study.Cell{Place: study.Placement{Relation: study.Packed}, Parts: []study.Part{guest(study.Bare, 2)}}, "[0-15]"},
		{"packed too full", [4]int{1, 2, 2, 1}, study.Cell{Place: study.Placement{Relation: study.Packed}, Parts: []study.Part{guest(study.QEMU, 2), guest(study.Xen, 4)}}, "placement packed needs 6 CPUs, this machine has 4"},
		{"no such CPU", [4]int{1, 2, 1, 1}, study.Cell{Parts: []study.Part{part("a", "7")}}, `placement "7" of a needs CPU 7, this machine has the CPUs 0-1`},
	} {
		top, all := server(c.shape[0], c.shape[1], c.shape[2], c.shape[3])
		sets, err := Resolve(top, all, &c.cell)
		got := strings.Trim(fmt.Sprint(sets), "[]")
		got = "[" + strings.ReplaceAll(got, "] [", "] [") + "]"
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

func TestDynamic(t *testing.T) {
	d := NewDynamic(study.Dynamic{Below: "per-thread", Above: "per-chip", At: 0.5, Hysteresis: 0.1})
	for i, step := range []struct {
		load    float64
		want    string
		changed bool
	}{
		{0.2, "per-thread", false}, {0.5, "per-thread", false}, {0.51, "per-chip", true}, {0.45, "per-chip", false},
		{0.4, "per-chip", false}, {0.39, "per-thread", true}, {0.45, "per-thread", false}, {0.9, "per-chip", true},
	} {
		if got, changed := d.Update(step.load); got != step.want || changed != step.changed {
			t.Errorf("step %d, load %g: %s, %t", i, step.load, got, changed)
		}
	}
}
