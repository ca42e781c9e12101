package stat

import (
	"cmp"
	"math"
	"slices"
)

// Sketch is a distribution of values that are not negative, with a relative accuracy: values in one bin
// count as equal. It is DDSketch (Masson, Rim and Lee, PVLDB 12(12), 2019) with the linearly
// interpolated logarithm and 64 bins for each doubling; a bin is the first bits of a float32. Sketches
// of disjoint sets of values can be aged and merged without loss. The zero value is empty.
type Sketch struct {
	bins []SketchBin // ordered by Bin
}

// SketchBin is one bin of a Sketch.
type SketchBin struct {
	Bin   int32   // BinOf of its values
	Count float64 // their weight
}

const (
	// binShift drops all bits of a float32 but sign, exponent and six of the mantissa.
	binShift = 17
	// Bins is more than any bin number.
	Bins = 1 << (31 - binShift)
	// SketchAccuracy is the greatest relative error of a quantile: half a bin. The widest
	// bin is 1/64 of its lower end.
	SketchAccuracy = 1.0 / 128
)

// BinOf is the bin of a value ≥ 0.
func BinOf(x float32) int32 {
	if x == 0 { // also −0
		return 0
	}
	return int32(math.Float32bits(x) >> binShift)
}

// binMiddle is the middle of a bin; 0 for the bin that holds 0.
func binMiddle(bin int32) float64 {
	if bin == 0 {
		return 0
	}
	lo := float64(math.Float32frombits(uint32(bin) << binShift))
	hi := float64(math.Float32frombits(uint32(bin+1) << binShift))
	if math.IsInf(hi, 1) {
		return lo
	}
	return (lo + hi) / 2
}

// Add adds a value with a weight > 0. NaN, infinite and negative values are left out.
func (s *Sketch) Add(x float32, w float64) {
	if x >= 0 && !math.IsInf(float64(x), 1) {
		s.AddBin(BinOf(x), w)
	}
}

// AddBin adds values of a bin. Bins that come in ascending order need no search.
func (s *Sketch) AddBin(bin int32, w float64) {
	if n := len(s.bins); n == 0 || s.bins[n-1].Bin < bin {
		s.bins = append(s.bins, SketchBin{bin, w})
		return
	}
	i, found := slices.BinarySearchFunc(s.bins, bin, func(b SketchBin, bin int32) int { return cmp.Compare(b.Bin, bin) })
	if found {
		s.bins[i].Count += w
		return
	}
	s.bins = slices.Insert(s.bins, i, SketchBin{bin, w})
}

// Merge adds all values of o, each with w times its weight.
func (s *Sketch) Merge(o *Sketch, w float64) {
	if len(o.bins) == 0 {
		return
	}
	merged := make([]SketchBin, 0, len(s.bins)+len(o.bins))
	a, b := s.bins, o.bins
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].Bin < b[0].Bin:
			merged, a = append(merged, a[0]), a[1:]
		case len(a) == 0 || b[0].Bin < a[0].Bin:
			merged, b = append(merged, SketchBin{b[0].Bin, w * b[0].Count}), b[1:]
		default:
			merged = append(merged, SketchBin{a[0].Bin, a[0].Count + w*b[0].Count})
			a, b = a[1:], b[1:]
		}
	}
	s.bins = merged
}

// Bins returns the non-empty bins in order. The slice is the sketch's own.
func (s *Sketch) Bins() []SketchBin { return s.bins }

// total is the weight of all values.
func (s *Sketch) total() (total float64) {
	for _, b := range s.bins {
		total += b.Count
	}
	return total
}

// MeanStdDev returns the values' mean and standard deviation, each bin's values at its middle.
func (s *Sketch) MeanStdDev() (mean, sd float64) {
	var m Moments
	for _, b := range s.bins {
		m.Add(binMiddle(b.Bin), b.Count)
	}
	return m.Mean, math.Sqrt(m.M2 / m.W)
}

// Quantile is the value that a share p of the weight is at or below, within
// SketchAccuracy of it; NaN if the sketch is empty.
func (s *Sketch) Quantile(p float64) float64 {
	total := s.total()
	if !(total > 0) {
		return math.NaN()
	}
	sum := 0.0
	for _, b := range s.bins {
		// Rounding of the sum must not make the last bin unreachable.
		if sum += b.Count; sum >= p*total*(1-1e-12) {
			return binMiddle(b.Bin)
		}
	}
	return binMiddle(s.bins[len(s.bins)-1].Bin)
}
