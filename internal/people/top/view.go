package top

import (
	"fmt"
	"strings"

	tea "charm.land/bubbletea/v2"

	"github.com/quell-dev/quell/internal/people/report"
)

// The smallest screen on which the table has a row.
const (
	leastWidth  = 56
	leastHeight = 8
)

// View implements tea.Model.
func (m *model) View() tea.View {
	v := tea.NewView(m.text())
	v.AltScreen = true
	return v
}

// text is the whole screen.
func (m *model) text() string {
	if m.width < leastWidth || m.height < leastHeight {
		return fmt.Sprintf("too small: want %dx%d", leastWidth, leastHeight)
	}
	lines, body := m.head(), m.body()
	if m.form == nil && m.screen != list { // a text, which moves as a whole
		body = body[min(m.first, len(body)):]
	}
	lines = append(lines, body...)
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	return strings.Join(append(lines[:m.height-1], m.foot()), "\n")
}

// style is that of a screen of this width.
func (m *model) style() report.Style {
	s := m.Style
	s.Width = m.width
	return s
}

// rows is the number of lines for the body.
func (m *model) rows() int { return max(m.height-len(m.head())-1, 1) }

// head is the heading, and what must be known now.
func (m *model) head() []string {
	s := m.style()
	var lines []string
	switch {
	case m.Past != nil:
		lines = append(lines, report.PastHeading(m.now.status, s))
	case m.answered:
		lines = append(lines, report.Heading(m.now.status, s))
	default:
		lines = append(lines, s.Bold("quell top"))
	}
	note := func(text string, mark func(string) string) {
		for i, line := range s.Wrap(text) {
			if i < 3 { // an error can be of any length
				lines = append(lines, mark(line))
			}
		}
	}
	if m.err != nil {
		since := ""
		if m.answered {
			since = " (this is of " + s.Clock(m.now.status.Now) + ")"
		}
		note("the agent does not answer"+since+": "+m.err.Error(), s.Bad)
		if r := remedy(m.err); r != "" {
			note("what to do: "+r, s.Bad)
		}
	}
	if m.Remote && m.err == nil {
		for _, d := range m.now.status.Degraded {
			note(d, s.Bad)
		}
	}
	switch {
	case m.said != "":
		note(m.said, s.Bold)
	case m.typing:
		lines = append(lines, "filter: "+s.Tail(m.filter, m.width-10)+"_")
	case m.filter != "" && m.screen == list:
		lines = append(lines, "filter: "+s.Tail(m.filter, m.width-10))
	case m.Past == nil && m.screen == list && m.err == nil:
		if text := report.Learning(m.now.tasks); text != "" {
			note(text, s.Faint)
		}
	}
	return append(lines, "")
}

// body is what is between head and foot: of a text all lines, of the table those that fit.
func (m *model) body() []string {
	switch {
	case m.form != nil:
		return m.form.lines(m.style())
	case m.screen == help:
		return helpLines(m.style())
	case m.screen == detail:
		return m.facts()
	case len(m.shown) == 0:
		return m.style().Wrap(m.nothing())
	}
	s := m.style()
	s.Width -= 2 // for the mark of the chosen task
	head, lines := report.TaskLines(m.shown, m.Past != nil, s)
	body := []string{"  " + head}
	for i := m.first; i < min(m.first+max(m.rows()-1, 1), len(lines)); i++ {
		mark := "  "
		if i == m.index {
			mark = s.Bold("> ")
		}
		body = append(body, mark+lines[i])
	}
	return body
}

// nothing says why there is no task.
func (m *model) nothing() string {
	switch {
	case m.filter != "" && len(m.now.tasks) > 0:
		return "no task has this text in its name, job or labels, or such a class or state; Esc shows all"
	case m.Past != nil:
		return m.Past.nothing(m.at, m.style())
	case m.answered:
		return report.NoTasks
	case m.err != nil:
		return ""
	}
	return "the agent is being asked"
}

// facts is the chosen task in detail.
func (m *model) facts() []string {
	t := m.task()
	if t == nil {
		return m.style().Wrap(m.chosen.String() + " has ended, or was renamed")
	}
	a := report.Around{Now: m.now.status.Now, Caps: m.now.status.Caps, Incidents: m.now.open, Recorded: m.Past != nil}
	if c := m.courses[t.Name]; c != nil {
		a.Course = *c
	}
	return report.TaskFacts(*t, a, m.style())
}

// foot is the keys that have a use now; those that do not fit are in the help.
func (m *model) foot() string {
	var keys []string
	switch {
	case m.form != nil && m.form.sending:
		keys = []string{"the agent is being asked"}
	case m.form != nil && m.form.sure:
		keys = []string{"y send", "Esc send nothing", "any other key: change it"}
	case m.form != nil:
		keys = []string{"Enter next", "Esc send nothing", "Up Down another field", "^U clear"}
	case m.typing:
		keys = []string{"Enter keep the filter", "Esc show all"}
	case m.screen == help:
		keys = []string{"any key: back", "Up Down scroll"}
	default:
		keys = []string{"q quit", "? help"}
		if m.screen == detail {
			keys = append(keys, "Esc back")
			if len(m.body()) > m.rows() {
				keys = append(keys, "Up Down scroll")
			}
		} else {
			if n := len(m.shown); n > 0 {
				keys = append(keys, fmt.Sprintf("%d/%d", m.index+1, n), "Enter detail")
			}
		}
		if m.Past != nil {
			keys = append(keys, "Left Right time")
		}
		if m.screen == list && len(m.now.tasks) > 0 {
			keys = append(keys, "/ filter", "s sort: "+m.Sort)
		}
		if m.Past == nil && m.task() != nil {
			keys = append(keys, "c cap", "u uncap", "p protect", "t trial")
		}
	}
	s := m.style()
	return s.Faint(s.Parts(keys...))
}

// lines are a form's.
func (f *form) lines(s report.Style) []string {
	const label = 10
	lines := append([]string{}, s.Wrap(f.title)...)
	lines = append(lines, "")
	if f.sure {
		lines = append(lines, s.Wrap(f.command.String())...)
		lines = append(lines, s.Wrap("reason: "+f.command.Why)...)
		if f.sending {
			return append(lines, "", "sent; waiting for the agent")
		}
		return append(lines, "", s.Bold("Send this to the agent? y sends it"))
	}
	lines = append(lines, s.Bold("task      ")+s.Tail(f.task.String(), s.Width-label))
	for i, x := range f.fields {
		text := s.Tail(x.text, s.Width-label-1)
		if i == f.at {
			text += "_"
		}
		lines = append(lines, s.Bold(fmt.Sprintf("%-*s", label, x.label))+text)
		if i == f.at {
			lines = append(lines, s.Faint(strings.Repeat(" ", label)+x.hint))
		}
	}
	if f.problem != "" {
		lines = append(lines, "")
		for _, line := range s.Wrap(f.problem) {
			lines = append(lines, s.Bad(line))
		}
	}
	return lines
}

// helpLines are at most 55 columns wide.
func helpLines(s report.Style) []string {
	return []string{
		s.Bold("Keys"),
		"Up Down j k   choose a task; scroll a text",
		"PgUp PgDn     a page; g G: the first, the last",
		"Enter         the task in detail, with sparklines",
		"/             show the tasks with a text in their name,",
		"              job, class, state or labels; Esc: all",
		"s             sort: worst, cpu, name, each signal",
		"c  u          cap its CPU usage for a time; end its cap",
		"p             protect it, or end its protection",
		"t             trial: cap a suspect, measure the victim",
		"Left Right    with --at: an interval back, forth",
		"Esc           back      q Ctrl-C   quit",
		"Nothing is sent before a reason is given and y typed.",
		"",
		s.Bold("Columns"),
		"CPU-S/S       CPU usage in the last interval",
		"CPI RUNQ ...  cost/threshold; ! outlier; - not counted",
		"WORST         the highest cost in % of its threshold",
		"STATE         capped, victim, suspect, outlier",
		"COUNTED       share of the interval that was counted",
		"SPEC          normal cost: ready, or when it will be",
		"Signals that do not fit are in the detail of a task.",
	}
}
