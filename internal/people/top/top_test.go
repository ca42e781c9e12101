package top

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/trace"
	"github.com/quell-dev/quell/internal/format/trace/parquet"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) { quelltest.Main(m) }

const noon = sample.Millis(1763726400000) // 2025-11-21 12:00:00 UTC

var (
	nan    = incident.Value(math.NaN())
	redis  = sample.Task{Name: "/kubepods/burstable/pod4711/redis", Job: "redis", Class: sample.LatencySensitive}
	encode = sample.Task{Name: "/kubepods/besteffort/pod4712/encode", Job: "encode", Class: sample.BestEffort}
	index  = sample.Task{Name: "/system.slice/index.service", Job: "index", Class: sample.Batch, NeverCap: true}
	bad    = sample.Task{Name: "/lxc/bad\x1b[2Jname\n/é", Job: "x\x1b]0;title\a", Class: sample.Batch, Protected: true}
)

// suffering is an open incident: redis suffers, and encode is likely the cause.
func suffering() incident.Record {
	inc := incident.Record{Incident: plan.Incident{ID: "inc-20251121T115900.000-9", Machine: "node-3", Rule: detect.EvidenceMethod, Signal: sample.CPI, Variant: "ref-cycles",
		Victim: redis, Began: noon.Add(-5 * time.Minute), Opened: noon.Add(-4 * time.Minute), Updated: noon, Mode: plan.Advise, SpecMean: 1.21, SpecStdDev: 0.118,
		Analysis: plan.Analysis{Analysed: noon, Result: detect.Result{Kind: detect.Neighbour, Threshold: 1.446, Cost: 2.31, Bad: 4, Pairs: 10, Antagonists: 1, Suspects: []detect.Suspect{
			{Task: encode, Usage: 1.42, Correlation: 0.46, Grounds: detect.Grounds{Level: detect.Likely, Basis: detect.ByStatistics, Probability: 0.93}},
			{Task: index, Usage: 0.3, Excluded: "it ran in no bad interval"}}}},
		Rounds: []*incident.Round{}}}
	track := incident.Track{Task: encode.Name}
	for i := range 11 {
		inc.Times = append(inc.Times, noon.Add(time.Duration(i-10)*time.Minute))
		cost, usage := incident.Value(1.2), incident.Value(0.1)
		if i > 5 {
			cost, usage = 2.2+incident.Value(i)/100, 1.4
		}
		inc.VictimCost, track.Usage = append(inc.VictimCost, cost), append(track.Usage, usage)
	}
	inc.Usage = []incident.Track{track}
	return inc
}

func busy() moment {
	ready := spec.Spec{State: spec.Ready, Mean: 1.21, StdDev: 0.118}
	return moment{
		status: api.Status{Machine: "node-3", Now: noon, Mode: plan.Advise, Tasks: 4, Open: 1, Outside: 0.31, Intervals: 1, Degraded: []string{"cpi: not counted"},
			Caps: []api.CapView{{Task: index.Name, CapState: plan.CapState{From: noon.Add(-time.Minute), Action: plan.Action{ID: "cap-1", Rate: 0.5, Until: noon.Add(4 * time.Minute), By: "ann", Why: "too loud"}}}}},
		tasks: []api.TaskView{
			{Task: index, CPU: 0.31, Capped: true, Flags: "capped", Note: "no cgroup of its own for perf", Costs: []api.SignalView{
				{Signal: sample.CPI, Cost: nan, Limit: nan}, {Signal: sample.RunQ, Cost: 0.002, Limit: 0.06, Spec: ready}}},
			{Task: encode, CPU: 1.42, Role: plan.Suspect, Proposed: true, ClassWhy: "QoS class BestEffort", Labels: map[string]string{"namespace": "media", "pod": "encode-7f9c", "image": "registry.example/media/encode@sha256:0123456789abcdef0123456789abcdef0123456789abcdef"},
				Costs: []api.SignalView{{Signal: sample.CPI, Cost: 1.9, Limit: nan, Spec: spec.Spec{State: spec.Learning}, ReadyIn: 94 * 60}, {Signal: sample.RunQ, Cost: 0.5, Limit: nan}}},
			{Task: bad, CPU: 0.02, Costs: []api.SignalView{{Signal: sample.CPT, Cost: 23.1e-6, Limit: 25e-6, Spec: ready}}},
			{Task: redis, CPU: 0.8, Role: plan.Victim, Costs: []api.SignalView{
				{Signal: sample.CPI, Cost: 2.31, Limit: 1.446, Outlier: true, Coverage: 0.62, Spec: ready}, {Signal: sample.RunQ, Cost: 0.03, Limit: 0.06, Spec: ready}}},
		},
		open: []incident.Record{suffering()},
	}
}

// fake is an agent that answers what it is given and remembers commands.
type fake struct {
	now      moment
	incident incident.Record
	err      error // of every answer
	got      []command.Command
	refuse   error
	silent   bool // no command is answered: quell-server has it
}

func (f *fake) Status(context.Context) (api.Status, error)    { return f.now.status, f.err }
func (f *fake) Tasks(context.Context) ([]api.TaskView, error) { return f.now.tasks, f.err }
func (f *fake) Incidents(context.Context, logbook.Query) (api.Incidents, error) {
	return api.Incidents{Incidents: f.now.open}, f.err
}
func (f *fake) Incident(context.Context, string) (incident.Record, error) { return f.incident, f.err }
func (f *fake) Command(_ context.Context, c command.Command) (api.Done, error) {
	f.got = append(f.got, c)
	if f.silent {
		return api.Done{Message: "no answer"}, nil
	}
	return api.Done{Message: c.String() + ": done", ID: "cap-7"}, f.refuse
}

// screenOf is a screen of a size over an agent, after its first answer.
func screenOf(t *testing.T, f *fake, width, height int) *model {
	m := newModel(t.Context(), Options{Agent: f, Sort: "worst"})
	m.Update(tea.WindowSizeMsg{Width: width, Height: height})
	do(m, m.Init())
	return m
}

// do runs a command, and what follows of its message.
func do(m *model, c tea.Cmd) {
	for c != nil {
		msg := c()
		if _, c = m.Update(msg); isAnswer(msg) {
			return // the next command waits
		}
	}
}

func isAnswer(msg tea.Msg) bool { _, ok := msg.(arrived); return ok }

var named = map[string]rune{"enter": tea.KeyEnter, "esc": tea.KeyEscape, "up": tea.KeyUp, "down": tea.KeyDown, "left": tea.KeyLeft, "right": tea.KeyRight,
	"backspace": tea.KeyBackspace, "tab": tea.KeyTab, "pgdown": tea.KeyPgDown}

// press presses keys: names of keys, or texts that are typed.
func press(m *model, keys ...string) {
	for _, k := range keys {
		if code, ok := named[k]; ok {
			_, c := m.Update(tea.KeyPressMsg{Code: code})
			do(m, c)
			continue
		}
		for _, r := range k {
			_, c := m.Update(tea.KeyPressMsg{Code: r, Text: string(r)})
			do(m, c)
		}
	}
}

// TestScreens compares every screen with a file, in two sizes. No line is longer than the
// screen, and no control sequence of a name is in it.
func TestScreens(t *testing.T) {
	for _, c := range []struct {
		name string
		of   func(f *fake)
		keys []string
		then func(m *model, f *fake)
	}{
		{name: "list"},
		{name: "chosen", keys: []string{"j", "down", "j", "k"}},
		{name: "filter", keys: []string{"/", "ENC"}},
		{name: "filter_none", keys: []string{"/", "zebra", "enter"}},
		{name: "sorted", keys: []string{"ss"}},
		{name: "detail_victim", keys: []string{"enter"}},
		{name: "detail_suspect", keys: []string{"s", "enter"}},
		{name: "detail_hostile", keys: []string{"j", "enter"}},
		{name: "help", keys: []string{"?"}},
		{name: "help_end", keys: []string{"?", "G"}},
		{name: "cap", keys: []string{"s", "c"}},
		{name: "cap_problem", keys: []string{"s", "c", "x", "enter", "enter", "enter"}},
		{name: "cap_sure", keys: []string{"s", "c", "enter", "enter", "too loud for redis", "enter"}},
		{name: "cap_done", keys: []string{"s", "c", "enter", "enter", "why", "enter", "y"}},
		{name: "refused", of: func(f *fake) {
			f.refuse = &api.RefusedError{Failure: api.Failure{Error: "only operators may give commands", Remedy: "ask for the role operator"}, Status: 403}
		}, keys: []string{"s", "u", "why", "enter", "y"}},
		{name: "trial", keys: []string{"s", "t"}},
		{name: "trial_none", keys: []string{"t"}},
		{name: "empty", of: func(f *fake) { f.now.tasks, f.now.open = nil, nil }},
		{name: "learning", of: func(f *fake) { f.now.tasks = f.now.tasks[1:2] }},
		{name: "gone", then: func(m *model, f *fake) {
			f.err = &api.UnreachableError{Socket: "/run/quell/agent.sock", Err: fs.ErrNotExist}
			do(m, m.ask())
		}},
		{name: "no_rights", of: func(f *fake) {
			f.err = &api.UnreachableError{Socket: "/run/quell/agent.sock", Err: fs.ErrPermission}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var all strings.Builder
			for _, size := range [][2]int{{80, 24}, {60, 20}} {
				f := &fake{now: busy()}
				if c.of != nil {
					c.of(f)
				}
				m := screenOf(t, f, size[0], size[1])
				press(m, c.keys...)
				if c.then != nil {
					c.then(m, f)
				}
				fmt.Fprintf(&all, "%dx%d\n%s\n", size[0], size[1], checked(t, m))
			}
			golden(t, c.name, all.String())
		})
	}
}

// checked is the screen, which must be as large as the terminal and have no control characters.
func checked(t *testing.T, m *model) string {
	t.Helper()
	text := m.View().Content
	lines := strings.Split(text, "\n")
	if len(lines) != m.height {
		t.Errorf("%d lines, want %d", len(lines), m.height)
	}
	for i, line := range lines {
		if n := utf8.RuneCountInString(line); n > m.width {
			t.Errorf("line %d has %d columns, want %d at most: %s", i, n, m.width, line)
		}
		if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			t.Errorf("line %d: %q", i, line)
		}
	}
	return text
}

// golden compares a screen with a file, without spaces at the ends of lines.
func golden(t *testing.T, name, text string) {
	t.Helper()
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.TrimRight(line, " \n"))
	}
	text = strings.Join(lines, "\n") + "\n"
	file := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, []byte(text)) {
		t.Errorf("%s differs (-update accepts):\n%s", file, text)
	}
}

// A command is sent only after its values, a reason and y; with the values that were entered.
func TestNothingIsSentBeforeItIsConfirmed(t *testing.T) {
	for _, c := range []struct {
		keys []string
		want string // the command with its reason, "" for none
	}{
		{[]string{"c", "enter", "enter", "why", "enter", "y"}, "cap /kubepods/besteffort/pod4712/encode to 0.1 CPU-s/s for 5m: why"},
		{[]string{"c", "backspace", "5", "tab", "backspace", "backspace", "90s", "enter", "too loud", "enter", "y"}, "cap /kubepods/besteffort/pod4712/encode to 0.5 CPU-s/s for 1m30s: too loud"},
		{[]string{"u", "why", "enter", "y"}, "uncap /kubepods/besteffort/pod4712/encode: why"},
		{[]string{"p", "enter", "why", "enter", "y"}, "protect /kubepods/besteffort/pod4712/encode: why"},
		{[]string{"p", "2h", "enter", "why", "enter", "y"}, "protect /kubepods/besteffort/pod4712/encode for 2h: why"},
		{[]string{"enter", "t", "enter", "enter", "why", "enter", "y"}, "cap /kubepods/besteffort/pod4712/encode to 0.1 CPU-s/s for 5m in inc-20251121T115900.000-9: trial: why"},
		{[]string{"c", "enter", "enter", "enter"}, ""},                      // no reason
		{[]string{"c", "enter", "enter", "why", "enter", "n"}, ""},          // not y
		{[]string{"c", "enter", "enter", "why", "enter", "esc", "y"}, ""},   // taken back
		{[]string{"c", "enter", "enter", "why", "enter", "n", "esc"}, ""},   // taken back
		{[]string{"c", "0", "enter", "1000h", "enter", "why", "enter"}, ""}, // invalid
		{[]string{"p", "for ever", "enter", "why", "enter", "enter"}, ""},   // no duration
		{[]string{"c", "enter", "enter", "enter", "y", "enter", "n"}, ""},   // y is the reason
	} {
		f := &fake{now: busy()}
		m := screenOf(t, f, 80, 24)
		press(m, "s") // by CPU: encode is first
		press(m, c.keys...)
		got := ""
		for _, x := range f.got {
			got += x.String() + ": " + x.Why
		}
		if got != c.want {
			t.Errorf("%q sent %q, want %q", c.keys, got, c.want)
		}
	}
}

// The protection of a protected task is ended; its name is sent in its text form.
func TestProtectIsASwitch(t *testing.T) {
	f := &fake{now: busy()}
	m := screenOf(t, f, 80, 24)
	press(m, "/", "bad", "enter", "p", "enter", "why", "enter", "y")
	if len(f.got) != 1 || f.got[0].Unprotect == nil || f.got[0].Unprotect.Task != bad.Name.Text() || f.got[0].Validate() != nil {
		t.Errorf("sent %+v", f.got)
	}
}

// The result of a trial is shown when the agent has judged it.
func TestATrialIsFollowed(t *testing.T) {
	f := &fake{now: busy(), incident: suffering()}
	m := screenOf(t, f, 80, 24)
	press(m, "s", "t", "enter", "enter", "why", "enter", "y")
	f.incident.Rounds = []*incident.Round{{ID: "cap-7", RelativeCost: 0.54, Samples: 4, Outcome: plan.TruePositive}}
	do(m, m.ask())
	if m.said == "" || strings.Contains(m.said, "ended") {
		t.Errorf("while it lasts: %q", m.said)
	}
	f.incident.Rounds[0].Ended = noon.Add(time.Minute)
	do(m, m.ask())
	if !strings.Contains(m.said, "relative cost 0.54 of /kubepods/burstable/pod4711/redis") || len(m.trials) != 0 {
		t.Errorf("said %q, %d trials", m.said, len(m.trials))
	}
}

// A machine that has not answered has no trial of which the end could be shown.
func TestATrialWithoutAnAnswer(t *testing.T) {
	f := &fake{now: busy(), incident: suffering(), silent: true}
	m := screenOf(t, f, 80, 24)
	press(m, "s", "t", "enter", "enter", "why", "enter", "y")
	f.incident.Rounds = []*incident.Round{{Ended: noon, Outcome: plan.Noise}} // the record of an agent without IDs
	do(m, m.ask())
	if len(f.got) != 1 || m.said != "no answer" || len(m.trials) != 0 {
		t.Errorf("said %q, %d trials of %d commands", m.said, len(m.trials), len(f.got))
	}
}

// The chosen task stays chosen when the order changes, and the table scrolls with it.
func TestTheChosenTaskStays(t *testing.T) {
	f := &fake{now: busy()}
	f.now.tasks = nil
	for i := range 50 {
		f.now.tasks = append(f.now.tasks, api.TaskView{Task: sample.Task{Name: sample.TaskName(fmt.Sprintf("/t/%02d", i)), Job: "j"}, CPU: float64(50 - i)})
	}
	m := screenOf(t, f, 80, 24)
	press(m, "pgdown", "pgdown", "j")
	name := m.chosen
	if !strings.Contains(checked(t, m), "> "+string(name)) {
		t.Errorf("%s is not on the screen:\n%s", name, m.text())
	}
	for i := range f.now.tasks {
		f.now.tasks[i].CPU = float64(i)
	}
	do(m, m.ask())
	if m.chosen != name || !strings.Contains(checked(t, m), "> "+string(name)) {
		t.Errorf("%s was chosen, now %s:\n%s", name, m.chosen, m.text())
	}
	press(m, "enter")
	f.now.tasks = slices.DeleteFunc(f.now.tasks, func(v api.TaskView) bool { return v.Name == name })
	do(m, m.ask())
	if !strings.Contains(checked(t, m), "has ended") {
		t.Errorf("a task that has ended:\n%s", m.text())
	}
}

// A key that comes when the chosen task has ended is not for the task that is under the cursor since.
func TestAKeyForATaskThatHasEnded(t *testing.T) {
	f := &fake{now: busy()}
	m := screenOf(t, f, 80, 24)
	press(m, "jj")
	name := m.chosen
	f.now.tasks = slices.DeleteFunc(f.now.tasks, func(v api.TaskView) bool { return v.Name == name })
	do(m, m.ask())
	press(m, "c")
	if m.form != nil || !strings.Contains(m.said, name.String()+" has ended") {
		t.Errorf("said %q:\n%s", m.said, m.text())
	}
	press(m, "c")
	if m.form == nil || m.form.task != redis.Name {
		t.Errorf("the first task is not chosen:\n%s", m.text())
	}
	m = screenOf(t, &fake{now: busy()}, 80, 24)
	press(m, "jj", "/", "redis", "enter", "c")
	if m.form == nil || m.form.task != redis.Name {
		t.Errorf("what the filter shows is not chosen:\n%s", m.text())
	}
}

// A point of a sparkline is an interval, not an answer of the agent.
func TestCoursesHaveOnePointAnInterval(t *testing.T) {
	f := &fake{now: busy()}
	m := screenOf(t, f, 80, 24)
	for i := range 2 * longest {
		f.now.status.Intervals = uint64(i / 2)
		f.now.status.Now = noon.Add(time.Duration(i) * time.Second)
		do(m, m.ask())
	}
	c := m.courses[redis.Name]
	if n := len(c.Times); n < longest-1 || n > longest || len(c.CPU) != n || len(c.Costs[sample.CPI]) != n {
		t.Errorf("%d times, %d usages, %d costs", len(c.Times), len(c.CPU), len(c.Costs[sample.CPI]))
	}
}

// The courses begin with those of the charts of open incidents, and go on after them.
func TestCoursesBeginWithCharts(t *testing.T) {
	f := &fake{now: busy(), incident: suffering()}
	m := screenOf(t, f, 80, 24)
	f.now.status.Intervals, f.now.status.Now = 2, noon.Add(time.Minute)
	do(m, m.ask())
	for name, values := range map[sample.TaskName][]float64{redis.Name: m.courses[redis.Name].Costs[sample.CPI], encode.Name: m.courses[encode.Name].CPU} {
		if len(values) != 12 || len(m.courses[name].Times) != 12 || math.IsNaN(values[0]) {
			t.Errorf("%s has %v", name, values)
		}
	}
	press(m, "enter")
	golden(t, "detail_course", checked(t, m))
}

// Whatever is pasted, the screen keeps its form, and what is typed into the filter is no command.
func TestPastedText(t *testing.T) {
	f := &fake{now: busy()}
	m := screenOf(t, f, 60, 20)
	press(m, "/")
	m.Update(tea.PasteMsg{Content: "q\x1b[2J\r\n\tredis " + strings.Repeat("x", 500)})
	checked(t, m)
	press(m, "esc", "s", "c", "enter", "enter")
	m.Update(tea.PasteMsg{Content: strings.Repeat("why\n\x1b[31m ", 100)})
	checked(t, m)
	press(m, "enter")
	checked(t, m)
	if len(f.got) != 0 {
		t.Errorf("sent %+v", f.got)
	}
}

// What is degraded on another machine is on the screen: no other command says it.
func TestWhatIsDegradedElsewhere(t *testing.T) {
	f := &fake{now: busy()}
	f.now.status.Degraded = []string{"it has sent nothing for 4m10s"}
	m := screenOf(t, f, 80, 24)
	m.Remote = true
	if text := checked(t, m); !strings.Contains(text, f.now.status.Degraded[0]) {
		t.Errorf("the screen is\n%s", text)
	}
}

// Any size of the terminal has a screen.
func TestAnySize(t *testing.T) {
	f := &fake{now: busy()}
	for _, keys := range [][]string{nil, {"enter"}, {"?"}, {"c"}} {
		for width := leastWidth; width < 140; width += 7 {
			for height := leastHeight; height < 40; height += 5 {
				m := screenOf(t, f, width, height)
				press(m, keys...)
				checked(t, m)
			}
		}
	}
	m := screenOf(t, f, 10, 3)
	if text := m.text(); !strings.HasPrefix(text, "too small") {
		t.Errorf("10x3: %s", text)
	}
}

// What was recorded is shown at its time, and the arrows move through it.
func TestPast(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.csv")
	var samples []sample.Sample
	for i := range 11 {
		for _, task := range []sample.Task{redis, encode, index} {
			samples = append(samples, sample.Sample{TS: noon.Add(time.Duration(i-10) * time.Minute), Machine: "node-3", Job: task.Job, Task: task.Name, Platform: "p",
				Signal: sample.CPI, Variant: "ref-cycles", Class: task.Class, CPU: 0.5, Cost: 1 + float32(i)/10, Coverage: 1})
		}
	}
	var b bytes.Buffer
	if err := trace.WriteAll(&b, samples, nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	// A segment of a store has the samples of one task after those of the other.
	segment := filepath.Join(t.TempDir(), "segment.parquet")
	slices.SortStableFunc(samples, func(a, b sample.Sample) int { return strings.Compare(string(a.Task), string(b.Task)) })
	b.Reset()
	w := parquet.NewWriter(&b)
	for i := range samples {
		if err := w.Write(&samples[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), os.WriteFile(segment, b.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	inc := suffering()
	inc.Rounds = []*incident.Round{{ID: "cap-3", Capped: plan.Capped{Suspect: encode, Rate: 0.1}, From: noon.Add(-2 * time.Minute), Until: noon.Add(3 * time.Minute), By: "quell", Why: "it hurts redis"}}
	f := &fake{now: busy(), incident: inc}
	f.now.open = []incident.Record{inc}
	for _, c := range []struct {
		name       string
		at         sample.Millis
		recordings []string
		keys       []string
	}{
		{"past_incident", noon.Add(-time.Minute), nil, nil},
		{"past_all", noon.Add(-time.Minute), []string{file}, nil},
		{"past_all", noon.Add(-time.Minute), []string{segment}, nil}, // the same
		{"past_before", noon.Add(-time.Minute), []string{file}, []string{"left", "left", "left", "left", "left", "left"}},
		{"past_detail", noon.Add(-time.Minute), []string{file}, []string{"enter"}},
		{"past_act", noon.Add(-time.Minute), nil, []string{"c"}},
		{"past_none", noon.Add(30 * time.Minute), []string{file}, nil},
		{"past_long_ago", noon.Add(-48 * time.Hour), nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			past, err := LoadPast(t.Context(), c.at, "node-3", AgentBook{f}, c.recordings)
			if err != nil {
				t.Fatal(err)
			}
			var all strings.Builder
			for _, size := range [][2]int{{80, 24}, {60, 20}} {
				m := newModel(t.Context(), Options{Agent: f, Sort: "worst", Past: past})
				m.Style.Now = noon
				m.Update(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
				do(m, m.Init())
				press(m, c.keys...)
				fmt.Fprintf(&all, "%dx%d\n%s\n", size[0], size[1], checked(t, m))
			}
			golden(t, c.name, all.String())
		})
	}
	if len(f.got) != 0 {
		t.Errorf("sent %+v", f.got)
	}
}

func TestPastThatCannotBeRead(t *testing.T) {
	broken := &fake{err: errors.New("no answer")}
	if _, err := LoadPast(t.Context(), noon, "", AgentBook{broken}, nil); !errors.Is(err, broken.err) {
		t.Errorf("without an agent: %v", err)
	}
	if _, err := LoadPast(t.Context(), noon, "", nil, []string{"testdata/none.csv"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
}

// Of an earlier time all tasks are shown as capped that were capped together, each with its limit.
func TestPastOfAGroup(t *testing.T) {
	inc, at := suffering(), noon.Add(-time.Minute)
	inc.Rounds = []*incident.Round{{ID: "cap-3", Capped: plan.Capped{Suspect: encode, Rate: 0.1}, With: []plan.Capped{{Suspect: index, Rate: 0.2}}, From: noon.Add(-2 * time.Minute), Until: noon.Add(3 * time.Minute), By: "quell"}}
	f := &fake{now: busy(), incident: inc}
	f.now.open = []incident.Record{inc}
	past, err := LoadPast(t.Context(), at, "node-3", AgentBook{f}, nil)
	if err != nil {
		t.Fatal(err)
	}
	now, limits := past.moment(at), map[sample.TaskName]float64{}
	for _, c := range now.status.Caps {
		limits[c.Task] = c.Rate
	}
	if len(limits) != 2 || limits[encode.Name] != 0.1 || limits[index.Name] != 0.2 {
		t.Errorf("the caps are %v", limits)
	}
	for _, v := range now.tasks {
		if want := v.Name == encode.Name || v.Name == index.Name; v.Capped != want {
			t.Errorf("%s is capped: %t", v.Name, v.Capped)
		}
	}
}
