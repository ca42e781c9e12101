package report

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// sortKeys are the keys of SortTasks in addition to the names of signals.
var sortKeys = []string{"worst", "cpu", "name"}

// SortTasks orders tasks by a key, ties by CPU usage and name: "worst", the highest
// cost ÷ limit over the signals, so that the task that suffers most is first; "cpu"
// usage; "name"; or the cost ÷ limit of the signal of that name.
func SortTasks(tasks []api.TaskView, key string) error {
	of := func(api.TaskView) float64 { return 0 }
	switch _, known := sample.LookupSignal(sample.SignalName(key)); {
	case key == "worst":
		of = worstRatio
	case key == "name":
		slices.SortStableFunc(tasks, func(a, b api.TaskView) int { return cmp.Compare(a.Name, b.Name) })
		return nil
	case known:
		of = func(t api.TaskView) float64 {
			t.Costs = slices.DeleteFunc(slices.Clone(t.Costs), func(v api.SignalView) bool { return string(v.Signal) != key })
			return worstRatio(t)
		}
	case key != "cpu":
		return fmt.Errorf("sort by %q: want %s or the name of a signal", key, strings.Join(sortKeys, ", "))
	}
	slices.SortStableFunc(tasks, func(a, b api.TaskView) int {
		return cmp.Or(cmp.Compare(of(b), of(a)), cmp.Compare(b.CPU, a.CPU), cmp.Compare(a.Name, b.Name))
	})
	return nil
}

// worstRatio is a task's highest cost ÷ limit; 0 if it is not judged.
func worstRatio(t api.TaskView) float64 {
	highest := 0.0
	for _, v := range t.Costs {
		if r := float64(v.Cost / v.Limit); r > highest && !math.IsInf(r, 1) {
			highest = r
		}
	}
	return highest
}

// NoTasks is what is said of an agent without tasks.
const NoTasks = "no tasks: no rule of the agent's configuration matches a cgroup; `quell init` shows what there is"

// Tasks writes a table in the given order: CPU usage; for each signal the
// cost/threshold, an outlier marked "!"; the highest of them; the task's state; the
// share of the interval that was counted, if not all; the state of the job's specs.
func Tasks(w io.Writer, tasks []api.TaskView, s Style) error {
	p := &page{Style: s}
	if len(tasks) == 0 {
		p.line(NoTasks)
		return p.flush(w)
	}
	signals := Counted(tasks)
	t := table{columns: []column{{head: "TASK", least: 14}, {head: "CLASS", drop: 2}, {head: "CPU-S/S", right: true}}}
	for _, sig := range signals {
		t.columns = append(t.columns, column{head: strings.ToUpper(string(sig)), right: true})
	}
	t.columns = append(t.columns, column{head: "WORST", right: true}, column{head: "STATE"}, column{head: "COUNTED", right: true, drop: 1},
		column{head: "SPEC", drop: 1},
		column{head: "FLAGS", least: 9, words: true, drop: 4}, column{head: "NOTE", least: 20, words: true, drop: 3})
	for _, task := range tasks {
		note := task.Note
		if task.Proposed && note == "" {
			note = "proposed class: " + task.ClassWhy
		}
		t.row(append(s.taskCells(task, signals), flags(task), cell{note, dim})...)
	}
	t.write(p)
	return p.flush(w)
}

// TaskLines is the table of Tasks with one line for each task, its head apart: a view that
// scrolls has no place for more. Signals are left out from the last, and then the specs, where
// the width does not suffice. Specs are not recorded.
func TaskLines(tasks []api.TaskView, recorded bool, s Style) (head string, lines []string) {
	signals := Counted(tasks)
	t := table{columns: []column{{head: "TASK", least: 14}, {head: "CLASS", drop: 2}, {head: "CPU-S/S", right: true}}}
	for i, sig := range signals {
		t.columns = append(t.columns, column{head: strings.ToUpper(string(sig)), right: true, drop: 2 + len(signals) - i})
	}
	t.columns = append(t.columns, column{head: "WORST", right: true}, column{head: "STATE"}, column{head: "COUNTED", right: true, drop: 1},
		column{head: "SPEC", drop: 3 + len(signals)})
	for _, task := range tasks {
		cells := s.taskCells(task, signals)
		if recorded {
			cells[len(cells)-1].text = "" // an empty column is left out
		}
		t.row(cells...)
	}
	s.Height = 0
	p := &page{Style: s}
	t.write(p)
	lines = p.lines()
	return lines[0], lines[1:]
}

// taskCells is a task's row up to its specs.
func (s Style) taskCells(task api.TaskView, signals []sample.SignalName) []cell {
	class := task.Class.String()
	if task.Proposed {
		class += "?"
	}
	row := []cell{{text: task.Name.String()}, {text: class}, {text: s.number(task.CPU)}}
	for _, sig := range signals {
		row = append(row, s.costCell(task, sig))
	}
	worst := cell{text: "-"}
	if r := worstRatio(task); r > 0 {
		worst.text = fmt.Sprintf("%.0f%%", 100*r)
		if r > 1 {
			worst.color = red
		}
	}
	return append(row, worst, nowState(task), cell{text: coverage(task)}, cell{text: specs(task)})
}

// Counted lists the signals that any task has, in the order of sample.Signals.
func Counted(tasks []api.TaskView) []sample.SignalName {
	var all []sample.SignalName
	for _, sig := range sample.Signals() {
		if slices.ContainsFunc(tasks, func(t api.TaskView) bool {
			return slices.ContainsFunc(t.Costs, func(v api.SignalView) bool { return v.Signal == sig.Name })
		}) {
			all = append(all, sig.Name)
		}
	}
	return all
}

func (s Style) costCell(t api.TaskView, sig sample.SignalName) cell {
	i := slices.IndexFunc(t.Costs, func(v api.SignalView) bool { return v.Signal == sig })
	if i < 0 {
		return cell{text: "-"}
	}
	v := t.Costs[i]
	text := s.cost(sig, float64(v.Cost))
	if !math.IsNaN(float64(v.Limit)) {
		text += "/" + s.cost(sig, float64(v.Limit))
	}
	if v.Outlier {
		return cell{text + "!", red}
	}
	return cell{text: text}
}

// State is a task's state in one word, "" if there is nothing to say.
func State(t api.TaskView) string { return nowState(t).text }

// nowState is the most important state of a task.
func nowState(t api.TaskView) cell {
	switch {
	case t.Capped:
		return cell{"capped", yellow}
	case t.Role == plan.Victim:
		return cell{"victim", red}
	case t.Role == plan.Suspect:
		return cell{"suspect", yellow}
	case slices.ContainsFunc(t.Costs, func(v api.SignalView) bool { return v.Outlier }):
		return cell{"outlier", red}
	}
	return cell{}
}

// coverage is the smallest share of the interval that a signal counted of a task; "" if
// it counted all or nothing.
func coverage(t api.TaskView) string {
	least := 1.0
	for _, v := range t.Costs {
		if v.Coverage > 0 {
			least = min(least, v.Coverage)
		}
	}
	if least > 0.995 {
		return ""
	}
	return fmt.Sprintf("%.0f%%", 100*least)
}

// specs is the state of the task's specs: ready if all are, else the state of the first
// that is not, or when it will be ready; "-" without any.
func specs(t api.TaskView) string {
	text := "-"
	for _, v := range t.Costs {
		if text = v.Spec.State.String(); v.Spec.State == spec.Learning && v.ReadyIn > 0 {
			return "ready in " + left(v.ReadyIn)
		}
		if v.Spec.State != spec.Ready {
			break
		}
	}
	return text
}

// Learning says when the first task will be judged; "" if one is judged already, or no spec is
// being learnt.
func Learning(tasks []api.TaskView) string {
	first, learning := math.Inf(1), false
	for _, t := range tasks {
		for _, v := range t.Costs {
			switch {
			case v.Spec.State == spec.Ready || v.Spec.Provisional:
				return ""
			case v.Spec.State == spec.Learning && v.ReadyIn > 0:
				first = min(first, v.ReadyIn)
				learning = true
			case v.Spec.State == spec.Learning:
				learning = true
			}
		}
	}
	switch {
	case !learning:
		return ""
	case math.IsInf(first, 1):
		return "still learning what is normal: no task is judged yet"
	}
	return "still learning what is normal: no task is judged yet; the first spec is ready in " + left(first)
}

// left is a time to wait in s, rounded up to minutes.
func left(seconds float64) string {
	if seconds < 60 {
		return fmt.Sprintf("%.0f s", math.Ceil(seconds))
	}
	return fmt.Sprintf("%.0f min", math.Ceil(seconds/60))
}

func flags(t api.TaskView) cell {
	var all []string
	c := plain
	if t.Flags != "" {
		all = strings.Split(t.Flags, "+")
	}
	if t.Capped && !slices.Contains(all, "capped") {
		all = append([]string{"capped"}, all...)
	}
	if slices.Contains(all, "capped") {
		c = yellow
	}
	if t.Protected {
		all = append(all, "protected")
	}
	if t.Unprotected {
		all = append(all, "unprotected")
	}
	if t.NeverCap {
		all = append(all, "never-cap")
	}
	if t.Holds != "" {
		all = append(all, "holds "+t.Holds.String())
	}
	return cell{strings.Join(all, ","), c}
}
