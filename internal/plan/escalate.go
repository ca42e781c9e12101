package plan

import (
	"fmt"

	"github.com/quell-dev/quell/internal/sample"
)

// Where caps are not the answer somebody has to act who can do more: quell says
// what, and never does it by itself (CPI², section 5: operators may kill persistent
// offenders and restart them somewhere else; case 4: migrate the victim).

// Escalation is the same for programs: an operator's hook that follows incidents.
type Escalation struct {
	Do   string          `json:"do"` // Move or Restart
	Task sample.TaskName `json:"task"`
	Job  sample.JobName  `json:"job"`
}

// What an Escalation asks for: the victim is to go to another machine, or the
// antagonist is to be started again on one.
const (
	Move    = "move"
	Restart = "restart"
)

// comingBack is how many caps on a suspect that helped, in one incident, show
// that capping it again will not last.
const comingBack = 3

// comesBack is what to advise beside another cap on a suspect; "" if nothing. It
// leaves the escalation.
func (inc *incident) comesBack(s sample.Task) string {
	n := 0
	for _, r := range inc.rounds {
		if r.Suspect.Key == s.Key && r.Outcome == TruePositive && !r.Trial {
			n++
		}
	}
	if n < comingBack {
		return ""
	}
	inc.Escalation = &Escalation{Restart, s.Name, s.Job}
	return fmt.Sprintf("; it came back after each of %d caps that helped: start it again on another machine, or move %s", n, inc.Victim.Name)
}

// helpless is what to advise where nobody is left to be capped; "" if nothing
// was tried. It leaves the escalation.
func (inc *incident) helpless() string {
	n := 0
	for _, r := range inc.rounds {
		if r.Outcome == Noise || r.Outcome == FalsePositive {
			n++
		}
	}
	if n == 0 {
		return ""
	}
	inc.Escalation = &Escalation{Move, inc.Victim.Name, inc.Victim.Job}
	return fmt.Sprintf("move %s to another machine: %s here did not help it", inc.Victim.Name, caps(n))
}

func caps(n int) string {
	if n == 1 {
		return "the cap that was made"
	}
	return fmt.Sprintf("the %d caps that were made", n)
}
