package config

import (
	"fmt"
	"net"
	"os"
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
	Socket      string   `key:"socket" help:"local control socket"`
	SocketGroup string   `key:"socket_group" help:"group that may use the socket in addition to root; empty: root only"`
	Listen      string   `key:"listen" help:"address of /metrics and /healthz; empty: none"`
	LogLevel    string   `key:"log_level" help:"debug, info, warn or error" oneof:"debug info warn error"`
	LogFormat   string   `key:"log_format" help:"text or json" oneof:"text json"`
	Record      string   `key:"record" help:"write every sample to this CSV trace; empty: none"`
	Signals     []string `key:"signals" help:"cost signals to count; signals that this machine cannot count are skipped and reported" oneof:"cpi cpt cps runq io net probe steal"`

	Tick     time.Duration `key:"tick" help:"period of the agent's loop" min:"10ms" max:"10s"`
	Sampling Sampling      `key:"sampling"`
	Spec     Spec          `key:"spec"`
	Detect   Detect        `key:"detect"`
	Enforce  Enforce       `key:"enforce"`
	Log      Rotation      `key:"incidents"`
	Server   Uplink        `key:"server"`
	Rules    []Matcher     `key:"rules" help:"which cgroups are tasks; the first matching rule applies"`
}

// Sampling configures when to count.
type Sampling struct {
	Duration    time.Duration `key:"duration" help:"length of a sampling window" min:"50ms" max:"10m"`
	Period      time.Duration `key:"period" help:"sampling period; it contains one window" min:"50ms" max:"1h"`
	MaxOverhead float64       `key:"max_tax" help:"a signal is paused while counting it would cost more than this share of the machine's CPU time, computed from the added cost of a context switch (virtual PMUs); 0: no limit" min:"0" max:"1"`
}

// Spec configures how normal cost is learnt.
type Spec struct {
	MinTasks   int           `key:"min_tasks" help:"tasks with enough samples that a spec needs; 1: the history of one machine is enough" min:"1" max:"1000000"`
	MinSamples int           `key:"min_samples" help:"samples that a task needs to count for the spec" min:"2" max:"1000000"`
	AgeWeight  float64       `key:"age_weight" help:"weight of a sample per day of age" min:"0.01" max:"1"`
	Every      time.Duration `key:"every" help:"recompute a ready spec this often" min:"1s" max:"168h"`
	StaleAfter time.Duration `key:"stale_after" help:"a spec without new samples for this long is not used" min:"1m" max:"8760h"`
	Save       time.Duration `key:"save" help:"write specs to the state directory this often" min:"1s" max:"24h"`
	Incidents  bool          `key:"learn_from_incidents" help:"also learn from samples taken in incidents (the paper does)"`
}

// Detect configures detection.
type Detect struct {
	Rule          string        `key:"rule" help:"evidence: regression over all suspects, with trials (docs/rules.md); quell: correlation; cpi2: only the rules of the paper" oneof:"evidence quell cpi2"`
	Sigmas        float64       `key:"sigmas" help:"a cost over mean + this many standard deviations is an outlier" min:"0" max:"100"`
	Outliers      int           `key:"outliers" help:"outliers that make an anomaly" min:"1" max:"1000"`
	OutlierWindow time.Duration `key:"outlier_window" help:"time within which these outliers must occur" min:"100ms" max:"24h"`
	Window        time.Duration `key:"window" help:"correlate victim and suspects over this long" min:"100ms" max:"24h"`
	LookBack      time.Duration `key:"look_back" help:"if no interval of the window was good, compare with earlier good intervals up to this age (not with rule cpi2)" min:"0s" max:"24h"`
	Correlation   float64       `key:"correlation" help:"a suspect with at least this correlation is an antagonist" min:"-1" max:"1"`
	LeastPressure float64       `key:"least_pressure" help:"CPU-s/s that a suspect must have used in the victim's bad intervals (not with rule cpi2)" min:"0" max:"1024"`
	Pace          time.Duration `key:"pace" help:"minimum time between two analyses" min:"0s" max:"1h"`
	Top           int           `key:"top" help:"suspects listed in an incident" min:"1" max:"1000"`
	Switches      Switches      `key:"switches"`
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
}

// Enforce configures enforcement.
type Enforce struct {
	Mode           string        `key:"mode" help:"off, advise or on" oneof:"off advise on"`
	Rate           float64       `key:"rate" help:"hard cap for batch tasks, CPU-s/s" min:"0.001" max:"1024"`
	BestEffortRate float64       `key:"best_effort_rate" help:"hard cap for best-effort tasks, CPU-s/s" min:"0.001" max:"1024"`
	IOOps          uint64        `key:"io_ops" help:"cap of a task that hurts the victim through a disk: requests/s, reads and writes separately, on each disk shared with the victim; 0: none" min:"0" max:"4294967295"`
	IOBytes        uint64        `key:"io_bytes" help:"the same in bytes/s; both 0: the task is reported and not limited" min:"0" max:"1000000000000"`
	NetBytes       uint64        `key:"net_bytes" help:"cap of a task that hurts the victim through a network interface: bytes/s that it sends; 0: the task is reported and not limited" min:"0" max:"8589934592"`
	Cap            string        `key:"cap" help:"fixed: the hard cap; feedback: the cap follows the victim's cost and is no stricter than necessary (docs/rules.md)" oneof:"fixed feedback"`
	For            time.Duration `key:"for" help:"how long a cap lasts" min:"1s" max:"24h"`
	Longest        time.Duration `key:"longest" help:"a CPU cap that limits its task and helps the victim is extended, up to this time in all, and one that limits nothing for three intervals ends early; 0s: every cap ends after its lease" min:"0s" max:"168h"`
	Confine        int           `key:"confine" help:"number of caps on tasks of one job that helped after which the job is a repeat offender and is capped for confine_for; 0: never" min:"0" max:"32"`
	ConfineWithin  time.Duration `key:"confine_within" help:"time within which these caps must occur" min:"1m" max:"8760h"`
	ConfineFor     time.Duration `key:"confine_for" help:"how long caps of repeat offenders last" min:"1s" max:"168h"`
	Period         time.Duration `key:"quota_period" help:"CPU bandwidth period of a cap; 0s: the cgroup's own (the paper's example: 250ms)" min:"0s" max:"1s"`
	Trial          time.Duration `key:"trial" help:"with mode on, cap a suspect for this long (at most enforce.for) as a trial, if it is likely but not proven, or if rule evidence cannot decide; 0s: no trials" min:"0s" max:"1h"`
	Trials         int           `key:"trials" help:"maximum number of trials in one incident" min:"0" max:"100"`
	MaxCaps        int           `key:"max_caps" help:"caps in force at once" min:"0" max:"10000"`
	Outliers       int           `key:"round_outliers" help:"outliers under a cap that start another round" min:"1" max:"1000"`
	Calm           time.Duration `key:"calm" help:"an incident closes after this long without an outlier" min:"100ms" max:"24h"`
	Settle         time.Duration `key:"settle" help:"a phase change that has lasted this long is learnt as normal" min:"100ms" max:"8760h"`
}

// Rotation configures how incidents are kept on disk.
type Rotation struct {
	MaxSizeMB int `key:"max_size_mb" help:"a log file is rotated at this size" min:"1" max:"10000"`
	Keep      int `key:"keep" help:"rotated files kept" min:"1" max:"1000"`
}

// defaultTrial is how long a suspect is limited by default to find out whether it is the
// antagonist. The rule that uses trials was chosen and evaluated with this value
// (docs/rules.md).
const defaultTrial = 3 * time.Minute

// Default returns the paper's values where it has one, except for the rule.
func Default() Agent {
	d, _ := detect.Paper(detect.Default)
	p, s := plan.Paper(), spec.OwnHistory()
	return Agent{
		StateDir: "/var/lib/quell", Socket: "/run/quell/agent.sock", Listen: "127.0.0.1:9780",
		LogLevel: "info", LogFormat: "text", Signals: []string{"cpi", "cpt", "runq"},
		Tick: time.Second, Sampling: Sampling{10 * time.Second, time.Minute, 0.01},
		Spec: Spec{s.MinTasks, s.MinSamples, s.AgeWeight, s.Every, s.StaleAfter, 5 * time.Minute, false},
		Detect: Detect{string(d.Method), d.Sigmas, d.Outliers, d.OutlierWindow, d.Window, d.LookBack, d.Correlation, d.LeastPressure, d.Pace, d.Top,
			Switches{"rule", "rule", "rule", "rule", "rule", "rule", "rule", "rule", "rule"}},
		Enforce: Enforce{p.Mode.String(), p.Rate, p.BestEffortRate, 20, 1 << 20, 1 << 20, "fixed", p.For, p.MaxDuration, p.Confine, p.ConfineWithin, p.ConfineFor, 0, defaultTrial, p.Trials, p.MaxCaps, p.Outliers, p.Calm, p.Settle},
		Log:     Rotation{16, 4},
		Server:  Uplink{Spool: Spool{MaxMB: 256}},
		Rules:   defaultMatchers(),
	}
}

// maxSocket is the longest path of a socket (unix(7): sun_path).
const maxSocket = 107

// Validate returns every problem of the current values.
func (a *Agent) Validate() []Problem {
	ps := keyed.Check("", a)
	add := func(key string, value any, want string) {
		ps = append(ps, Problem{Key: key, Value: fmt.Sprint(value), Want: want})
	}
	if a.StateDir == "" {
		add("state_dir", `""`, "a directory")
	}
	if n := len(a.Socket); n == 0 || n > maxSocket {
		add("socket", strconv.Quote(a.Socket), fmt.Sprintf("a path of at most %d bytes", maxSocket))
	}
	if a.Listen != "" {
		_, port, err := net.SplitHostPort(a.Listen)
		if _, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil {
			add("listen", strconv.Quote(a.Listen), "HOST:PORT, e.g. 127.0.0.1:9780, or empty")
		}
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
	if a.Enforce.Longest != 0 && a.Enforce.Longest < a.Enforce.For {
		add("enforce.longest", a.Enforce.Longest, fmt.Sprintf("0s, or at least enforce.for, %s", a.Enforce.For))
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
	a.Server.validate(add)
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
	p, err := detect.Paper(detect.Method(a.Detect.Rule))
	if err != nil {
		return p, err
	}
	c := a.Detect
	p.Sigmas, p.Outliers, p.OutlierWindow, p.Window, p.LookBack = c.Sigmas, c.Outliers, c.OutlierWindow, c.Window, c.LookBack
	p.Correlation, p.LeastPressure, p.Pace, p.Top = c.Correlation, c.LeastPressure, c.Pace, c.Top
	for value, sw := range map[*string]*bool{
		&c.Switches.Reach: &p.Switches.Reach, &c.Switches.CoVictim: &p.Switches.CoVictim,
		&c.Switches.LeastEffect: &p.Switches.LeastEffect, &c.Switches.Indeterminate: &p.Switches.Indeterminate,
		&c.Switches.LeastPressure: &p.Switches.LeastPressure, &c.Switches.OwnCauses: &p.Switches.OwnCauses,
		&c.Switches.Evidence: &p.Switches.Evidence,
		&c.Switches.LookBack: &p.Switches.LookBack, &c.Switches.PhaseChange: &p.Switches.PhaseChange,
	} {
		if *value != "rule" {
			*sw = *value == "on"
		}
	}
	return p, err
}

// Policy returns the planner's parameters.
func (a *Agent) Policy() (plan.Policy, error) {
	m, err := plan.ParseMode(a.Enforce.Mode)
	e := a.Enforce
	return plan.Policy{Mode: m, Rate: e.Rate, BestEffortRate: e.BestEffortRate,
		IO: plan.IORate{Ops: e.IOOps, Bytes: e.IOBytes}, Net: e.NetBytes, Feedback: e.Cap == "feedback", For: e.For, MaxDuration: e.Longest,
		Confine: e.Confine, ConfineWithin: e.ConfineWithin, ConfineFor: e.ConfineFor, Trial: e.Trial, Trials: e.Trials, MaxCaps: e.MaxCaps,
		Outliers: e.Outliers, Calm: e.Calm, Settle: e.Settle}, err
}

// SpecParams returns the parameters for learning specs.
func (a *Agent) SpecParams() spec.Params {
	s := a.Spec
	return spec.Params{MinTasks: s.MinTasks, MinSamples: s.MinSamples, AgeWeight: s.AgeWeight, Every: s.Every, StaleAfter: s.StaleAfter}
}

// Counts reports whether a signal is requested.
func (a *Agent) Counts(s sample.SignalName) bool {
	for _, n := range a.Signals {
		if n == string(s) {
			return true
		}
	}
	return false
}
