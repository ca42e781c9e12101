package study

import (
	"cmp"
	"time"
)

// CellKind says why a cell exists.
type CellKind string

// The kinds: main cells of the study, and the controls that quell adds.
const (
	Main     CellKind = "main"
	Solo     CellKind = "solo"
	Idle     CellKind = "idle-neighbour"
	AA       CellKind = "a-a"
	Sentinel CellKind = "sentinel"
)

// Cell is one combination of factors with everything resolved except the CPUs, which
// depend on the host's topology. It is JSON in records; its Key is the hash of that JSON.
type Cell struct {
	Kind    CellKind       `json:"kind"`
	Levels  []Level        `json:"levels"` // in the order of the study's factors
	Parts   []Part         `json:"parts"`
	Place   Placement      `json:"placement"`
	Steps   []Step         `json:"steps,omitempty"` // of a staircase; none: one steady window
	For     time.Duration  `json:"for,omitempty"`   // length of the steady window, if iterations do not give it
	Warmup  time.Duration  `json:"warmup,omitempty"`
	Mapping map[string]int `json:"mapping,omitempty"` // virtual CPU ("vm1/0") to core number
	// Networks are the study's networks, if any part is on one.
	Networks map[string]Network `json:"networks,omitempty"`
	// Off are the hosts that are off during the run.
	Off []string `json:"off,omitempty"`
	// Knobs are the machine's knobs during the run: knob to value.
	Knobs map[string]string `json:"knobs,omitempty"`
}

// Conditions are the knobs as levels, by name: a part's performance alone is known only
// under the same knobs.
func (c *Cell) Conditions() []Level {
	var ls []Level
	for _, name := range sorted(c.Knobs) {
		ls = append(ls, Level{name, c.Knobs[name]})
	}
	return ls
}

// Level is one factor's value in a cell.
type Level struct {
	Factor string `json:"factor"`
	Value  string `json:"value"`
}

// Part is one instance of a role in a cell: "nb/2" is the third neighbour.
type Part struct {
	Role    string `json:"role"`
	Index   int    `json:"index"`
	Several bool   `json:"several,omitempty"` // the cell has more than one instance of the role
	// Slot is its place among the Slots parts of the full cell, also where it is alone: a
	// relation of placement assigns CPUs to each slot.
	Slot        int         `json:"slot"`
	Slots       int         `json:"slots"`
	Host        string      `json:"host"`
	Environment Environment `json:"environment"`
	Workload    Workload    `json:"workload"`
	Measure     bool        `json:"measure"`
	Idle        bool        `json:"idle,omitempty"`
	Restart     bool        `json:"restart,omitempty"`
	Load        Load        `json:"load"`
	// Target is the load to hold where there are no steps, 0 without control.
	Target Share  `json:"target,omitempty"`
	CPUs   string `json:"cpus,omitempty"`
	// Cores is how many cores it may use all threads of, with others; 0: its placement says.
	Cores int `json:"cores,omitempty"`
	// Address is its address on the study's networks, with the length of the subnet; Asks
	// is the address that its requests go to; for a part that is on none of them, the host.
	Address string `json:"address,omitempty"`
	Asks    string `json:"asks,omitempty"`
}

// Threads is the number of threads of its workload, otherwise the number of CPUs of its
// environment. 0 if neither is given, which means as many as the CPUs that it may use.
func (p *Part) Threads() int { return cmp.Or(p.Workload.Threads, p.Environment.CPUs) }

// builtinUnits are the units of work that the built-in workloads report.
var builtinUnits = map[string]string{"cpu-burn": "addition", "primes": "event", "triad": "byte", "chase": "load", "syscall": "call", "read": "read",
	"burst": "step", HTTPClient: "answer"}

// WorkUnit is the unit of work that the part reports: of a built-in workload for which the file names none, its own. The
// cell itself has the default, "iteration", which cannot change with its key. A model counts iterations.
func (p *Part) WorkUnit() string {
	if u := builtinUnits[p.Workload.Builtin]; u != "" && p.Workload.WorkUnit == "iteration" && p.Environment.Driver != Synthetic {
		return u
	}
	return p.Workload.WorkUnit
}

// FigureUnit is the unit of the part's figure, in the same way.
func (p *Part) FigureUnit() string {
	switch m := &p.Workload.Metric; {
	case p.Workload.Builtin == "" || m.Unit != usual[""].Unit:
		return m.Unit
	case m.Better == "lower":
		return "s/" + p.WorkUnit()
	}
	return p.WorkUnit() + "s/s"
}

// Step is one step of a staircase. Times are after the roles' common start.
type Step struct {
	Role   string        `json:"role"` // the role whose load it is
	Target Share         `json:"target"`
	Up     bool          `json:"up"` // in the rising half
	From   time.Duration `json:"from"`
	To     time.Duration `json:"to"`
	// Settle and Trail are cut off before averages are computed.
	Settle time.Duration `json:"settle"`
	Trail  time.Duration `json:"trail"`
}

// Planned is one run of a plan.
type Planned struct {
	Cell Cell `json:"cell"`
	N    int  `json:"n"` // repetition, from 0
	// Takes is its estimated length, from the times in the file.
	Takes time.Duration `json:"takes"`
	// Key is the cell's, computed once for all its runs.
	Key string `json:"-"`
}
