// Package page writes a page of sections with tables and plots, as one HTML file that
// runs no script and loads nothing, and as Markdown. Both show the same texts and tables;
// Markdown has plots only as files next to it, so each plot should have its content in a
// table.
//
// Texts may come from tasks: marks that reverse the direction of writing, and what else is not
// graphic, are shown escaped.
package page

import (
	"bufio"
	_ "embed" // for the templates
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
	text "text/template"

	"github.com/quell-dev/quell/internal/format/plot"
	"github.com/quell-dev/quell/internal/format/printable"
)

// Page is a page before it is rendered.
type Page struct {
	Title   string // of the browser's window
	Heading string
	Lead    []Lead
	Points  []string // a list after the lead
	Head    []Table  // what the page is about

	Sections []Section
}

// Lead is a paragraph below the heading: the text continues the strong words.
type Lead struct{ Strong, Text, Class string }

// Section is a chapter, with a link to it.
type Section struct {
	ID       string
	Title    string   // may be empty in Markdown
	Notes    []string // what is shown, the source of its definition, its limits
	Exhibits []Exhibit
}

// Exhibit is a table with its plots. The title and the notes may be missing.
type Exhibit struct {
	Title string
	Notes []string
	Plots []plot.Plot
	Table Table
}

// Table is rows of cells; the first cell of a row names it. A table without a head is a
// list of facts.
type Table struct {
	Caption string
	Head    []string
	Rows    [][]Cell
	Long    bool // collapsed until it is opened
}

// Cell is text, with two ways to mark it.
type Cell struct {
	Text  string
	Style string // bold, sans, italic, or plain
	// Shade is the darkness of the background, −1..1; negative values have another
	// colour. Shaded is true if the cell has a shade.
	Shade  float64
	Shaded bool
}

// Row is a row of unmarked cells.
func Row(texts ...string) []Cell {
	r := make([]Cell, len(texts))
	for i, t := range texts {
		r[i].Text = t
	}
	return r
}

// Add adds a section that has notes or exhibits.
func (p *Page) Add(sections ...Section) {
	for _, s := range sections {
		if len(s.Exhibits) > 0 || len(s.Notes) > 0 {
			p.Sections = append(p.Sections, s)
		}
	}
}

//go:embed page.html.tmpl
var htmlText string

//go:embed page.md.tmpl
var markdownText string

// HTML writes the page as one self-contained file, which tells the browser that it runs
// no script and loads nothing.
func (p *Page) HTML(w io.Writer) error {
	t, err := template.New("page").Funcs(template.FuncMap{
		"style": func() template.CSS { return template.CSS(plot.Style) },
		// The texts in the plots are already escaped.
		"drawn":  func(svg string) template.HTML { return template.HTML(svg) },
		"swatch": plot.Swatch,
		"shown":  printable.Lines,
		"look":   cellAttributes,
	}).Parse(htmlText)
	if err == nil {
		err = p.render(w, t)
	}
	if err != nil {
		return fmt.Errorf("render HTML: %w", err)
	}
	return nil
}

// Markdown writes the page's text and tables.
func (p *Page) Markdown(w io.Writer) error {
	return p.MarkdownWith(w, nil)
}

// MarkdownWith also shows the plots: file stores an SVG file and
// returns its path; nil leaves them out.
func (p *Page) MarkdownWith(w io.Writer, file func(svg []byte) (path string, err error)) error {
	image := func(one plot.Plot) (string, error) {
		if file == nil {
			return "", nil
		}
		path, err := file(one.File())
		if err != nil {
			return "", err
		}
		return "\n![" + escaped(one.Title) + "](" + path + ")\n", nil
	}
	t, err := text.New("page").Funcs(text.FuncMap{"image": image, "escape": escaped, "columns": columns, "cell": markdownCell}).Parse(markdownText)
	if err == nil {
		err = p.render(w, t)
	}
	if err != nil {
		return fmt.Errorf("render Markdown: %w", err)
	}
	return nil
}

func (p *Page) render(w io.Writer, t interface{ Execute(io.Writer, any) error }) error {
	b := bufio.NewWriter(w)
	if err := t.Execute(b, p); err != nil {
		return err
	}
	return b.Flush()
}

// cellAttributes returns the HTML attributes for a cell's style and shade.
func cellAttributes(c Cell) template.HTMLAttr {
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

// markdown escapes a text for Markdown, also within a table.
var markdown = strings.NewReplacer("\\", "\\\\", "|", "\\|", "*", "\\*", "_", "\\_", "`", "\\`", "<", "&lt;", "[", "\\[", "]", "\\]", "#", "\\#", "\n", " ")

func escaped(text string) string { return markdown.Replace(printable.Lines(text)) }

// columns are the heads of a table; those of facts are empty.
func columns(t Table) []string {
	if len(t.Head) == 0 {
		return make([]string, len(t.Rows[0]))
	}
	return t.Head
}

func markdownCell(c Cell) string {
	switch c.Style {
	case "bold":
		return "**" + escaped(c.Text) + "**"
	case "sans": // Markdown has one typeface only
		return "`" + c.Text + "`"
	case "italic":
		return "*" + escaped(c.Text) + "*"
	}
	return escaped(c.Text)
}
