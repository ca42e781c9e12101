package synthetic

import (
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"
	"time"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// RunID identifies a run of a study: Truth's drift continues from run to run.
type RunID struct {
	N, Try int
	Order  int // place in the sequence of the study's runs
	Runs   int // number of runs in the sequence
	Seed   uint64
}

// start is when a simulated run begins: an hour after the one before.
func start(order int) time.Time { return time.Date(2000, 1, 1, order, 0, 0, 0, time.UTC) }

// tolerance is the largest deviation of an achieved load from its target, a share.
const tolerance = 0.002

// Run simulates a run of a cell, all of whose parts are in synthetic environments, and
// its seconds. The same arguments give the same record.
//
// An iteration of a part takes Base·(1 + Σ Slope·load + Drift·t)·noise. The sum is over
// the loads of the other busy parts while it runs, t is the share of the study that has
// passed, and noise is the deviation of a second, correlated from second to second
// (AR(1)).
func Run(c *study.Cell, w RunID) (*result.Run, []result.Sample) {
	key := c.Key()
	hash := fnv.New64a()
	io.WriteString(hash, key) // never fails
	r := rand.New(rand.NewPCG(w.Seed^hash.Sum64(), uint64(w.N)<<8|uint64(w.Try)))
	length := c.Warmup + c.For
	if n := len(c.Steps); n > 0 {
		length = max(length, c.Steps[n-1].To)
	}
	for _, p := range c.Parts {
		if p.Measure && p.Workload.Iterations > 0 { // enough for all, at twice the undisturbed time
			length = max(length, c.Warmup+2*time.Duration(p.Workload.Iterations)*p.Environment.Truth.Base)
		}
		length = max(length, c.Warmup+p.Workload.Time)
	}
	seconds := int(math.Ceil(length.Seconds()))
	run := &result.Run{CellKey: key, Cell: *c, N: w.N, Try: w.Try, Order: w.Order, Verdict: result.Valid, Simulated: true,
		Stamp: []string{"simulated"}, Start: start(w.Order), Overlap: 1,
		Window: result.Window{From: c.Warmup, To: length}, Env: "simulated"}
	for _, s := range c.Steps {
		run.Steps = append(run.Steps, result.Step{Step: s, Achieved: min(max(float64(s.Target)+tolerance*(2*r.Float64()-1), 0), 1)})
	}
	loads := make([][]float64, len(c.Parts)) // part, second
	for i := range c.Parts {
		loads[i] = load(&c.Parts[i], run.Steps, seconds)
	}
	truth := c.Parts[0].Environment.Truth
	watts := make([]float64, seconds)
	for s := range seconds {
		for i := range loads {
			watts[s] += truth.PerCPU * loads[i][s]
		}
		watts[s] += truth.Power
	}
	for i := range c.Parts {
		run.Parts = append(run.Parts, part(c, i, loads, w, r, length))
	}
	if dies := c.Kind == study.Main && r.Float64() < float64(truth.FailRate); dies && len(c.Parts) > 1 {
		at := time.Duration(r.Float64() * float64(length))
		run.Verdict, run.Overlap = result.Invalid, float64(at)/float64(length)
		run.Evidence = []result.Evidence{{Reason: result.CorunnerDied, Role: run.Parts[len(run.Parts)-1].Name, At: at, Text: "simulated death"}}
	}
	energy(run, truth, watts)
	return run, samples(run, loads, watts)
}

// load is the share of its CPUs that a part uses in each second.
func load(p *study.Part, steps []result.Step, seconds int) []float64 {
	l := make([]float64, seconds)
	for s := range l {
		at := time.Duration(s) * time.Second
		switch {
		case p.Idle:
		case p.Load.Control != "duty-cycle":
			l[s] = 1
		default:
			l[s] = float64(p.Target)
			for _, step := range steps {
				if step.Role == p.Role && at >= step.From && at < step.To {
					l[s] = step.Achieved
				}
			}
		}
	}
	return l
}

// part simulates part i of a cell.
func part(c *study.Cell, i int, loads [][]float64, w RunID, r *rand.Rand, length time.Duration) result.Part {
	p := &c.Parts[i]
	truth := p.Environment.Truth
	out := result.Part{Name: p.Name(), Role: p.Role, Command: "simulated", Window: result.Window{To: length}}
	if p.Idle {
		return out
	}
	factor := 1.0
	if f, ok := truth.ByPlace[c.Place.Name]; ok {
		factor = float64(f)
	}
	noise := make([]float64, len(loads[i]))
	for s := range noise {
		e := r.NormFloat64() * float64(truth.Noise)
		if s == 0 {
			noise[s] = e
		} else {
			noise[s] = truth.AR1*noise[s-1] + math.Sqrt(1-truth.AR1*truth.AR1)*e
		}
	}
	work := 0.0 // of the current iteration
	from := time.Duration(0)
	const tick = 10 * time.Millisecond
	for at := time.Duration(0); at < length; at += tick {
		s := min(int(at/time.Second), len(noise)-1)
		own := loads[i][s]
		slow := 1.0
		for j := range loads {
			if j != i {
				slow += truth.Slope * factor * loads[j][s]
			}
		}
		slow += float64(truth.Drift) * (float64(w.Order) + float64(at)/float64(length)) / float64(max(w.Runs, 1))
		need := truth.Base.Seconds() * slow * (1 + noise[s])
		done := own * tick.Seconds() / need // share of an iteration, in this tick
		out.CPUTime += time.Duration(own * float64(tick))
		for begin := 0.0; done > 0; {
			rest := 1 - work
			if done < rest {
				work += done
				break
			}
			begin += rest / (own * tick.Seconds() / need)
			end := at + time.Duration(begin*float64(tick))
			out.Iterations = append(out.Iterations, result.Iteration{From: from, To: end, Units: 1})
			done, work, from = done-rest, 0, end
		}
		if n := p.Workload.Iterations; n > 0 && len(out.Iterations) >= n && p.Measure {
			break
		}
	}
	out.User = out.CPUTime
	return out
}

// energy adds the energy of the window and of each step's cut.
func energy(run *result.Run, truth *study.Model, watts []float64) {
	if truth.Power == 0 {
		return
	}
	run.Energy = "simulated"
	over := func(from, to time.Duration) (joules float64) {
		for s, w := range watts {
			a, b := time.Duration(s)*time.Second, time.Duration(s+1)*time.Second
			if span := min(b, to) - max(a, from); span > 0 {
				joules += w * span.Seconds()
			}
		}
		return joules
	}
	run.Joules = over(run.Window.From, run.Window.To)
	for i := range run.Steps {
		s := &run.Steps[i]
		s.Joules = over(s.From+s.Settle, s.To-s.Trail)
	}
}

func samples(run *result.Run, loads [][]float64, watts []float64) []result.Sample {
	var all []result.Sample
	for s := range watts {
		v := map[string]float64{}
		for i := range loads {
			v["cpu."+run.Parts[i].Name] = loads[i][s]
		}
		if run.Energy != "" {
			v["watts"] = watts[s]
		}
		all = append(all, result.Sample{At: time.Duration(s+1) * time.Second, Values: v})
	}
	return all
}
