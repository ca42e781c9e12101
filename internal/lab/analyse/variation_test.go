package analyse

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// instance is a run of a part on an instance, whose iterations take the given seconds.
func instance(name, size string, better string, rep int, seconds float64) result.Run {
	r := dosed(size, "busy", 0, 2, rep, seconds)
	r.Cell.Levels = []study.Level{{Factor: "size", Value: size}, {Factor: "instance", Value: name}}
	r.Cell.Parts[0].Workload.Metric.Better = better
	return r
}

func TestVariations(t *testing.T) {
	var runs []result.Run
	for rep, e := range []float64{0.999, 1, 1.001} {
		for i, seconds := range []float64{7.5, 7, 7.7} { // the paper's three levels
			runs = append(runs, instance(fmt.Sprint("i", i), "large", "lower", rep, e*seconds), instance(fmt.Sprint("i", i), "xlarge", "higher", rep, e*seconds))
		}
		runs = append(runs, instance("i0", "alone", "lower", rep, e))
	}
	vs := Variations(runs, "instance", 1)
	if len(vs) != 2 {
		t.Fatalf("%d variations: %+v", len(vs), vs)
	}
	for _, v := range vs {
		var names []string
		for _, i := range v.Instances {
			names = append(names, i.Name)
			if !(i.Value.Low < i.Value.Value && i.Value.Value < i.Value.High && i.Value.N == 3) {
				t.Errorf("%s: %+v", i.Name, i.Value)
			}
		}
		// For rates the order of the instances is the same: the iterations take the
		// same seconds in both cases.
		if !slices.Equal(names, []string{"i1", "i0", "i2"}) || math.Abs(float64(v.Span)-10) > 1e-6 {
			t.Errorf("%v: %v, span %g", v.Levels, names, v.Span)
		}
		if s := v.Instances[0].Slower; math.Abs(s-100*(7/7.5-1)) > 1e-3 || v.Instances[1].Slower != 0 {
			t.Errorf("the fastest is slower by %g %%", s)
		}
		// Three instances: σ of ln 7, ln 7.5, ln 7.7 is 4.9 %.
		if math.Abs(v.Between.Value-5.0) > 0.1 || v.P > 1e-6 || math.Abs(float64(v.Within)-0.1) > 0.01 || v.Between.Low < 2 || v.Between.High < 20 {
			t.Errorf("%v: between %+v, within %g, p %g", v.Levels, v.Between, v.Within, v.P)
		}
	}
	// One run of each: the deviation between runs is unknown.
	once := slices.DeleteFunc(runs, func(r result.Run) bool { return r.N > 0 })
	if v := Variations(once, "instance", 1); len(v) != 2 || !math.IsNaN(float64(v[0].P)) || !math.IsNaN(float64(v[0].Within)) || v[0].Between.Value < 4.9 ||
		v[0].Between.Method != "chi-squared over instances; includes variation between equal runs" {
		t.Errorf("one run each: %+v", v)
	}
	same := []result.Run{instance("a", "x", "lower", 0, 2), instance("b", "x", "lower", 0, 2), instance("a", "x", "lower", 1, 2), instance("b", "x", "lower", 1, 2)}
	if v := Variations(same, "instance", 1)[0]; v.Between.Value != 0 || v.Between.High != 0 || v.P != 1 || v.Span != 0 {
		t.Errorf("all equal: %+v", v)
	}
	apart := []result.Run{instance("a", "x", "lower", 0, 2), instance("b", "x", "lower", 0, 3), instance("a", "x", "lower", 1, 2), instance("b", "x", "lower", 1, 3)}
	if v := Variations(apart, "instance", 1)[0]; v.P != 0 || v.Between.Value < 20 {
		t.Errorf("each as it was: %+v", v)
	}
}

// The interval contains the truth as often as its level says; without a true difference
// it contains 0 as often.
func TestVariationCovers(t *testing.T) {
	const rounds = 1000
	for _, c := range []struct {
		instances, runs int
		between, within float64
	}{{20, 3, 0.05, 0.02}, {5, 4, 0.01, 0.01}, {50, 2, 0, 0.02}, {10, 1, 0.05, 0}} {
		r := rand.New(rand.NewPCG(1, uint64(c.instances)))
		covered, zero, found := 0, 0, 0
		for range rounds {
			groups := make([][]float64, c.instances)
			for i := range groups {
				at := c.between * r.NormFloat64()
				for range c.runs {
					groups[i] = append(groups[i], at+c.within*r.NormFloat64())
				}
			}
			i, _, p := between(groups)
			if truth := deviation(c.between * c.between); i.Low <= truth && truth <= i.High {
				covered++
			}
			if i.Low == 0 {
				zero++
			}
			if p < 0.05 {
				found++
			}
		}
		if share := float64(covered) / rounds; share < 0.935 || share > 0.985 {
			t.Errorf("%+v: the truth is in %.3f of the intervals", c, share)
		}
		if c.between == 0 && (found > 70 || zero < 930) {
			t.Errorf("%+v: %d of %d found a difference, %d intervals have 0", c, found, rounds, zero)
		}
	}
}

// The sizes of groups need not be equal.
func TestVariationOfUnequalGroups(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 0))
	covered := 0
	const rounds = 500
	for range rounds {
		var groups [][]float64
		for i := range 20 {
			at := 0.05 * r.NormFloat64()
			var g []float64
			for range 2 + i%4 {
				g = append(g, at+0.02*r.NormFloat64())
			}
			groups = append(groups, g)
		}
		if i, _, _ := between(groups); i.Low <= deviation(0.0025) && deviation(0.0025) <= i.High {
			covered++
		}
	}
	if share := float64(covered) / rounds; share < 0.92 {
		t.Errorf("the truth is in %.3f of the intervals", share)
	}
}
