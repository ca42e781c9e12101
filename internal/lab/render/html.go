package render

import (
	"bufio"
	_ "embed" // for the page
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"

	"github.com/quell-dev/quell/internal/format/plot"
)

//go:embed report.html.tmpl
var pageText string

// HTML writes the report as one self-contained file: it runs no script, loads nothing,
// and tells the browser so.
func HTML(w io.Writer, r *Report) error {
	t, err := template.New("report").Funcs(template.FuncMap{
		"style": func() template.CSS { return template.CSS(plot.Style) },
		// The texts in the plots are already escaped.
		"drawn":  func(svg string) template.HTML { return template.HTML(svg) },
		"swatch": plot.Swatch,
		"look":   cellAttributes,
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

// cellAttributes returns the HTML attributes for a cell's style and shade.
func cellAttributes(c cell) template.HTMLAttr {
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
