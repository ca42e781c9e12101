package plan

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
)

// ErrRefused is why an operator's command was not planned.
var ErrRefused = errors.New("refused")

// CapFor plans an operator's cap on a task. It works in every mode: the operator has the
// authority that automatic enforcement lacks. Whatever door the cap came through, it has an
// operator, a reason and an end at most command.MaxLease away. If the task is a suspect of an open
// incident, the cap is a round of it, so that its outcome is measured.
func (p *Planner) CapFor(now sample.Millis, t sample.Task, terms command.Terms, by, why string) (id string, err error) {
	invalid := cmp.Or(terms.Validate(), command.ValidateWhy(why))
	switch not := noCapReason(t); {
	case not != "":
		return "", fmt.Errorf("cap %s: %w: %s", t.Name, ErrRefused, not)
	case invalid != nil:
		return "", fmt.Errorf("cap %s: %w: %w", t.Name, ErrRefused, invalid)
	case strings.TrimSpace(by) == "":
		return "", fmt.Errorf("cap %s: %w: it is not known who asks for it", t.Name, ErrRefused)
	case p.Capped(t.Key):
		return "", fmt.Errorf("cap %s: %w: it is capped already; uncap it first", t.Name, ErrRefused)
	}
	inc, correlation := p.suspectIn(t.Key)
	return p.start(now, inc, Action{Task: t, Rate: terms.Rate, Until: now.Add(time.Duration(terms.For)), By: by, Why: why}, correlation).ID, nil
}

// suspectIn finds the oldest open incident that lists the task, or has named it.
func (p *Planner) suspectIn(k sample.TaskKey) (*incident, float64) {
	for _, inc := range p.inOrder() {
		for _, a := range [...]*Analysis{inc.latest, inc.best} {
			for _, s := range a.Suspects {
				if s.Key == k {
					return inc, s.Correlation
				}
			}
		}
		for _, n := range inc.named {
			if n.Suspect.Key == k {
				return inc, n.Suspect.Correlation
			}
		}
	}
	return nil, 0
}

// Uncap plans the end of the cap on a task.
func (p *Planner) Uncap(now sample.Millis, k sample.TaskKey, why string) error {
	c := p.capOf(k)
	if c == nil {
		return fmt.Errorf("uncap: %w: the task has no cap set by quell", ErrRefused)
	}
	if c.round != nil {
		c.round.lifted = true
	}
	p.lift(now, c.ID, why, "")
	return nil
}

// SetMode changes how far enforcement goes. Leaving On lifts the caps that quell set
// itself; operators' caps stay until their end.
func (p *Planner) SetMode(now sample.Millis, m Mode) {
	p.policy.Mode = m
	if m != On {
		for _, c := range p.Caps() {
			if c.By == auto {
				p.lift(now, c.ID, "enforcement was set to "+m.String(), "")
			}
		}
	}
}

// Stop ends every cap: the agent stops.
func (p *Planner) Stop(now sample.Millis) {
	for _, c := range p.Caps() {
		p.lift(now, c.ID, "the agent stops", "")
	}
}
