package replay

import (
	"math"
	"runtime"
	"testing"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Each of many costs has the same probability to be kept.
func TestCostsAreAnEvenChoice(t *testing.T) {
	c := newCosts()
	j := c.find("job", "cpi")
	const n = 20 * costsKept
	for i := range n {
		c.add(j, float64(i))
	}
	sum := 0.0
	for _, v := range j.Values {
		sum += v
	}
	mean, sd := sum/costsKept, n/math.Sqrt(12*costsKept)
	if len(j.Values) != costsKept || j.Seen != n || math.Abs(mean-n/2) > 4*sd {
		t.Errorf("%d of %d, mean %v, want %v ± %v", len(j.Values), j.Seen, mean, n/2, sd)
	}
	for i := range 2 * costJobs {
		c.find(sample.JobName(rune('a'+i)), "cpi")
	}
	if len(listCosts(c.of)) != costJobs || listCosts(c.of)[0].Job != "job" {
		t.Errorf("%d jobs, the first %s", len(listCosts(c.of)), listCosts(c.of)[0].Job)
	}
}

func TestMergeCosts(t *testing.T) {
	got := mergeCosts([]Costs{{Job: "a", Values: []float64{1}, Seen: 1}}, []Costs{{Job: "b", Values: []float64{2, 3, 4}, Seen: 3}, {Job: "a", Values: []float64{5}, Seen: 9}})
	if len(got) != 2 || got[0].Job != "a" || got[0].Seen != 10 || len(got[0].Values) != 2 || got[1].Job != "b" {
		t.Errorf("%+v", got)
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
