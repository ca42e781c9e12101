package agent

import (
	"errors"
	"math"
	"testing"
)

// weights are the cgroups' weights by path.
type weights map[string]float64

func (w weights) of(p string) (float64, error) {
	if v, ok := w[p]; ok {
		return v, nil
	}
	return 0, errors.New("it has none")
}

// A task's fair share is computed level by level, among the groups that want to run.
func TestFairShares(t *testing.T) {
	equal := weights{"/a": 100, "/b": 100, "/c": 100, "/d": 100}
	nested := weights{"/pod": 100, "/pod/a": 100, "/pod/b": 300, "/pod/b/x": 50, "/pod/b/y": 150, "/c": 200, "/d": 100, "/d/e": 7}
	for _, tt := range []struct {
		name    string
		weights weights
		victim  string
		others  []string
		want    []float64 // of the others
	}{
		{"two that are equal", equal, "/a", []string{"/b"}, []float64{0.5}},
		{"four", equal, "/a", []string{"/b", "/c", "/d"}, []float64{0.25, 0.25, 0.25}},
		{"absent groups do not count", equal, "/a", []string{"/c", "/d"}, []float64{1. / 3, 1. / 3}},
		{"weights", nested, "/c", []string{"/d"}, []float64{1. / 3}},
		{"in the same pod", nested, "/pod/a", []string{"/pod/b"}, []float64{0.75}},
		{"in the same pod, with another outside", nested, "/pod/a", []string{"/pod/b", "/c"}, []float64{0.25, 2. / 3}},
		{"deep, and across", nested, "/pod/a", []string{"/pod/b/x", "/pod/b/y", "/c"}, []float64{0.75 * 0.25 / 3, 0.75 * 0.75 / 3, 2. / 3}},
		{"a level with one branch shares nothing", nested, "/c", []string{"/pod/b/x", "/d/e"}, []float64{0.25, 0.25}},
		{"threads in a group that also has groups below it", nested, "/pod/b", []string{"/pod/b/y", "/c"}, []float64{1. / 3 * 150 / 250, 2. / 3}},
		{"a group without a known weight is left out", nested, "/c", []string{"/x", "/d"}, []float64{0, 1. / 3}},
		{"threads at the top", nested, "/c", []string{"/", "/d"}, []float64{0, 1. / 3}},
		{"a victim without a known weight", equal, "/x", []string{"/a"}, []float64{1}}, // the caller checks for that
	} {
		t.Run(tt.name, func(t *testing.T) {
			var gs cgroupTree
			for range 2 { // the second time with the state that the first has left
				victim := gs.enter(tt.victim, tt.weights.of)
				var others []*cgroupNode
				for _, p := range tt.others {
					others = append(others, gs.enter(p, tt.weights.of))
				}
				gs.contend(nil, []*cgroupNode{victim})
				gs.contend(victim, others)
				for i, g := range others {
					if got := gs.share(g); math.Abs(got-tt.want[i]) > 1e-12 {
						t.Errorf("%s: %v, want %v", tt.others[i], got, tt.want[i])
					}
				}
			}
		})
	}
}

func TestGroupsAreForgotten(t *testing.T) {
	var gs cgroupTree
	w := weights{"/pod": 100, "/pod/a": 100, "/pod/b": 300}
	a, b, again := gs.enter("/pod/a", w.of), gs.enter("/pod/b", w.of), gs.enter("/pod/a", w.of)
	if a != again || a.above != b.above || len(gs.byPath) != 3 {
		t.Fatalf("%d groups", len(gs.byPath))
	}
	w["/pod"] = 50
	if pod := gs.enter("/pod", w.of); pod != a.above || pod.weight != 50 {
		t.Errorf("weight %v after a change", pod.weight)
	}
	gs.leave(a)
	gs.leave(nil)
	gs.leave(a.above)
	if len(gs.byPath) != 3 {
		t.Errorf("%d groups, and all are used", len(gs.byPath))
	}
	gs.leave(again)
	gs.leave(b)
	if len(gs.byPath) != 0 {
		t.Errorf("%d groups are left", len(gs.byPath))
	}
	if gs.enter("/other/a", w.of).known() || gs.enter("/pod/none", w.of).known() || gs.enter("", w.of) != nil {
		t.Error("a weight is known, want none")
	}
}
