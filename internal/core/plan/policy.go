package plan

import (
	"fmt"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Mode is how far enforcement goes. It is package command's, since operators change it.
type Mode = command.Mode

// The modes.
const (
	Off    = command.Off
	Advise = command.Advise
	On     = command.On
)

// ParseMode is the inverse of Mode.String.
func ParseMode(s string) (Mode, error) { return command.ParseMode(s) }

// Policy are the parameters of enforcement. Start from Paper. The tags are those of the
// agent's configuration (format/keyed).
type Policy struct {
	Mode Mode
	// Rate and BestEffortRate are chosen by the suspect's class.
	Rate           float64 `key:"rate" help:"hard cap for batch tasks, CPU-s/s" min:"0.001" max:"1024"`
	BestEffortRate float64 `key:"best_effort_rate" help:"hard cap for best-effort tasks, CPU-s/s" min:"0.001" max:"1024"`
	// IO is the limit of a suspect that interferes through a disk, whatever its class;
	// zero: no limit. Not in the paper.
	IO IORate
	// Net is for suspects of all classes. Not in the paper.
	Net uint64 `key:"net_bytes" help:"cap of a task that hurts the victim through a network interface: bytes/s that it sends; 0: the task is reported and not limited" min:"0" max:"8589934592"`
	// Feedback lets caps follow the victim's cost: a cap takes the least that keeps the victim below
	// its threshold, never more than Rate and BestEffortRate take (feedback.go). Not in the paper.
	Feedback bool
	For      time.Duration `key:"for" help:"how long a cap lasts" min:"1s" max:"24h"`
	// MaxDuration lets caps end by observation instead of by the clock. Not in the paper.
	MaxDuration time.Duration `key:"longest" help:"a CPU cap that limits its task and helps the victim is extended, up to this time in all, and one that limits nothing for three intervals ends early; 0s: every cap ends after its lease" min:"0s" max:"168h"`
	// Repeat offenders (offender.go) are not in the paper.
	Confine       int           `key:"confine" help:"number of caps on tasks of one job that helped after which the job is a repeat offender and is capped for confine_for; 0: never" min:"0" max:"32"`
	ConfineWithin time.Duration `key:"confine_within" help:"time within which these caps must occur" min:"1m" max:"8760h"`
	ConfineFor    time.Duration `key:"confine_for" help:"how long caps of repeat offenders last" min:"1s" max:"168h"`
	// MinLevel is the least level at which a suspect is capped without a trial. The default
	// is the paper's, which caps the task that its correlation names. Where levels state
	// the confidence, pipeline.New sets Proven.
	MinLevel detect.Level
	// Relief is the share of the victim's cost above its mean that must disappear under a
	// cap that helped; 0, as in the paper: one σ is enough. pipeline.New sets
	// detect.Relief where detection uses it.
	Relief float64
	// Trial: a suspect is tried if it is named below MinLevel or detection cannot tell
	// (detect.Finding.Trial). Not in the paper.
	Trial  time.Duration `key:"trial" help:"with mode on, cap a suspect for this long (at most enforce.for) as a trial, if it is likely but not proven, or if rule evidence cannot decide; 0s: no trials" min:"0s" max:"1h"`
	Trials int           `key:"trials" help:"maximum number of trials of one suspect each in one incident; groups: and three of several" min:"0" max:"100"`
	// Groups needs trials. It is not in the paper, whose section 4.2 names it as future work.
	Groups  bool `key:"groups" help:"where a cap on one suspect is not enough, try and cap suspects together (docs/rules.md); needs mode on and trials"`
	MaxCaps int  `key:"max_caps" help:"caps in force at once; the victims of one job get half of those that others leave" min:"0" max:"10000"`
	// Outliers are counted without the first sample under a cap.
	Outliers int           `key:"round_outliers" help:"outliers under a cap that start another round" min:"1" max:"1000"`
	Calm     time.Duration `key:"calm" help:"an incident closes after this long without an outlier" min:"100ms" max:"24h"`
	// Settle: after it the victim's samples teach its spec again. Not in the paper.
	Settle time.Duration `key:"settle" help:"a phase change that has lasted this long is learnt as normal" min:"100ms" max:"8760h"`
}

// Paper returns CPI²'s numbers (section 5, table 2).
func Paper() Policy {
	return Policy{Mode: Advise, Rate: 0.1, BestEffortRate: 0.01, For: 5 * time.Minute, MinLevel: detect.Likely, MaxCaps: 8,
		ConfineWithin: 24 * time.Hour, ConfineFor: 30 * time.Minute, Trials: 4, Outliers: 3, Calm: 5 * time.Minute, Settle: 30 * time.Minute}
}

// TrialsEnabled reports whether suspects may be capped for trials.
func (p Policy) TrialsEnabled() bool { return p.Mode == On && p.Trial > 0 && p.Trials > 0 }

// rate is the cap for a suspect.
func (p Policy) rate(t sample.Task) float64 {
	if t.Class == sample.BestEffort {
		return p.BestEffortRate
	}
	return p.Rate
}

// noHelpReason says why no task may be capped for this victim; "" if one may.
func noHelpReason(victim sample.Task) string {
	switch {
	case victim.MayBeHelped():
		return ""
	case victim.Unprotected:
		return "an operator has ended the victim's protection"
	}
	return "the victim is " + victim.Class.String() + " and not protected"
}

// noCapReason says why this task may not be capped; "" if it may.
func noCapReason(t sample.Task) string {
	switch {
	case t.Name == detect.OutsideName:
		return "it runs outside any task"
	case t.Class == sample.LatencySensitive:
		return "it is latency-sensitive"
	case t.NeverCap:
		return "it is marked never-cap"
	case t.Holds != "":
		return fmt.Sprintf("its cgroup contains %s, which may not be limited", t.Holds)
	}
	return ""
}
