package report

import (
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// The table says when a spec will be ready, and marks a proposed class with its reason.
func TestTasksSayWhenTheyAreReady(t *testing.T) {
	view := func(ready float64, state spec.State) api.TaskView {
		return api.TaskView{Task: sample.Task{Name: "shop/web-0/app", Class: sample.LatencySensitive}, Proposed: true, ClassWhy: "QoS class Guaranteed",
			Costs: []api.SignalView{{Signal: sample.CPI, Spec: spec.Spec{State: state}, ReadyIn: ready}}}
	}
	for _, c := range []struct {
		ready float64
		state spec.State
		want  string
	}{
		{94 * 60, spec.Learning, "ready in 94 min"}, {61, spec.Learning, "ready in 2 min"}, {59.2, spec.Learning, "ready in 60 s"},
		{0, spec.Learning, "learning"}, {0, spec.Ready, "ready"},
	} {
		var b strings.Builder
		if err := Tasks(&b, []api.TaskView{view(c.ready, c.state)}, Style{Width: 160}); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{c.want, "latency-sensitive?", "proposed class: QoS class Guaranteed", "shop/web-0/app"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("missing %q in\n%s", want, b.String())
			}
		}
	}
	var b strings.Builder
	if err := Tasks(&b, nil, Style{}); err != nil || !strings.Contains(b.String(), "quell init") {
		t.Errorf("without tasks: %q, %v", b.String(), err)
	}
}

// A cap of which only the task is known has no limit and no end that could be shown.
func TestACapOfWhichNothingIsKnown(t *testing.T) {
	v := api.TaskView{Task: sample.Task{Name: "/batch/encode"}, Capped: true}
	text := strings.Join(TaskFacts(v, Around{Caps: []api.CapView{{Task: v.Name}}}, Style{}), "\n")
	if strings.Contains(text, "another") || !strings.Contains(text, "capped") {
		t.Errorf("the facts are\n%s", text)
	}
}

// columnsOf counts the columns of a terminal, for the characters of this test.
func columnsOf(line string) (n int) {
	for _, r := range line {
		switch r {
		case '工', '😀':
			n += 2
		case '\u0301': // is combined with the letter before it
		default:
			n++
		}
	}
	return n
}

// A name takes as many columns as a terminal needs for it: no line is wider than the screen, which would
// hide what is at its end, and each cell is below its head.
func TestWideNames(t *testing.T) {
	var tasks []api.TaskView
	for _, name := range []string{"/plain", "/" + strings.Repeat("工", 60), "/" + strings.Repeat("e\u0301", 90), "/工" + strings.Repeat("a😀", 40)} {
		tasks = append(tasks, api.TaskView{Task: sample.Task{Name: sample.TaskName(name), Class: sample.Batch}, CPU: 0.5, Capped: true})
	}
	for _, width := range []int{40, 56, 57, 80, 81, 132} {
		head, lines := TaskLines(tasks, false, Style{Width: width})
		before, _, _ := strings.Cut(head, "STATE")
		for _, line := range lines {
			if n := columnsOf(line); n > width {
				t.Errorf("width %d: %d columns: %s", width, n, line)
			}
			if text, _, found := strings.Cut(line, "capped"); !found || columnsOf(text) != columnsOf(before) {
				t.Errorf("width %d: the state is not below its head:\n%s\n%s", width, head, line)
			}
		}
		s := Style{Width: width}
		for _, task := range tasks {
			name := string(task.Name)
			parts := s.Wrap(name)
			for _, part := range append(parts, s.Tail(name, width), s.cutEnd(name, width)) {
				if n := columnsOf(part); n > width {
					t.Errorf("width %d: %d columns: %s", width, n, part)
				}
			}
			if strings.Join(parts, "") != name {
				t.Errorf("width %d: %q is folded to %q", width, name, parts)
			}
		}
	}
}
