package analyse

import (
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Cores is what threads that are added one by one say of the cores behind the
// CPUs that they run on (paper 002: natively in 5.2.1 and 5.2.2, within a
// virtual machine in figure 5.7).
type Cores struct {
	// CPUs are the logical CPUs that the threads may use, 0 where that is not
	// known: those of a machine whose topology nobody read.
	CPUs int `json:"cpus,omitempty"`
	// There are at least Least cores and at most Most, 0 for no bound.
	Least int `json:"least"`
	Most  int `json:"most,omitempty"`
	// Knee is the step by which they are counted; nil where no thread had to
	// share.
	Knee *Knee `json:"knee,omitempty"`
}

// PerCore is how many CPUs there are to a core, 0 where that is not known for
// certain.
func (c *Cores) PerCore() float64 {
	if c.CPUs == 0 || c.Least != c.Most {
		return 0
	}
	return float64(c.CPUs) / float64(c.Least)
}

// sharing is the least step, in percent, that is taken for the first core that two
// threads share. The paper's smallest is 5.2 (m6a); what all of a machine's CPUs
// cost each other that has a core for each is 0.33 there (m6g). The bound is ours.
const sharing = 2

// cores counts cores by the largest step among as many threads as there are CPUs:
// threads beyond that take turns, which says nothing of cores. It is nil for
// neighbours that are virtual machines, here or rented, since it is a hypervisor
// that says which core their threads come to, and where no threads are added.
func (d *doseRuns) cores() *Cores {
	if d.apart {
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
			// Of equal steps the first: there sharing begins.
			if p.Step.Low > 0 && p.Step.Value >= sharing && (c.Knee == nil || p.Step.Value > c.Knee.Step.Value) {
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

// usable is how many CPUs a run's parts were pinned to, all together; 0 where a
// list is missing, as of a part on another host, or is of more than one moment.
func usable(parts []result.Part) int {
	on := map[int]bool{}
	for i := range parts {
		if len(parts[i].CPUs) == 0 {
			return 0
		}
		for _, list := range parts[i].CPUs {
			for span := range strings.SplitSeq(list, ",") {
				from, to, many := strings.Cut(span, "-")
				first, err := strconv.Atoi(from)
				last := first
				if many && err == nil {
					last, err = strconv.Atoi(to)
				}
				if err != nil || last-first > 1<<16 {
					return 0
				}
				for n := first; n <= last; n++ {
					on[n] = true
				}
			}
		}
	}
	return len(on)
}
