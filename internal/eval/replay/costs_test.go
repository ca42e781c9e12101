package replay

import (
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Each of many costs has the same probability to be kept.
func TestCostsAreAnEvenChoice(t *testing.T) {
	c := costs{}
	j := c.find("job", "cpi")
	const n = 20 * costsKept
	for i := range n {
		j.add(markOf("m", "/a", sample.Millis(i)), float64(i))
	}
	for i := range 2 * costJobs {
		c.find(sample.JobName(rune('a'+i)), "cpi")
	}
	all := listCosts(c)
	if len(all) != costJobs || all[0].Job != "job" {
		t.Fatalf("%d jobs, the first %s", len(all), all[0].Job)
	}
	sum := 0.0
	for _, v := range all[0].Values {
		sum += v
	}
	mean, sd := sum/costsKept, n/math.Sqrt(12*costsKept)
	if len(all[0].Values) != costsKept || all[0].Seen != n || math.Abs(mean-n/2) > 4*sd {
		t.Errorf("%d of %d, mean %v, want %v ± %v", len(all[0].Values), all[0].Seen, mean, n/2, sd)
	}
}

// TestMergeCosts: machines that are played apart give the costs that they give together, each in
// proportion to its samples.
func TestMergeCosts(t *testing.T) {
	together := costs{}
	var parts [][]Costs
	for m, n := range []int{10 * costsKept, costsKept / 2, 1} {
		apart := costs{}
		for i := range n {
			mark := markOf(string(rune('a'+m)), "/a", sample.Millis(i))
			apart.find("job", "cpi").add(mark, float64(m))
			together.find("job", "cpi").add(mark, float64(m))
		}
		apart.find("other", "cpi").add(markOf("m", "/a", sample.Millis(m)), float64(m))
		together.find("other", "cpi").add(markOf("m", "/a", sample.Millis(m)), float64(m))
		parts = append(parts, listCosts(apart))
	}
	want := listCosts(together)
	got := mergeCosts(mergeCosts(parts[2], parts[0]), parts[1])
	if len(got) != 2 || len(want) != 2 {
		t.Fatalf("%d and %d jobs", len(got), len(want))
	}
	for i := range want {
		if got[i].Job != want[i].Job || got[i].Seen != want[i].Seen || !slices.Equal(got[i].Values, want[i].Values) {
			t.Errorf("%s: %d values of %d, want %s: %d of %d, and the same", got[i].Job, len(got[i].Values), got[i].Seen, want[i].Job, len(want[i].Values), want[i].Seen)
		}
	}
	few := 0
	for _, v := range got[0].Values {
		if v == 1 {
			few++
		}
	}
	if share := float64(few) / costsKept; len(got[0].Values) != costsKept || math.Abs(share-0.5/10.5) > 0.01 {
		t.Errorf("%.3f are of the machine with one in 21 samples", share)
	}
}

// A player's memory does not grow with the length of a recording.
func TestMemoryIsBounded(t *testing.T) {
	held := func(minutes int) uint64 {
		o := byDefault(t, detect.Quell)
		o.Costs = true
		p := New(o)
		samples, _ := noisy(4, 100, 0, 0)
		for at := range minutes {
			for i := range 16 {
				s := samples[i]
				s.TS = sample.Millis(at) * minute
				p.Add(&s)
			}
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		runtime.KeepAlive(p)
		return m.HeapAlloc
	}
	held(5_000)
	if short, long := held(5_000), held(25_000); float64(long) > 1.2*float64(short) {
		t.Errorf("%d bytes after 5,000 minutes, %d after 25,000", short, long)
	}
}
