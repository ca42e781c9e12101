package agent

import (
	"cmp"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
)

// auditEntry is one line of the audit log: an operator's command, or a change to a cap,
// with its result. The functions below make all kinds of entries.
type auditEntry struct {
	At     sample.Millis   `json:"at"`
	Who    string          `json:"who"`
	What   string          `json:"what"`
	ID     string          `json:"id,omitempty"`   // of a cap
	Task   sample.TaskName `json:"task,omitempty"` // or the object of a command: "job web"
	Rate   float64         `json:"rate,omitempty"`
	IO     plan.IORate     `json:"io,omitzero"`
	Net    uint64          `json:"net,omitempty"`
	Until  sample.Millis   `json:"until,omitempty"`
	Why    string          `json:"why,omitempty"`
	Result string          `json:"result"` // "ok", or why not
}

// commandEntry is the entry for an operator's command about one task, or about
// everything that the command names.
func commandEntry(operator string, c *command.Command, object string) auditEntry {
	e := auditEntry{Who: operator, What: c.Kind(), Task: sample.TaskName(object), Why: c.Why}
	switch {
	case c.Cap != nil:
		e.Rate = c.Cap.Rate
	case c.Enforcement != nil:
		e.What += " " + c.Enforcement.Mode
	}
	return e
}

// invalidEntry is the entry for a command that is refused as invalid. Its texts may be
// of any length, and its rate may be one that JSON cannot represent.
func invalidEntry(operator string, c *command.Command) auditEntry {
	e := auditEntry{Who: operator, What: cmp.Or(c.Kind(), unknown), Why: cut(c.Why)}
	if c.Enforcement == nil {
		e.Task = sample.TaskName(cut(c.Object()))
	}
	return e
}

// unknown is the name of a command that this agent does not understand.
const unknown = "unknown command"

// unreadEntry is the entry for a command that could not be read.
func unreadEntry(operator, why string) auditEntry {
	return auditEntry{Who: operator, What: unknown, Why: cut(why)}
}

// capEntry is the entry for setting a cap, or for setting it again at another rate.
func capEntry(what string, act *plan.Action) auditEntry {
	return auditEntry{Who: act.By, What: what, ID: act.ID, Task: act.Task.Name, Rate: act.Rate, IO: act.IO, Net: act.Net, Until: act.Until, Why: act.Why}
}

// cut is the beginning of a text of unbounded length.
func cut(s string) string {
	const most = 256
	return s[:min(len(s), most)]
}
