package report

import (
	"fmt"
	"slices"
	"strings"
)

type column struct {
	head  string
	right bool
	// least is the width to which its cells may be cut; 0: they are never cut.
	least int
	// words: it is text, whose beginning is the most informative part; if the last
	// column is too narrow for it, the text is wrapped.
	words bool
	// drop is the order in which columns are omitted if the table is too wide, 1 first.
	// Such a column is also omitted if it is empty; 0: never omitted.
	drop int
}

type cell struct {
	text  string
	color color
}

// table is laid out for the style's width: columns are dropped until the least widths
// fit, then the widest cells that may be cut are cut.
type table struct {
	columns []column
	rows    [][]cell
}

func (t *table) row(cells ...cell) { t.rows = append(t.rows, cells) }

// texts adds a row of cells without colours.
func (t *table) texts(texts ...string) {
	cells := make([]cell, len(texts))
	for i, text := range texts {
		cells[i].text = text
	}
	t.row(cells...)
}

const gap = 2

func (t *table) write(p *page) {
	widths := make([]int, len(t.columns))
	for i, c := range t.columns {
		c.head = p.text(c.head)
		t.columns[i].head, widths[i] = c.head, width(c.head)
		for _, r := range t.rows {
			r[i].text = p.text(r[i].text)
			widths[i] = max(widths[i], width(r[i].text))
		}
	}
	for i, c := range t.columns {
		if c.drop > 0 && !slices.ContainsFunc(t.rows, func(r []cell) bool { return r[i].text != "" }) {
			widths[i] = -1
		}
	}
	t.fit(p.Width, widths)
	heads := make([]cell, len(t.columns))
	for i, c := range t.columns {
		heads[i] = cell{c.head, bold}
	}
	t.line(p, widths, heads)
	for i, r := range t.rows {
		if p.Height > 0 && i == p.Height {
			p.line(p.paint(dim, fmt.Sprintf("and %d more", len(t.rows)-i)))
			break
		}
		t.line(p, widths, r)
	}
}

// fit reduces the widths to limit if possible; a dropped column gets -1.
func (t *table) fit(limit int, widths []int) {
	if limit == 0 {
		return
	}
	over := func(least bool) int {
		n := -gap
		for i, w := range widths {
			switch {
			case w < 0:
				continue
			case least && t.columns[i].least > 0:
				w = min(w, max(t.columns[i].least, width(t.columns[i].head)))
			}
			n += w + gap
		}
		return n - limit
	}
	for order := 1; over(true) > 0 && order <= len(widths); order++ {
		for i, c := range t.columns {
			if c.drop == order {
				widths[i] = -1
			}
		}
	}
	for over(false) > 0 {
		widest := -1
		for i, c := range t.columns {
			if c.least > 0 && widths[i] > max(c.least, width(c.head)) && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		widths[widest]--
	}
}

func (t *table) line(p *page, widths []int, cells []cell) {
	var b strings.Builder
	var rest []string
	first, used := true, 0
	for i, c := range cells {
		if widths[i] < 0 {
			continue
		}
		if !first {
			b.WriteString(strings.Repeat(" ", gap))
		}
		first = false
		text := c.text
		switch {
		case t.columns[i].words && i == len(cells)-1:
			parts := wrap(text, max(widths[i], 1))
			text = parts[0]
			for _, part := range parts[1:] {
				rest = append(rest, strings.Repeat(" ", used)+p.paint(c.color, part))
			}
		case t.columns[i].words:
			text = p.cutEnd(text, widths[i])
		default:
			text = p.cut(text, widths[i])
		}
		used += widths[i] + gap
		space := strings.Repeat(" ", max(0, widths[i]-width(text)))
		if t.columns[i].right {
			b.WriteString(space + p.paint(c.color, text))
		} else {
			b.WriteString(p.paint(c.color, text) + space)
		}
	}
	p.line(b.String())
	for _, more := range rest {
		p.line(more)
	}
}
