package plan

import (
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

// Policy are the parameters of enforcement. Start from Paper.
type Policy struct {
	Mode Mode
	// Rate and BestEffortRate are the hard caps in CPU-s/s, by the suspect's
	// class.
	Rate, BestEffortRate float64
	// IO is the limit of a suspect that interferes through a disk, whatever its class;
	// zero: no limit. Not in the paper.
	IO IORate
	// Net is the limit of what a suspect that interferes through a network interface may
	// send, in bytes/s, whatever its class; 0: no limit. Not in the paper.
	Net uint64
	// Feedback lets caps follow the victim's cost: a cap takes the least that keeps the
	// victim below its threshold, never more than Rate and BestEffortRate take
	// (feedback.go). Not in the paper.
	Feedback bool
	// For is how long a cap lasts.
	For time.Duration
	// MaxDuration lets caps end by observation instead of by the clock: a cap that binds and
	// helps is extended, up to this total, and a cap that does not bind ends early; 0: by
	// the clock. Not in the paper.
	MaxDuration time.Duration
	// Confine is the number of caps on a job that helped within ConfineWithin that make
	// it a repeat offender, whose caps last ConfineFor from then on; 0: no job is one
	// (offender.go). Not in the paper.
	Confine                   int
	ConfineWithin, ConfineFor time.Duration
	// MinLevel is the least level at which a suspect is capped without a trial. The default
	// is the paper's, which caps the task that its correlation names. Where levels state
	// the confidence, pipeline.New sets Proven.
	MinLevel detect.Level
	// Relief is the share of the victim's cost above its mean that must disappear under a
	// cap that helped; 0, as in the paper: one σ is enough. pipeline.New sets
	// detect.Relief where detection uses it.
	Relief float64
	// MaxCaps is how many caps may be in force on the machine at once.
	MaxCaps int
	// Trial is how long a suspect is capped to find out whether it is the antagonist, if
	// it is named below MinLevel or detection cannot tell (detect.Finding.Trial); at most
	// For; 0 forbids it. Trials is how many an incident may have. Not in the paper.
	Trial  time.Duration
	Trials int
	// Outliers is how many under a cap, without its first sample, start another round.
	Outliers int
	// Calm is the time without an outlier and without a cap that closes an incident.
	Calm time.Duration
	// Settle is how long a phase change must last to become normal: then the victim's
	// samples teach its spec again. Not in the paper.
	Settle time.Duration
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
	}
	return ""
}
