package render

import (
	"bufio"
	_ "embed" // the page
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"

	"github.com/quell-dev/quell/internal/plot"
)

//go:embed report.html.tmpl
var pageText string

// HTML writes the report as one file that needs nothing else: it runs no
// script, loads nothing, and says so to the browser.
func HTML(w io.Writer, r *Report) error {
	t, err := template.New("report").Funcs(template.FuncMap{
		"style": func() template.CSS { return template.CSS(plot.Style) },
		// What was drawn here has its texts escaped already.
		"drawn":  func(svg string) template.HTML { return template.HTML(svg) },
		"swatch": plot.Swatch,
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
