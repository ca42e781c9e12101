package config

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/keyed"
)

// Agent is the configuration of quell-agent. The tags give each key's help and
// range; the reference page in docs/ is made from them.
type Agent struct {
	Machine     string   `key:"machine" help:"name of this machine in samples and incidents; empty: its host name"`
	StateDir    string   `key:"state_dir" help:"directory of the journal, specs, incidents and audit log"`
	Journals    string   `key:"journals" help:"directory in which all agents of a machine note where their journals are, so that restore finds each; empty: none"`
	Exclusive   bool     `key:"exclusive" help:"be the only agent of this machine, by a lock on the top of its cgroups; false: for demos and tests whose agents never limit the same cgroup"`
	Socket      string   `key:"socket" help:"local control socket"`
	SocketGroup string   `key:"socket_group" help:"group that may use the socket in addition to root; empty: root only"`
	Listen      string   `key:"listen" help:"address of /metrics and /healthz; empty: none"`
	LogLevel    string   `key:"log_level" help:"debug, info, warn or error" oneof:"debug info warn error"`
	LogFormat   string   `key:"log_format" help:"text or json" oneof:"text json"`
	Record      string   `key:"record" help:"append every sample to this CSV trace, which only grows; empty: none"`
	Signals     []string `key:"signals" help:"cost signals to count; those that this machine cannot count are skipped, and a problem only if this list is not the default one, or none is left" oneof:"cpi cpt cps runq io net probe steal"`

	Tick     time.Duration `key:"tick" help:"period of the agent's loop" min:"10ms" max:"10s"`
	Nice     int           `key:"nice" help:"nice value that the agent gives itself if it was started with 0 and has CAP_SYS_NICE, so that windows end and caps are undone in time where CPU time is short; while it uses more than 1 % of a CPU it has 0 again; 0: none" min:"-20" max:"0"`
	Sampling Sampling      `key:"sampling"`
	Spec     Spec          `key:"spec"`
	Detect   Detect        `key:"detect"`
	Enforce  Enforce       `key:"enforce"`
	Log      Rotation      `key:"incidents"`
	Server   Uplink        `key:"server"`
	Names    Names         `key:"names"`
	Rules    []Matcher     `key:"rules" help:"which cgroups are tasks; the first matching rule applies"`
}

// Sampling configures when to count.
type Sampling struct {
	Duration    time.Duration `key:"duration" help:"length of a sampling window" min:"50ms" max:"10m"`
	Period      time.Duration `key:"period" help:"sampling period; it contains one window" min:"50ms" max:"1h"`
	Phase       string        `key:"phase" help:"when in its period a window opens: at a random moment, which no task can foresee, or always at the same; a window longer than half of its period is always at the same" oneof:"random fixed"`
	MaxOverhead float64       `key:"max_tax" help:"a signal is paused while counting it would cost more than this share of the machine's CPU time, computed from the added cost of a context switch (virtual PMUs); 0: no limit" min:"0" max:"1"`
}

// Spec configures how normal cost is learnt.
type Spec struct {
	spec.Params
	Provisional int           `key:"provisional_samples" help:"samples of a task from which on it is judged by a provisional spec, while it is still learning: incidents say so, and no cap follows; 0: never" min:"0" max:"1000000"`
	Save        time.Duration `key:"save" help:"write specs to the state directory this often" min:"1s" max:"24h"`
	Incidents   bool          `key:"learn_from_incidents" help:"also learn from samples taken in incidents (the paper does)"`
	// Own has the default "rule" because the paper manages no job with fewer than 5 tasks,
	// while quell is to help on a single machine too: most of what runs there has one task, and
	// trials and accounts need no spec of a whole job.
	Own string `key:"own_history" help:"whether tasks are judged by this machine's own history where the server has no ready spec of their job: always; without_server: only if no server is configured, since a server that has none says that the job has too few tasks, which the paper does not manage; rule: without_server with rule cpi2, else always" oneof:"rule always without_server"`
}

// Detect configures detection.
type Detect struct {
	detect.Params
	Switches Switches `key:"switches"`
}

// Switches override single switches of the rule: on, off, or as in the rule.
type Switches struct {
	Reach         string `key:"reach" help:"exclude suspects that share no resource with the victim" oneof:"rule on off"`
	CoVictim      string `key:"co_victim" help:"rank suspects that are victims too after the others" oneof:"rule on off"`
	LeastEffect   string `key:"least_effect" help:"an outlier must also exceed the signal's least effect" oneof:"rule on off"`
	Indeterminate string `key:"indeterminate" help:"name no antagonist from a window without good samples" oneof:"rule on off"`
	LeastPressure string `key:"least_pressure" help:"exclude suspects with almost no usage in the victim's bad intervals" oneof:"rule on off"`
	LookBack      string `key:"look_back" help:"move a window without good samples back to the last good ones" oneof:"rule on off"`
	PhaseChange   string `key:"phase_change" help:"name only suspects that used more in the victim's bad intervals; a change in the victim itself is a separate finding" oneof:"rule on off"`
	Evidence      string `key:"evidence" help:"weigh suspects by all data of the last day and by the results of trials, not by the correlation" oneof:"rule on off"`
	OwnCauses     string `key:"own_causes" help:"own quota, steal and self-wait are separate findings" oneof:"rule on off"`
	Bounds        string `key:"bounds" help:"drop costs outside the signal's range, which no measurement gives" oneof:"rule on off"`
	Outside       string `key:"outside" help:"usage outside any task is a suspect, so that no task is blamed for it" oneof:"rule on off"`
	CappedApart   string `key:"capped_apart" help:"do not rank suspects that are capped" oneof:"rule on off"`
	Withhold      string `key:"withhold" help:"do not learn from samples of incidents, nor from outliers until it is known that no incident followed" oneof:"rule on off"`
}

// Enforce configures enforcement.
type Enforce struct {
	Mode string `key:"mode" help:"off, advise or on" oneof:"off advise on"`
	plan.Policy
	IOOps   uint64        `key:"io_ops" help:"cap of a task that hurts the victim through a disk: requests/s, reads and writes separately, on each disk shared with the victim; 0: none" min:"0" max:"4294967295"`
	IOBytes uint64        `key:"io_bytes" help:"the same in bytes/s; both 0: the task is reported and not limited" min:"0" max:"1000000000000"`
	Cap     string        `key:"cap" help:"fixed: the hard cap; feedback: the cap follows the victim's cost and is no stricter than necessary (docs/rules.md)" oneof:"fixed feedback"`
	Period  time.Duration `key:"quota_period" help:"CPU bandwidth period of a cap; 0s: the cgroup's own, or a longer one where the quota would be under 1 ms (the paper's example: 250ms)" min:"0s" max:"1s"`
}

// Rotation configures how incidents are kept on disk.
type Rotation struct {
	MaxSizeMB int `key:"max_size_mb" help:"a log file is rotated at this size" min:"1" max:"10000"`
	Keep      int `key:"keep" help:"rotated files kept" min:"1" max:"1000"`
	// Profile is a template (profile.go).
	Profile string `key:"profile" help:"URL of a task's profile (Parca, Pyroscope, Pixie), shown with incidents; {task}, {job}, {machine}, {namespace}, {workload}, {pod}, {container}, {unit}, {vm}, {from} and {to} (ms), {from_time} and {to_time} (RFC 3339) are replaced; a task of which one is not known has no link; empty: none"`
}

// defaultTrial is how long a suspect is limited by default to find out whether it is the
// antagonist. The rule that uses trials was chosen and evaluated with this value
// (docs/rules.md).
const defaultTrial = 3 * time.Minute

// Default returns the paper's values where it has one, except for the rule.
func Default() Agent {
	d, _ := detect.Paper(detect.Default)
	p := plan.Paper()
	p.Net, p.Trial = 1<<20, defaultTrial
	return Agent{
		StateDir: "/var/lib/quell", Journals: "/var/lib/quell/journals", Exclusive: true, Socket: "/run/quell/agent.sock", Listen: "127.0.0.1:9780",
		LogLevel: "info", LogFormat: "text", Signals: []string{"cpi", "cpt", "runq"},
		Tick: time.Second, Nice: -5, Sampling: Sampling{10 * time.Second, time.Minute, "random", 0.01},
		Spec:    Spec{Params: spec.OwnHistory(), Save: 5 * time.Minute, Own: "rule"},
		Detect:  Detect{d, asInTheRule()},
		Enforce: Enforce{Mode: p.Mode.String(), Policy: p, IOOps: 20, IOBytes: 1 << 20, Cap: "fixed"},
		Log:     Rotation{MaxSizeMB: 16, Keep: 4},
		Server:  Uplink{Spool: Spool{MaxMB: 256}},
		Names:   defaultNames(),
		Rules:   defaultMatchers(),
	}
}

// asInTheRule overrides no switch.
func asInTheRule() (s Switches) {
	all := reflect.ValueOf(&s).Elem()
	for i := range all.NumField() {
		all.Field(i).SetString("rule")
	}
	return s
}

// maxSocket is the longest path of a socket (unix(7): sun_path).
const maxSocket = 107

// Validate returns every problem of the current values.
func (a *Agent) Validate() []Problem {
	ps := problems(keyed.Check("", a))
	add := ps.add
	if a.StateDir == "" {
		add("state_dir", `""`, "a directory")
	}
	if n := len(a.Socket); n == 0 || n > maxSocket {
		add("socket", strconv.Quote(a.Socket), fmt.Sprintf("a path of at most %d bytes", maxSocket))
	}
	if a.Listen != "" {
		address("listen", a.Listen, "127.0.0.1:9780, or empty", add)
	}
	if a.Sampling.Duration > a.Sampling.Period {
		add("sampling.duration", a.Sampling.Duration, fmt.Sprintf("at most sampling.period, %s", a.Sampling.Period))
	}
	if a.Sampling.Duration < a.Tick {
		add("sampling.duration", a.Sampling.Duration, fmt.Sprintf("at least tick, %s", a.Tick))
	}
	if need := time.Duration(a.Detect.Outliers) * a.Sampling.Period; a.Detect.OutlierWindow < need {
		add("detect.outlier_window", a.Detect.OutlierWindow, fmt.Sprintf("at least %s, so that %d outliers fit, one per sampling.period", need, a.Detect.Outliers))
	}
	if a.Detect.Window < a.Detect.OutlierWindow {
		add("detect.window", a.Detect.Window, fmt.Sprintf("at least detect.outlier_window, %s", a.Detect.OutlierWindow))
	}
	if len(a.Signals) == 0 {
		add("signals", "[]", "at least one of cpi, cpt, cps, runq, io, net, probe, steal")
	}
	if d := a.Enforce.MaxDuration; d != 0 && d < a.Enforce.For {
		add("enforce.longest", d, fmt.Sprintf("0s, or at least enforce.for, %s", a.Enforce.For))
	}
	if n := a.Enforce.Net; n > 0 && n < 1<<10 { // see machine/egress
		add("enforce.net_bytes", n, "0, or 1024 to 8589934592")
	}
	// The kernel accepts no quota and no period under 1 ms (sched-bwc.rst).
	if p := a.Enforce.Period; p > 0 && p < time.Millisecond {
		add("enforce.quota_period", p, "0s, or 1ms to 1s")
	} else if p > 0 {
		least := 0.001 / p.Seconds()
		for _, r := range []struct {
			key  string
			rate float64
		}{{"enforce.rate", a.Enforce.Rate}, {"enforce.best_effort_rate", a.Enforce.BestEffortRate}} {
			if r.rate < least*(1-1e-9) {
				add(r.key, r.rate, fmt.Sprintf("at least %g, 1ms in each enforce.quota_period", least))
			}
		}
	}
	if wrong := checkProfile(a.Log.Profile); wrong != "" {
		add("incidents.profile", strconv.Quote(a.Log.Profile), wrong)
	}
	a.Server.validate(add)
	a.Names.validate(add)
	for i := range a.Rules {
		ps = append(ps, a.Rules[i].validate(fmt.Sprintf("rules[%d]", i))...)
	}
	return ps
}

// MachineName is Machine, or the host's name.
func (a *Agent) MachineName() string {
	if a.Machine != "" {
		return a.Machine
	}
	name, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return name
}

// DetectParams returns the detector's parameters.
func (a *Agent) DetectParams() (detect.Params, error) {
	p := a.Detect.Params
	rule, err := detect.Paper(p.Method)
	p.Method, p.Switches, p.Memory = rule.Method, rule.Switches, rule.Memory
	set, switches := reflect.ValueOf(a.Detect.Switches), reflect.ValueOf(&p.Switches).Elem()
	for i := range set.NumField() {
		if value := set.Field(i).String(); value != "rule" {
			switches.FieldByName(set.Type().Field(i).Name).SetBool(value == "on")
		}
	}
	return p, err
}

// SpecParams are the parameters of learning this machine's own history.
func (a *Agent) SpecParams() spec.Params {
	p := a.Spec.Params
	p.Provisional = a.Spec.Provisional
	return p
}

// OwnJudges reports whether tasks are judged by this machine's own history where there is no
// ready spec from a server.
func (a *Agent) OwnJudges() bool {
	switch a.Spec.Own {
	case "always":
		return true
	case "rule":
		if a.Detect.Method != detect.CPI2 {
			return true
		}
	}
	return a.Server.URL == ""
}

// Policy returns the planner's parameters.
func (a *Agent) Policy() (p plan.Policy, err error) {
	e := a.Enforce
	p = e.Policy
	p.IO, p.Feedback = plan.IORate{Ops: e.IOOps, Bytes: e.IOBytes}, e.Cap == "feedback"
	p.Mode, err = plan.ParseMode(e.Mode)
	return p, err
}

// Counts reports whether a signal is requested.
func (a *Agent) Counts(s sample.SignalName) bool {
	return slices.Contains(a.Signals, string(s))
}

// SignalsChosen reports whether the requested signals are not just the default ones, each of
// which some machines cannot count.
func (a *Agent) SignalsChosen() bool { return !slices.Equal(a.Signals, Default().Signals) }
