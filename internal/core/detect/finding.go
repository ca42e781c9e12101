package detect

import (
	"fmt"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// Kind is the type of a finding on an anomaly.
type Kind uint8

const (
	// Nobody: the task suffers and no suspect reaches the bar.
	Nobody Kind = iota
	// Neighbour: at least one suspect reaches the bar.
	Neighbour
	// Indeterminate: the window lacks good samples to tell suspects apart.
	Indeterminate
	// OwnQuota: the task used up its own CPU quota, or that of a cgroup above it: Finding.HeldBy.
	OwnQuota
	// Steal: the hypervisor took the CPU; the antagonist is another VM.
	Steal
	// SelfWait: the task's threads waited for each other.
	SelfWait
	// PhaseChange: the task itself changed its behaviour; Change says how that is known.
	PhaseChange
	numKinds
)

var kindNames = [numKinds]string{"nobody", "neighbour", "indeterminate", "own-quota", "steal", "self-wait", "phase-change"}

func (k Kind) String() string { return kindNames[k] }

// MayBeANeighbour reports whether a neighbour may be the cause, as opposed to the victim
// itself or the hypervisor.
func (k Kind) MayBeANeighbour() bool { return k == Neighbour || k == Nobody || k == Indeterminate }

// MarshalText implements encoding.TextMarshaler.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *Kind) UnmarshalText(b []byte) error {
	for i, n := range kindNames {
		if n == string(b) {
			*k = Kind(i)
			return nil
		}
	}
	return fmt.Errorf("unknown finding %q", b)
}

// Level is the confidence of a finding that a suspect is the antagonist.
type Level uint8

// The levels, the same words everywhere.
const (
	None     Level = iota // no evidence
	Possible              // it or another task may be the antagonist
	Likely                // it is named; a trial would prove it
	Proven                // accounted by the kernel, or confirmed by a trial
	numLevels
)

var levelNames = [numLevels]string{"none", "possible", "likely", "proven"}

func (l Level) String() string { return levelNames[l] }

// MarshalText implements encoding.TextMarshaler.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *Level) UnmarshalText(b []byte) error {
	for i, n := range levelNames {
		if n == string(b) {
			*l = Level(i)
			return nil
		}
	}
	return fmt.Errorf("unknown level %q", b)
}

// Basis is the kind of evidence for the level of a suspect.
type Basis string

// The methods.
const (
	ByAccounts   Basis = "accounting"  // of the tasks served while the victim waited
	ByStatistics Basis = "statistics"  // a calibrated probability
	ByTrial      Basis = "trial"       // it was limited, and that helped
	ByGroup      Basis = "group"       // it was limited together with others, which helped, and without it less
	ByFormula    Basis = "correlation" // CPI², section 4.2, and rules like it
)

// Grounds are the evidence against a suspect.
type Grounds struct {
	Level Level `json:"level"`
	Basis Basis `json:"method,omitempty"`
	// Probability that it is the antagonist, 0..1, calibrated; 0 if not computed.
	Probability float64 `json:"probability,omitempty"`
	// Share is the part of the time in the newest bad intervals in which the victim wanted
	// to be served that the queue served the suspect instead. UsualShare is that part in
	// the victim's good intervals, FairShare the part that the suspect's weight entitles it
	// to. 0 if the queue has no accounts.
	Share      float64 `json:"share,omitempty"`
	UsualShare float64 `json:"usual_share,omitempty"`
	FairShare  float64 `json:"fair_share,omitempty"`
	// Displaced is the part of that time in which other tasks were served whose usage did not
	// increase, as far as it is attributed to this suspect, whose increased usage displaced
	// them to where the victim waits; 0 if Share alone is sufficient.
	Displaced float64 `json:"pushed,omitempty"`
	// Why says in words what the level is based on, or why it is not higher.
	Why string `json:"why,omitempty"`
}

// figure is the value by which suspects of one level are ranked.
func (g *Grounds) figure() float64 {
	if g.Basis == ByAccounts {
		return g.Share + g.Displaced - g.UsualShare
	}
	return g.Probability
}

// OutsideName is the name of the CPU time that was used outside any known task: by
// processes in the root cgroup, by what no rule matches, by kernel threads and interrupts.
// No task has this name: their names begin with "/".
const OutsideName sample.TaskName = "(other)"

// Outside returns it as a suspect. It reaches every task. It can be ranked, so that no task
// is blamed for its usage, and it can never be capped.
func Outside() sample.Task { return sample.Task{Name: OutsideName, NeverCap: true} }

// Suspect is a task that was present when the victim suffered.
type Suspect struct {
	sample.Task
	Grounds
	// Correlation of CPI², section 4.2, in [−1, 1].
	Correlation float64 `json:"correlation"`
	// Usage is its mean pressure over the window's pairs, in the signal's unit.
	Usage float64 `json:"usage"`
	// CoVictim: it was over its own threshold when the victim was.
	CoVictim bool `json:"co_victim,omitempty"`
	// Excluded says why it cannot be the antagonist; "" if it can.
	Excluded string `json:"excluded,omitempty"`
}

// Result is what the analysis of an anomaly has found.
type Result struct {
	Kind Kind `json:"kind"`
	// Change is what changed in the task, if Kind is PhaseChange.
	Change Change `json:"change,omitempty"`
	// HeldBy is the cgroup above the task whose quota was the last to run out, if Kind is
	// OwnQuota; "" for the task's own.
	HeldBy    string  `json:"held_by,omitempty"`
	Threshold float64 `json:"threshold"`
	// Cost is the mean cost from Finding.First on, of bad intervals only if a task was limited
	// meanwhile or the finding reviews a trial.
	Cost  float64 `json:"cost"`
	Bad   int     `json:"bad"`   // bad intervals of the anomaly
	Pairs int     `json:"pairs"` // intervals that could be compared
	// Suspects are ranked: those that reach the bar and are not co-victims, co-victims that
	// reach it, the rest; each by level, by probability or share, by correlation. Excluded
	// ones come last. At most Params.Top of each.
	Suspects []Suspect `json:"suspects"`
	// Antagonists is the number of Suspects that reach the bar: their level is likely or proven.
	Antagonists int `json:"antagonists"`
}

// Finding is the analysis of one anomaly. Its Suspects are the Detector's and valid until the
// next call of Next.
type Finding struct {
	At     sample.Millis // end of the interval that made it an anomaly
	Signal sample.SignalName
	Victim sample.Task
	Spec   spec.Spec
	First  sample.Millis // end of the first bad interval of the anomaly
	// AllBad: no interval that is kept (Params.LookBack) was good, so there is none to compare the bad ones with.
	AllBad bool
	Result
	// Statistics are the statistics of all suspects, if Params.Explain; valid as long as Suspects.
	Statistics []SuspectStatistics
	// Trial: the first of Suspects explains the victim's cost, but chance or another
	// suspect may as well (switch Evidence). Limiting it for a short time would decide.
	Trial bool
	// TrialCandidates is the number of Suspects, from the first on, that are worth a trial, if Trial;
	// 0 is as 1.
	TrialCandidates int
	// Disbelief says why what the victim reports about itself accuses no task; "" if it is
	// believed. The planner sets it (plan.Planner.Believe).
	Disbelief string
}
