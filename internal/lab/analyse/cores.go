package analyse

import (
	"strings"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Cores says how many cores are behind the CPUs of threads that are added one by one
// (paper 002: natively in 5.2.1 and 5.2.2, within a virtual machine in figure 5.7).
type Cores struct {
	// CPUs are the logical CPUs that the threads may use, 0 if unknown, as on a machine
	// whose topology was not read.
	CPUs int `json:"cpus,omitempty"`
	// There are at least Least cores and at most Most, 0 for no bound.
	Least int `json:"least"`
	Most  int `json:"most,omitempty"`
	// Knee is the step that determines the number of cores; nil if no thread had to
	// share a core.
	Knee *Knee `json:"knee,omitempty"`
}

// PerCore is the number of CPUs per core, 0 if that is not certain.
func (c *Cores) PerCore() float64 {
	if c.CPUs == 0 || c.Least != c.Most {
		return 0
	}
	return float64(c.CPUs) / float64(c.Least)
}

// minCoreStep is the smallest step, in percent, that counts as the first core shared by two
// threads. The paper's smallest is 5.2 (m6a). On a machine with a core for each CPU
// (m6g) all CPUs together cost each other 0.33 there. The threshold is quell's own.
const minCoreStep = 2

// cores finds the number of cores from the largest step among at most as many threads
// as there are CPUs: threads beyond that time-share the CPUs, which says nothing about
// cores. It returns nil where neighbours are virtual machines, here or rented, since a
// hypervisor chooses the cores of their threads, and where no threads are added.
func (d *doseRuns) cores() *Cores {
	if d.remote {
		return nil
	}
	c := Cores{CPUs: d.cpus}
	switch d.node.Environment.Driver {
	case study.QEMU, study.Xen:
		if !d.alone {
			return nil
		}
		c.CPUs = d.node.Environment.CPUs
	}
	most := 0
	for i, p := range d.dose.Points {
		if c.CPUs > 0 && p.Threads > c.CPUs {
			break
		}
		if i > 0 && p.Threads > most {
			// Of equal steps the first: sharing begins there.
			if p.Step.Low > 0 && p.Step.Value >= minCoreStep && (c.Knee == nil || p.Step.Value > c.Knee.Step.Value) {
				c.Knee = &Knee{most, p.Threads, p.Step}
			}
		}
		most = max(most, p.Threads)
	}
	if len(d.dose.Points) == 0 || most == d.dose.Points[0].Threads {
		return nil
	}
	if c.Knee != nil {
		c.Least, c.Most = c.Knee.Cores()
	} else {
		c.Least, c.Most = most, c.CPUs
	}
	return &c
}

// usable is the number of CPUs that a run's parts were pinned to, all together; 0 where
// a list is missing, as of a part on another host, or has more than one point in time.
func usable(parts []result.Part) int {
	var lists []string
	for i := range parts {
		if len(parts[i].CPUs) == 0 {
			return 0
		}
		lists = append(lists, parts[i].CPUs...)
	}
	on, err := sample.ParseSet(strings.Join(lists, ","))
	if err != nil {
		return 0
	}
	return on.Len()
}
