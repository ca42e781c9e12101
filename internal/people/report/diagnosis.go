package report

import (
	"fmt"
	"io"
	"slices"

	"github.com/quell-dev/quell/internal/machine/host"
)

// Diagnosis is what quell can use on a machine, in groups.
type Diagnosis []Group

// Group is one kind of capability.
type Group struct {
	Name         string            `json:"name"`
	Capabilities []host.Capability `json:"capabilities"`
}

// Lookup finds a capability by name.
func (d Diagnosis) Lookup(name string) (host.Capability, bool) {
	for _, g := range d {
		i := slices.IndexFunc(g.Capabilities, func(c host.Capability) bool { return c.Name == name })
		if i >= 0 {
			return g.Capabilities[i], true
		}
	}
	return host.Capability{}, false
}

// Names lists every capability.
func (d Diagnosis) Names() []string {
	var all []string
	for _, g := range d {
		for _, c := range g.Capabilities {
			all = append(all, c.Name)
		}
	}
	return all
}

// Doctor writes a diagnosis: what is available, for what is not, why and how to fix it, and at the
// end what to do next.
func Doctor(w io.Writer, d Diagnosis, next []string, s Style) error {
	p := &page{Style: s}
	missing := 0
	for i, g := range d {
		if i > 0 {
			p.line("")
		}
		p.line(p.paint(bold, p.text(g.Name)))
		names := 0
		for _, c := range g.Capabilities {
			names = max(names, width(p.text(c.Name)))
		}
		indent := 2 + 4 + names + 2
		for i, c := range g.Capabilities {
			mark, col := "ok", green
			if !c.OK {
				mark, col = "no", yellow
				missing++
			}
			lines := about(c)
			if i > 0 && !c.OK && c.Reason != "" && slices.Equal(lines, about(g.Capabilities[i-1])) {
				lines = []string{"same as above"}
			}
			head := "  " + p.paint(col, pad(mark, 4)) + pad(p.text(c.Name), names+2)
			for _, text := range lines {
				for _, part := range wrap(p.text(text), max(p.drawing()-indent, 20)) {
					p.line(head + part)
					head = pad("", indent)
				}
			}
			if len(lines) == 0 {
				p.line(head)
			}
		}
	}
	p.line("")
	p.line(fmt.Sprintf("%d of %d available", len(d.Names())-missing, len(d.Names())))
	if len(next) > 0 {
		p.line("")
		p.line(p.paint(bold, "next steps"))
	}
	for i, step := range next {
		head := fmt.Sprintf("  %d. ", i+1)
		for _, part := range wrap(p.text(step), max(p.drawing()-len(head), 20)) {
			p.line(head + part)
			head = pad("", len(head))
		}
	}
	return p.flush(w)
}

// about is the explanation of a capability.
func about(c host.Capability) []string {
	lines := slices.DeleteFunc([]string{c.Detail, c.Reason}, func(text string) bool { return text == "" })
	if c.Remedy != "" {
		lines = append(lines, "what to do: "+c.Remedy)
	}
	return lines
}
