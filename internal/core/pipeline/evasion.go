package pipeline

import (
	"cmp"
	"math"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
)

// A task that knows when a window is open can behave in windows and only there. Windows open at random
// moments, so an innocent task uses as much in a window as in any other stretch of time of the same
// length: of the two usages each is the higher one with the same probability, whatever the task's
// pattern. In each period a part of the money is bet on the second usage, which wins nothing in the
// long run. If the money multiplies nevertheless, the task is an evader.

// Constants of the bet: unit, meaning, and how each was chosen.
const (
	// Share of the money that is bet. A task that uses nothing in windows is found after
	// ln(evaderWealth)/ln(1+betShare) = 37 periods.
	betShare = 0.75
	// Ratio: what the money must grow to. The mean number of periods until an innocent task
	// is named is at least as high: 1,900 years of a period of a minute.
	evaderWealth = 1e9
	// CPU-s/s: differences are relative to the higher usage, and at least to this: less is
	// no evasion that matters.
	leastEvasion = 0.1
	// Ratio: usage outside windows to that in them, at least, of an evader.
	leastEvasionRatio = 2
)

// Evader is a task that uses far more CPU time outside sampling windows than in them.
type Evader struct {
	Task sample.Task
	// Inside and Outside are its mean usages in windows and in stretches of the same length
	// at other random times, CPU-s/s, over so many periods.
	Inside, Outside float64
	Periods         int
}

// evasion is the bet on a task, since its money was last at the stake.
type evasion struct {
	task            sample.Task
	money           float64 // logarithm
	inside, outside float64 // sums
	periods         int
	named           bool
}

// maxDeparted bounds how many jobs' bets on tasks that ended are kept: those with the most money.
const maxDeparted = 256

// depart keeps the money of a task that ended for the next task of its job, which goes on with the bet: a
// task could restart before it is named otherwise. Each bet is still on one task at a time, and which one
// goes on was known before, so that it wins nothing in the long run either.
func (p *Pipeline) depart(k sample.TaskKey) {
	e := p.evasions[k]
	if e == nil {
		return
	}
	delete(p.evasions, k)
	job := cmp.Or(e.task.Job, sample.JobName(e.task.Name))
	if old := p.departed[job]; old != nil && old.money >= e.money {
		return
	}
	p.departed[job] = e
	if len(p.departed) > maxDeparted {
		least := job
		for j, x := range p.departed {
			if cmp.Or(cmp.Compare(x.money, p.departed[least].money), cmp.Compare(j, least)) < 0 {
				least = j
			}
		}
		delete(p.departed, least)
	}
}

// Compare gives the usages of a task in a window and in another stretch of time of the same
// length, both at random moments of the same period. It reports whether the task has become
// an evader with them.
func (p *Pipeline) Compare(task *sample.Task, inside, outside float64) bool {
	if !(inside >= 0) || !(outside >= 0) {
		return false
	}
	e := p.evasions[task.Key]
	won := (outside - inside) / max(outside, inside, leastEvasion)
	if e == nil {
		// Also if it loses: else only what the tasks of a job win would count.
		job := cmp.Or(task.Job, sample.JobName(task.Name))
		if e = p.departed[job]; e != nil {
			delete(p.departed, job)
			e.named = false // another task was
		} else if won > 0 {
			e = &evasion{}
		} else {
			return false
		}
		p.evasions[task.Key] = e
	}
	e.task = *task
	e.money += math.Log1p(betShare * won)
	e.inside, e.outside, e.periods = e.inside+inside, e.outside+outside, e.periods+1
	if e.money <= 0 {
		delete(p.evasions, task.Key)
		return false
	}
	was := e.named
	e.named = was || e.money >= math.Log(evaderWealth) && e.outside >= leastEvasionRatio*e.inside
	return e.named && !was
}

// Evaders lists the tasks that use far more outside windows than in them, by name.
func (p *Pipeline) Evaders() (all []Evader) {
	for _, e := range p.evasions {
		if e.named {
			n := float64(e.periods)
			all = append(all, Evader{e.task, e.inside / n, e.outside / n, e.periods})
		}
	}
	slices.SortFunc(all, func(a, b Evader) int { return cmp.Compare(a.Task.Name, b.Task.Name) })
	return all
}
