package sim

import (
	"math"
	"math/rand/v2"

	"github.com/quell-dev/quell/internal/core/sample"
)

// The model of what recorded samples have in addition to the cost. All of it is assumed,
// except the threads of a capped task, which are those of CPI²'s case 5 (section 6.2).
const (
	clockRate    = 2.6e9 // cycles in a second of CPU time
	missCycles   = 200   // that a miss of the last-level cache costs
	missShare    = 0.3   // of the usual cycles per instruction, that misses cost
	missNoise    = 0.1   // σ ÷ mean
	usualThreads = 12    // median over tasks
	threadSpread = 1.0   // σ of their logarithm
	threadsRise  = 10    // factor while an antagonist that will be a lame duck is capped: 8 became 80
	lameThreads  = 2     // of a lame duck
)

// counts are the columns of recorded samples that no rule reads: cycles, instructions,
// cache misses and threads. Contention costs cycles only by misses. They have a random
// source of their own, so that a case is the same with and without them.
type counts struct {
	rng     *rand.Rand
	machine *machine
	threads []float64 // usual, of each task
}

func newCounts(m *machine, seed uint64) *counts {
	c := &counts{rng: rand.New(rand.NewPCG(seed, 2)), machine: m}
	for range m.tasks {
		c.threads = append(c.threads, math.Ceil(usualThreads*math.Exp(threadSpread*c.rng.NormFloat64())))
	}
	return c
}

// set adds the columns to the sample of the i-th task.
func (c *counts) set(s *sample.Sample, t *task, i int) {
	if s.Signal != sample.CPI || t.gone {
		return
	}
	threads := c.threads[i]
	switch {
	case c.machine.reaction != lameDuck || !t.antagonist:
	case !math.IsInf(t.capped, 1):
		threads *= threadsRise
	case t.idleMinutes > 0:
		threads = lameThreads
	}
	cycles := float64(s.CPU) * sampling.Seconds() * clockRate
	instructions := cycles / float64(s.Cost)
	misses := (missShare*t.mean + t.expected - t.mean) / missCycles * math.Max(0, 1+missNoise*c.rng.NormFloat64())
	s.Extras.Set(sample.Cycles, cycles)
	s.Extras.Set(sample.Instructions, instructions)
	s.Extras.Set(sample.LLCMisses, instructions*misses)
	s.Extras.Set(sample.Threads, threads)
}
