package placement

import (
	"fmt"
	"slices"
)

// MaxMisses, a second, and the largest loss are beyond any machine.
const (
	MaxMisses      = 1e15
	maxDegradation = 1e6
)

// model gives the losses of tasks that share a machine.
type model struct {
	measured map[[2]string]float64 // by victim and neighbour
	mean     float64               // of the measured losses
	slope    float64               // loss per product of misses
	fits     bool                  // the slope is known
}

// newModel processes the measurements. The slope is that of a least-squares line through the origin,
// over measured pairs whose misses are known. Without such pairs, misses only tell which pairs lose
// more than others, and the slope gives the largest product a loss of 1.
func newModel(tasks []Task, measured []Degradation) (*model, error) {
	m := &model{measured: map[[2]string]float64{}}
	misses, most := map[string]float64{}, 0.0
	for _, t := range tasks {
		switch had, twice := misses[t.Name]; {
		case !(t.Misses <= MaxMisses):
			return nil, fmt.Errorf("task %s: misses %v: want a number up to %g", t.Name, t.Misses, float64(MaxMisses))
		case twice && had != t.Misses:
			return nil, fmt.Errorf("task %s: misses %v and %v: want one number for all of a name", t.Name, had, t.Misses)
		}
		misses[t.Name] = t.Misses
		most = max(most, t.Misses)
	}
	var xy, xx float64
	for _, d := range measured {
		k := [2]string{d.Victim, d.Neighbour}
		switch _, twice := m.measured[k]; {
		case !(d.Ratio > -1 && d.Ratio <= maxDegradation):
			return nil, fmt.Errorf("degradation of %s next to %s: %v: want a number above -1, up to %g", d.Victim, d.Neighbour, d.Ratio, float64(maxDegradation))
		case twice:
			return nil, fmt.Errorf("degradation of %s next to %s is given twice", d.Victim, d.Neighbour)
		}
		m.measured[k] = d.Ratio
		m.mean += d.Ratio / float64(len(measured))
		a, known := misses[d.Victim]
		b, too := misses[d.Neighbour]
		if known && too && a >= 0 && b >= 0 {
			xy, xx = xy+a*b*d.Ratio, xx+a*b*a*b
		}
	}
	switch {
	case xx > 0:
		m.slope, m.fits = max(0, xy/xx), true
	case most > 0:
		m.slope = 1 / (most * most)
	}
	return m, nil
}

// loss is what two tasks on one machine lose, summed.
func (m *model) loss(a, b Task) (float64, Basis) {
	x, basis := m.direction(a, b)
	y, other := m.direction(b, a)
	if rank(other) > rank(basis) {
		basis = other
	}
	return x + y, basis
}

func (m *model) direction(victim, neighbour Task) (float64, Basis) {
	if by, ok := m.measured[[2]string{victim.Name, neighbour.Name}]; ok {
		return by, Measured
	}
	if victim.Misses >= 0 && neighbour.Misses >= 0 && (m.fits || len(m.measured) == 0) {
		return m.slope * victim.Misses * neighbour.Misses, Misses
	}
	return m.mean, Unknown
}

// rank is higher for a worse basis.
func rank(b Basis) int { return slices.Index([]Basis{Measured, Misses, Unknown}, b) }
