package plan

import (
	"time"

	"github.com/quell-dev/quell/internal/command"
	"github.com/quell-dev/quell/internal/detect"
	"github.com/quell-dev/quell/internal/sample"
)

// Mode is how far enforcement goes. Operators change it, so it is package
// command's.
type Mode = command.Mode

// The modes.
const (
	Off    = command.Off
	Advise = command.Advise
	On     = command.On
)

// ParseMode is the inverse of Mode.String.
func ParseMode(s string) (Mode, error) { return command.ParseMode(s) }

// Policy are the numbers of acting. Start from Paper.
type Policy struct {
	Mode Mode
	// Rate and BestEffortRate are the hard caps in CPU-s/s, by the suspect's
	// class.
	Rate, BestEffortRate float64
	// IO is what a suspect that hurts through a disk is held to, whatever its
	// class; zero: it is not limited. Not in the paper.
	IO IORate
	// Net is what a suspect that hurts through a network interface may send, in
	// bytes/s, whatever its class; 0: it is not limited. Not in the paper.
	Net uint64
	// Feedback lets caps follow the victim's cost: the least that keeps it well
	// is taken, never more than Rate and BestEffortRate take (feedback.go). Not
	// in the paper.
	Feedback bool
	// For is how long a cap lasts.
	For time.Duration
	// Longest lets caps end by what is seen and not by the clock: one that is
	// felt and helps goes on, to so long in all, and one that holds nothing back
	// ends early; 0: by the clock. Not in the paper.
	Longest time.Duration
	// Confine is how many caps on a job that helped within ConfineWithin make it a
	// repeat offender, whose caps last ConfineFor from then on; 0: none is
	// (offender.go). Not in the paper.
	Confine                   int
	ConfineWithin, ConfineFor time.Duration
	// CapAt is the least level at which a suspect is capped without a trial. The
	// default is the paper's, which caps whom its correlation names; where levels
	// say how sure they are, pipeline.New asks for Proven.
	CapAt detect.Level
	// Relief is the share of what the victim costs more than usual that must go under a
	// cap that helped; 0, as in the paper: one σ is enough. pipeline.New asks for
	// detect.Relief where detection does.
	Relief float64
	// MaxCaps is how many caps may be in force on the machine at once.
	MaxCaps int
	// Trial is how long a suspect is held to find out whether it is the one,
	// where it is named below CapAt or detection cannot tell
	// (detect.Finding.Trial), at most For; 0 forbids it. Trials is how many an incident may have. Not in the paper.
	Trial  time.Duration
	Trials int
	// Outliers under a cap, its first sample left out, make another round.
	Outliers int
	// Calm closes an incident: so long without an outlier and without a cap.
	Calm time.Duration
	// Settle makes a phase change that has lasted so long what is normal: the
	// victim's samples teach its spec again. Not in the paper.
	Settle time.Duration
}

// Paper returns CPI²'s numbers (section 5, table 2).
func Paper() Policy {
	return Policy{Mode: Advise, Rate: 0.1, BestEffortRate: 0.01, For: 5 * time.Minute, CapAt: detect.Likely, MaxCaps: 8,
		ConfineWithin: 24 * time.Hour, ConfineFor: 30 * time.Minute, Trials: 4, Outliers: 3, Calm: 5 * time.Minute, Settle: 30 * time.Minute}
}

// Tries reports whether suspects may be held to find out.
func (p Policy) Tries() bool { return p.Mode == On && p.Trial > 0 && p.Trials > 0 }

// rate is the cap for a suspect.
func (p Policy) rate(t sample.Task) float64 {
	if t.Class == sample.BestEffort {
		return p.BestEffortRate
	}
	return p.Rate
}

// mayHelp says why nobody may be capped for this victim; "" if somebody may.
func mayHelp(victim sample.Task) string {
	switch {
	case victim.Helped():
		return ""
	case victim.Unprotected:
		return "an operator has ended the victim's protection"
	}
	return "the victim is " + victim.Class.String() + " and not protected"
}

// mayCap says why this task may not be capped; "" if it may.
func mayCap(t sample.Task) string {
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
