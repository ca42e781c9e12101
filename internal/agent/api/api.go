// Package api is the agent's local socket: the requests and answers, as JSON over HTTP
// on a Unix socket that only root and one group may open, and the client for the
// command line tools.
package api

import (
	"fmt"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// Paths of the socket's resources. Commands take POST, the others GET.
const (
	PathStatus    = "/v1/status"
	PathTasks     = "/v1/tasks"
	PathIncidents = "/v1/incidents" // Query → Incidents; ?id= an ID, part of one, or last: the complete incident
	PathOffenders = "/v1/offenders" // → []plan.Offender
	PathCommands  = "/v1/commands"  // command.Command → Done
	PathDecisions = "/v1/decisions" // → []Decision
)

// Status is the agent as a whole.
type Status struct {
	Version   string          `json:"version"`
	PID       int             `json:"pid"`
	Machine   string          `json:"machine"`
	Platform  sample.Platform `json:"platform"`
	Started   sample.Millis   `json:"started"`
	Now       sample.Millis   `json:"now"`
	Rule      string          `json:"rule"`
	Mode      plan.Mode       `json:"mode"`
	ModeFrom  Origin          `json:"mode_from"`
	Signals   []SignalStatus  `json:"signals"`
	Usage     string          `json:"usage,omitempty"` // how usage and pressure of tasks are read
	Tasks     int             `json:"tasks"`
	Outside   float64         `json:"outside"` // CPU-s/s used outside any task in the last interval
	Caps      []CapView       `json:"caps"`
	Overruled []Overruled     `json:"overruled,omitempty"` // within a day, the newest 20
	Open      int             `json:"open_incidents"`
	Intervals uint64          `json:"intervals"` // sampling intervals finished
	Degraded  []string        `json:"degraded,omitempty"`
}

// Source is where a setting comes from.
type Source string

// The sources of settings.
const (
	Configuration Source = "configuration"
	ByOverride    Source = "override" // an operator on this machine
	ByDecision    Source = "decision" // the server
)

// Origin is where a setting comes from; with its decision, unless that is the configuration.
type Origin struct {
	From     Source            `json:"from"`
	Decision *command.Decision `json:"decision,omitempty"`
}

// Text is for people, without the time: "decision of anna (ticket 7)".
func (o Origin) Text() string {
	if o.Decision == nil {
		return string(o.From)
	}
	return fmt.Sprintf("%s of %s (%s)", o.From, o.Decision.Who, o.Decision.Why)
}

// Decision is one that stands for this machine, and what has become of it here.
type Decision struct {
	Origin
	// OK: it was carried out. None: it does not apply here, for example no task matches.
	OK      bool   `json:"ok"`
	None    bool   `json:"none,omitempty"`
	Outcome string `json:"outcome"`
}

// SignalStatus is the state of a requested signal, whether it is counted or not.
type SignalStatus struct {
	Signal  sample.SignalName `json:"signal"`
	Variant string            `json:"variant,omitempty"`
	OK      bool              `json:"ok"`
	Reason  string            `json:"reason,omitempty"`
	Remedy  string            `json:"remedy,omitempty"`
	// Of the newest window: the tasks that the signal could count, the tasks counted,
	// the number of windows within which each is counted, and the share of their
	// windows in which the present tasks were counted.
	Tasks    int     `json:"tasks,omitempty"`
	Counted  int     `json:"counted,omitempty"`
	Within   int     `json:"within,omitempty"`
	Coverage float64 `json:"coverage,omitempty"`
}

// CapView is a cap in force.
type CapView struct {
	Task sample.TaskName `json:"task"`
	plan.CapState
}

// Overruled is a cap that ended because another program changed the limit. quell leaves the limit as
// it is.
type Overruled struct {
	Task   sample.TaskName `json:"task"`
	ID     string          `json:"id"` // of the cap
	At     sample.Millis   `json:"at"`
	By     string          `json:"by"`     // who had set the cap
	Result string          `json:"result"` // taken-over: it has another limit now; reset: that from before the cap
	Note   string          `json:"note"`   // what the limit is now
	Likely string          `json:"likely,omitempty"`
}

// TaskView is a task that the agent follows.
type TaskView struct {
	sample.Task
	CPU    float64      `json:"cpu"` // CPU-s/s of the last interval
	Flags  string       `json:"flags,omitempty"`
	Capped bool         `json:"capped,omitempty"`
	Role   plan.Role    `json:"role,omitempty"` // in open incidents
	Note   string       `json:"note,omitempty"`
	Costs  []SignalView `json:"costs"`
	// ClassWhy is the reason for the class; Proposed: no rule sets it.
	ClassWhy string            `json:"class_why,omitempty"`
	Proposed bool              `json:"proposed,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"` // what is known of where it comes from
}

// SignalView is a task's result in the last interval for one signal.
type SignalView struct {
	Signal  sample.SignalName `json:"signal"`
	Cost    incident.Value    `json:"cost"`  // null: not counted
	Limit   incident.Value    `json:"limit"` // null: not judged
	Outlier bool              `json:"outlier,omitempty"`
	// Coverage is the share of the interval that was counted, 0 to 1.
	Coverage float64   `json:"coverage,omitempty"`
	Spec     spec.Spec `json:"spec"`
	// ReadyIn is when the spec will be ready if the task goes on as in the last interval, s; 0 if
	// that is not known: nothing was learnt from the interval, or the cluster's spec is waited for.
	ReadyIn float64 `json:"ready_in_s,omitempty"`
}

// Done is the result of a command.
type Done struct {
	Message string `json:"message"`
	ID      string `json:"id,omitempty"` // of the cap, if it is one
	Tasks   int    `json:"tasks,omitempty"`
	// Refused lists the tasks of several that the command was refused for, with the reason.
	Refused []string `json:"refused,omitempty"`
}

// Failure is the body of every answer that is not a success.
type Failure struct {
	Error  string `json:"error"`
	Remedy string `json:"remedy,omitempty"`
}
