// Package cluster is the client side of quell-server's API: requests and answers as
// JSON over HTTP, and the client for the command line tools. The server's routes are in
// package server; both use these types.
package cluster

import (
	"encoding/json"
	"strings"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// Paths of the API's resources.
const (
	PathCaller    = "/v1/caller"    // → Caller
	PathTasks     = "/v1/tasks"     // → []Task
	PathSpecs     = "/v1/specs"     // → []Spec
	PathIncidents = "/v1/incidents" // → []incident.Record
	PathMachines  = "/v1/machines"  // → []Machine
	PathPairs     = "/v1/pairs"     // → []Pair
	PathQuery     = "/v1/query"     // Query → Answer
	PathQueries   = "/v1/queries"   // → []Canned
	PathCommands  = "/v1/commands"  // Command → Replies
	PathDecisions = "/v1/decisions" // → []Decision
	PathCompute   = "/v1/specs/compute"
	PathRevoke    = "/v1/specs/revoke" // Revocation → Done
)

// MostIncidents is the most incidents of an answer, the newest.
const MostIncidents = 1000

// TruncatedTrailer is the HTTP trailer of a list that does not have all: "true". It is also a header of a list of
// incidents that is cut off for their size.
const TruncatedTrailer = "Quell-Truncated"

// Spec is the newest version of what a job normally costs.
type Spec struct {
	spec.Spec
	Version int64         `json:"version"`
	Last    sample.Millis `json:"last"` // newest sample in it
	// Machines is the number of machines that it was learnt from. MachinesOut were left out:
	// their costs are far from the others'. LeftOut names them, at most ten.
	Machines    int64    `json:"machines"`
	MachinesOut int64    `json:"machines_out"`
	LeftOut     []string `json:"left_out,omitempty"`
	// Threshold is the cost above which a sample is an outlier, with an agent's default
	// parameters; null for a signal that the server does not know.
	Threshold incident.Value `json:"threshold"`
}

// Revocation takes back what was learnt from a machine, about a job, or from the machine about
// the job: the samples of that time do not teach.
type Revocation struct {
	Machine string `json:"machine,omitempty"`
	Job     string `json:"job,omitempty"`
	Since   string `json:"since,omitempty"`
	Until   string `json:"until,omitempty"` // empty: also the samples to come
	Lift    bool   `json:"lift,omitempty"`  // end an earlier revocation of that machine and job
	Why     string `json:"why"`
}

// Validate returns a *command.InvalidError that lists all problems but those of the times.
func (r *Revocation) Validate() error {
	var bad []string
	if r.Machine == "" && r.Job == "" {
		bad = append(bad, "want a machine, a job, or both")
	}
	switch {
	case r.Lift && (r.Since != "" || r.Until != ""):
		bad = append(bad, "want either lift: true or a time")
	case !r.Lift && r.Since == "":
		bad = append(bad, "since is empty: want the time from which on samples are revoked, such as 24h")
	}
	bad = append(bad, command.TextProblems("machine", r.Machine, command.MaxName)...)
	return command.Invalid(append(bad, command.TextProblems("job", r.Job, command.MaxName)...))
}

// String describes the revocation for people and audit logs, without the reason.
func (r *Revocation) String() string {
	var of []string
	if r.Job != "" {
		of = append(of, "job "+r.Job)
	}
	if r.Machine != "" {
		of = append(of, "machine "+r.Machine)
	}
	text := "revoke specs of " + strings.Join(of, " on ")
	if r.Lift {
		return "lift: " + text
	}
	text += " since " + r.Since
	if r.Until != "" {
		text += " until " + r.Until
	}
	return text
}

// Machine is a machine that sent something in the last 30 days.
type Machine struct {
	Machine  string        `json:"machine"`
	LastSeen sample.Millis `json:"last_seen"` // when its newest message was received
	Boot     string        `json:"boot"`      // newest run of its agent
	Batch    uint64        `json:"batch"`     // newest batch of samples received from it
	Record   uint64        `json:"record"`    // newest incident or audit entry
	Lives    int           `json:"lives"`     // number of remembered runs of its agent
	// State is what it said last of operators' decisions; nil: nothing since the server started.
	State *State `json:"state,omitempty"`
}

// State is what a machine says of operators' decisions.
type State struct {
	At    sample.Millis `json:"at"`    // when it was received
	Agent string        `json:"agent"` // its version
	// All and Own are the revisions that it has of the decisions for all and of its own; Current:
	// they are the newest.
	All     uint64 `json:"all"`
	Own     uint64 `json:"own"`
	Current bool   `json:"current"`
	Mode    string `json:"mode"`         // of enforcement, in force
	From    string `json:"mode_from"`    // configuration, override or decision
	By      string `json:"by,omitempty"` // the decision's ID, or the override's
}

// Decision is one that stands, for a machine or for all.
type Decision struct {
	Machine  string `json:"machine,omitempty"` // empty: all
	Revision uint64 `json:"revision"`          // of the list that it is in
	command.Decision
	// Of the machines that it is for and that the server has heard of lately: how many have
	// it, and how many of them carried it out, refused it, or have nothing to do.
	Machines int `json:"machines"`
	Have     int `json:"have"`
	Done     int `json:"done"`
	Refused  int `json:"refused"`
	None     int `json:"none"`
	// Waiting are machines that do not have it, at most 20.
	Waiting []string `json:"waiting,omitempty"`
}

// Caller is the sender of a request, as the server sees it.
type Caller struct {
	Name    string        `json:"name"`  // of the token; empty without one
	Scope   string        `json:"scope"` // viewer or operator
	Version string        `json:"version"`
	Now     sample.Millis `json:"now"`
	// Machine is the only machine that the answers are about; empty from quell-server.
	Machine string `json:"machine,omitempty"`
}

// Task is a task with its newest samples.
type Task struct {
	Machine string         `json:"machine"`
	Task    string         `json:"task"`
	Job     sample.JobName `json:"job"`
	Class   string         `json:"class"`
	CPU     float64        `json:"cpu"` // CPU-s/s
	Capped  bool           `json:"capped,omitempty"`
	At      sample.Millis  `json:"at"` // end of the newest interval
	Costs   []TaskCost     `json:"costs"`
}

// TaskCost is what a task's work cost in its newest interval, by one signal.
type TaskCost struct {
	Signal sample.SignalName `json:"signal"`
	Cost   incident.Value    `json:"cost"` // null: not measured
	// Mean and Limit are the mean and the threshold of the job's spec; null unless that is
	// ready.
	Mean  incident.Value `json:"mean"`
	Limit incident.Value `json:"limit"`
}

// Pair is two jobs that should not share a machine according to incidents: at least one says
// to its end that the antagonist is proven, or likely and a cap on it helped.
type Pair struct {
	Victim     sample.JobName `json:"victim_job"`
	Antagonist sample.JobName `json:"antagonist_job"`
	Incidents  int            `json:"incidents"` // in which the antagonist is likely or proven
	Proven     int            `json:"proven"`    // those of them in which it is proven
	Machines   int            `json:"machines"`
	// Strength is the median over them of the victim's cost ÷ its threshold.
	Strength    float64 `json:"strength"`
	Correlation float64 `json:"correlation"` // mean
	// Caps counts caps and trials of the antagonist with known outcome, Helped those of them
	// under which the victim's cost fell by more than its spec's σ.
	Caps   int `json:"caps"`
	Helped int `json:"helped"`
	// RelativeCost is the median of the victim's cost under these caps ÷ that before them,
	// UsageLost that of the share of its usage that the antagonist lost; nil if not measured.
	RelativeCost *float64 `json:"relative_cost,omitempty"`
	UsageLost    *float64 `json:"usage_lost,omitempty"`
	// Confidence is the lower end of the 95 % confidence interval (Wilson) of the share of
	// tests that confirm the antagonist. A test is such a cap, or an incident in which the
	// accounts of a queue prove it, which always confirms.
	Confidence float64       `json:"confidence"`
	Newest     sample.Millis `json:"newest"`
}

// Query is SQL or the name of a canned query.
type Query struct {
	SQL    string            `json:"sql,omitempty"`
	Canned string            `json:"canned,omitempty"`
	Params map[string]string `json:"params,omitempty"` // of the canned query
	Since  string            `json:"since,omitempty"`  // samples from then on; older ones need not be read
	Until  string            `json:"until,omitempty"`
}

// Column is a result column, with DuckDB's name of its type.
type Column struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// Answer is the result of a query. Each row has one value for each column.
type Answer struct {
	Columns   []Column            `json:"columns"`
	Rows      [][]json.RawMessage `json:"rows"`
	Truncated bool                `json:"truncated,omitempty"`
}

// Canned is a predefined query.
type Canned struct {
	Name   string   `json:"name"`
	Help   string   `json:"help"`
	Params []string `json:"params,omitempty"` // required parameters
	SQL    string   `json:"sql"`              // with $name for each
}

// Reason is why an operator acts.
type Reason struct {
	Why string `json:"why"`
}

// Command is a command for one machine's agent or for all. It becomes a decision, which
// stands until its end.
type Command struct {
	Machine string `json:"machine,omitempty"`
	Cluster bool   `json:"cluster,omitempty"` // all machines, instead of one
	// Canary rolls a mode out in steps; nil: at once.
	Canary *command.Canary `json:"canary,omitempty"`
	command.Command
}

// Validate returns a *command.InvalidError that lists all problems.
func (c *Command) Validate() error {
	bad := c.Problems()
	if (c.Machine == "") != c.Cluster {
		bad = append(bad, "want either machine: NAME or cluster: true")
	}
	if c.Cluster && c.Cap != nil && c.Cap.Incident != "" {
		bad = append(bad, "incident: want its machine: NAME")
	}
	if c.Canary != nil {
		bad = append(bad, c.Canary.Problems()...)
		if !c.Cluster || c.Enforcement == nil {
			bad = append(bad, "want canary only with enforcement and cluster: true")
		}
	}
	return command.Invalid(bad)
}

// String describes the command for people and audit logs, without the reason.
func (c *Command) String() string {
	switch {
	case c.Canary != nil:
		return "all machines, in steps of " + c.Canary.Every.String() + ", " + c.Command.String()
	case c.Cluster:
		return "all machines " + c.Command.String()
	}
	return c.Machine + " " + c.Command.String()
}

// Reply is what a machine has done about a command.
type Reply struct {
	Machine string `json:"machine"`
	OK      bool   `json:"ok"`
	// NoMatch: no task there matches the target. The command is neither done nor refused.
	NoMatch bool     `json:"none,omitempty"`
	Message string   `json:"message"`
	Cap     string   `json:"cap,omitempty"` // its ID, if one was set
	Tasks   int      `json:"tasks"`         // number of tasks it was carried out on
	Refused []string `json:"refused,omitempty"`
}

// Replies are what the machines that a command is for have done about it.
type Replies struct {
	Decision string        `json:"decision,omitempty"` // its ID; of a reset: none
	Until    sample.Millis `json:"until,omitempty"`    // its end; 0: none
	Replies  []Reply       `json:"replies"`
	// Silent are machines that were seen recently and do not have it yet: they get it when
	// they come back.
	Silent []string `json:"silent"`
}

// Done is the result of a request.
type Done struct {
	Message string `json:"message"`
}
