package counter

import (
	"maps"
	"math/rand/v2"
	"testing"
)

func TestAssign(t *testing.T) {
	outer := Claim[string]{"outer", 10, []uint64{20, 21, 30, 31}}
	inner := Claim[string]{"inner", 20, []uint64{30, 31}}
	innermost := Claim[string]{"innermost", 30, nil}
	other := Claim[string]{"other", 40, []uint64{41}}
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
	a, b := Claim[string]{"a", 1, []uint64{10, 11}}, Claim[string]{"b", 2, nil}
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
