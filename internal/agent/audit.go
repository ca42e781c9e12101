package agent

import (
	"cmp"

	"github.com/quell-dev/quell/internal/command"
	"github.com/quell-dev/quell/internal/enforce"
	"github.com/quell-dev/quell/internal/plan"
	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/wire"
)

// auditEntry is one line of the audit log: an operator's command, or a change to a
// cap, and what came of it. The functions below make those that there are.
type auditEntry struct {
	At     sample.Millis   `json:"at"`
	Who    string          `json:"who"`
	What   string          `json:"what"`
	ID     string          `json:"id,omitempty"`   // of a cap
	Task   sample.TaskName `json:"task,omitempty"` // or what a command is about: "job web"
	Rate   float64         `json:"rate,omitempty"`
	IO     plan.IORate     `json:"io,omitzero"`
	Net    uint64          `json:"net,omitempty"`
	Until  sample.Millis   `json:"until,omitempty"`
	Why    string          `json:"why,omitempty"`
	Result string          `json:"result"` // "ok", or why not
}

// commandEntry is of an operator's command about a task, or about all that the
// command names.
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

// invalidEntry is of a command that is refused because it is not valid. Nothing
// has bounded its texts, and its rate may be one that JSON cannot hold.
func invalidEntry(operator string, c *command.Command) auditEntry {
	e := auditEntry{Who: operator, What: cmp.Or(c.Kind(), unknown), Why: cut(c.Why)}
	if c.Enforcement == nil {
		e.Task = sample.TaskName(cut(c.Object()))
	}
	return e
}

// unknown is what a command is called that this agent does not understand.
const unknown = "unknown command"

// unreadEntry is of a command that could not be read.
func unreadEntry(operator, why string) auditEntry {
	return auditEntry{Who: operator, What: unknown, Why: cut(why)}
}

// capEntry is of a cap that was to be set, or set anew at another rate.
func capEntry(what string, act *plan.Action) auditEntry {
	return auditEntry{Who: act.By, What: what, ID: act.ID, Task: act.Task.Name, Rate: act.Rate, IO: act.IO, Net: act.Net, Until: act.Until, Why: act.Why}
}

// endEntry is of a cap that was undone.
func endEntry(c enforce.Change, why string, how enforce.Result) auditEntry {
	return auditEntry{Who: "quell", What: "uncap", ID: c.ID, Task: c.Task, Why: why + ": " + how.String()}
}

// cut is the beginning of a text that nothing has bounded.
func cut(s string) string {
	const most = 256
	return s[:min(len(s), most)]
}

// audit writes an entry with what came of it.
func (a *Agent) audit(now sample.Millis, e auditEntry, err error) {
	e.At, e.Result = now, "ok"
	if err != nil {
		e.Result = err.Error()
	}
	a.degrade("audit log", a.disk.audit.Write(e))
	a.tell(now, wire.Record_KIND_AUDIT, e.ID, e)
}
