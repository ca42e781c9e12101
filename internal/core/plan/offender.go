package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Offender is a job on which caps helped others. It is identified by its job, or by its
// task's name if it has no job: a task that comes back is a new task.
type Offender struct {
	Job    sample.JobName  `json:"job"`
	Task   sample.TaskName `json:"task"`   // the task that was capped last
	Victim sample.TaskName `json:"victim"` // the victim that the cap helped
	// Helped are the ends of the newest caps that helped, oldest first.
	Helped []sample.Millis `json:"helped"`
	// Confined: it is a repeat offender by the policy at present.
	Confined bool `json:"confined"`
}

// Bounds of what is kept: the maxOffenders jobs that offended last, and maxHelped caps of each.
const (
	maxOffenders = 256
	maxHelped    = 32
)

func offenderOf(t sample.Task) sample.JobName {
	return cmp.Or(t.Job, sample.JobName(t.Name))
}

// recordOffence records a cap that helped.
func (p *Planner) recordOffence(now sample.Millis, c *CapState) {
	r := c.round
	if r == nil || r.Trial || len(r.With) > 0 || r.Outcome != TruePositive {
		return
	}
	job := offenderOf(r.Suspect)
	o := p.offenders[job]
	if o == nil {
		o = &Offender{Job: job}
		p.offenders[job] = o
	}
	o.Task, o.Victim = r.Suspect.Name, c.incident.Victim.Name
	o.Helped = append(o.Helped[max(0, len(o.Helped)+1-maxHelped):], now)
	p.forgetOffenders()
	p.offended = true
}

// forgetOffenders forgets the jobs that offended longest ago if there are too many.
func (p *Planner) forgetOffenders() {
	for len(p.offenders) > maxOffenders {
		var oldest *Offender
		for _, o := range p.offenders {
			if oldest == nil || cmp.Or(cmp.Compare(o.newest(), oldest.newest()), cmp.Compare(o.Job, oldest.Job)) < 0 {
				oldest = o
			}
		}
		delete(p.offenders, oldest.Job)
	}
}

func (o *Offender) newest() sample.Millis { return o.Helped[len(o.Helped)-1] }

// recent counts the caps on a job that helped within Policy.ConfineWithin.
func (p *Planner) recent(now sample.Millis, job sample.JobName) (n int) {
	if o := p.offenders[job]; o != nil {
		for _, at := range o.Helped {
			if now.Sub(at) < p.policy.ConfineWithin {
				n++
			}
		}
	}
	return n
}

// confined reports whether a job is a repeat offender by the policy.
func (p *Planner) confined(now sample.Millis, job sample.JobName) bool {
	return p.policy.Confine > 0 && p.recent(now, job) >= p.policy.Confine
}

// Offenders lists the jobs on which caps helped others, the latest offender first.
func (p *Planner) Offenders(now sample.Millis) []Offender {
	all := make([]Offender, 0, len(p.offenders))
	for _, o := range p.offenders {
		one := *o
		one.Helped, one.Confined = slices.Clone(o.Helped), p.confined(now, o.Job)
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Offender) int {
		return cmp.Or(cmp.Compare(b.newest(), a.newest()), cmp.Compare(a.Job, b.Job))
	})
	return all
}

// RestoreOffenders adopts the offenders of an earlier planner. Invalid entries, a job without a
// name or without a cap, are left out.
func (p *Planner) RestoreOffenders(all []Offender) {
	for _, o := range all {
		if o.Job == "" || len(o.Helped) == 0 {
			continue
		}
		o.Helped = slices.Sorted(slices.Values(o.Helped))
		o.Helped = o.Helped[max(0, len(o.Helped)-maxHelped):]
		p.offenders[o.Job] = &o
	}
	p.forgetOffenders()
}

// Pardon forgets what a job did. Caps in force stay until their end.
func (p *Planner) Pardon(job sample.JobName) error {
	if p.offenders[job] == nil {
		return fmt.Errorf("pardon %s: %w: no cap on it is known to have helped", job, ErrRefused)
	}
	delete(p.offenders, job)
	return nil
}
