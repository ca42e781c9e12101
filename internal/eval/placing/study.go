package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/eval/evaluation"
	"github.com/quell-dev/quell/internal/eval/rivals"
	"github.com/quell-dev/quell/internal/eval/sim"
)

// resources is the number of resources of which a job uses one, assumed. A batch job hurts
// those latency-sensitive ones that use the same. One visitor in four does, so visits are four
// times as frequent as in sim.Fleet: then as many hurt as there, if tasks are placed at random.
const resources = 4

// study is what is compared.
type study struct {
	Machines, Days, Draws int
	Served, Work          int // latency-sensitive jobs, and batch jobs whose tasks are placed
	Rule                  detect.Method
	Seed                  uint64
}

// row is the outcome of one way to place the tasks.
type row struct {
	Name             string
	Pairs            int     // kept apart
	Hours, Low, High float64 // mean of the draws, and the range of 95 % of them
}

// result is the outcome of a study.
type result struct {
	True, Measured, Wrong int
	Random                float64 // hours with as many random pairs as were measured
	Rows                  []row
}

// pair is the indices of a latency-sensitive job and of a batch job.
type pair struct{ served, work int }

// pairSet is pairs of jobs that should not share a machine.
type pairSet map[pair]bool

// fleet is the jobs, and the truth about them.
type fleet struct {
	served, work []sim.Job
	interfere    pairSet
	tasks        []int // the work job of each visiting task: two for each machine
}

func (s *study) fleet(rng *rand.Rand) *fleet {
	f := &fleet{served: sim.Served(s.Served), work: sim.Others(s.Work), interfere: pairSet{}}
	uses := make([]int, s.Work)
	for w := range uses {
		uses[w] = w % resources
	}
	rng.Shuffle(s.Work, func(i, j int) { uses[i], uses[j] = uses[j], uses[i] })
	for v := range s.Served {
		for w := range s.Work {
			if v%resources == uses[w] {
				f.interfere[pair{v, w}] = true
			}
		}
	}
	for i := range s.Machines * sim.Visitors {
		f.tasks = append(f.tasks, i%s.Work)
	}
	return f
}

// victim is the job of a machine's victim.
func (f *fleet) victim(machine int) int { return machine % len(f.served) }

// place places the visiting tasks, in a random order: each on the first machine with room
// whose victim it is not to be kept apart from; without one, on the first with room. Every
// machine has the same number of tasks in the end, whatever the pairs.
func (f *fleet) place(machines int, apart pairSet, rng *rand.Rand) [][]int {
	on := make([][]int, machines)
	tasks := slices.Clone(f.tasks)
	rng.Shuffle(len(tasks), func(i, j int) { tasks[i], tasks[j] = tasks[j], tasks[i] })
	for _, w := range tasks {
		first, chosen := -1, -1
		for m := range on {
			if len(on[m]) == sim.Visitors {
				continue
			}
			if first < 0 {
				first = m
			}
			if !apart[pair{f.victim(m), w}] {
				chosen = m
				break
			}
		}
		if chosen < 0 {
			chosen = first
		}
		on[chosen] = append(on[chosen], w)
	}
	return on
}

// guests are the placed tasks of a machine.
func (f *fleet) guests(machine int, work []int) sim.Guests {
	g := sim.Guests{Victim: f.served[f.victim(machine)], Frequency: resources}
	for i, w := range work {
		g.Visitors[i] = sim.Visitor{Job: f.work[w], Presses: f.interfere[pair{f.victim(machine), w}]}
	}
	return g
}

// run measures pairs on one half of the machines and places the tasks of the other half.
func (s *study) run() (*result, error) {
	if min(s.Machines, s.Days, s.Draws, s.Served, s.Work) < 1 {
		return nil, fmt.Errorf("%d machines, %d days, %d draws, %d and %d jobs: want at least one of each", s.Machines, s.Days, s.Draws, s.Served, s.Work)
	}
	rule, err := rivals.Load(s.Rule)
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(s.Seed, 0))
	f := s.fleet(rng)
	p := sim.NewSimulator(s.Seed)
	measured := s.measure(p, f, rule, rng)
	minutes := s.suffered(p, f)
	hours := func(apart pairSet) float64 {
		sum := 0
		for m, work := range f.place(s.Machines, apart, rng) {
			variant := 0
			for i, w := range work {
				if f.interfere[pair{f.victim(m), w}] {
					variant |= 1 << i
				}
			}
			sum += minutes[m][variant]
		}
		return float64(sum) / 60
	}
	r := &result{True: len(f.interfere), Measured: len(measured)}
	for p := range measured {
		if !f.interfere[p] {
			r.Wrong++
		}
	}
	add := func(name string, n int, pairs func() pairSet) float64 {
		all := make([]float64, s.Draws)
		for i := range all {
			all[i] = hours(pairs())
		}
		slices.Sort(all)
		mean := 0.0
		for _, h := range all {
			mean += h / float64(len(all))
		}
		r.Rows = append(r.Rows, row{name, n, mean, stat.Quantile(all, 0.025), stat.Quantile(all, 0.975)})
		return mean
	}
	always := func(p pairSet) func() pairSet { return func() pairSet { return p } }
	n := len(measured)
	add("none", 0, always(nil))
	r.Random = add("random", n, func() pairSet { return f.random(pairSet{}, n, rng) })
	add("measured", n, always(measured))
	for _, wrong := range []float64{0.1, 0.25, 0.5, 0.75} {
		add(fmt.Sprintf("measured, %.0f %% replaced by random ones", 100*wrong), n, func() pairSet { return f.random(subset(measured, wrong, rng), n, rng) })
	}
	for _, missed := range []float64{0.25, 0.5} {
		kept := len(subset(measured, missed, rand.New(rand.NewPCG(0, 0))))
		add(fmt.Sprintf("measured, %.0f %% left out", 100*missed), kept, func() pairSet { return subset(measured, missed, rng) })
	}
	add("all that interfere", r.True, always(f.interfere))
	return r, nil
}

// measure plays the first half, with tasks placed at random, and returns the pairs of which a
// cap on the batch job's task helped the victim. That is what quell-server lists as pairs
// with confidence (docs/server.md).
func (s *study) measure(p *sim.Simulator, f *fleet, rule rivals.Rule, rng *rand.Rand) pairSet {
	placed := f.place(s.Machines, nil, rng)
	policy := sim.Policy()
	policy.Mode, policy.Trial = plan.On, 3*time.Minute
	capped := make([]map[string]incident.Record, s.Machines) // of each machine, newest states by ID
	each(s.Machines, func(m int) {
		capped[m] = map[string]incident.Record{}
		keep := func(r *incident.Record) {
			if len(r.Rounds) > 0 {
				capped[m][r.ID] = *r
			}
		}
		scenario := sim.Placed(f.guests(m, placed[m]))
		p.Run(&scenario, s.Seed+uint64(m), sim.Setup{Rule: rule, Policy: policy, Minutes: s.Days * 24 * 60, Changed: keep})
	})
	var e evaluation.Evaluation
	for _, all := range capped {
		for _, r := range all {
			e.Add(&r)
		}
	}
	index := func(jobs []sim.Job) map[sample.JobName]int {
		at := map[sample.JobName]int{}
		for i, j := range jobs {
			at[j.Name] = i
		}
		return at
	}
	victims, works := index(f.served), index(f.work)
	measured := pairSet{}
	for _, o := range e.Report().Offenders {
		v, served := victims[o.Victim]
		w, work := works[o.Antagonist]
		if served && work && o.Helped.K > 0 {
			measured[pair{v, w}] = true
		}
	}
	return measured
}

// suffered plays the second half without detection, and returns the minutes of interference
// of each machine by which of its visitors press on the victim: bit i stands for the i-th.
func (s *study) suffered(p *sim.Simulator, f *fleet) [][1 << sim.Visitors]int {
	minutes := make([][1 << sim.Visitors]int, s.Machines)
	each(s.Machines<<sim.Visitors, func(i int) {
		m, variant := i>>sim.Visitors, i&(1<<sim.Visitors-1)
		if variant == 0 {
			return // none presses on the victim
		}
		g := f.guests(m, make([]int, sim.Visitors))
		for k := range g.Visitors {
			g.Visitors[k].Presses = variant>>k&1 == 1
		}
		scenario := sim.Placed(g)
		minutes[m][variant] = p.Run(&scenario, s.Seed+uint64(s.Machines+m), sim.Setup{Minutes: s.Days * 24 * 60, Blind: true}).Suffered
	})
	return minutes
}

// each calls do with 0 to n−1, on all CPUs.
func each(n int, do func(int)) {
	next := make(chan int)
	var busy sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		busy.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	busy.Wait()
}

// sorted lists pairs in a fixed order.
func (p pairSet) sorted() []pair {
	var all []pair
	for x := range p {
		all = append(all, x)
	}
	slices.SortFunc(all, func(a, b pair) int { return cmp.Or(a.served-b.served, a.work-b.work) })
	return all
}

// subset leaves a share of the pairs out, at random.
func subset(p pairSet, without float64, rng *rand.Rand) pairSet {
	all := p.sorted()
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	kept := pairSet{}
	for _, x := range all[int(without*float64(len(all))+0.5):] {
		kept[x] = true
	}
	return kept
}

// random adds random pairs until there are n.
func (f *fleet) random(p pairSet, n int, rng *rand.Rand) pairSet {
	for len(p) < n {
		p[pair{rng.IntN(len(f.served)), rng.IntN(len(f.work))}] = true
	}
	return p
}
