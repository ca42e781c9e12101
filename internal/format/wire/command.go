package wire

import (
	"errors"
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
)

// ErrUnknownCommand means that a command of a newer server is not known here.
var ErrUnknownCommand = errors.New("unknown command")

// EncodeDecision returns the message for a valid decision.
func EncodeDecision(c *command.Decision) *Command {
	m := &Command{Id: c.ID, Who: c.Who, Why: c.Why, At: int64(c.At), Expires: int64(c.Until)}
	if r := c.Rollout; r != nil {
		m.Rollout = &Command_Rollout{Step: uint32(r.Step), Since: int64(r.Since), EveryMs: time.Duration(r.Every).Milliseconds(), Below: r.Below, Stopped: r.Stopped}
	}
	switch {
	case c.Cap != nil:
		m.Do = &Command_Cap_{Cap: &Command_Cap{Task: c.Cap.Task, Many: encodeMany(c.Cap.Target), Rate: c.Cap.Rate, ForMs: time.Duration(c.Cap.For).Milliseconds(), Incident: c.Cap.Incident}}
	case c.Uncap != nil:
		m.Do = &Command_Uncap_{Uncap: &Command_Uncap{Task: c.Uncap.Task, Many: encodeMany(*c.Uncap)}}
	case c.Protect != nil:
		m.Do = &Command_Protect_{Protect: &Command_Protect{Task: c.Protect.Task, Many: encodeMany(*c.Protect)}}
	case c.Unprotect != nil:
		m.Do = &Command_Protect_{Protect: &Command_Protect{Task: c.Unprotect.Task, Many: encodeMany(*c.Unprotect), Off: true}}
	case c.Enforcement != nil:
		m.Do = &Command_Enforcement_{Enforcement: &Command_Enforcement{Mode: c.Enforcement.Mode}}
	case c.Pardon != nil:
		m.Do = &Command_Pardon_{Pardon: &Command_Pardon{Job: c.Pardon.Job}}
	}
	return m
}

// EncodeDecisions returns the messages for a list of valid decisions that was made from those of before
// that this side knows. Those of a newer server stay until they end, and a decision that has not
// changed stays as a newer server has written it.
func EncodeDecisions(list []command.Decision, before []*Command, now sample.Millis) (all []*Command) {
	had := map[string]*Command{}
	for _, m := range before {
		c, err := DecodeDecision(m)
		switch {
		case err == nil:
			had[c.ID] = m
		case c.Stands(now):
			all = append(all, m)
		}
	}
	for i := range list {
		m := EncodeDecision(&list[i])
		if old := had[list[i].ID]; old != nil {
			if c, err := DecodeDecision(old); err == nil && proto.Equal(m, EncodeDecision(&c)) {
				m = old
			}
		}
		all = append(all, m)
	}
	return all
}

// DecodeDecision returns the decision of a message, which the caller must still validate. With
// ErrUnknownCommand, if this side knows none of its commands, it lacks the command.
func DecodeDecision(m *Command) (c command.Decision, err error) {
	c = command.Decision{ID: m.GetId(), Who: m.GetWho(), At: sample.Millis(m.GetAt()), Until: sample.Millis(m.GetExpires()), Command: command.Command{Why: m.GetWhy()}}
	if r := m.GetRollout(); r != nil {
		c.Rollout = &command.Rollout{Step: int(r.GetStep()), Since: sample.Millis(r.GetSince()), Every: lease(r.GetEveryMs()), Below: r.GetBelow(), Stopped: r.GetStopped()}
	}
	switch do := m.GetDo().(type) {
	case *Command_Cap_:
		c.Cap = &command.Cap{Target: decodeTarget(do.Cap), Terms: command.Terms{Rate: do.Cap.GetRate(), For: lease(do.Cap.GetForMs())}, Incident: do.Cap.GetIncident()}
	case *Command_Uncap_:
		c.Uncap = new(decodeTarget(do.Uncap))
	case *Command_Protect_:
		if target := decodeTarget(do.Protect); do.Protect.GetOff() {
			c.Unprotect = &target
		} else {
			c.Protect = &target
		}
	case *Command_Enforcement_:
		c.Enforcement = &command.Enforcement{Mode: do.Enforcement.GetMode()}
	case *Command_Pardon_:
		c.Pardon = &command.Pardon{Job: do.Pardon.GetJob()}
	default:
		return c, ErrUnknownCommand
	}
	return c, nil
}

func encodeMany(t command.Target) *Command_Many {
	if t.Job == "" && t.Class == "" && !t.All {
		return nil
	}
	return &Command_Many{Job: t.Job, Class: t.Class, All: t.All}
}

func decodeTarget(m interface {
	GetTask() string
	GetMany() *Command_Many
}) command.Target {
	many := m.GetMany()
	return command.Target{Task: m.GetTask(), Job: many.GetJob(), Class: many.GetClass(), All: many.GetAll()}
}

// lease converts milliseconds. A number outside the range of a Duration becomes the
// longest one, so that it does not wrap around to a valid lease.
func lease(ms int64) command.Duration {
	const most = math.MaxInt64 / int64(time.Millisecond)
	return command.Duration(max(-most, min(ms, most)) * int64(time.Millisecond))
}

// SameState reports whether two states say the same.
func SameState(a, b *State) bool { return proto.Equal(a, b) }
