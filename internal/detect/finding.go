package detect

import (
	"fmt"
	"time"

	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/spec"
)

// Kind is what a finding says of an anomaly.
type Kind uint8

const (
	// Nobody: the task suffers and no suspect reaches the bar.
	Nobody Kind = iota
	// Neighbour: at least one suspect reaches the bar.
	Neighbour
	// Indeterminate: the window has no good samples to tell suspects apart by.
	Indeterminate
	// OwnQuota: the task ran into its own CPU quota, or into that of a cgroup
	// above it: Finding.HeldBy.
	OwnQuota
	// Steal: the hypervisor took the CPU; the antagonist is another VM.
	Steal
	// SelfWait: the task's threads waited for each other.
	SelfWait
	// PhaseChange: the task itself does something else than before; Change says
	// how that is known.
	PhaseChange
	numKinds
)

var kindNames = [numKinds]string{"nobody", "neighbour", "indeterminate", "own-quota", "steal", "self-wait", "phase-change"}

func (k Kind) String() string { return kindNames[k] }

// MayBeANeighbour reports whether a neighbour may be behind it, rather than
// something that the victim did to itself or the hypervisor to all.
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
	return fmt.Errorf("finding %q is not known", b)
}

// Level is how sure a finding is that a suspect is the one.
type Level uint8

// The levels, the same words everywhere.
const (
	None     Level = iota // nothing speaks for it
	Possible              // it may be, or somebody else
	Likely                // it is named; a trial would prove it
	Proven                // accounted by the kernel, or tried
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
	return fmt.Errorf("level %q is not known", b)
}

// Method is what the level of a suspect rests on.
type Method string

// The methods.
const (
	ByAccounts   Method = "accounting"  // of who was served while the victim waited
	ByStatistics Method = "statistics"  // a calibrated probability
	ByTrial      Method = "trial"       // it was held down, and that helped
	ByFormula    Method = "correlation" // CPI², section 4.2, and rules like it
)

// Grounds are what speaks for a suspect.
type Grounds struct {
	Level  Level  `json:"level"`
	Method Method `json:"method,omitempty"`
	// Probability that it is the one, 0..1, calibrated; 0 where none was worked out.
	Probability float64 `json:"probability,omitempty"`
	// Share of the time in the newest bad intervals in which the victim wanted to be
	// served that the suspect was, while the victim waited; what that is while the
	// victim is well; and what the suspect's weight entitles it to. 0 where the queue
	// does not account.
	Share      float64 `json:"share,omitempty"`
	UsualShare float64 `json:"usual_share,omitempty"`
	FairShare  float64 `json:"fair_share,omitempty"`
	// Pushed is the part of that time in which others were served who use no more than
	// before, as far as it is this suspect who uses more, and so has pushed them to where
	// the victim waits; 0 where Share alone is enough.
	Pushed float64 `json:"pushed,omitempty"`
	// Why says in words what the level rests on, or keeps it from being higher.
	Why string `json:"why,omitempty"`
}

// figure is what suspects of one level are ranked by.
func (g *Grounds) figure() float64 {
	if g.Method == ByAccounts {
		return g.Share + g.Pushed - g.UsualShare
	}
	return g.Probability
}

// OutsideName is what the CPU time is called that was used outside any known
// task: by processes in the root cgroup, by what no rule matches, by kernel
// threads and interrupts. No task is called so: their names begin with "/".
const OutsideName sample.TaskName = "(other)"

// Outside returns it as a suspect. It reaches everybody, can be ranked, so that
// nobody is blamed for it, and can never be capped.
func Outside() sample.Task { return sample.Task{Name: OutsideName, NeverCap: true} }

// Suspect is a task that was there when the victim suffered.
type Suspect struct {
	sample.Task
	Grounds
	// Correlation of CPI², section 4.2, in [−1, 1].
	Correlation float64 `json:"correlation"`
	// Usage is its mean pressure over the window's pairs, in the signal's unit.
	Usage float64 `json:"usage"`
	// CoVictim: it was over its own threshold when the victim was.
	CoVictim bool `json:"co_victim,omitempty"`
	// Excluded says why it cannot be the one; "" if it can.
	Excluded string `json:"excluded,omitempty"`
}

// Finding is the analysis of one anomaly.
type Finding struct {
	At        sample.Millis // end of the interval that made it an anomaly
	Signal    sample.SignalName
	Kind      Kind
	Victim    sample.Task
	Spec      spec.Spec
	Threshold float64
	// First is the end of the first bad interval of the anomaly; Bad counts
	// them; Cost is the mean cost from First on, of bad intervals only where
	// the finding is what a trial came to.
	First sample.Millis
	Bad   int
	Cost  float64
	// Pairs is how many intervals could be compared. LookedBack is the age of
	// the oldest where the window was moved back to good ones (switch LookBack).
	Pairs      int
	LookedBack time.Duration
	// Change is what the task changed, if Kind is PhaseChange.
	Change Change
	// HeldBy is the cgroup above the task whose quota it was at last, if Kind is
	// OwnQuota; "" for its own.
	HeldBy string
	// Suspects are ranked: those that clear the bar and are not co-victims,
	// co-victims that clear it, the rest, each by correlation. Excluded ones
	// come last. At most Params.Top of each. The slice is the Detector's; it
	// is valid until the next call of Next.
	Suspects []Suspect
	// Weighed is what statistics said of all suspects, if Params.Explain; valid as
	// long as Suspects.
	Weighed []Weighed
	// Antagonists is how many of Suspects clear the bar.
	Antagonists int
	// Trial: the first of Suspects explains the victim's cost, but so may chance
	// or another suspect (switch Evidence). Holding it for a moment would tell.
	Trial bool
	// Tries is how many of Suspects, from the first on, a trial is worth, if Trial;
	// 0 is as 1.
	Tries int
}
