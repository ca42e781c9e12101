package detect

import (
	"math/rand/v2"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// A wait over the threshold counts in full, unless units of the task's own work take no
// longer because of it.
func TestAWaitThatCostsNoWork(t *testing.T) {
	const limit = 0.3
	type stretch struct {
		n            int
		waited, took float64
	}
	calm := stretch{30, 0.2, 1.6e-3}
	for _, c := range []struct {
		name     string
		noise    float64
		story    []stretch
		unharmed bool // after the last interval
	}{
		{"it runs faster by as much as it waits", 0.1, []stretch{calm, {5, 0.7, 1.13e-3}}, true},
		{"it runs as fast and waits", 0.1, []stretch{calm, {1, 0.7, 1.6e-3}}, false},
		{"it runs a little faster", 0.1, []stretch{calm, {3, 1.0, 1.4e-3}}, false},
		{"a unit takes a little longer, at first", 0.1, []stretch{calm, {1, 0.7, 1.2e-3}}, true},
		{"a unit takes a little longer for long", 0.1, []stretch{calm, {12, 0.7, 1.2e-3}}, false},
		{"long after a wait that cost nothing it is slower", 0.1, []stretch{calm, {200, 0.7, 1.13e-3}, {5, 0.7, 1.6e-3}}, false},
		{"its work became half as large before", 0.1, []stretch{calm, {30, 0.2, 0.8e-3}, {5, 0.7, 0.8e-3}}, false},
		{"its work is not counted", 0, []stretch{{30, 0.2, 0}, {5, 0.7, 0}}, false},
		{"its work was not counted for long", 0.1, []stretch{{3, 0.2, 1.6e-3}, {5, 0.7, 1.13e-3}}, false},
		{"never a calm interval", 0.1, []stretch{{20, 0.7, 1.13e-3}}, false},
	} {
		rng := rand.New(rand.NewPCG(3, 4))
		var u unit
		var unharmed bool
		for _, s := range c.story {
			for range s.n {
				took := s.took
				if s.waited <= limit {
					took *= 1 + c.noise*(2*rng.Float64()-1)
				}
				unharmed = u.unharmed(s.waited, took, limit)
			}
		}
		if unharmed != c.unharmed {
			t.Errorf("%s: unharmed %v", c.name, unharmed)
		}
	}
}

// A task that waits behind a neighbour and does as much work as before is no victim, and
// its wait does not train the spec. Once its work takes longer it is a victim.
func TestNoVictimByItsOwnWork(t *testing.T) {
	d := New(evident(t))
	work, queue := signal(t, sample.CPT), signal(t, sample.RunQ)
	first := 0
	for m := 1; m <= 100; m++ {
		waited, took, use := 0.2, 1.6e-3, 0.1
		switch {
		case m > 80:
			waited, use = 0.7, 0.9
		case m > 40 && m <= 60:
			waited, took, use = 0.7, 1.13e-3, 0.9
		}
		at := sample.Millis(m) * minute
		row := func(cost float64, normal *spec.Spec) []Reading {
			return []Reading{victim(1, cost).with(func(r *Reading) { r.Spec, r.Rate = normal, 100 }), suspect(2, use)}
		}
		d.Observe(work, at, row(took, ready(1.6e-3, 0.1e-3)))
		v := d.Observe(queue, at, row(waited, ready(0.2, 0.02)))[0]
		if outlier, teaches := m > 80, m <= 40 || m > 60; v.Outlier != outlier || v.Sane != teaches {
			t.Errorf("interval %d: %+v", m, v)
		}
		for _, f := range drain(d, at) {
			if first == 0 {
				first = m
			}
			if f.Antagonists == 0 {
				t.Errorf("interval %d: no suspect is named: %+v", m, f)
			}
		}
	}
	if first < 81 || first > 85 {
		t.Errorf("found in interval %d", first)
	}
}
