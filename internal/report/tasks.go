package report

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/api"
	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/spec"
)

// SortTasks puts first who suffers most: by the highest cost ÷ limit over the
// signals, then by CPU usage.
func SortTasks(tasks []api.TaskView) {
	slices.SortStableFunc(tasks, func(a, b api.TaskView) int {
		return cmp.Or(cmp.Compare(strain(b), strain(a)), cmp.Compare(b.CPU, a.CPU), cmp.Compare(a.Name, b.Name))
	})
}

// strain is a task's highest cost ÷ limit; 0 where it is not judged.
func strain(t api.TaskView) float64 {
	highest := 0.0
	for _, v := range t.Costs {
		if r := float64(v.Cost / v.Limit); r > highest && !math.IsInf(r, 1) {
			highest = r
		}
	}
	return highest
}

// Tasks writes a table, in the order given: CPU usage; for each signal the
// cost/threshold, an outlier marked "!"; the highest of them; whether the job's
// specs are ready to judge by.
func Tasks(w io.Writer, tasks []api.TaskView, s Style) error {
	p := &page{Style: s}
	if len(tasks) == 0 {
		p.line("no tasks: no rule of the agent's configuration matches a cgroup")
		return p.flush(w)
	}
	signals := counted(tasks)
	t := table{columns: []column{{head: "TASK", least: 14}, {head: "CLASS", drop: 2}, {head: "CPU-S/S", right: true}}}
	for _, sig := range signals {
		t.columns = append(t.columns, column{head: strings.ToUpper(string(sig)), right: true})
	}
	t.columns = append(t.columns, column{head: "WORST", right: true}, column{head: "SPEC", drop: 1},
		column{head: "FLAGS", least: 9, words: true}, column{head: "NOTE", least: 20, words: true, drop: 3})
	for _, task := range tasks {
		row := []cell{{text: string(task.Name)}, {text: task.Class.String()}, {text: s.number(task.CPU)}}
		for _, sig := range signals {
			row = append(row, s.costCell(task, sig))
		}
		worst := cell{text: "-"}
		if r := strain(task); r > 0 {
			worst.text = fmt.Sprintf("%.0f%%", 100*r)
			if r > 1 {
				worst.color = red
			}
		}
		t.row(append(row, worst, cell{text: specs(task)}, flags(task), cell{task.Note, dim})...)
	}
	t.write(p)
	return p.flush(w)
}

// counted lists the signals that any task has, in the order of first sight.
func counted(tasks []api.TaskView) []sample.SignalName {
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

// specs is the state of the task's specs: ready if all are, else what the
// first lacks; "-" without any.
func specs(t api.TaskView) string {
	text := "-"
	for _, v := range t.Costs {
		if text = v.Spec.State.String(); v.Spec.State != spec.Ready {
			break
		}
	}
	return text
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
	if t.NeverCap {
		all = append(all, "never-cap")
	}
	return cell{strings.Join(all, ","), c}
}
