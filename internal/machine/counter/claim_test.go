package counter

import (
	"maps"
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
