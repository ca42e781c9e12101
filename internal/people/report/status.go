package report

import (
	"fmt"
	"io"
	"slices"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/plan"
)

// Status writes the status of the agent as a whole.
func Status(w io.Writer, st api.Status, s Style) error {
	p := &page{Style: s}
	p.fact("agent", fmt.Sprintf("quell-agent %s, process %d on %s, up %s", st.Version, st.PID, st.Machine, span(st.Now.Sub(st.Started))))
	p.fact("platform", string(st.Platform))
	p.fact("rule", st.Rule)
	p.fact("enforcement", mode(st.Mode)+from(st))
	p.fact("tasks", fmt.Sprintf("%d monitored, %s finished", st.Tasks, plural(int(st.Intervals), "interval")))
	if st.Usage != "" {
		p.fact("usage", st.Usage)
	}
	p.fact("outside", fmt.Sprintf("%s CPU-s/s were used outside any task in the last interval", s.number(st.Outside)))
	p.fact("incidents", fmt.Sprintf("%d open", st.Open))
	label := "signals"
	for _, sig := range st.Signals {
		text, c := string(sig.Signal), plain
		switch {
		case sig.OK && sig.Variant != "":
			text += ": counted as " + sig.Variant
		case sig.OK:
			text += ": counted"
		default:
			text, c = text+": missing", yellow
		}
		if sig.Reason != "" {
			text += ": " + sig.Reason
		}
		if sig.Counted < sig.Tasks {
			text += fmt.Sprintf(": %d of %d tasks at once", sig.Counted, sig.Tasks)
			if sig.Within > 0 {
				text += fmt.Sprintf(", each within %s", plural(sig.Within, "interval"))
			}
			text += fmt.Sprintf(", in %.0f %% of their intervals", 100*sig.Coverage)
			c = yellow
		}
		p.colored(label, c, text)
		label = ""
		if sig.Remedy != "" {
			p.fact("", "what to do: "+sig.Remedy)
		}
	}
	label = "degraded"
	for _, d := range st.Degraded {
		p.colored(label, yellow, d)
		label = ""
	}
	label = "overruled"
	for _, c := range st.Overruled {
		p.colored(label, yellow, fmt.Sprintf("the cap on %s by %s ended %s ago: %s", c.Task, c.By, span(st.Now.Sub(c.At)), c.Note))
		if label = ""; c.Likely != "" {
			p.fact("", c.Likely)
		}
	}
	if len(st.Caps) == 0 {
		p.fact("caps", "none in force")
		return p.flush(w)
	}
	p.fact("caps", fmt.Sprintf("%d in force", len(st.Caps)))
	p.line("")
	t := table{columns: []column{{head: "CAPPED", least: 16}, {head: "LIMIT", right: true}, {head: "LEFT", right: true}, {head: "BY"},
		{head: "ID", drop: 2}, {head: "INCIDENT", drop: 1}, {head: "WHY", drop: 3}}}
	for _, c := range st.Caps {
		t.texts(c.Task.String(), heldTo(c), span(max(0, c.Until.Sub(st.Now))), c.By, c.ID, shortID(c.Incident), c.Why)
	}
	t.write(p)
	return p.flush(w)
}

// heldTo is the limit of a cap: CPU-s/s, I/O to each disk, or bytes/s sent.
func heldTo(c api.CapView) string {
	if c.IO.IsZero() && c.Net == 0 {
		return fmt.Sprintf("%g CPU-s/s", c.Rate)
	}
	return c.Limit()
}

// from is where the mode comes from, if that is not the configuration.
func from(st api.Status) string {
	d := st.ModeFrom.Decision
	if d == nil {
		return ""
	}
	text := "; " + st.ModeFrom.Text()
	if d.At != 0 {
		text += " " + span(st.Now.Sub(d.At)) + " ago"
	}
	if d.Until != 0 {
		text += ", for another " + span(d.Until.Sub(st.Now))
	}
	if st.ModeFrom.From == api.ByOverride {
		text += "; `quell enforcement --reset` takes it back"
	}
	return text
}

func mode(m plan.Mode) string {
	switch m {
	case plan.Off:
		return "off: only records"
	case plan.Advise:
		return "advise: advice only, nothing is changed"
	}
	return m.String() + ": caps antagonists"
}

// Heading is one line about the agent, for the top of a live view. Where the width does not
// suffice whole parts are left out, the open incidents never.
func Heading(st api.Status, s Style) string {
	clock, mode, tasks, caps := s.clock(st.Now), "enforcement "+st.Mode.String(), plural(st.Tasks, "task"), plural(len(st.Caps), "cap")
	parts := []string{st.Machine, clock, mode, tasks, caps, plural(st.Open, "incident") + " open"}
	var degraded, outside string
	if n := len(st.Degraded); n > 0 {
		degraded = fmt.Sprintf("%d degraded", n)
		parts = append(parts, degraded)
	}
	if st.Outside >= 0.1 {
		outside = s.number(st.Outside) + " CPU-s/s outside any task"
		parts = append(parts, outside)
	}
	for _, less := range []string{outside, degraded, tasks, caps, mode, clock} {
		if s.fits(parts) {
			break
		}
		parts = slices.DeleteFunc(parts, func(p string) bool { return p == less })
	}
	return s.paint(bold, s.line(parts))
}

// PastHeading is Heading for what was recorded at a time.
func PastHeading(st api.Status, s Style) string {
	return s.paint(bold, s.Parts(st.Machine, "recorded at "+s.when(st.Now), plural(st.Open, "incident")+" open", plural(len(st.Caps), "cap"), plural(st.Tasks, "task")))
}
