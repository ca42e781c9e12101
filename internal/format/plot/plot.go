package plot

import (
	_ "embed" // the style sheet
	"fmt"
	"html"
	"html/template"
	"strings"
)

// Style is the style sheet of a page with plots and tables: for narrow and wide
// screens, light and dark, and for paper.
//
//go:embed style.css
var Style string

// Plot is a drawing. A page should also show its data in a table.
type Plot struct {
	Title  string
	About  string // text for a reader that cannot see the drawing
	SVG    string // its texts are escaped
	Legend []Key
}

// Key is an entry of a legend: a series and its mark.
type Key struct {
	Series int // below 0: a quiet series
	Mark   Mark
	Text   string
}

// Swatch draws a sample of a series for a legend.
func Swatch(k Key) template.HTML {
	s := Series{Index: k.Series, Mark: k.Mark, Quiet: k.Series < 0}
	var d drawing
	if k.Mark == Bar {
		d.rect(s.class("bar"), 0, 0, 26, 10)
	} else {
		if k.Mark != Up && k.Mark != Down {
			d.path(s.class("line"), "M0 5H26")
		}
		d.path(s.class("mark"), k.Mark.at(13, 5))
	}
	return template.HTML(`<svg viewBox="0 0 26 10" aria-hidden="true">` + d.String() + `</svg>`)
}

// legendRow is the height of a line of a legend in a file.
const legendRow = 14

// File returns the plot as an SVG file of its own, with its title, its legend and the style
// sheet, for Markdown. It runs no script and loads nothing.
func (p Plot) File() []byte {
	width, height := plotWidth, plotHeight
	if _, err := fmt.Sscanf(p.SVG, `<svg viewBox="0 0 %g %g"`, &width, &height); err != nil {
		width, height = plotWidth, plotHeight
	}
	top, total := 16.0, 16+height+float64(legendRow*len(p.Legend))
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %s %s" role="img"><style>%s</style><rect width="100%%" height="100%%" fill="var(--paper)"/>`,
		coordinate(width), coordinate(total), html.EscapeString(Style))
	fmt.Fprintf(&b, `<text x="0" y="11" font-weight="600">%s</text><g transform="translate(0 %s)">%s</g>`, safe(p.Title), coordinate(top), inner(p.SVG))
	for k, key := range p.Legend {
		fmt.Fprintf(&b, `<g transform="translate(4 %s)">%s<text x="32" y="9">%s</text></g>`, coordinate(top+height+float64(legendRow*k)), inner(string(Swatch(key))), safe(key.Text))
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

// inner is the content of an svg element.
func inner(svg string) string {
	_, rest, _ := strings.Cut(svg, ">")
	return strings.TrimSuffix(rest, "</svg>")
}
