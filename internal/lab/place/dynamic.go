package place

import "github.com/quell-dev/quell/internal/lab/study"

// Dynamic selects one of two relations by a role's load, with hysteresis (paper 003,
// section IV-C: per-thread below about half background load, per-chip above).
type Dynamic struct {
	of    study.Dynamic
	above bool
}

// NewDynamic returns a Dynamic that starts below the threshold.
func NewDynamic(d study.Dynamic) *Dynamic { return &Dynamic{of: d} }

// Update takes the role's load, a share of its CPUs, and returns the present relation
// and whether it has changed.
func (d *Dynamic) Update(load float64) (relation string, changed bool) {
	was := d.above
	switch {
	case load > float64(d.of.At):
		d.above = true
	case load < float64(d.of.At-d.of.Hysteresis):
		d.above = false
	}
	if d.above {
		return d.of.Above, d.above != was
	}
	return d.of.Below, d.above != was
}
