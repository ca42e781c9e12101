package command

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Rollout is the state of a decision that reaches machines in steps: one machine, 1 % of them, all. A
// machine's place depends only on its name and the decision, so those of a step are also in the next.
type Rollout struct {
	Step  int           `json:"step"`  // 0, 1; the last step has no Rollout
	Since sample.Millis `json:"since"` // when the step began
	Every Duration      `json:"every"` // how long a step lasts at least
	Below uint64        `json:"below"` // the machines with a place up to this one
	// Stopped is why the roll-out was stopped; "": it was not. It then applies to no machine.
	Stopped string `json:"stopped,omitempty"`
}

// Steps is the number of steps: the last reaches all machines.
const Steps = 3

// Canary is how an operator asks for a roll-out.
type Canary struct {
	Every Duration `json:"every"` // how long a step lasts at least, 1m to 168h
}

// Problems lists all that is wrong with it.
func (c *Canary) Problems() []string {
	if d := time.Duration(c.Every); d < time.Minute || d > 7*24*time.Hour {
		return []string{"every " + c.Every.String() + ": want a duration of a step from 1m to 168h"}
	}
	return nil
}

// place is where a machine is in the order in which a decision reaches machines.
func place(id, machine string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(id + "\x00" + machine))
	x := h.Sum64()
	// FNV's high bits hardly depend on the last bytes: mixed as in MurmurHash3.
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// Includes reports whether the decision with that ID has reached a machine.
func (r *Rollout) Includes(id, machine string) bool {
	return r.Stopped == "" && place(id, machine) <= r.Below
}

// Begin returns the decision at a step, 0 to Steps-1, for the machines that there are. With
// none, no machine is reached before the last step.
func (d Decision) Begin(step int, machines []string, every Duration, now sample.Millis) Decision {
	if step >= Steps-1 {
		d.Rollout = nil
		return d
	}
	r := &Rollout{Step: step, Since: now, Every: every}
	places := make([]uint64, 0, len(machines))
	for _, m := range machines {
		places = append(places, place(d.ID, m))
	}
	slices.Sort(places)
	if n := int(math.Ceil([...]float64{0, 0.01}[step] * float64(len(places)))); len(places) > 0 {
		r.Below = places[max(n, 1)-1]
	}
	if d.Rollout != nil {
		r.Below = max(r.Below, d.Rollout.Below)
	}
	d.Rollout = r
	return d
}

// Tally are the known outcomes of caps under a decision.
type Tally struct {
	Helped int // the victim's cost fell
	Failed int // it did not, or the cap could not be set
}

// Bad returns why outcomes stop a roll-out, "" if they do not: at least three caps failed, and
// no more of them helped.
func (t Tally) Bad() string {
	if t.Failed < 3 || t.Helped > t.Failed {
		return ""
	}
	return fmt.Sprintf("%d caps did not help or failed, %d helped", t.Failed, t.Helped)
}

// Text is the state for people: "1 machine", "1 % of the machines", "stopped: …".
func (r *Rollout) Text() string {
	if r.Stopped != "" {
		return "stopped: " + r.Stopped
	}
	return [...]string{"1 machine", "1 % of the machines"}[min(max(r.Step, 0), 1)]
}
