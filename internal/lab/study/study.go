package study

import (
	"slices"
	"time"
)

// Study is a study file of version 1. Maps are keyed by the names that the
// rest of the file refers to; slices keep the file's order.
type Study struct {
	Version     int    `key:"version" help:"format of this file; 1"`
	Name        string `key:"study" help:"name of the study: letters, digits, dashes"`
	Description string `key:"description"`
	Question    string `key:"question" help:"what the study asks"`
	Refute      string `key:"refute" help:"result that would refute it"`

	Hosts         map[string]Host        `key:"hosts" help:"machines that roles run on; none: this machine, named local"`
	Preconditions Preconditions          `key:"preconditions"`
	Networks      map[string]Network     `key:"networks" help:"networks of the study's own, made of namespaces"`
	Environments  map[string]Environment `key:"environments" help:"virtual environments that workloads run in"`
	Workloads     map[string]Workload    `key:"workloads"`
	Roles         []Role                 `key:"roles"` // a mapping in the file, whose order is kept
	Factors       []Factor               `key:"factors"`
	Controls      Controls               `key:"controls"`
	Design        Design                 `key:"design"`
	Run           Run                    `key:"run"`
	Observe       Observe                `key:"observe"`
	Analysis      []Analysis             `key:"analysis" help:"none: score, and degradation if roles also run alone"`
	Report        Report                 `key:"report"`
}

// Share is a fraction, in files written as a percentage ("50%") and in Go 0..1.
type Share float64

// Bytes is a size, in files with a unit ("2GiB", "100KB").
type Bytes int64

// Host is a machine. The address local is the machine that runs the lab.
type Host struct {
	Name    string `key:"-"`
	Address string `key:"address" help:"local, or user@host for SSH"`
	Price   Price  `key:"price" help:"price of one of its CPUs for an hour, e.g. 0.0528 USD; none: the environment's"`
	Count   int    `key:"count" min:"0" max:"1000" help:"this many hosts: NAME1, NAME2, …; 0: one, NAME"`
	Power   bool   `key:"power" help:"it is off in runs without a role on it: the inventory has the commands up and down"`
}

// Preconditions are conditions on a machine. If Require is not met, the study does not
// start. If Prefer is not met, a warning is recorded as a missed requirement in every
// report. Set changes the machine for the study's duration: journalled and restored.
type Preconditions struct {
	Require map[string]string `key:"require" help:"measured quantity: bound, e.g. idle_cpu: '>=97%'"`
	Prefer  map[string]string `key:"prefer"`
	Set     map[string]string `key:"set" help:"kernel knob: value, e.g. numa_balancing: 0"`
}

// Driver is the kind of an environment.
type Driver string

// The drivers. Synthetic runs nothing: its truth is known, so it tests the whole chain.
// Its results are marked as simulated.
const (
	Bare      Driver = "host"
	Cgroup    Driver = "cgroup"
	LXC       Driver = "lxc"
	QEMU      Driver = "qemu"
	Xen       Driver = "xen"
	Synthetic Driver = "synthetic"
)

// Environment is a virtual environment (VE).
type Environment struct {
	Name    string   `key:"-"`
	Driver  Driver   `key:"driver" oneof:"host cgroup lxc qemu xen synthetic"`
	CPUs    int      `key:"cpus" help:"virtual CPUs of a guest (qemu, xen); of others the usual number of threads, and the CPUs that a load is a share of and that mappings and packed give it: it limits nothing, a placement or cpus of the role does"`
	Memory  Bytes    `key:"memory"`
	Image   string   `key:"image" help:"disk image of a qemu guest: a file (qcow2 or raw), or a name given to lab image build; none: a kernel and an initramfs with quell in it"`
	Kernel  string   `key:"kernel" help:"kernel of a guest; with an image its vmlinuz-…, with initrd.img-… in the same folder; none: the image's own"`
	Disk    Bytes    `key:"disk" json:",omitempty" help:"size of a guest's disk, at least its image's; 0: the image's"`
	Accel   []string `key:"accel" help:"kvm, tcg: the first that works; results of tcg are stamped"`
	Network string   `key:"network" json:",omitempty" help:"the study's network that it is connected to, in a namespace of its own; guests need an image"`
	// Bandwidth bounds the traffic that it sends; nil: only its network is a bound.
	Bandwidth *Bandwidth `key:"bandwidth" json:",omitempty" help:"limit of what it sends to its network, as clouds limit an instance"`
	// Weight and Cap are parameters of Xen's Credit scheduler.
	Weight int    `key:"weight" json:",omitempty" help:"xen: weight of its share of the CPUs; 0: the default, 256"`
	Cap    Share  `key:"cap" json:",omitempty" help:"xen: maximum CPU time, share of one CPU; 0%: no limit"`
	Host   string `key:"host" json:",omitempty" help:"host of all roles in it, whatever host the roles name; none: the roles'"`
	// Price is not part of a cell: the price of a run changes nothing in it.
	Price Price `key:"price" json:"-" help:"price of one of its CPUs for an hour, e.g. 0.0528 USD"`
	// Truth is the model of a synthetic environment.
	Truth *Model `key:"truth"`
}

// Model is the known model of a synthetic environment: an iteration of role i takes
// Base·(1 + Σ over the others j of Slope·load_j + Drift·t/T)·(1 + noise). The noise is
// AR(1) with the given deviation and correlation from sample to sample (seconds).
type Model struct {
	Base     time.Duration    `key:"base"`
	Slope    float64          `key:"slope" help:"slowdown by a neighbour at full load, share of the solo time"`
	ByPlace  map[string]Share `key:"by_placement" help:"factor on slope per placement name"`
	Noise    Share            `key:"noise"`
	AR1      float64          `key:"ar1"`
	Drift    Share            `key:"drift"`
	Power    float64          `key:"power" help:"watts at idle; 0: no energy source"`
	PerCPU   float64          `key:"power_per_cpu" help:"watts per busy CPU"`
	FailRate Share            `key:"fail" help:"share of runs whose co-runner dies"`
}

// Workload is the program of a role: one of quell's own kernels, any command with a
// parser for its metric, or a server with a load generator.
type Workload struct {
	Name    string `key:"-"`
	Builtin string `key:"builtin" help:"a built-in kernel, e.g. cpu-burn, primes, triad, chase, syscall, burst, idle"`
	Options string `key:"options" help:"flags of the built-in kernel"`
	// Threads 0 means one per CPU of the environment ("as many processes as CPUs").
	Threads    int           `key:"threads"`
	Command    []string      `key:"command" help:"the program; {asks} is the address of the role in asks, {index} the number of the instance, from 0"`
	Dir        string        `key:"dir"`
	Env        []string      `key:"env"`
	Iterations int           `key:"iterations" help:"0: until the run ends"`
	Time       time.Duration `key:"time" help:"run this long instead of a number of iterations"`
	WorkUnit   string        `key:"work_unit" help:"what is counted, e.g. iteration, request"`
	// Serves makes a command a server: it is started before the other roles.
	Serves int    `key:"serves" json:",omitempty" min:"0" max:"65535" help:"port (TCP or UDP) of a command that is a server: the run begins when a program listens there"`
	Metric Metric `key:"metric"`
	Warmup Warmup `key:"warmup"`
	// Contends is the cause in labels of recorded traces if the workload is an antagonist
	// on other CPUs than its victim's. A cell without it omits the field, so that its key
	// does not change.
	Contends string `key:"contends" json:",omitempty" help:"resource that it contends for, used in labels: cpu, cache, memory, io, net"`
}

// Metric is the performance figure of a workload.
type Metric struct {
	Name   string `key:"name" help:"e.g. throughput, runtime"`
	Unit   string `key:"unit"`
	Better string `key:"better" oneof:"higher lower" help:"must be given for a figure that a path or a regular expression reads"`
	Parse  string `key:"parse" help:"parser of the command's output, a path in its JSON: json:jobs.0.read.iops, or a regular expression with one group: '/…/'"`
}

// OfRun reports whether a command's figure is one of its whole run, which its single executions do not
// show: one of a fixed length is executed as often, however little it gets done.
func (m *Metric) OfRun() bool { return !slices.Contains([]string{"", "time", "iterations"}, m.Parse) }

// Warmup is the beginning of a role's run that is not counted.
type Warmup struct {
	For        time.Duration `key:"for"`
	Iterations int           `key:"iterations"`
}

// Role is one part in every run. A field "$name" is replaced by the level of that factor.
type Role struct {
	Name        string `key:"-"`
	Workload    string `key:"workload"`
	Environment string `key:"environment"`
	Host        string `key:"host" help:"name in hosts; with a * at its end each instance runs on another host with that prefix"`
	Measure     bool   `key:"measure" help:"its metric is a result of the study"`
	// Asks is the role that runs the server for its requests.
	Asks string `key:"asks" help:"role that it sends to (http-client, and {asks} in a command)"`
	// Count is the number of instances of the role ("neighbour": 0..n); a number or
	// "$factor".
	Count string `key:"count"`
	// Threads, if given, replaces the workload's own number.
	Threads string `key:"threads" help:"of the workload; a number or $factor"`
	// State idle starts the environment and runs nothing in it.
	State string `key:"state" help:"busy, idle (the environment exists and runs nothing), or a $factor with these levels"`
	// End says what happens when its workload ends first: restart repeats it until the
	// measured roles have had their last iteration.
	End  string `key:"end" oneof:"restart stop"`
	Load Load   `key:"load"`
	// CPUs pins it to a list ("0-3"); empty: the placement factor decides.
	CPUs string `key:"cpus"`
}

// Load holds a role at a share of its CPUs' capacity.
type Load struct {
	Control   string        `key:"control" oneof:"none duty-cycle requests" help:"none: no control; duty-cycle: a share of its CPUs; requests: a rate of requests"`
	Actuator  string        `key:"actuator" oneof:"freezer sigstop"`
	Period    time.Duration `key:"period" help:"107ms avoids beats with 100 ms quotas, timer ticks and 1 s samples"`
	Target    string        `key:"target" help:"a share, or the name of a factor: '$bgload'; for requests: max, or a share of the base case's rate"`
	Tolerance Share         `key:"tolerance"`
}

// Factor is something that varies between cells, or a staircase that varies
// within a run.
type Factor struct {
	Name       string      `key:"-"`
	Levels     []string    `key:"levels" help:"list of levels; the factor itself may be written as this list; NAME* are all hosts with this prefix"`
	Sets       []Set       `key:"sets" help:"levels that give each role a value of its own: {A: {vm1: soplex, vm2: milc}}"`
	Knob       string      `key:"knob" help:"knob of the machine that is set to the level during the run, as in preconditions.set: {knob: prefetching, levels: [on, off]}"`
	Staircase  *Staircase  `key:"staircase"`
	Placements []Placement `key:"placements"`
	Mappings   *Mappings   `key:"mappings"`
}

// Staircase is a factor that goes through its levels within every run, up and then down
// again, so that a drift is visible and biases nothing ("Showstopper", Podzimek et al.
// 2015, III-C: 19 levels of 5 to 95 % are 38 steps).
type Staircase struct {
	From      Share         `key:"from"`
	To        Share         `key:"to"`
	Step      Share         `key:"step"`
	Hold      time.Duration `key:"hold" help:"time on each step"`
	Settle    time.Duration `key:"settle" help:"cut off at a step's beginning"`
	Trail     time.Duration `key:"trail" help:"cut off at a step's end"`
	Direction string        `key:"direction" oneof:"up down up-down"`
}

// Placement says where roles run: by the relation of their CPUs, or by lists.
type Placement struct {
	Name     string `key:"name"`
	Relation string `key:"relation" help:"neutral, per-chip, per-core, per-thread, smt-sibling, same-thread, same-core, same-llc, same-package, cross-package, same-numa, packed (virtual CPUs on the threads of one core after the other, as clouds place instances)"`
	// CPUs are explicit lists per role, and per virtual CPU if separated by semicolons
	// ("0;1").
	CPUs map[string]string `key:"cpus"`
	// Dynamic switches from Below to Above when the named role's load exceeds At, and
	// back when it is Hysteresis below At.
	Dynamic *Dynamic `key:"dynamic"`
}

// Dynamic is a placement that follows load (paper 003, IV-C: per-thread below
// about half background load, per-chip above).
type Dynamic struct {
	Role       string `key:"role"`
	Below      string `key:"below" help:"relation while the role's load is below at"`
	Above      string `key:"above"`
	At         Share  `key:"at"`
	Hysteresis Share  `key:"hysteresis"`
}

// Mappings are all distinct ways to place the roles' virtual machines on cores, up to
// symmetry of the cores.
type Mappings struct {
	Cores int      `key:"cores"`
	Roles []string `key:"roles" help:"mapped roles; none: all"`
	// PerCore bounds the virtual CPUs on a core; 0: as evenly as possible, as in paper
	// 000 ("three different ways to map the four VMs").
	PerCore int `key:"per_core"`
	// Default adds the level "default", where the parts are on the same cores, unmapped.
	Default bool `key:"default" help:"also a level where the kernel's scheduler decides, on the mappings' cores"`
}

// Set is a named level of a factor that gives each role a value of its own.
type Set struct {
	Name   string
	Values map[string]string // role to value
}

// Controls are cells that quell adds.
type Controls struct {
	Solo          bool `key:"solo" help:"each measured role alone, at each of its placements and loads"`
	IdleNeighbour bool `key:"idle_neighbour" help:"the other environments exist but run nothing"`
	AAPairs       int  `key:"aa_pairs" help:"pairs of equal runs, whose difference is the noise floor"`
	SentinelEvery int  `key:"sentinel_every" help:"number of runs between two runs of a fixed cell, which show drift"`
}

// Design is the order and the repetition of cells.
type Design struct {
	Order       string              `key:"order" oneof:"blocked-random sequential" help:"blocked-random: every repetition is a block, shuffled by the seed"`
	Seed        uint64              `key:"seed"`
	Repetitions int                 `key:"repetitions"`
	Budget      time.Duration       `key:"budget" help:"time limit: a run that would end after it is not started"`
	Exclude     []map[string]string `key:"exclude" help:"combinations of levels to leave out; a numeric level may be a bound ('>11', '<3')"`
}

// Run is the configuration of one run.
type Run struct {
	MinOverlap Share         `key:"min_overlap" help:"share of the measured window in which every other role ran"`
	For        time.Duration `key:"for" help:"length of the steady window, if iterations or a staircase do not give it"`
	Timeout    time.Duration `key:"timeout"`
	Retries    int           `key:"retries" help:"how often an invalid or failed run is repeated"`
	Cooldown   time.Duration `key:"cooldown"`
	OnFailure  string        `key:"on_failure" oneof:"continue stop"`
	// Contamination bounds: over one of these a run is invalid.
	MaxForeignCPU Share `key:"max_foreign_cpu" help:"maximum CPU time of foreign processes on the roles' CPUs"`
	MaxSteal      Share `key:"max_steal"`
}

// Observe is what is recorded in addition to the workloads' own metrics.
type Observe struct {
	Sets      []string `key:"sets" oneof:"cpu psi schedstat net energy domains" help:"domains: figures of each part over the steady window, as Xen's tools report them for a domain"`
	Placement []string `key:"placement" oneof:"trace poll" help:"audit where roles' threads really ran"`
	Events    []string `key:"events" help:"perf events: cycles, instructions, llc-misses, context-switches, …"`
	Signals   []string `key:"signals" help:"quell's own cost signals as metrics"`
	// Agent runs quell-agent in parallel with each run and keeps its samples.
	Agent *Recording `key:"agent" help:"quell-agent samples all tasks of the run's parts into the run's trace.csv"`
	// Hosts and Inside are observed in addition to the machines of the roles.
	Hosts  []string `key:"hosts" help:"hosts of the study that are also observed in runs without a role on them, e.g. the host of guests"`
	Inside bool     `key:"inside" help:"also observe the inside of guests (qemu, xen), by the guest's own kernel"`
	// Meter is a user's command that prints watts, one number a line.
	Meter string `key:"meter" help:"command that prints watts, one number a line, on each host; ipmitool: the server's own sensor"`
	// Cost measures the cost of observation once, before the first run.
	Cost bool `key:"cost" help:"measure the cost of observation for the report: half a minute before the first run"`
}

// Recording is the configuration of an agent that samples a run. Intervals follow each
// other without a gap.
type Recording struct {
	Signals []string      `key:"signals" oneof:"cpi cpt cps runq io" help:"cost signals; those that the machine cannot count are left out"`
	Period  time.Duration `key:"period" help:"length of a sample's interval"`
}

// Missing implements keyed.Needing.
func (*Recording) Missing(seen map[string]bool) []string {
	return slices.DeleteFunc([]string{"signals", "period"}, func(n string) bool { return seen[n] })
}

// Analysis is one analysis of the runs' records.
type Analysis struct {
	Kind    string            `key:"kind" oneof:"net-io net-tenants score degradation mapping interference throughput energy correlation migration dose-response variation signal-validity"`
	Options map[string]string `key:"-"` // the kind's other keys
}

// Report is the output of the study.
type Report struct {
	Formats []string `key:"formats" oneof:"html md csv jsonl parquet"`
	Expect  string   `key:"expect" help:"file of expected values, e.g. a paper's table"`
}
