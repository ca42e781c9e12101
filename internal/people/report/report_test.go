package report

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
)

var prague = time.FixedZone("CET", 3600)

// pages are all outputs, for every style.
var pages = map[string]func(io.Writer, Style) error{
	"incidents": func(w io.Writer, s Style) error {
		return Incidents(w, []incident.Record{throttled(), quieted(), queued()}, 7, s)
	},
	"incident_quieted":     func(w io.Writer, s Style) error { return Incident(w, quieted(), s) },
	"incident_queued":      func(w io.Writer, s Style) error { return Incident(w, queued(), s) },
	"incident_own_quota":   func(w io.Writer, s Style) error { return Incident(w, throttled(), s) },
	"incident_quota_above": func(w io.Writer, s Style) error { return Incident(w, throttledAbove(), s) },
	"tasks": func(w io.Writer, s Style) error {
		tasks := someTasks()
		SortTasks(tasks, "worst")
		return Tasks(w, tasks, s)
	},
	"status": func(w io.Writer, s Style) error { return Status(w, someStatus(), s) },
	"diagnosis": func(w io.Writer, s Style) error {
		return Doctor(w, someDiagnosis(), []string{"start the agent: it finds which tasks suffer", "take a machine with a PMU"}, s)
	},
	"heading": func(w io.Writer, s Style) error {
		_, err := fmt.Fprintln(w, Heading(someStatus(), s))
		return err
	},
}

func render(t *testing.T, name string, s Style) string {
	t.Helper()
	var b bytes.Buffer
	if err := pages[name](&b, s); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestPagesLookAsAccepted(t *testing.T) {
	for name := range pages {
		t.Run(name, func(t *testing.T) {
			day := Style{Zone: prague, Now: noon.Add(time.Hour)}
			golden(t, name+".txt", render(t, name, day))
			day.Width = 80
			golden(t, name+"_80.txt", render(t, name, day))
			day.ASCII = true
			golden(t, name+"_80_ascii.txt", render(t, name, day))
		})
	}
	golden(t, "incident_color.txt", render(t, "incident_quieted", Style{Color: true}))
}

func TestNothingIsWiderThanTheTerminal(t *testing.T) {
	for name := range pages {
		for _, width := range []int{80, 100, 132, 200} {
			for line := range strings.Lines(render(t, name, Style{Width: width})) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
					t.Errorf("%s at %d columns has %d: %s", name, width, n, line)
				}
			}
		}
	}
}

func TestASCIIIsASCII(t *testing.T) {
	for name := range pages {
		for _, r := range render(t, name, Style{Width: 80, ASCII: true}) {
			if r > 127 || r < ' ' && r != '\n' {
				t.Errorf("%s has %q", name, r)
			}
		}
	}
}

func TestNamesCannotMoveTheCursor(t *testing.T) {
	for name := range pages {
		for _, s := range []Style{{}, {Width: 80}, {ASCII: true}} {
			if text := render(t, name, s); strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\n' }) {
				t.Errorf("%s has a control character: %q", name, text)
			}
		}
	}
}

func TestColourChangesNothingElse(t *testing.T) {
	for name := range pages {
		colored := render(t, name, Style{Width: 80, Color: true})
		if !strings.Contains(colored, "\x1b[") {
			t.Errorf("%s has no colours", name)
		}
		for {
			begin := strings.Index(colored, "\x1b[")
			if begin < 0 {
				break
			}
			end := strings.IndexByte(colored[begin:], 'm')
			colored = colored[:begin] + colored[begin+end+1:]
		}
		trim := func(text string) (lines []string) {
			for line := range strings.Lines(text) {
				lines = append(lines, strings.TrimRight(line, " \n"))
			}
			return lines
		}
		got, want := trim(colored), trim(render(t, name, Style{Width: 80}))
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s in colours reads\n%s\nwithout\n%s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

func TestTasksAreSortedByWhatIsAsked(t *testing.T) {
	for key, want := range map[string]string{
		"worst": "redis x index encode",
		"cpu":   "encode redis index x",
		"name":  "encode redis x index",
		"runq":  "redis index encode x",
		"cpt":   "x encode redis index",
	} {
		tasks := someTasks()
		if err := SortTasks(tasks, key); err != nil {
			t.Fatal(err)
		}
		var order []string
		for _, task := range tasks {
			order = append(order, string(task.Job))
		}
		if got := strings.Join(order, " "); got != want {
			t.Errorf("by %s: %s, want %s", key, got, want)
		}
	}
	if err := SortTasks(nil, "size"); err == nil || !strings.Contains(err.Error(), "worst, cpu, name") {
		t.Errorf("by size: %v", err)
	}
}

func TestHeightLimitsATable(t *testing.T) {
	var b bytes.Buffer
	if err := Tasks(&b, someTasks(), Style{Height: 2}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != 4 || lines[3] != "and 2 more" {
		t.Errorf("got\n%s", b.String())
	}
}

func TestEmptyListsSaySo(t *testing.T) {
	var b bytes.Buffer
	if err := Incidents(&b, nil, 0, Style{}); err != nil || b.String() != "no incidents\n" {
		t.Errorf("incidents: %q, %v", b.String(), err)
	}
	b.Reset()
	if err := Tasks(&b, []api.TaskView{}, Style{}); err != nil || !strings.HasPrefix(b.String(), "no tasks") {
		t.Errorf("tasks: %q, %v", b.String(), err)
	}
}

// TestARowShowsOneRound: the suspect, the outcome and the relative cost in a row of the table
// are of the last round, also if only an earlier one, of another task, was measured.
func TestARowShowsOneRound(t *testing.T) {
	inc := quieted()
	inc.Rounds = append(inc.Rounds, &incident.Round{ID: "cap-2", Capped: plan.Capped{Suspect: index}, From: inc.Updated, Outcome: plan.SuspectExited,
		CostBefore: nan, CostUnder: nan, RelativeCost: nan})
	inc.Outcome = plan.SuspectExited
	var b strings.Builder
	if err := Incidents(&b, []incident.Record{inc}, 0, Style{Width: 200}); err != nil {
		t.Fatal(err)
	}
	if row := b.String(); !strings.Contains(row, "index.service") || !strings.Contains(row, "suspect-exited") || strings.Contains(row, "0.537") {
		t.Errorf("the table is\n%s", row)
	}
}

// The chart of every task that was capped has the time of the cap, also of those that were capped
// together with the first.
func TestTasksThatWereCappedTogetherAreMarked(t *testing.T) {
	inc := quieted()
	marks := func() int {
		var b bytes.Buffer
		if err := Incident(&b, inc, Style{Zone: prague, Now: noon.Add(time.Hour), Width: 80, ASCII: true}); err != nil {
			t.Fatal(err)
		}
		return strings.Count(b.String(), "\n capped  ")
	}
	one := marks()
	inc.Rounds[0].With = []plan.Capped{{Suspect: index, Rate: 0.01}}
	if together := marks(); one != 2 || together != 3 {
		t.Errorf("%d charts are marked of one task, %d of two", one, together)
	}
}

// Times of another day than that on which an incident began have their date.
func TestAnIncidentOfSeveralDays(t *testing.T) {
	inc := quieted()
	inc.Closed = inc.Began.Add(50 * time.Hour)
	inc.Rounds[0].From, inc.Rounds[0].Ended = inc.Began.Add(26*time.Hour), inc.Began.Add(27*time.Hour)
	var b strings.Builder
	if err := Incident(&b, inc, Style{Width: 400}); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(b.String()), " ")
	for _, want := range []string{"bad since 2025-11-21 12:06:00 UTC, found 12:09:05 (", "closed 2025-11-23 14:06:00", "from 2025-11-22 14:06:00, ended 2025-11-22 15:06:00"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	open := inc
	open.Closed = 0
	around := Around{Now: inc.Began.Add(50 * time.Hour), Incidents: []incident.Record{open}}
	if facts := strings.Join(TaskFacts(api.TaskView{Task: inc.Victim}, around, Style{Width: 132}), " "); !strings.Contains(facts, "since 2025-11-21 12:06:00") {
		t.Errorf("the victim's facts: %s", facts)
	}
}

// A cap whose lease is over does not hold, whatever its machine has said last.
func TestALeaseThatIsOver(t *testing.T) {
	inc := incident.Record{Incident: plan.Incident{Rounds: []*incident.Round{{Until: noon.Add(time.Minute)}}}}
	for after, want := range map[time.Duration]string{0: "capped now", time.Hour: "cap is over"} {
		if got := (Style{Now: noon.Add(after)}).state(&inc); got != want {
			t.Errorf("after %v it is %q, want %q", after, got, want)
		}
	}
}
