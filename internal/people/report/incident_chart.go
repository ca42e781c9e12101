package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
)

// maxSpan is longer than any valid incident's picture.
const maxSpan = sample.Millis(365 * 24 * time.Hour / time.Millisecond)

// incidentCharts draws the victim's cost and the main suspects' usage over the same time axis,
// one below the other.
func (p *page) incidentCharts(inc *incident.Record) {
	if len(inc.Times) == 0 {
		return
	}
	if !slices.IsSorted(inc.Times) || inc.Times[len(inc.Times)-1]-inc.Times[0] > maxSpan || inc.Times[0] < 0 {
		p.line("no chart: the incident's times are out of order")
		return
	}
	a := newAxis(inc.Times, p.drawing()-margin)
	sig, _ := sample.LookupSignal(inc.Signal)
	capped := map[sample.TaskName][][2]sample.Millis{}
	var all [][2]sample.Millis
	for _, r := range inc.Rounds {
		end := r.Ended
		if end == 0 {
			end = min(r.Until, max(inc.Updated, r.From))
		}
		span := [2]sample.Millis{r.From, end}
		all = append(all, span)
		for _, c := range r.Tasks() {
			capped[c.Suspect.Name] = append(capped[c.Suspect.Name], span)
		}
	}
	p.line("")
	p.title(fmt.Sprintf("cost of %s", inc.Victim.Name), sig.Unit)
	c := chart{values: inc.VictimCost, limit: inc.Threshold, capped: all, rows: 10, peak: true, fill: green,
		write: func(v float64) string { return p.cost(inc.Signal, v) }}
	c.draw(p, a)
	bad := make([]bool, a.cols)
	for col, v := range c.columns(a) {
		bad[col] = v > inc.Threshold
	}
	a.ruler(p)
	a.strip(p, "bad", bad, red, "▪", "x")
	a.strip(p, "capped", a.marks(all), cyan, "━", "=")
	p.legend(inc.Opened, len(all) > 0)
	for i, track := range inc.Usage {
		p.line("")
		about := ""
		for i := range inc.Suspects {
			if s := &inc.Suspects[i]; s.Name == track.Task && s.Excluded == "" {
				about = ", " + levelText(inc, s)
			}
		}
		p.title("usage of "+string(track.Task), pressure(inc.Signal)+about)
		mine := capped[track.Task]
		chart{values: track.Usage, limit: math.NaN(), capped: mine, rows: 4, fill: cyan, write: p.number}.draw(p, a)
		if i == len(inc.Usage)-1 {
			a.ruler(p)
		}
		a.strip(p, "capped", a.marks(mine), cyan, "━", "=")
	}
}

func (p *page) title(what, unit string) {
	unit = p.text(", " + unit)
	p.line(strings.Repeat(" ", margin) + p.paint(bold, p.cut(p.text(what), p.drawing()-margin-width(unit))) + unit)
}

func (p *page) legend(at sample.Millis, capped bool) {
	parts := []string{p.glyph("█", "#") + " cost", p.glyph("╌", "-") + " threshold"}
	if capped {
		parts = append(parts, p.glyph("░", "'")+" a suspect is capped")
	}
	zone, _ := p.local(at).Zone()
	p.line(strings.Repeat(" ", margin) + p.paint(dim, strings.Join(append(parts, "times in "+zone), "   ")))
}
