// Package cluster is quell-server's API as those who ask it see it: what is asked
// and answered, in JSON over HTTP, and the client that people's tools use. The
// server's own routes are in package server; both speak these types.
package cluster

import (
	"encoding/json"

	"github.com/quell-dev/quell/internal/command"
	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/spec"
)

// Paths of the API's resources.
const (
	PathSpecs     = "/v1/specs"     // → []Spec
	PathIncidents = "/v1/incidents" // → []incident.Record
	PathMachines  = "/v1/machines"  // → []Machine
	PathPairs     = "/v1/pairs"     // → []Pair
	PathQuery     = "/v1/query"     // Query → Answer
	PathQueries   = "/v1/queries"   // → []Canned
	PathCommands  = "/v1/commands"  // Command → Replies
	PathCompute   = "/v1/specs/compute"
)

// Spec is what a job normally costs, newest version.
type Spec struct {
	spec.Spec
	Version int64         `json:"version"`
	Last    sample.Millis `json:"last"` // newest sample in it
}

// Machine is one that ever sent something.
type Machine struct {
	Machine  string        `json:"machine"`
	LastSeen sample.Millis `json:"last_seen"` // when something of it was taken in
	Boot     string        `json:"boot"`      // newest life of its agent
	Batch    uint64        `json:"batch"`     // newest batch of samples that was taken of it
	Record   uint64        `json:"record"`    // newest incident or audit entry
	Lives    int           `json:"lives"`     // of its agent, that are remembered
}

// Pair is two jobs that should not share a machine: what incidents say of it.
type Pair struct {
	Victim     sample.JobName `json:"victim_job"`
	Antagonist sample.JobName `json:"antagonist_job"`
	Incidents  int            `json:"incidents"` // in which the one was accused of hurting the other
	Machines   int            `json:"machines"`
	// Strength is the median of the victim's cost in them ÷ what it normally costs.
	Strength    float64 `json:"strength"`
	Correlation float64 `json:"correlation"` // mean
	// Caps are those of the antagonist whose outcome is known, Helped those of them
	// under which the victim's cost fell by more than its spec's σ.
	Caps   int `json:"caps"`
	Helped int `json:"helped"`
	// Confidence is the lower end of the 95 % interval (Wilson) of the share of such
	// caps that help; 0 where none was tried: then there is a correlation and no proof.
	Confidence float64       `json:"confidence"`
	Newest     sample.Millis `json:"newest"`
}

// Query is SQL or the name of a canned query.
type Query struct {
	SQL    string            `json:"sql,omitempty"`
	Canned string            `json:"canned,omitempty"`
	Params map[string]string `json:"params,omitempty"` // of the canned one
	Since  string            `json:"since,omitempty"`  // samples from then on; it need not read older ones
	Until  string            `json:"until,omitempty"`
}

// Answer is a query's. Each row is a list of as many values as there are columns.
type Answer struct {
	Columns []struct {
		Name string `json:"name"`
		Type string `json:"type"`
	} `json:"columns"`
	Rows      [][]json.RawMessage `json:"rows"`
	Truncated bool                `json:"truncated,omitempty"`
}

// Canned is a query that people ask again and again.
type Canned struct {
	Name   string   `json:"name"`
	Help   string   `json:"help"`
	Params []string `json:"params,omitempty"` // that it needs
	SQL    string   `json:"sql"`              // with $name for each
}

// Reason is why an operator acts.
type Reason struct {
	Why string `json:"why"`
}

// Command is for one machine's agent or all.
type Command struct {
	Machine string `json:"machine,omitempty"`
	Cluster bool   `json:"cluster,omitempty"` // all machines, instead of one
	command.Command
}

// Validate returns a *command.InvalidError with all that is wrong with it.
func (c *Command) Validate() error {
	bad := c.Problems()
	if (c.Machine == "") != c.Cluster {
		bad = append(bad, "want machine, a name, or cluster, true")
	}
	return command.Invalid(bad)
}

// String is for people and audit logs, without the reason.
func (c *Command) String() string {
	if c.Cluster {
		return "all machines " + c.Command.String()
	}
	return c.Machine + " " + c.Command.String()
}

// Reply is what a machine made of a command.
type Reply struct {
	Machine string `json:"machine"`
	OK      bool   `json:"ok"`
	// None: no task there is meant. It is neither done nor refused.
	None    bool     `json:"none,omitempty"`
	Message string   `json:"message"`
	Cap     string   `json:"cap,omitempty"` // its ID, if one was set
	Tasks   int      `json:"tasks"`         // on how many it was carried out
	Refused []string `json:"refused,omitempty"`
}

// Replies are those of all machines that a command was for.
type Replies struct {
	Replies []Reply `json:"replies"`
	// Silent are machines that were there lately and have not answered.
	Silent []string `json:"silent"`
}

// Done says what a request did.
type Done struct {
	Message string `json:"message"`
}
