package counter

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

func TestAssign(t *testing.T) {
	outer := Claim[string]{Owner: "outer", ID: 10, Below: []uint64{20, 21, 30, 31}}
	inner := Claim[string]{Owner: "inner", ID: 20, Below: []uint64{30, 31}}
	innermost := Claim[string]{Owner: "innermost", ID: 30, Below: nil}
	other := Claim[string]{Owner: "other", ID: 40, Below: []uint64{41}}
	want := map[uint64]string{10: "outer", 21: "outer", 20: "inner", 31: "inner", 30: "innermost", 40: "other", 41: "other"}
	claims := []Claim[string]{outer, inner, innermost, other}
	for range claims { // in any order
		claims = append(claims[1:], claims[0])
		if got := Assign(claims); !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	if got := Assign[string](nil); len(got) != 0 {
		t.Errorf("no task owns %v", got)
	}
}

// A task with more cgroups than there is room for takes no other task's place, and gets what
// the others leave.
func TestAssignUpTo(t *testing.T) {
	hostile := Claim[string]{Owner: "hostile", ID: 1000}
	for id := range uint64(20_000) {
		hostile.Below = append(hostile.Below, 1001+id)
	}
	a, b := Claim[string]{Owner: "a", ID: 1, Below: []uint64{10, 11}}, Claim[string]{Owner: "b", ID: 2, Below: nil}
	for _, claims := range [][]Claim[string]{{hostile, a, b}, {b, hostile, a}, {a, b, hostile}} {
		owned, crowded := AssignUpTo(claims, 100)
		n := map[string]int{}
		for _, owner := range owned {
			n[owner]++
		}
		if want := map[string]int{"a": 3, "b": 1, "hostile": 96}; !maps.Equal(n, want) || !maps.Equal(crowded, map[string]bool{"hostile": true}) {
			t.Errorf("places %v, crowded %v; want %v", n, crowded, want)
		}
		if owned[1000] != "hostile" || owned[1001] != "hostile" {
			t.Error("not those nearest to the task")
		}
	}
	if owned, crowded := AssignUpTo([]Claim[string]{a, b}, 4); len(owned) != 4 || len(crowded) != 0 {
		t.Errorf("all fit: %v, crowded %v", owned, crowded)
	}
}

// A task that has more cgroups than were listed is named, and what is known is its own, also inside
// another such task.
func TestClaimOfACrowdedTask(t *testing.T) {
	target := func(inode uint64, dir string, below []uint64, err error) *Target {
		return &Target{Key: sample.TaskKey{Inode: inode}, Dir: dir, Below: func() ([]uint64, error) { return below, err }}
	}
	crowded := fmt.Errorf("list: %w", host.ErrCrowded)
	outer, ok := ClaimOf(target(10, "/a", []uint64{20, 21, 22}, crowded), "outer")
	if !ok || !outer.Partial || len(outer.Below) != 3 {
		t.Fatalf("%+v, %v", outer, ok)
	}
	inner, ok := ClaimOf(target(20, "/a/b", []uint64{21, 22, 23}, crowded), "inner")
	if !ok {
		t.Fatal("inner has no claim")
	}
	if _, ok := ClaimOf(target(30, "/c", nil, os.ErrPermission), "unknown"); ok {
		t.Error("a claim without knowing the cgroups")
	}
	id := func(inode uint64) uint64 { return sample.TaskKey{Inode: inode}.CgroupID() }
	want := map[uint64]string{id(10): "outer", id(20): "inner", id(21): "inner", id(22): "inner", id(23): "inner"}
	for _, claims := range [][]Claim[string]{{outer, inner}, {inner, outer}} {
		owned, named := AssignUpTo(claims, 100)
		if !maps.Equal(owned, want) || !maps.Equal(named, map[string]bool{"outer": true, "inner": true}) {
			t.Errorf("owned %v, named %v", owned, named)
		}
	}
}

// Whatever is claimed: no more than fits is kept, all of it is Assign's, no room is left while
// a claim lacks some, and a claim lacks nothing that another has more of.
func TestAssignUpToIsFair(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for range 500 {
		claims, next := []Claim[int]{}, uint64(1)
		for owner := range 1 + random.IntN(8) {
			c := Claim[int]{Owner: owner, ID: next}
			for range random.IntN(30) {
				next++
				c.Below = append(c.Below, next)
			}
			next++
			claims = append(claims, c)
		}
		most := len(claims) + random.IntN(120)
		all := Assign(claims)
		owned, crowded := AssignUpTo(claims, most)
		n := make([]int, len(claims))
		for id, owner := range owned {
			if n[owner]++; all[id] != owner {
				t.Fatalf("seed %d: %d belongs to %d", seed, id, owner)
			}
		}
		if len(owned) > most || len(owned) != min(most, len(all)) {
			t.Fatalf("seed %d: %d of %d are kept, there is room for %d", seed, len(owned), len(all), most)
		}
		for i, c := range claims {
			lacks := n[i] < 1+len(c.Below)
			if lacks != crowded[i] {
				t.Fatalf("seed %d: claim %d has %d of %d, crowded %v", seed, i, n[i], 1+len(c.Below), crowded[i])
			}
			for j := range claims {
				if lacks && n[j] > n[i]+1 {
					t.Fatalf("seed %d: claim %d has %d and lacks some, claim %d has %d", seed, i, n[i], j, n[j])
				}
			}
		}
	}
}
