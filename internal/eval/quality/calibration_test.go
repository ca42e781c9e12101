package quality

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// Accurate probabilities have slope 1 and no error; overconfident ones have a lower slope,
// and a confidence interval without 1.
func TestCalibrate(t *testing.T) {
	draw := func(boldness float64) (all []Forecast) {
		rng := rand.New(rand.NewPCG(5, 6))
		for i := range 2000 {
			z := 6*rng.Float64() - 3
			all = append(all, Forecast{P: 1 / (1 + math.Exp(-boldness*z)), Right: rng.Float64() < 1/(1+math.Exp(-z)), Weight: 1, Group: fmt.Sprint(i / 3)})
		}
		return all
	}
	c, ok := Calibrate(draw(1))
	if !ok || c.N != 2000 || c.Low > 1 || c.High < 1 || c.High-c.Low > 0.3 || c.Error > 0.03 {
		t.Errorf("true ones: %v, %+v", ok, c)
	}
	c, ok = Calibrate(draw(2))
	if !ok || math.Abs(c.Slope-0.5) > 0.05 || c.Low > 0.5 || c.High < 0.5 || c.High > 0.7 || c.Error < 0.08 {
		t.Errorf("bold ones: %v, %+v", ok, c)
	}
	var b strings.Builder
	if err := c.Write(&b); err != nil || strings.Count(b.String(), "\n") != 12 {
		t.Errorf("%v\n%s", err, b.String())
	}
	// A forecast that is repeated a hundred times counts as one.
	var all []Forecast
	for i := range 200 {
		all = append(all, Forecast{P: 0.75, Right: i >= 100 || i%4 != 0, Weight: 1, Group: "a"})
		if i >= 100 {
			all[i].Weight = 1e-6
		}
	}
	if c, _ := Calibrate(all); c.Error > 0.01 {
		t.Errorf("%+v", c)
	}
	for _, all := range [][]Forecast{nil, {{P: 0.5, Right: true, Weight: 1}}, {{P: 0, Weight: 1}, {P: 1, Weight: 1}}} {
		if c, ok := Calibrate(all); ok {
			t.Errorf("%v: %+v", all, c)
		}
	}
}
