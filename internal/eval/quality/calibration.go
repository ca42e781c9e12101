package quality

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/quell-dev/quell/internal/eval/stat"
)

// Forecast is a stated probability of a suspect, and whether it was an antagonist.
type Forecast struct {
	P     float64
	Right bool
	// Weight is less than 1 for each of several equal forecasts.
	Weight float64
	// Group is the group of the forecast, such as a victim of a scene: forecasts of one group
	// are not independent.
	Group string
}

// Calibration describes the accuracy of probabilities.
type Calibration struct {
	N int // forecasts
	// Slope is the factor that corrects the log odds, ideally 1, and Intercept the constant
	// to add after that, ideally 0 (Cox, Two further applications of a model for binary
	// regression, 1958). Low and High are the 95 % confidence interval of the slope, by
	// resampling groups of forecasts.
	Slope, Intercept, Low, High float64
	// Error is the expected calibration error: the mean, over tenths of the probability, of
	// the difference between the stated and the observed probability.
	Error float64
	// Expected is the Error that true probabilities would have with as few groups: chance
	// alone makes a difference.
	Expected float64
	Bins     [10]CalibrationBin
}

// CalibrationBin is one tenth of the range of probabilities.
type CalibrationBin struct {
	N              int     // forecasts
	Weight         float64 // total of their weights
	Stated, Actual float64 // means; NaN if there are none
}

// Calibrate compares stated with observed probabilities. ok is false if the slope cannot be
// estimated: too few forecasts, or all or none of them right.
func Calibrate(all []Forecast) (c Calibration, ok bool) {
	total := 0.0
	var right [10]float64
	var of []string
	groups := map[string][]Forecast{}
	for _, f := range all {
		b := min(9, int(f.P*10))
		bin := &c.Bins[b]
		bin.N++
		bin.Weight += f.Weight
		bin.Stated += f.Weight * f.P
		if f.Right {
			right[b] += f.Weight
		}
		total += f.Weight
		if groups[f.Group] == nil {
			of = append(of, f.Group)
		}
		groups[f.Group] = append(groups[f.Group], f)
	}
	c.N = len(all)
	// Forecasts of one group in one tenth are right or wrong together.
	var chance [10]float64
	for _, name := range of {
		var weight, stated [10]float64
		for _, f := range groups[name] {
			b := min(9, int(f.P*10))
			weight[b], stated[b] = weight[b]+f.Weight, stated[b]+f.Weight*f.P
		}
		for b, w := range weight {
			if p := stated[b] / w; w > 0 {
				chance[b] += w * w * p * (1 - p)
			}
		}
	}
	for i := range c.Bins {
		b := &c.Bins[i]
		c.Error += math.Abs(b.Stated-right[i]) / total
		c.Expected += math.Sqrt(2/math.Pi*chance[i]) / total // E|X| of a normal distribution
		b.Stated, b.Actual = b.Stated/b.Weight, right[i]/b.Weight
	}
	if c.Slope, c.Intercept, ok = recalibrate(all); !ok {
		return c, false
	}
	const draws = 400
	rng := rand.New(rand.NewPCG(1, 2))
	var slopes []float64
	for range draws {
		var drawn []Forecast
		for range of {
			drawn = append(drawn, groups[of[rng.IntN(len(of))]]...)
		}
		if slope, _, ok := recalibrate(drawn); ok {
			slopes = append(slopes, slope)
		}
	}
	if len(slopes) < draws/2 {
		return c, false
	}
	slices.Sort(slopes)
	c.Low, c.High = slopes[len(slopes)*25/1000], slopes[len(slopes)*975/1000]
	return c, true
}

func recalibrate(all []Forecast) (slope, intercept float64, ok bool) {
	var x [][]float64
	var y []bool
	var w []float64
	right, wrong := false, false
	for _, f := range all {
		p := min(max(f.P, 1e-3), 1-1e-3)
		x, y, w = append(x, []float64{math.Log(p / (1 - p))}), append(y, f.Right), append(w, f.Weight)
		right, wrong = right || f.Right, wrong || !f.Right
	}
	if !right || !wrong {
		return 0, 0, false
	}
	l, ok := stat.FitLogistic(x, y, w)
	if !ok {
		return 0, 0, false
	}
	return l.Coef[0], l.Intercept, true
}

// Write prints a diagram: for each tenth the stated and the observed probability, and a
// bar.
func (c *Calibration) Write(w io.Writer) error {
	var err error
	line := func(format string, args ...any) {
		if err == nil {
			_, err = fmt.Fprintf(w, format, args...)
		}
	}
	line("%d findings; slope %.2f (%.2f to %.2f), intercept %+.2f, calibration error %.3f (%.3f if they were true)\n", c.N, c.Slope, c.Low, c.High, c.Intercept, c.Error, c.Expected)
	line("stated actual findings\n")
	for _, b := range c.Bins {
		if b.N == 0 {
			continue
		}
		const width = 40
		bar := []byte("........................................")
		for i := range int(math.Round(b.Actual * width)) {
			bar[i] = '#'
		}
		bar[min(width-1, int(b.Stated*width))] = '|'
		line("%.3f  %.3f  %8d  %s\n", b.Stated, b.Actual, b.N, bar)
	}
	return err
}
