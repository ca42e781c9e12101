package result

import (
	"time"

	"github.com/quell-dev/quell/internal/lab/study"
)

// Verdict says whether a run is valid.
type Verdict string

// The verdicts. Only valid runs are analysed. The others are kept, shown and counted, and
// repeated as often as the study's retries allow.
const (
	Valid   Verdict = "valid"
	Invalid Verdict = "invalid"
	Failed  Verdict = "failed"  // the lab could not run it
	Skipped Verdict = "skipped" // the machine lacks something
)

// Reason is why a run is not valid.
type Reason string

// The reasons.
const (
	CorunnerDied     Reason = "corunner-died"
	LoadUnattainable Reason = "load-unattainable"
	LoadOffTarget    Reason = "load-off-target"
	OverlapShort     Reason = "overlap-short"
	Misplaced        Reason = "misplaced"
	Stalled          Reason = "stalled" // a role made no progress: frozen from outside, or hung
	Starved          Reason = "starved" // a role was ready to run and got no CPU
	ForeignCPU       Reason = "foreign-cpu"
	Steal            Reason = "steal"
	Throttled        Reason = "throttled"
	Swap             Reason = "swap"
	OOM              Reason = "oom"
	ClockStep        Reason = "clock-step"
	CacheLost        Reason = "cache-lost" // a hypervisor moved CPUs off a shared cache
	Saturated        Reason = "generator-saturated"
	KernelLog        Reason = "dmesg"
	WorkloadFailed   Reason = "workload-failed"
	TimedOut         Reason = "timeout"
	HostLost         Reason = "host-lost" // another host no longer answers, or never did
)

// Evidence is the basis of a verdict: the reason, the measured value, and the bound that
// it exceeded.
type Evidence struct {
	Reason Reason  `json:"reason"`
	Role   string  `json:"role,omitempty"`
	Value  float64 `json:"value"`
	Bound  float64 `json:"bound"`
	Unit   string  `json:"unit,omitempty"`
	// At is the time since the common start.
	At   time.Duration `json:"at,omitempty"`
	Text string        `json:"text"`
}

// Run is the record of one run. Times are after Start, the roles' common
// start, on the host's monotonic clock.
type Run struct {
	Study    string     `json:"study"`
	CellKey  string     `json:"cell_key"`
	Cell     study.Cell `json:"cell"`
	N        int        `json:"n"`
	Try      int        `json:"try"`
	Order    int        `json:"order"` // place in the sequence of the study's runs
	Verdict  Verdict    `json:"verdict"`
	Evidence []Evidence `json:"evidence,omitempty"`
	Start    time.Time  `json:"start"`
	// Window is the measured roles' steady window: after the warm-up of all, until the last of
	// them has done its iterations or its time. One that is done before goes on working, if its
	// program does.
	Window Window `json:"window"`
	// Overlap is the share of Window in which every busy role ran.
	Overlap float64 `json:"overlap"`
	// Skew is the largest difference between the roles' real starts.
	Skew  time.Duration `json:"skew"`
	Parts []Part        `json:"parts"`
	// Steps are the steps of the staircase, with the achieved loads.
	Steps []Step `json:"steps,omitempty"`
	// Joules is the energy of Window, from Energy; both empty where there is
	// no source.
	Joules float64 `json:"joules,omitempty"`
	Energy string  `json:"energy,omitempty"`
	// Hosts are the other machines on which the run was observed.
	Hosts []Host `json:"hosts,omitempty"`
	Env   string `json:"env"` // hash of the machine's description
	// Simulated is true if nothing was executed.
	Simulated bool `json:"simulated,omitempty"`
	// Stamp are conditions that a comparison must not mix, e.g. "accel=tcg".
	Stamp []string `json:"stamp,omitempty"`
}

// Host is another host, or the inside of a guest, on which a run was observed.
type Host struct {
	Name string `json:"name"`
	// Platform is the type of its CPUs, "GenuineIntel-6-85-7-vm": a cloud's type of instance may have
	// several. "" if it is unknown.
	Platform string `json:"platform,omitempty"`
	// Machine tells it from another of that name, in another inventory: a hash of its firmware's UUID or
	// its system's id. "" if it has neither.
	Machine string `json:"machine,omitempty"`
	// Offset is how far its CLOCK_MONOTONIC was behind that of the lab's machine when the
	// observation began, Within the largest error of that, Drift its change until the end.
	Offset time.Duration `json:"clock_offset"`
	Within time.Duration `json:"clock_within"`
	Drift  time.Duration `json:"clock_drift"`
	// Joules and Energy are as in Run.
	Joules float64 `json:"joules,omitempty"`
	Energy string  `json:"energy,omitempty"`
}

// Window is a span of time after a run's Start.
type Window struct {
	From time.Duration `json:"from"`
	To   time.Duration `json:"to"`
}

// Part is the record of one role's instance.
type Part struct {
	Name    string `json:"name"` // role, or role/index
	Role    string `json:"role"`
	Command string `json:"command"`
	// CPUs are those that it was pinned to, as read back from the kernel; one list per
	// virtual CPU where these are pinned separately.
	CPUs   []string `json:"cpus"`
	Window Window   `json:"window"` // the time it was running
	// Iterations are what the workload reported, in order.
	Iterations []Iteration `json:"iterations,omitempty"`
	// Metric is the workload's own figure where it is not an iteration count.
	Metric float64 `json:"metric,omitempty"`
	// Values are what the workload reported in addition to its iterations.
	Values   map[string]float64 `json:"values,omitempty"`
	CPUTime  time.Duration      `json:"cpu_time"` // user + system in Window of the run
	User     time.Duration      `json:"user"`
	System   time.Duration      `json:"system"`
	Restarts []Window           `json:"restarts,omitempty"` // gaps
	Audit    *Audit             `json:"audit,omitempty"`
	// Events are counted over the run's Window: name to count. An event that could not be
	// counted is absent, and the reason is in Missing.
	Events  map[string]float64 `json:"events,omitempty"`
	Missing map[string]string  `json:"missing,omitempty"`
	// StepEvents are the events between the cuts of each step of the staircase, in its order,
	// from readings once a second; empty for a step that was not covered.
	StepEvents []map[string]float64 `json:"step_events,omitempty"`
}

// Iteration is one unit of a workload's work; Units is 1 or what it reported.
type Iteration struct {
	From  time.Duration `json:"from"`
	To    time.Duration `json:"to"`
	Units float64       `json:"units"`
}

// Step is a step of the staircase with the load that was achieved between its cuts.
type Step struct {
	study.Step
	Achieved float64 `json:"achieved"` // share of the role's CPUs
	// Joules is the energy between the step's cuts, 0 without a source.
	Joules float64 `json:"joules,omitempty"`
}

// Audit is on which CPUs a role's threads really ran in the run's Window.
type Audit struct {
	Method string `json:"method"` // trace, poll
	// OnPlace is the share of run time on the CPUs it was pinned to.
	OnPlace float64 `json:"on_place"`
	// Migrations are changes of CPU in the window, per virtual CPU or thread,
	// logical; Physical counts changes of core.
	Migrations []Migrations `json:"migrations,omitempty"`
	// Doubled is the share of time in which two or more virtual CPUs were on one physical
	// core while another core was idle.
	Doubled float64 `json:"doubled,omitempty"`
	Lost    uint64  `json:"lost,omitempty"` // trace records lost
	// Cores is the core number of each CPU, by CPU.
	Cores []int `json:"cores,omitempty"`
}

// Migrations counts one thread's moves.
type Migrations struct {
	Thread   string    `json:"thread"`
	Logical  int       `json:"logical"`
	Physical int       `json:"physical"`
	PerCPU   []float64 `json:"per_cpu"` // share of its run time on each CPU
	// Path is the sequence of CPUs it ran on, at most MostStays; empty if it was on one
	// CPU all the time.
	Path []Stay `json:"path,omitempty"`
}

// Stay is the arrival of a thread on a CPU; At counts from the window's beginning.
type Stay struct {
	At  time.Duration `json:"at"`
	CPU int           `json:"cpu"`
}

// MostStays is how many of a thread's moves are kept individually: paper 000 reports
// 1,066 of eight machines in a minute.
const MostStays = 1000

// Sample is one second of a run, one line of samples.jsonl.
type Sample struct {
	At time.Duration `json:"at"` // end of the second, after the run's Start
	// Values are named like "cpu.fg" or "psi.cpu.some": docs/lab.md lists them. An absent value
	// is not zero.
	Values map[string]float64 `json:"v"`
	// Host is the other machine on which it was taken, "" for the lab's own.
	Host string `json:"host,omitempty"`
}
