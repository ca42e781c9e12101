package result

import (
	"time"

	"github.com/quell-dev/quell/internal/lab/study"
)

// Verdict says whether a run may be believed.
type Verdict string

// The verdicts. Only valid runs are analysed; the others are kept, shown and
// counted, and run again as often as the study's retries say.
const (
	Valid   Verdict = "valid"
	Invalid Verdict = "invalid"
	Failed  Verdict = "failed"  // the lab could not do it
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
	Stalled          Reason = "stalled" // a role made no progress: frozen by somebody else, or hung
	Starved          Reason = "starved" // a role was ready to run and got no CPU
	ForeignCPU       Reason = "foreign-cpu"
	Steal            Reason = "steal"
	Throttled        Reason = "throttled"
	Swap             Reason = "swap"
	OOM              Reason = "oom"
	ClockStep        Reason = "clock-step"
	CacheLost        Reason = "cache-lost" // a hypervisor moved CPUs off a shared cache
	Saturated        Reason = "generator-saturated"
	NotWarm          Reason = "warmup-not-reached"
	KernelLog        Reason = "dmesg"
	WorkloadFailed   Reason = "workload-failed"
	TimedOut         Reason = "timeout"
	DiskFull         Reason = "disk-full"
	HostLost         Reason = "host-lost" // another machine did not answer any more, or not at all
	Interrupted      Reason = "interrupted"
)

// Evidence is what a verdict rests on: the reason, what was measured, and the
// bound it broke.
type Evidence struct {
	Reason Reason  `json:"reason"`
	Role   string  `json:"role,omitempty"`
	Value  float64 `json:"value"`
	Bound  float64 `json:"bound"`
	Unit   string  `json:"unit,omitempty"`
	// At is when, after the common start.
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
	// Window is the measured roles' steady window: after warm-up, before the
	// first of them ends.
	Window Window `json:"window"`
	// Overlap is the share of Window in which every busy role ran.
	Overlap float64 `json:"overlap"`
	// Skew is the largest difference between the roles' real starts.
	Skew  time.Duration `json:"skew"`
	Parts []Part        `json:"parts"`
	// Steps are the staircase's, with what was achieved.
	Steps []Step `json:"steps,omitempty"`
	// Joules is the energy of Window, from Energy; both empty where there is
	// no source.
	Joules float64 `json:"joules,omitempty"`
	Energy string  `json:"energy,omitempty"`
	Env    string  `json:"env"` // hash of the machine's description
	// Simulated is true where nothing ran.
	Simulated bool `json:"simulated,omitempty"`
	// Stamp is what a comparison must not mix, e.g. "accel=tcg".
	Stamp []string `json:"stamp,omitempty"`
}

// Window is a span of time after a run's Start.
type Window struct {
	From time.Duration `json:"from"`
	To   time.Duration `json:"to"`
}

// Part is what one role's instance did.
type Part struct {
	Name    string `json:"name"` // role, or role/index
	Role    string `json:"role"`
	Command string `json:"command"`
	Binary  string `json:"binary,omitempty"` // sha256
	// CPUs are those it was pinned to, as the kernel gave them back; one list
	// per virtual CPU where these are pinned apart.
	CPUs   []string `json:"cpus"`
	Window Window   `json:"window"` // of its running
	// Iterations are what the workload reported, in order.
	Iterations []Iteration `json:"iterations,omitempty"`
	// Metric is the workload's own figure where it is no iteration count.
	Metric float64 `json:"metric,omitempty"`
	// Values are what the workload said of itself beside its iterations.
	Values   map[string]float64 `json:"values,omitempty"`
	CPUTime  time.Duration      `json:"cpu_time"` // user + system in Window of the run
	User     time.Duration      `json:"user"`
	System   time.Duration      `json:"system"`
	Restarts []Window           `json:"restarts,omitempty"` // gaps
	Audit    *Audit             `json:"audit,omitempty"`
	// Events are counted over the run's Window: name to count; what could not
	// be counted is not there, and why is in Missing.
	Events  map[string]float64 `json:"events,omitempty"`
	Missing map[string]string  `json:"missing,omitempty"`
}

// Iteration is one unit of a workload's work; Units is 1 or what it reported.
type Iteration struct {
	From  time.Duration `json:"from"`
	To    time.Duration `json:"to"`
	Units float64       `json:"units"`
}

// Step is a staircase's step with the load that was reached between its cuts.
type Step struct {
	study.Step
	Achieved float64 `json:"achieved"` // share of the role's CPUs
	// Joules is the energy between the step's cuts, 0 without a source.
	Joules float64 `json:"joules,omitempty"`
}

// Audit is where a role's threads really ran in the run's Window.
type Audit struct {
	Method string `json:"method"` // trace, poll
	// OnPlace is the share of run time on the CPUs it was pinned to.
	OnPlace float64 `json:"on_place"`
	// Migrations are changes of CPU in the window, per virtual CPU or thread,
	// logical; Physical counts changes of core.
	Migrations []Migrations `json:"migrations,omitempty"`
	// Doubled is the share of time in which two or more virtual CPUs sat on
	// one physical core while another idled.
	Doubled float64 `json:"doubled,omitempty"`
	Lost    uint64  `json:"lost,omitempty"` // trace records lost
	// Cores is the number of each CPU's core, by CPU.
	Cores []int `json:"cores,omitempty"`
}

// Migrations counts one thread's moves.
type Migrations struct {
	Thread   string    `json:"thread"`
	Logical  int       `json:"logical"`
	Physical int       `json:"physical"`
	PerCPU   []float64 `json:"per_cpu"` // share of its run time on each CPU
	// Path is where it was, the first MostStays of its CPUs; empty where it was
	// on one all the time.
	Path []Stay `json:"path,omitempty"`
}

// Stay is a thread's coming to a CPU, in time after the window's beginning.
type Stay struct {
	At  time.Duration `json:"at"`
	CPU int           `json:"cpu"`
}

// MostStays is how many of a thread's moves are kept one by one: paper 000 has
// 1,066 of eight machines in a minute.
const MostStays = 1000

// Sample is one second of a run, one line of samples.jsonl.
type Sample struct {
	At time.Duration `json:"at"` // end of the second, after the run's Start
	// Values are named like "cpu.fg" or "psi.cpu.some": README of the format
	// in docs/lab.md. Absent is not zero.
	Values map[string]float64 `json:"v"`
}
