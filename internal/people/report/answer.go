package report

import (
	"io"
	"strings"
)

// Column is a column of a query's answer.
type Column struct {
	Name   string
	Number bool // its values are right-aligned
}

// Table writes a query's rows as a table, null as "-"; cut says that there are more rows.
func Table(w io.Writer, columns []Column, rows [][]string, cut bool, s Style) error {
	p := &page{Style: s}
	t := table{}
	for _, c := range columns {
		t.columns = append(t.columns, column{head: strings.ToUpper(c.Name), right: c.Number, least: 12})
	}
	for _, r := range rows {
		t.texts(r...)
	}
	t.write(p)
	last := plural(len(rows), "row")
	if cut {
		last += "; truncated by the server's limits"
	}
	p.line(p.paint(dim, last))
	return p.flush(w)
}
