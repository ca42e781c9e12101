package plan

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// ErrRefused is why an operator's command was not planned.
var ErrRefused = errors.New("refused")

// CapFor plans an operator's cap on a task. It works in every mode: the operator has the
// authority that automatic enforcement lacks. Whatever door the cap came through, it has an
// operator, a reason and an end at most command.MaxLease away. A cap that names an open
// incident is a round of it: its outcome is measured by that incident's victim. Without a
// name it belongs to no incident. window is as in Finding, for the incident's signal.
func (p *Planner) CapFor(now sample.Millis, t sample.Task, terms command.Terms, incident, by, why string, window func(sample.TaskKey) []detect.Point) (id string, err error) {
	inc := p.find(incident)
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
	case inc == nil && incident != "":
		return "", fmt.Errorf("cap %s: %w: no incident %s is open here; without one the cap belongs to none", t.Name, ErrRefused, incident)
	case inc != nil && inc.Victim.Key == t.Key:
		return "", fmt.Errorf("cap %s: %w: it is the victim of %s", t.Name, ErrRefused, incident)
	}
	a := Action{Task: t, Rate: terms.Rate, Until: now.Add(time.Duration(terms.For)), By: by, Why: why}
	return p.start(now, inc, a, inc.correlation(t.Key), window).ID, nil
}

// correlation is that of a task in the incident, as it was listed last; 0 if it was not, or
// without an incident.
func (inc *incident) correlation(k sample.TaskKey) float64 {
	if inc == nil {
		return 0
	}
	for _, a := range [...]*Analysis{inc.latest, inc.best} {
		for _, s := range a.Suspects {
			if s.Key == k {
				return s.Correlation
			}
		}
	}
	for _, n := range inc.named {
		if n.Suspect.Key == k {
			return n.Suspect.Correlation
		}
	}
	return 0
}

// Uncap plans the end of the cap on a task.
func (p *Planner) Uncap(now sample.Millis, k sample.TaskKey, why string) error {
	c := p.capOf(k)
	if c == nil {
		return fmt.Errorf("uncap: %w: the task has no cap set by quell", ErrRefused)
	}
	p.free(c, "an operator lifted its cap")
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
