package pipeline_test

import (
	"fmt"
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

// An evader that restarts before it is named, as another cgroup of the same job, goes on with the bet; an
// innocent job whose tasks live for a few minutes is not named.
func TestAttackAnEvaderThatRestarts(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	named := func(periods, life int, use func() (inside, outside float64)) int {
		p := pipeline.New(byRule(t, detect.Quell))
		for n := range periods {
			task := sample.Task{Key: sample.TaskKey{Inode: uint64(n/life + 1)}, Name: sample.TaskName(fmt.Sprint("/pod/", n/life)), Job: "miner"}
			if in, out := use(); p.Compare(&task, in, out) {
				return n
			}
			if n%life == life-1 {
				p.Forget(task.Key)
			}
		}
		return -1
	}
	for _, life := range []int{1, 3, 20} {
		if n := named(200, life, func() (float64, float64) { return 0.1 * r.Float64(), 4 }); n < 0 || n > 60 {
			t.Errorf("tasks of %d minutes: named after %d", life, n)
		}
		for name, use := range map[string]func() (float64, float64){
			"noisy":  func() (float64, float64) { return r.ExpFloat64(), r.ExpFloat64() },
			"bursts": func() (float64, float64) { return 50 * math.Floor(r.Float64()+0.02), 50 * math.Floor(r.Float64()+0.02) },
		} {
			if n := named(91*24*60, life, use); n >= 0 {
				t.Errorf("%s, tasks of %d minutes: an innocent is named after %d", name, life, n)
			}
		}
	}
}
