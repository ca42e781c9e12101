package load

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/wire"
)

// tasksPerJob is how many tasks a job has on average.
const tasksPerJob = 150

// machine is a simulated machine.
type machine struct {
	name  string
	rng   *rand.Rand
	tasks *wire.Repeater
	n     uint64        // number of batches so far
	at    sample.Millis // end of the newest batch's interval
	base  []float32     // each task's usual cost
	cpu   []float32     // and the values of the newest batch
	cost  []float32
}

// newMachine creates one machine of a fleet. Its tasks belong to jobs that run across the
// fleet, are named as a kubelet names them, and have one of three platforms. Costs vary
// within a task as in the paper's figure 7 (a tenth of the mean), and more between tasks.
func newMachine(o *Options, i int, boot string) (*machine, error) {
	m := &machine{name: machineName(i), rng: rand.New(rand.NewPCG(o.Seed, uint64(i))), cpu: make([]float32, o.Tasks), cost: make([]float32, o.Tasks)}
	tasks := wire.Batch{Key: wire.Key{Machine: m.name, Boot: boot}}
	platform := sample.Platform(fmt.Sprintf("AuthenticAMD/25/%d/1", i%3))
	jobs := max(1, o.Machines*o.Tasks/tasksPerJob)
	for t := range o.Tasks {
		job := m.rng.IntN(jobs)
		tasks.Samples = append(tasks.Samples, sample.Sample{Machine: m.name, Job: sample.JobName(fmt.Sprintf("job-%05d", job)),
			Task:     sample.TaskName(fmt.Sprintf("/kubepods.slice/pod%08x-%04x/job-%05d-%d", m.rng.Uint32(), m.rng.Uint32N(1<<16), job, t)),
			Platform: platform, Signal: sample.CPI, Variant: "ref-cycles", Class: sample.Class(job % 3), Coverage: 1})
		m.base = append(m.base, 1+m.rng.Float32())
	}
	var err error
	m.tasks, err = wire.NewRepeater(&tasks)
	return m, err
}

// machineName returns the name of machine number i.
func machineName(i int) string { return fmt.Sprintf("load-%05d", i) }

// tick encodes the machine's next batch, of the interval that ends at a time or, if the
// machine is late and sends several at once, just after the previous one: no two intervals
// of a machine end together. The result is valid until the next call.
func (m *machine) tick(at sample.Millis) []byte {
	m.n++
	at = max(at, m.at+1)
	m.at = at
	for i := range m.base {
		m.cpu[i] = float32(math.Round(1000*math.Abs(1+0.4*m.rng.NormFloat64())) / 1000)
		m.cost[i] = m.base[i] * (1 + 0.1*float32(m.rng.NormFloat64()))
	}
	return m.tasks.Encode(m.n, at, m.cpu, m.cost)
}
