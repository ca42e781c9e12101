package command

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Decision is a command that stands until its end, or until it is revoked.
type Decision struct {
	ID    string        `json:"id"`
	Who   string        `json:"who"` // the operator
	At    sample.Millis `json:"at"`
	Until sample.Millis `json:"until,omitempty"` // the end; 0: none
	// Rollout is the state of a gradual one; nil: it applies to all machines at once.
	Rollout *Rollout `json:"rollout,omitempty"`
	Command
}

const (
	// MaxDecisions is how many decisions may stand for a machine, or for all, next to those on the mode.
	MaxDecisions = 100
	// pardonFor is how long a machine that comes back is told of a pardon: as long as repeat
	// offenders are remembered by default, and longer.
	pardonFor = 30 * 24 * time.Hour
)

// Decide returns the decision of a valid command.
func Decide(id, who string, at sample.Millis, c Command) Decision {
	d := Decision{ID: id, Who: who, At: at, Command: c}
	switch {
	case c.Cap != nil:
		d.Until = at.Add(time.Duration(c.Cap.For))
	case c.Uncap != nil: // by then every cap of before has ended
		d.Until = at.Add(MaxLease)
	case c.Pardon != nil:
		d.Until = at.Add(pardonFor)
	case c.For != 0:
		d.Until = at.Add(time.Duration(c.For))
	}
	return d
}

// Validate returns an *InvalidError with all that is wrong with a decision. Whichever way it
// came, a cap has an end at most MaxLease after it was decided.
func (d *Decision) Validate() error {
	bad := d.Problems()
	switch {
	case d.ID == "" || len(d.ID) > MaxName:
		bad = append(bad, "id: want a name of the decision")
	case strings.TrimSpace(d.Who) == "":
		bad = append(bad, "who: want the operator")
	case d.Reset != nil:
		bad = append(bad, "reset: want a decision that stands")
	}
	if lease := d.Until.Sub(d.At); (d.Cap != nil || d.Uncap != nil || d.Pardon != nil) && d.Until == 0 || d.Until != 0 && lease <= 0 || d.Cap != nil && lease > MaxLease {
		bad = append(bad, fmt.Sprintf("until: want an end after the decision, of a cap at most %s after it", Duration(MaxLease)))
	}
	return Invalid(bad)
}

// Stands reports whether the decision has not ended.
func (d *Decision) Stands(now sample.Millis) bool { return d.Until == 0 || now < d.Until }

// Applies reports whether a decision that has not ended applies to a machine.
func (d *Decision) Applies(machine string, now sample.Millis) bool {
	return d.Stands(now) && (d.Rollout == nil || d.Rollout.Includes(d.ID, machine))
}

// replaces reports whether d takes the place of an earlier decision of the same list. A mode or a
// protection that ends sooner does not: then the earlier one holds again.
func (d *Decision) replaces(old *Decision) bool {
	sooner := d.Until != 0 && (old.Until == 0 || d.Until < old.Until)
	switch {
	case d.Reset != nil:
		r := d.Reset
		return r.Enforcement && old.Enforcement != nil || r.Decision != "" && r.Decision == old.ID ||
			r.Protect != nil && old.protection() != nil && *old.protection() == *r.Protect
	case d.ID == old.ID:
		return true
	case d.Enforcement != nil: // until a roll-out is complete, what held before holds on the other machines
		return old.Enforcement != nil && (old.Rollout != nil || d.Rollout == nil && !sooner)
	case d.protection() != nil:
		return old.protection() != nil && *old.protection() == *d.protection() && !sooner
	case d.Cap != nil:
		return old.Cap != nil && old.Cap.Target == d.Cap.Target
	case d.Uncap != nil:
		of := old.Uncap
		if old.Cap != nil {
			of = &old.Cap.Target
		}
		return of != nil && (d.Uncap.All || *of == *d.Uncap)
	}
	return d.Pardon != nil && old.Pardon != nil && *d.Pardon == *old.Pardon
}

// protection is the target of a protection or of its end, nil if the decision is neither.
func (d *Decision) protection() *Target {
	if d.Protect != nil {
		return d.Protect
	}
	return d.Unprotect
}

// Add returns the list with a new decision instead of those that it replaces. A reset only removes.
func Add(list []Decision, d Decision) []Decision {
	list = slices.DeleteFunc(slices.Clone(list), func(old Decision) bool { return d.replaces(&old) })
	if d.Reset == nil {
		list = append(list, d)
	}
	return list
}

// Newest returns the decision on the mode of a machine: the newest that applies, the last of
// several of the same time; nil if there is none.
func Newest(list []Decision, machine string, now sample.Millis) (found *Decision) {
	for i := range list {
		if d := &list[i]; d.Enforcement != nil && d.Applies(machine, now) && (found == nil || d.At >= found.At) {
			found = d
		}
	}
	return found
}

// Protection returns the decision on whether others may be capped for a task: the one with the
// most specific target, the newest of several; nil if there is none.
func Protection(list []Decision, t *sample.Task, machine string, now sample.Millis) (found *Decision) {
	for i := range list {
		d := &list[i]
		p := d.protection()
		if p == nil || !d.Applies(machine, now) || !p.Matches(t) {
			continue
		}
		if found == nil || p.Rank() > found.protection().Rank() || p.Rank() == found.protection().Rank() && d.At >= found.At {
			found = d
		}
	}
	return found
}

// Standing are the decisions that stand for a machine, or for all if Machine is empty.
type Standing struct {
	Machine  string
	Revision uint64 // grows with each change; 0: nothing was ever decided
	List     []Decision
}
