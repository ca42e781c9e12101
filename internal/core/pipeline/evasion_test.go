package pipeline_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Over three months of minutes no innocent task is named, whatever its pattern; an evader is
// within an hour.
func TestEvaders(t *testing.T) {
	const minutes = 91 * 24 * 60
	r := rand.New(rand.NewPCG(5, 6))
	ramp := 0.0
	for name, use := range map[string]func() (inside, outside float64){
		"/steady":   func() (float64, float64) { return 1, 1 },
		"/noisy":    func() (float64, float64) { return r.ExpFloat64(), r.ExpFloat64() },
		"/bursts":   func() (float64, float64) { return 50 * math.Floor(r.Float64()+0.02), 50 * math.Floor(r.Float64()+0.02) },
		"/idle":     func() (float64, float64) { return 0.001 * r.Float64(), 0.001 * r.Float64() },
		"/grows":    func() (float64, float64) { ramp += 1e-5; return ramp * r.Float64(), ramp * r.Float64() },
		"/unknown":  func() (float64, float64) { return math.NaN(), 4 },
		"/cautious": func() (float64, float64) { return 1.2 * r.Float64(), r.Float64() },
	} {
		p := pipeline.New(byRule(t, detect.Quell))
		task := sample.Task{Name: sample.TaskName(name)}
		for n := range minutes {
			if in, out := use(); p.Compare(&task, in, out) {
				t.Errorf("%s is named after %d minutes: %+v", name, n, p.Evaders())
				break
			}
		}
	}
	for name, use := range map[string]func() (inside, outside float64){
		"/evader":  func() (float64, float64) { return 0, 4 },
		"/clumsy":  func() (float64, float64) { return 0.2 + 0.2*r.Float64(), 4 * r.Float64() },
		"/pausing": func() (float64, float64) { return 0, 4 * math.Round(r.Float64()) },
	} {
		p := pipeline.New(byRule(t, detect.Quell))
		task := sample.Task{Name: sample.TaskName(name)}
		n := 0
		for in, out := use(); !p.Compare(&task, in, out); in, out = use() {
			if n++; n == 120 {
				break
			}
		}
		if all := p.Evaders(); n > 110 || len(all) != 1 || all[0].Task.Name != task.Name || all[0].Outside < 2*all[0].Inside {
			t.Errorf("%s after %d minutes: %+v", name, n, all)
		}
		for range 200 { // it stops that
			p.Compare(&task, 4, 1)
		}
		if all := p.Evaders(); len(all) != 0 {
			t.Errorf("still %+v", all)
		}
		p.Compare(&task, 0, 4)
		p.Forget(task.Key)
	}
}
