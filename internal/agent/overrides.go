package agent

import (
	"slices"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
)

// overrides are what operators changed at run time.
type overrides struct {
	Mode    string       `json:"mode,omitempty"` // "" as configured
	Protect []protection `json:"protect,omitempty"`
}

// protection is an operator's setting for one task, by its full name, or for many:
// whether other tasks may be capped for them.
type protection struct {
	command.Target
	On bool `json:"on"`
}

// lookup returns the setting that applies to a task, the most specific one, if there is one.
func (o *overrides) lookup(t *sample.Task) (on, said bool) {
	best := 0
	for i := range o.Protect {
		if p := &o.Protect[i]; p.Matches(t) && p.Rank() > best {
			best, on = p.Rank(), p.On
		}
	}
	return on, best > 0
}

// set records an operator's setting; it replaces an earlier one for the same target.
func (o *overrides) set(p protection) {
	o.Protect = slices.DeleteFunc(o.Protect, func(q protection) bool { return q.Target == p.Target })
	o.Protect = append(o.Protect, p)
}

// apply sets whether other tasks may be capped for a task: as operators set it, else as it was
// found.
func (o *overrides) apply(t *sample.Task, found bool) {
	t.Protected, t.Unprotected = found, false
	if on, said := o.lookup(t); said {
		t.Protected, t.Unprotected = on, !on
	}
}

// tidy removes the setting for a single task if the other settings give the same
// result: the number of tasks over time is unbounded.
func (o *overrides) tidy(t *task, on bool) {
	without := overrides{Protect: slices.DeleteFunc(slices.Clone(o.Protect), func(q protection) bool { return q.Task == t.Name.Text() || q.Task == sample.NameText(t.Path()) })}
	alone := t.Task
	without.apply(&alone, t.found.Protected)
	if alone.MayBeHelped() == on {
		o.Protect = without.Protect
	}
}
