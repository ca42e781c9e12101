package agent

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/printable"
	"github.com/quell-dev/quell/internal/format/wire"
)

// overrides are what holds here instead of the configuration: what operators of this machine
// override, and what the server has decided. Of two statements about the same thing the newer
// one holds.
type overrides struct {
	// Local are the modes, protections and uncaps of operators on this machine.
	Local []command.Decision `json:"decisions,omitempty"`
	// Mode and Protect are how agents wrote them that did not keep who and why.
	Mode    string       `json:"mode,omitempty"`
	Protect []protection `json:"protect,omitempty"`

	machine string
	server  []command.Decision // of the server, those that can be read
	unread  []unread           // the others
	changed bool               // since the operator part has looked
}

// unread is a decision that this agent does not understand.
type unread struct {
	who, why string
	reply    *wire.Reply
}

// protection is an entry of overrides.Protect.
type protection struct {
	command.Target
	On bool `json:"on"`
}

// unknownOperator made the overrides of agents that did not keep who and why.
const unknownOperator = "an operator"

// restore completes what was read from the state directory. It drops invalid entries, and
// returns an error that says how many.
func (o *overrides) restore(machine string) error {
	o.machine, o.changed = machine, true
	old := func(id string, c command.Command) {
		c.Why = "set before this agent kept reasons"
		o.Local = append(o.Local, command.Decide(id, unknownOperator, 0, c))
	}
	if o.Mode != "" {
		old("local-mode", command.Command{Enforcement: &command.Enforcement{Mode: o.Mode}})
	}
	for i, p := range o.Protect {
		c := command.Command{Protect: &p.Target}
		if !p.On {
			c = command.Command{Unprotect: &p.Target}
		}
		old(fmt.Sprintf("local-protect-%d", i), c)
	}
	o.Mode, o.Protect = "", nil
	n := len(o.Local)
	o.Local = slices.DeleteFunc(o.Local, func(d command.Decision) bool { return d.Validate() != nil || d.Cap != nil || d.Pardon != nil })
	if n -= len(o.Local); n > 0 {
		return fmt.Errorf("%d overrides are invalid and were dropped", n)
	}
	return nil
}

// decided takes the server's decisions.
func (o *overrides) decided(all []*wire.Command, version string) {
	o.server, o.unread, o.changed = nil, nil, true
	for _, m := range all {
		d, err := wire.DecodeDecision(m)
		if errors.Is(err, wire.ErrUnknownCommand) {
			err = fmt.Errorf("unknown command for quell-agent %s: upgrade it", version)
		} else {
			err = d.Validate()
		}
		if err != nil {
			o.unread = append(o.unread, unread{m.GetWho() + " (server)", m.GetWhy(), &wire.Reply{Id: m.GetId(), Message: printable.Text(err.Error())}})
			continue
		}
		o.server = append(o.server, d)
	}
}

// all is what operators of this machine and the server have said.
func (o *overrides) all() []command.Decision { return slices.Concat(o.server, o.Local) }

// forgetEnded drops what has ended and reports whether an override was among it.
func (o *overrides) forgetEnded(now sample.Millis) (local bool) {
	ended := func(d command.Decision) bool { return !d.Stands(now) }
	n := len(o.Local)
	o.Local, o.server = slices.DeleteFunc(o.Local, ended), slices.DeleteFunc(o.server, ended)
	return len(o.Local) < n
}

// nextEnd is the next end of what stands, math.MaxInt64 if nothing ends.
func (o *overrides) nextEnd() sample.Millis {
	next := sample.Millis(math.MaxInt64)
	for _, d := range o.all() {
		if d.Until != 0 {
			next = min(next, d.Until)
		}
	}
	return next
}

// mode is the mode in force, and where it comes from.
func (o *overrides) mode(configured plan.Mode, now sample.Millis) (plan.Mode, api.Origin) {
	d := command.Newest(o.all(), o.machine, now)
	if d == nil {
		return configured, api.Origin{From: api.Configuration}
	}
	m, err := plan.ParseMode(d.Enforcement.Mode)
	if err != nil { // validated before: it cannot fail
		return configured, api.Origin{From: api.Configuration}
	}
	return m, o.origin(d)
}

// origin is where a statement comes from.
func (o *overrides) origin(d *command.Decision) api.Origin {
	from := api.ByDecision
	if slices.ContainsFunc(o.Local, func(l command.Decision) bool { return l.ID == d.ID }) {
		from = api.ByOverride
	}
	return api.Origin{From: from, Decision: d}
}

// apply sets whether other tasks may be capped for a task: as was decided, else as it was
// found.
func (o *overrides) apply(t *sample.Task, found bool, now sample.Millis) {
	t.Protected, t.Unprotected = found, false
	if d := command.Protection(o.all(), t, o.machine, now); d != nil {
		t.Protected, t.Unprotected = d.Protect != nil, d.Unprotect != nil
	}
}

// tidy removes the override for a single task if the others give the same result: the number
// of tasks over time is unbounded.
func (o *overrides) tidy(t *task, on bool, now sample.Millis) {
	names := func(target *command.Target) bool {
		return target != nil && (target.Task == t.Name.Text() || target.Task == sample.NameText(t.Path()))
	}
	of := func(d command.Decision) bool { return names(d.Protect) || names(d.Unprotect) }
	without := overrides{Local: slices.DeleteFunc(slices.Clone(o.Local), of), server: o.server, machine: o.machine}
	alone := t.Task
	without.apply(&alone, t.found.Protected, now)
	if alone.MayBeHelped() == on {
		o.Local = without.Local
	}
}
