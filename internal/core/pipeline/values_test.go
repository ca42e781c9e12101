package pipeline_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// Any number where a number is expected, among plausible ones, ends no loop and makes no cap without a rate, and
// every incident and all that is learnt can be written.
func TestAttackAnyNumbers(t *testing.T) {
	odd := []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1), 0, -1, 5e-324, 1e-46, 1e-9, 1e30, 1e38, 1e39, 1e200, math.MaxFloat64}
	for _, rule := range detect.Methods() {
		for seed := range uint64(4) {
			r := rand.New(rand.NewPCG(seed, 33))
			number := func(mean float64) float64 {
				if r.IntN(12) == 0 {
					return odd[r.IntN(len(odd))]
				}
				return mean * (1 + 0.05*r.NormFloat64())
			}
			c := byRule(t, rule)
			c.Charts, c.Policy.Mode, c.Policy.Trial, c.Policy.Groups = true, plan.On, 3*time.Minute, seed%2 == 0
			c.Policy.Feedback, c.Policy.MaxDuration = seed >= 2, time.Duration(seed)*10*time.Minute
			own := spec.OwnHistory()
			own.MinSamples, own.Provisional = 20, 5
			c.History = spec.NewHistory(own)
			p := pipeline.New(c)
			subjects := map[string]*pipeline.Subject{}
			caps := map[sample.TaskKey]bool{}
			for minute := range 240 {
				at, works := sample.Millis(minute+1)*60_000, minute > 40 && minute%12 < 6
				for _, sig := range sample.Signals() {
					iv := p.Begin(sig, at, 10*time.Second)
					for n := range 6 {
						id := fmt.Sprint(sig.Name, n)
						s := subjects[id]
						if s == nil {
							class := sample.Batch
							if n < 2 {
								class = sample.LatencySensitive
							}
							k := spec.Key{Job: sample.JobName(fmt.Sprint("j", n)), Platform: "p", Signal: sig.Name, Variant: "v"}
							s = &pipeline.Subject{Key: k, Task: sample.Task{Key: sample.TaskKey{Inode: uint64(n + 1)}, Name: sample.TaskName(fmt.Sprint("/t", n)), Job: k.Job, Class: class}}
							subjects[id] = s
						}
						cost, usage := max(sig.Min, 1e-6)*2, 1.0
						if works && n < 2 {
							cost *= 4
						}
						if n == 2 && !works {
							usage = 0.1
						}
						var x sample.Extras
						for _, e := range sample.AllExtras() {
							x.Set(e, number(100*usage))
						}
						m := pipeline.Measurement{CPU: number(usage), Cost: number(cost), Extras: &x, Served: []detect.Served{}}
						for o := range 6 {
							m.Served = append(m.Served, detect.Served{By: sample.TaskKey{Inode: uint64(o + 1)}, Time: number(usage), Fair: number(0.3)})
						}
						if caps[s.Task.Key] {
							m.Flags |= sample.Capped
						}
						if r.IntN(50) == 0 {
							m.Flags |= sample.Flags(r.IntN(int(sample.AllFlags) + 1))
						}
						iv.Add(s, m)
					}
					iv.End(at)
				}
				for n := range 6 {
					task := subjects[fmt.Sprint(sample.CPI, n)].Task
					p.Compare(&task, number(1), number(1))
				}
				p.Advance(at, at+60_000)
				for ready, more := p.Ready(); more; ready, more = p.Ready() {
					for _, a := range ready.Actions {
						if a.Kind != plan.Uncap && (math.IsNaN(a.Rate) || math.IsInf(a.Rate, 0) || a.Rate < 0 || a.Rate == 0 && a.IO.IsZero() && a.Net == 0) {
							t.Fatalf("%s, seed %d: %+v", rule, seed, a)
						}
						if caps[a.Task.Key] = a.Kind != plan.Uncap; a.Kind == plan.Uncap {
							p.Lifted(at, a.ID, false)
						} else if a.Kind == plan.Cap {
							p.Applied(at, a.ID, nil)
						}
					}
					for _, inc := range ready.Incidents {
						if _, err := json.Marshal(inc); err != nil {
							t.Fatalf("%s, seed %d: an incident cannot be written: %v", rule, seed, err)
						}
					}
				}
			}
			for _, rec := range c.History.Records() {
				if !rec.Cost.Sane() || !rec.CPU.Sane() || !rec.Self.Sane() {
					t.Errorf("%s, seed %d: %+v", rule, seed, rec)
				}
			}
		}
	}
}
