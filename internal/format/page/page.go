// Package page writes a page of sections with tables and plots, as one HTML file that
// runs no script and loads nothing, and as Markdown. Both show the same texts and tables;
// only the HTML has plots, so each plot should have its content in a table.
package page

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
var pageText string

// HTML writes the page as one self-contained file, which tells the browser that it runs
// no script and loads nothing.
func (p *Page) HTML(w io.Writer) error {
	t, err := template.New("page").Funcs(template.FuncMap{
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
	if err := t.Execute(b, p); err != nil {
		return fmt.Errorf("render HTML: %w", err)
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("render HTML: %w", err)
	}
	return nil
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

// Markdown writes the page's text and tables.
func (p *Page) Markdown(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "# %s\n", escape(p.Heading))
	for _, l := range p.Lead {
		if l.Strong != "" {
			l.Strong = "**" + escape(l.Strong) + "**"
		}
		fmt.Fprintf(b, "\n%s%s\n", l.Strong, escape(l.Text))
	}
	for i, s := range p.Points {
		if i == 0 {
			fmt.Fprintln(b)
		}
		fmt.Fprintf(b, "- %s\n", escape(s))
	}
	for _, t := range p.Head {
		t.markdown(b)
	}
	for _, s := range p.Sections {
		if s.Title != "" {
			fmt.Fprintf(b, "\n## %s\n", escape(s.Title))
		}
		notes(b, s.Notes)
		for _, e := range s.Exhibits {
			if e.Title != "" {
				fmt.Fprintf(b, "\n### %s\n", escape(e.Title))
			}
			notes(b, e.Notes)
			e.Table.markdown(b)
		}
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("render Markdown: %w", err)
	}
	return nil
}

func notes(b *bufio.Writer, texts []string) {
	for _, n := range texts {
		fmt.Fprintf(b, "\n%s\n", escape(n))
	}
}

func (t *Table) markdown(b *bufio.Writer) {
	if len(t.Rows) == 0 {
		return
	}
	if t.Caption != "" {
		fmt.Fprintf(b, "\n### %s\n", escape(t.Caption))
	}
	fmt.Fprintln(b)
	head := t.Head
	if len(head) == 0 {
		head = make([]string, len(t.Rows[0]))
	}
	for _, h := range head {
		fmt.Fprintf(b, "| %s ", escape(h))
	}
	fmt.Fprintf(b, "|\n%s|\n", strings.Repeat("|---", len(head)))
	for _, r := range t.Rows {
		for _, c := range r {
			text := escape(c.Text)
			switch c.Style {
			case "bold":
				text = "**" + text + "**"
			case "sans": // Markdown has one typeface only
				text = "`" + c.Text + "`"
			case "italic":
				text = "*" + text + "*"
			}
			fmt.Fprintf(b, "| %s ", text)
		}
		fmt.Fprintln(b, "|")
	}
}

// escape escapes a text for Markdown, also within a table.
func escape(s string) string {
	return strings.NewReplacer("\\", "\\\\", "|", "\\|", "*", "\\*", "_", "\\_", "`", "\\`", "<", "&lt;", "[", "\\[", "]", "\\]", "#", "\\#", "\n", " ").Replace(s)
}
