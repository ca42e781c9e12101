package top

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	tea "charm.land/bubbletea/v2"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
)

// form asks for what a command needs, and then whether to send it.
type form struct {
	title  string
	task   sample.TaskName
	fields []field
	at     int // the field that keys belong to
	// of makes the command, without its reason, from the other fields.
	of      func(values []string) (command.Command, error)
	trial   string // ID of the incident that the command is a trial in
	command command.Command
	problem string
	sure    bool // the command is on the screen, and y sends it
	sending bool
}

// field is one line of a form. The last field of a form is the reason.
type field struct{ label, text, hint string }

// sent is the agent's reply to a command.
type sent struct {
	form *form
	done api.Done
	err  error
}

// trial is a cap whose effect on a victim the agent measures.
type trial struct {
	incident, id string // of the cap
	task         sample.TaskName
	text         string // the result
}

// end reports whether the trial has ended, and takes its result.
func (t *trial) end(inc *incident.Record) bool {
	i := slices.IndexFunc(inc.Rounds, func(r *incident.Round) bool { return r.ID == t.id })
	if i < 0 || inc.Rounds[i].Ended == 0 {
		return false
	}
	r := inc.Rounds[i]
	t.text = fmt.Sprintf("the trial of %s has ended: %s", t.task, r.Outcome)
	if v := float64(r.RelativeCost); r.Samples > 0 && !math.IsNaN(v) {
		t.text += fmt.Sprintf(", relative cost %.2f of %s", v, inc.Victim.Name)
	}
	return true
}

// propose begins the form of a key for the chosen task.
func (m *model) propose(key string) {
	t := m.task()
	switch {
	case m.Past != nil:
		m.said = "this was recorded: commands are for the present (quell top without --at)"
		return
	case t == nil:
		m.said = "there is no task to act on"
		return
	case m.screen == list && m.chosen != "" && m.chosen != t.Name:
		m.said, m.chosen = m.chosen.String()+" has ended, or is not shown any more; the first task is chosen now", ""
		return
	}
	target := command.Target{Task: t.Name.Text()}
	f := &form{task: t.Name}
	switch key {
	case "c":
		f.title, f.fields = "Cap its CPU usage for a time", terms()
		f.of = func(v []string) (command.Command, error) { return capCommand(target, v, "") }
	case "u":
		f.title = "End its cap"
		f.of = func([]string) (command.Command, error) { return command.Command{Uncap: &target}, nil }
	case "p":
		f.title = "Protect it: others may be capped when it suffers"
		f.fields = []field{{"for", "", "1s to 8760h; empty: until it is reset"}}
		f.of = func(v []string) (command.Command, error) {
			lasts, err := duration(v[0])
			if t.Protected {
				return command.Command{Unprotect: &target, For: lasts}, err
			}
			return command.Command{Protect: &target, For: lasts}, err
		}
		if t.Protected {
			f.title = "End its protection"
		}
	case "t":
		inc := triable(t.Name, m.now.open)
		if inc == nil {
			m.said = "no open incident has it as a suspect that may be capped: a trial measures what a cap does for a victim"
			return
		}
		f.title, f.fields, f.trial = fmt.Sprintf("Trial: cap it, and measure %s of %s", inc.Signal, inc.Victim.Name), terms(), inc.ID
		f.of = func(v []string) (command.Command, error) { return capCommand(target, v, f.trial) }
	}
	f.fields = append(f.fields, field{"reason", "", "for the audit log"})
	m.form = f
}

// terms are the fields of a cap, with the paper's values.
func terms() []field {
	p := plan.Paper()
	return []field{
		{"limit", strconv.FormatFloat(p.Rate, 'g', -1, 64), "CPUs (CPU-s/s), 0.001 to 1024; or 10%, 100m"},
		{"for", command.Duration(p.For).String(), "1s to 24h"},
	}
}

func capCommand(t command.Target, v []string, inc string) (command.Command, error) {
	var rate command.Rate
	if err := rate.Set(v[0]); err != nil {
		return command.Command{}, fmt.Errorf("limit: %w", err)
	}
	lasts, err := duration(v[1])
	return command.Command{Cap: &command.Cap{Target: t, Incident: inc, Terms: command.Terms{Rate: float64(rate), For: lasts}}}, err
}

func duration(text string) (d command.Duration, err error) {
	if text != "" {
		err = d.UnmarshalText([]byte(text))
	}
	return d, err
}

// triable is the incident in which a cap on a task can be judged; nil if there is none.
func triable(task sample.TaskName, open []incident.Record) *incident.Record {
	for i := range open {
		inc := &open[i]
		held := slices.ContainsFunc(inc.Rounds, func(r *incident.Round) bool { return r.Ended == 0 })
		for _, s := range inc.Now().Suspects {
			if s.Name == task && s.Excluded == "" && s.MayBeCapped() && inc.Kind.MayBeANeighbour() && !held {
				return inc
			}
		}
	}
	return nil
}

// answer is a key while a form is open.
func (m *model) answer(k tea.KeyPressMsg) tea.Cmd {
	f, name := m.form, k.String()
	switch {
	case f.sending: // the reply closes the form
	case name == "esc":
		m.form, m.said = nil, "nothing was sent"
	case f.sure && name == "y":
		f.sending = true
		return m.send(f)
	case f.sure:
		f.sure = false
	case name == "enter" && f.at == len(f.fields)-1:
		f.check()
	case name == "enter", name == "tab", name == "down":
		f.at = min(f.at+1, len(f.fields)-1)
	case name == "shift+tab", name == "up":
		f.at = max(f.at-1, 0)
	default:
		f.fields[f.at].text, f.problem = edited(f.fields[f.at].text, k), ""
	}
	return nil
}

// check makes the command of what was entered. If it is valid it is put to the question.
func (f *form) check() {
	values := make([]string, len(f.fields))
	for i, x := range f.fields {
		values[i] = strings.TrimSpace(x.text)
	}
	c, err := f.of(values)
	c.Why = values[len(values)-1]
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		f.problem = err.Error()
		return
	}
	if f.trial != "" {
		c.Why = "trial: " + c.Why
	}
	f.command, f.problem, f.sure = c, "", true
}

func (m *model) send(f *form) tea.Cmd {
	ctx, agent, c := m.ctx, m.Agent, f.command
	return func() tea.Msg {
		done, err := agent.Command(ctx, c)
		return sent{f, done, err}
	}
}

// result shows what became of a command.
func (m *model) result(s sent) {
	if m.form == s.form {
		m.form = nil
	}
	if s.err != nil {
		m.said = "not done: " + s.err.Error()
		if r := remedy(s.err); r != "" {
			m.said += "; what to do: " + r
		}
		return
	}
	m.said = s.done.Message
	for _, why := range s.done.Refused {
		m.said += "; refused: " + why
	}
	if s.form.trial != "" && s.done.ID != "" { // else the machine has not answered yet
		m.trials = append(m.trials, trial{incident: s.form.trial, id: s.done.ID, task: s.form.task})
	}
}
