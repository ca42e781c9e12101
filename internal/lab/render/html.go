package render

import (
	"bufio"
	_ "embed" // the page and its style
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
)

//go:embed report.html.tmpl
var pageText string

//go:embed report.css
var style string

// HTML writes the report as one file that needs nothing else: it runs no
// script, loads nothing, and says so to the browser.
func HTML(w io.Writer, r *Report) error {
	t, err := template.New("report").Funcs(template.FuncMap{
		"style": func() template.CSS { return template.CSS(style) },
		// What was drawn here has its texts escaped already.
		"drawn":  func(svg string) template.HTML { return template.HTML(svg) },
		"swatch": swatch,
		"look":   look,
	}).Parse(pageText)
	if err != nil {
		return fmt.Errorf("render HTML: %w", err)
	}
	b := bufio.NewWriter(w)
	if err := t.Execute(b, r.ordered().page()); err != nil {
		return fmt.Errorf("render HTML: %w", err)
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("render HTML: %w", err)
	}
	return nil
}

// swatch is how a series looks, in a legend.
func swatch(k key) template.HTML {
	s := series{index: k.Series, mark: k.Mark, quiet: k.Series < 0}
	var d drawing
	switch k.Mark {
	case bar:
		d.rect(s.class("bar"), 0, 0, 26, 10)
	default:
		if k.Mark != up && k.Mark != down {
			d.path(s.class("line"), "M0 5H26")
		}
		if m := k.Mark.at(13, 5); m != "" {
			d.path(s.class("mark"), m)
		}
	}
	return template.HTML(`<svg viewBox="0 0 26 10" aria-hidden="true">` + d.String() + `</svg>`)
}

// look is how a cell stands out.
func look(c cell) template.HTMLAttr {
	classes := c.Style
	var shade string
	if c.Shaded {
		side := "high"
		if c.Shade < 0 {
			side = "low"
		}
		classes = strings.TrimSpace(classes + " " + side)
		shade = fmt.Sprintf(` style="--k:%.0f%%"`, 100*math.Abs(c.Shade))
	}
	if classes == "" {
		return ""
	}
	return template.HTMLAttr(` class="` + classes + `"` + shade)
}
