package analyse

import (
	"math"

	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Noise is the difference between equal runs.
type Noise struct {
	Pairs int `json:"pairs"`
	// Deviation is the standard deviation of one run, as a share of its mean, from the
	// differences of the pairs' logarithms.
	Deviation float64 `json:"deviation"`
	// Floor is the 95 % bound of the relative difference of two single runs that do not
	// differ in anything.
	Floor float64 `json:"floor"`
	// Detectable is the smallest difference of two cells' means, each over Repetitions
	// runs, that is found with a power of 80 % at the 5 % level.
	Detectable  float64 `json:"detectable"`
	Repetitions int     `json:"repetitions"`
}

// NoiseFloor uses the A-A pairs or, if there are none, the repetitions of equal cells;
// false if there is neither.
func NoiseFloor(runs []result.Run, repetitions int) (Noise, bool) {
	good := valid(runs)
	var squares []float64 // of differences of logarithms of equal runs
	differ := func(a, b *result.Run) {
		for _, p := range a.Cell.Parts {
			x, y := partOf(a, p.Name()), partOf(b, p.Name())
			if !p.Measure || x == nil || y == nil {
				continue
			}
			if d := math.Log(total(figure(a, x, &p.Workload.Metric)) / total(figure(b, y, &p.Workload.Metric))); finite(d) {
				squares = append(squares, d*d)
			}
		}
	}
	for _, g := range byCell(good, study.AA) {
		for i := range g {
			for j := range i {
				if g[i].N/2 == g[j].N/2 { // a pair is 2k and 2k+1
					differ(g[i], g[j])
				}
			}
		}
	}
	if len(squares) == 0 {
		for _, g := range byCell(good, study.Main) {
			for i := 1; i < len(g); i++ {
				differ(g[i-1], g[i])
			}
		}
	}
	if len(squares) == 0 {
		return Noise{}, false
	}
	n := Noise{Pairs: len(squares), Repetitions: max(repetitions, 1)}
	pair := math.Sqrt(stat.Mean(squares)) // of a difference of two runs
	n.Deviation = pair / math.Sqrt2
	n.Floor = math.Expm1(tQuantile(float64(len(squares))) * pair)
	df := float64(len(squares)) // of the deviation, for every use of it
	power := student(df).Quantile(0.8)
	n.Detectable = math.Expm1((tQuantile(df) + power) * n.Deviation * math.Sqrt(2/float64(n.Repetitions)))
	return n, true
}
