package plot

import (
	_ "embed" // the style sheet
	"html/template"
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
