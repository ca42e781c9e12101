package report

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// Course is the recent course of a task: one value for each interval that ended at Times, NaN
// where there is none.
type Course struct {
	Times []sample.Millis
	CPU   []float64 // CPU-s/s
	Costs map[sample.SignalName][]float64
}

// Around is what is known of a task in addition to its view.
type Around struct {
	Now       sample.Millis
	Caps      []api.CapView
	Incidents []incident.Record // open ones
	Course    Course
	Recorded  bool // of an earlier time: specs are not known
}

// TaskFacts are the lines that describe one task: what it is, what is done to it, and its usage
// and costs with the course of each as a sparkline.
func TaskFacts(t api.TaskView, a Around, s Style) []string {
	p := &page{Style: s}
	p.Fold = true
	p.fact("task", t.Name.String())
	class := t.Class.String()
	if t.Proposed {
		class += "? (proposed)"
	}
	if t.ClassWhy != "" {
		class += ": " + t.ClassWhy
	}
	p.fact("job", string(t.Job))
	p.fact("class", class)
	if state := nowState(t); state.text != "" {
		p.colored("state", state.color, state.text)
	}
	if marks := flags(t).text; marks != "" {
		p.fact("flags", strings.ReplaceAll(marks, ",", ", "))
	}
	for _, c := range a.Caps {
		if c.Task == t.Name && c.Until != 0 { // quell-server knows of another machine's only that there is one
			text := fmt.Sprintf("to %s by %s, another %s", heldTo(c), c.By, span(max(0, c.Until.Sub(a.Now))))
			if c.Why != "" {
				text += ": " + c.Why
			}
			p.colored("cap", yellow, text)
		}
	}
	for i := range a.Incidents {
		p.part(&t.Task, &a.Incidents[i], a.Now)
	}
	label := "spec"
	for _, v := range t.Costs {
		if !a.Recorded {
			p.fact(label, s.specText(v))
			label = ""
		}
	}
	if c := coverage(t); c != "" {
		p.fact("counted", c+" of the interval")
	}
	label = "labels"
	for _, key := range slices.Sorted(maps.Keys(t.Labels)) {
		p.fact(label, key+"="+t.Labels[key])
		label = ""
	}
	if t.Note != "" {
		p.fact("note", t.Note)
	}
	p.line("")
	p.courses(t, a.Course)
	return p.lines()
}

// part says which part a task has in an incident, if any.
func (p *page) part(t *sample.Task, inc *incident.Record, now sample.Millis) {
	since := fmt.Sprintf(" since %s (%s)", p.clockOf(inc.Began, now), shortID(inc.ID))
	if t.Name == inc.Victim.Name {
		text := fmt.Sprintf("%s is %s, threshold %s,%s", inc.Signal, p.cost(inc.Signal, inc.Cost), p.cost(inc.Signal, inc.Threshold), since)
		if name, level := mainSuspect(inc); name != "-" {
			text += ": suspect " + name + ", " + level
		}
		p.colored("victim", red, text)
		return
	}
	if s := inc.Find(t); s != nil && s.Excluded == "" {
		p.colored("suspect", yellow, fmt.Sprintf("%s: %s of %s is over its threshold%s", levelText(inc, s), inc.Signal, inc.Victim.Name, since))
	}
}

// specText is the state of a spec with the normal cost.
func (s Style) specText(v api.SignalView) string {
	text := string(v.Signal) + ": " + v.Spec.State.String()
	if v.Spec.State == spec.Learning && v.ReadyIn > 0 {
		text += ", ready in " + left(v.ReadyIn)
	}
	if v.Spec.Provisional {
		text += fmt.Sprintf(", provisional, of %d samples", v.Spec.Samples)
	}
	if v.Spec.Provisional || v.Spec.State == spec.Ready {
		text += fmt.Sprintf(", normal is %s ± %s", s.cost(v.Signal, v.Spec.Mean), s.cost(v.Signal, v.Spec.StdDev))
		if v.Spec.Sigmas > 0 {
			text += fmt.Sprintf(" (threshold at %.1f deviations, of the job's distribution)", v.Spec.Sigmas)
		}
	}
	return text
}

// courses draws usage and costs over time, one line each.
func (p *page) courses(t api.TaskView, c Course) {
	const head, value = 10, 16
	cols := max(p.drawing()-head-value, 8)
	line := func(name, now string, over color, values []float64, limit float64) {
		p.line(p.paint(bold, pad(name, head)) + p.paint(over, pad(now, value)) + p.spark(values, limit, cols))
	}
	line("CPU-S/S", p.number(t.CPU), plain, c.CPU, math.NaN())
	for _, v := range t.Costs {
		now := p.costCell(t, v.Signal)
		line(strings.ToUpper(string(v.Signal)), now.text, now.color, c.Costs[v.Signal], float64(v.Limit))
	}
	if n := len(c.Times); n > 0 {
		n = min(n, cols)
		p.line(p.paint(dim, fmt.Sprintf("%s, from %s to %s", plural(n, "interval"), p.clock(c.Times[len(c.Times)-n]), p.clock(c.Times[len(c.Times)-1]))))
	}
}

// spark draws the newest values as bars of one line; those over the limit are red. The highest
// bar is the highest value.
func (s Style) spark(values []float64, limit float64, cols int) string {
	bars := []rune("▁▂▃▄▅▆▇█")
	if s.ASCII {
		bars = []rune("_.,-:=+#")
	}
	values = values[max(0, len(values)-cols):]
	highest := 0.0
	for _, v := range values {
		if v > highest { // false for NaN
			highest = v
		}
	}
	var b strings.Builder
	for _, v := range values {
		level := 0
		if highest > 0 && v > 0 {
			level = min(int(v/highest*float64(len(bars))), len(bars)-1)
		}
		switch {
		case math.IsNaN(v):
			b.WriteByte(' ')
		case v > limit:
			b.WriteString(s.paint(red, string(bars[level])))
		default:
			b.WriteString(s.paint(cyan, string(bars[level])))
		}
	}
	return b.String()
}

// Role is a task's part in open incidents.
func Role(t *sample.Task, open []incident.Record) plan.Role {
	role := plan.NoRole
	for i := range open {
		if open[i].Victim.Name == t.Name {
			return plan.Victim
		}
		for _, f := range open[i].Named() {
			if f.Suspect.Name == t.Name {
				role = plan.Suspect
			}
		}
	}
	return role
}
