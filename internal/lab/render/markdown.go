package render

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Markdown writes the report's text and tables. Only the HTML has plots; each of them
// shows the content of a table.
func Markdown(w io.Writer, r *Report) error {
	p := r.ordered().page()
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "# %s\n", escape(p.Title))
	if len(p.Stamps) > 0 {
		fmt.Fprintf(b, "\n**%s**: these numbers are comparable only with others of the same stamps.\n", escape(strings.Join(p.Stamps, ", ")))
	}
	if p.Question != "" {
		fmt.Fprintf(b, "\n**Question.** %s\n", escape(p.Question))
	}
	if p.Refute != "" {
		fmt.Fprintf(b, "\n**What would refute it.** %s\n", escape(p.Refute))
	}
	for _, t := range p.Head {
		t.markdown(b)
	}
	for _, s := range p.Sections {
		fmt.Fprintf(b, "\n## %s\n", escape(s.Title))
		for _, n := range s.Notes {
			fmt.Fprintf(b, "\n%s\n", escape(n))
		}
		for _, e := range s.Exhibits {
			e.Table.markdown(b)
		}
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("render Markdown: %w", err)
	}
	return nil
}

func (t *table) markdown(b *bufio.Writer) {
	if len(t.Rows) == 0 {
		return
	}
	fmt.Fprintf(b, "\n### %s\n\n", escape(t.Caption))
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
