// Package top is the interactive screen of quell top: the tasks of the local agent, one of them
// in detail, and commands about it, or what was recorded of an earlier time.
//
// Update changes the model by one message: a key, an answer of the agent, a new size. View is a
// function of the model only. The agent is asked by commands of Bubble Tea, one at a time, so
// that a slow agent does not make the keys slow.
package top

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/people/report"
)

// Agent is what the screen asks of an agent; api.Client is one.
type Agent interface {
	Status(context.Context) (api.Status, error)
	Tasks(context.Context) ([]api.TaskView, error)
	Incidents(context.Context, logbook.Query) (api.Incidents, error)
	Incident(ctx context.Context, id string) (incident.Record, error)
	Command(context.Context, command.Command) (api.Done, error)
}

// Options of a screen.
type Options struct {
	Agent Agent
	Past  *Past         // shown instead of the agent's present, if not nil
	Every time.Duration // how often the agent is asked
	// Remote: the agent is another machine's, and only this screen says what is degraded there.
	Remote bool
	Sort   string       // a key of report.SortTasks
	Style  report.Style // its width follows the terminal's
	In     io.Reader
	Out    io.Writer
	Env    []string
}

// Run shows the screen until the user ends it or ctx ends. It returns the agent's error if the
// agent never answered.
func Run(ctx context.Context, o Options) error {
	m := newModel(ctx, o)
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(o.In), tea.WithOutput(o.Out), tea.WithEnvironment(o.Env), tea.WithoutSignalHandler()).Run()
	switch {
	case ctx.Err() != nil:
		return nil
	case err == nil && !m.answered:
		return m.err
	}
	return err
}

// moment is a machine at a time.
type moment struct {
	status  api.Status
	tasks   []api.TaskView
	open    []incident.Record                  // incidents that are open
	courses map[sample.TaskName]*report.Course // what was recorded of them; the model adds to it
}

// screen is what is shown.
type screen uint8

const (
	list screen = iota
	detail
	help
)

type model struct {
	Options
	ctx           context.Context
	width, height int

	now      moment
	answered bool  // now is an answer
	err      error // why the agent did not answer the last time
	at       sample.Millis
	courses  map[sample.TaskName]*report.Course
	counted  uint64 // intervals that are in courses

	screen, below screen // below: what help hides
	shown         []api.TaskView
	filter        string
	typing        bool            // keys belong to the filter
	chosen        sample.TaskName // "": the first task that is shown
	index         int             // of the chosen one in shown
	first         int             // row of the table, or line of a text, at the top
	form          *form           // the question that is being answered; nil: none
	said          string          // the result of the last command
	trials        []trial         // that have not ended
}

// Messages of Update.
type (
	// arrived is the agent's answer, with the trials that have ended.
	arrived struct {
		now   moment
		err   error
		ended []trial
	}
	// due: the agent is to be asked again.
	due struct{}
)

func newModel(ctx context.Context, o Options) *model {
	m := &model{Options: o, ctx: ctx, courses: map[sample.TaskName]*report.Course{}}
	if o.Past != nil {
		m.at = o.Past.At
	}
	return m
}

// Init implements tea.Model.
func (m *model) Init() tea.Cmd {
	if m.Past != nil {
		m.turn(m.at)
		m.settle()
		return nil
	}
	return m.ask()
}

// ask is the command that asks the agent.
func (m *model) ask() tea.Cmd {
	trials, first := slices.Clone(m.trials), !m.answered
	return func() tea.Msg {
		var a arrived
		if a.now, a.err = present(m.ctx, m.Agent); a.err == nil {
			if first {
				a.now.courses = charts(m.ctx, m.Agent, &a.now)
			}
			for _, t := range trials {
				if inc, err := m.Agent.Incident(m.ctx, t.incident); err == nil && t.end(&inc) {
					a.ended = append(a.ended, t)
				}
			}
		}
		return a
	}
}

// present asks the agent for its state.
func present(ctx context.Context, a Agent) (now moment, err error) {
	if now.status, err = a.Status(ctx); err != nil {
		return now, err
	}
	if now.tasks, err = a.Tasks(ctx); err != nil {
		return now, err
	}
	found, err := a.Incidents(ctx, logbook.Query{Open: true})
	now.open = found.Incidents
	return now, err
}

// charts are the courses of the tasks that the charts of open incidents show, so that a detail
// does not begin empty.
func charts(ctx context.Context, a Agent, now *moment) map[sample.TaskName]*report.Course {
	const most = 8 // incidents that are asked for
	b := newPast(now.status.Now, 0)
	for i := range min(len(now.open), most) {
		if inc, err := a.Incident(ctx, now.open[i].ID); err == nil { // else without
			b.incident(&inc)
		}
	}
	return b.courses
}

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	var next tea.Cmd
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case arrived:
		m.take(msg)
		next = tea.Tick(m.Every, func(time.Time) tea.Msg { return due{} })
	case due:
		next = m.ask()
	case sent:
		m.result(msg)
	case tea.PasteMsg:
		m.write(msg.Content)
	case tea.KeyPressMsg:
		next = m.key(msg)
	}
	m.settle()
	return m, next
}

// take takes an answer. Without one the last is still shown.
func (m *model) take(a arrived) {
	m.err = a.err
	if a.err != nil {
		return
	}
	if !m.answered {
		m.courses = a.now.courses
	}
	m.now, m.answered = a.now, true
	for _, t := range a.ended {
		m.trials = slices.DeleteFunc(m.trials, func(x trial) bool { return x.id == t.id })
		m.said = t.text
	}
	if n := m.now.status.Intervals; n != m.counted {
		m.counted = n
		m.follow()
	}
}

// longest is how many intervals of each task are remembered: the widest sparkline.
const longest = 132

// follow adds the last interval to the courses, and forgets tasks that have ended.
func (m *model) follow() {
	kept := map[sample.TaskName]*report.Course{}
	for _, t := range m.now.tasks {
		c := m.courses[t.Name]
		if c == nil {
			c = &report.Course{Costs: map[sample.SignalName][]float64{}}
		}
		kept[t.Name] = c
		now, n := m.now.status.Now, len(c.Times)
		// Less than half a step after the last point of a chart it is the same interval.
		if n < 2 || 2*now.Sub(c.Times[n-1]) > c.Times[n-1].Sub(c.Times[n-2]) {
			add(c, now, t)
		}
		if n := len(c.Times) - longest; n > 0 {
			c.Times, c.CPU = c.Times[n:], c.CPU[n:]
			for sig, values := range c.Costs {
				c.Costs[sig] = values[n:]
			}
		}
	}
	m.courses = kept
}

// turn shows what was recorded at a time.
func (m *model) turn(at sample.Millis) {
	m.at, m.now, m.answered = at, m.Past.moment(at), true
	m.courses = m.now.courses
}

func (m *model) key(k tea.KeyPressMsg) tea.Cmd {
	name := k.String()
	switch {
	case name == "ctrl+c":
		return tea.Quit
	case name == "ctrl+z":
		return tea.Suspend
	case m.form != nil:
		return m.answer(k)
	case m.typing:
		m.narrow(k)
		return nil
	}
	m.said = ""
	if move, ok := m.moves()[name]; ok {
		m.move(move)
		return nil
	}
	if m.screen == help { // any other key
		m.screen, m.first = m.below, 0
		return nil
	}
	switch name {
	case "q":
		return tea.Quit
	case "?", "h":
		m.screen, m.below, m.first = help, m.screen, 0
	case "esc":
		if m.screen == list {
			m.filter = ""
		}
		m.screen, m.first = list, 0
	case "/":
		m.screen, m.first, m.typing = list, 0, true
	case "s":
		m.Sort = m.nextSort()
	case "enter":
		if t := m.task(); t != nil {
			m.chosen, m.screen, m.first = t.Name, detail, 0
		}
	case "left", "right":
		if m.Past != nil {
			m.turn(m.Past.step(m.at, name == "right"))
		}
	case "c", "u", "p", "t":
		m.propose(name)
	}
	return nil
}

// moves are the keys that move, with the number of rows.
func (m *model) moves() map[string]int {
	page, all := max(m.rows()-1, 1), 1<<20
	return map[string]int{"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -page, "pgdown": page, "home": -all, "g": -all, "end": all, "G": all}
}

// move chooses another task, or scrolls a text.
func (m *model) move(rows int) {
	if m.screen != list {
		m.first += rows // settle corrects it
		return
	}
	m.chosen = ""
	if i := min(max(m.index+rows, 0), len(m.shown)-1); i > 0 {
		m.chosen = m.shown[i].Name
	}
}

// narrow edits the filter.
func (m *model) narrow(k tea.KeyPressMsg) {
	switch k.String() {
	case "enter":
		m.typing = false
	case "esc":
		m.typing, m.filter = false, ""
	default:
		m.filter = edited(m.filter, k)
	}
}

// write is text that was pasted.
func (m *model) write(text string) {
	text = strings.Join(strings.Fields(text), " ")
	switch {
	case m.form != nil && !m.form.sure:
		m.form.fields[m.form.at].text += text
	case m.typing:
		m.filter += text
	}
}

// edited is a text after a key.
func edited(text string, k tea.KeyPressMsg) string {
	switch k.String() {
	case "backspace", "ctrl+h":
		if runes := []rune(text); len(runes) > 0 {
			return string(runes[:len(runes)-1])
		}
	case "ctrl+u":
		return ""
	default:
		return text + k.Text
	}
	return text
}

// nextSort is the key after the present one.
func (m *model) nextSort() string {
	keys := []string{"worst", "cpu", "name"}
	for _, sig := range report.Counted(m.now.tasks) {
		keys = append(keys, string(sig))
	}
	return keys[(slices.Index(keys, m.Sort)+1)%len(keys)]
}

// settle makes what is shown follow from the rest: the tasks that match, in their order, the
// chosen one among them, and the part that fits.
func (m *model) settle() {
	m.shown = slices.DeleteFunc(slices.Clone(m.now.tasks), func(t api.TaskView) bool { return !matches(t, m.filter) })
	_ = report.SortTasks(m.shown, m.Sort) // the key is valid
	at := slices.IndexFunc(m.shown, func(t api.TaskView) bool { return t.Name == m.chosen })
	if at < 0 && m.typing {
		m.chosen = "" // it does not match the filter
	}
	at = max(at, 0)
	m.index = at
	if m.screen != list {
		m.first = max(min(m.first, len(m.body())-m.rows()), 0)
		return
	}
	rows := max(m.rows()-1, 1) // without the table's head
	m.first = max(min(m.first, at, len(m.shown)-rows), at-rows+1, 0)
}

// matches reports whether a task has a text in its name, job or labels, or a class or state that
// begins with it.
func matches(t api.TaskView, text string) bool {
	all := []string{t.Name.String(), string(t.Job)}
	for key, value := range t.Labels {
		all = append(all, key+"="+value)
	}
	text = strings.ToLower(text)
	return strings.HasPrefix(t.Class.String(), text) || strings.HasPrefix(report.State(t), text) || slices.ContainsFunc(all, func(s string) bool { return strings.Contains(strings.ToLower(s), text) })
}

// task is the chosen task; nil if none is shown. In detail it may have ended.
func (m *model) task() *api.TaskView {
	all := m.shown
	if m.screen == detail {
		all = m.now.tasks
	}
	if m.screen == list && m.index < len(all) {
		return &all[m.index]
	}
	if i := slices.IndexFunc(all, func(t api.TaskView) bool { return t.Name == m.chosen }); i >= 0 {
		return &all[i]
	}
	return nil
}

// remedy is what to do about an error.
func remedy(err error) string {
	if refused, ok := errors.AsType[*api.RefusedError](err); ok {
		return refused.Failure.Remedy
	}
	if e, ok := errors.AsType[*api.UnreachableError](err); ok {
		return cmp.Or(e.Remedy(), "see the agent's log")
	}
	var other interface { // quell-server's
		error
		Remedy() string
	}
	if errors.As(err, &other) {
		return other.Remedy()
	}
	return ""
}
