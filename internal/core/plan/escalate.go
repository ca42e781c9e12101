package plan

import (
	"fmt"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Where caps do not help, an operator with more means has to act. The agent says what to do,
// and never does it (CPI², section 5: operators may kill persistent offenders and
// restart them somewhere else; case 4: migrate the victim). quell-server may (cluster/evict).

// Escalation is that advice for programs: an operator's hook that follows incidents.
type Escalation struct {
	Do   string          `json:"do"` // Move or Restart
	Task sample.TaskName `json:"task"`
	Job  sample.JobName  `json:"job"`
}

// What an Escalation asks for: move the victim to another machine, or restart the
// antagonist on another machine.
const (
	Move    = "move"
	Restart = "restart"
)

// recurrentCaps is how many caps on a suspect that helped, in one incident, show that
// another cap on it has no lasting effect.
const recurrentCaps = 3

// recurrenceAdvice is the advice in addition to another cap on a suspect; "" if there is none.
// It sets the escalation.
func (inc *incident) recurrenceAdvice(s sample.Task) string {
	n := 0
	for _, r := range inc.rounds {
		if r.alone(s.Key) && r.Outcome == TruePositive && !r.Trial {
			n++
		}
	}
	if n < recurrentCaps {
		return ""
	}
	inc.Escalation = &Escalation{Restart, s.Name, s.Job}
	return fmt.Sprintf("; it came back after each of %d caps that helped: restart it on another machine, or move %s", n, inc.Victim.Name)
}

// moveAdvice is the advice if no task is left to be capped; "" if nothing was tried. It
// sets the escalation.
func (inc *incident) moveAdvice() string {
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
		return "the cap"
	}
	return fmt.Sprintf("the %d caps", n)
}
