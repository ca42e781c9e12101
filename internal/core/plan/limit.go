package plan

import (
	"fmt"

	"github.com/quell-dev/quell/internal/core/sample"
)

// IORate is the limit of a task on each disk that it shares with the victim, a second:
// for reads, and the same again for writes. Zero is no limit.
type IORate struct {
	Ops   uint64 `json:"ops,omitempty"`   // requests
	Bytes uint64 `json:"bytes,omitempty"` // bytes
}

// IsZero reports whether nothing is limited.
func (r IORate) IsZero() bool { return r == IORate{} }

func (r IORate) String() string {
	switch {
	case r.Bytes == 0:
		return fmt.Sprintf("%d requests/s", r.Ops)
	case r.Ops == 0:
		return bytes(r.Bytes) + "/s"
	}
	return fmt.Sprintf("%d requests/s and %s/s", r.Ops, bytes(r.Bytes))
}

// bytes formats a number of bytes for people: in KiB or MiB if that is whole.
func bytes(n uint64) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

// Limit is what the cap limits the task to, for people.
func (a *Action) Limit() string {
	switch {
	case !a.IO.IsZero():
		return "reads and writes of " + a.IO.String() + " each"
	case a.Net > 0:
		return bytes(a.Net) + "/s sent"
	}
	return fmt.Sprintf("%.4g CPU-s/s", a.Rate)
}

// limited returns an action without an end that limits the task by the policy on the resource that the
// signal's tasks share. ok is false if the policy, or quell, has no limit for that resource.
func (p Policy) limited(s sample.SignalName, t sample.Task) (a Action, ok bool) {
	a = Action{Task: t}
	sig, known := sample.LookupSignal(s)
	switch {
	case !known || sig.Domain.OfCPUs():
		a.Rate = p.rate(t)
		return a, true
	case sig.Domain == sample.SharedDevice:
		a.IO = p.IO
		return a, !p.IO.IsZero()
	case sig.Domain == sample.SharedInterface:
		a.Net = p.Net
		return a, p.Net > 0
	}
	return a, false
}

// room is how many more caps there may be for an incident. Of what the victims of other jobs leave of
// Policy.MaxCaps those of one job get half, so that tasks that hurt each other do not keep all others from
// being helped.
func (p *Planner) room(inc *incident) int {
	own, job := 0, offenderOf(inc.Victim)
	for _, c := range p.caps {
		if c.incident != nil && offenderOf(c.incident.Victim) == job {
			own++
		}
	}
	return shareOfJob(p.policy.MaxCaps-(len(p.caps)-own)) - own
}

// shareOfJob is how many of so many caps there may be for the victims of one job.
func shareOfJob(caps int) int { return min((caps+1)/2, caps) }

// noRoom says that there may be no more caps for an incident.
func (p *Planner) noRoom(inc *incident) string {
	if n := len(p.caps); n >= p.policy.MaxCaps {
		return fmt.Sprintf("the limit of caps is reached (%d)", n)
	}
	return fmt.Sprintf("%s has its half of the caps that others leave", offenderOf(inc.Victim))
}
