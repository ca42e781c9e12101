package agent

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// metric is one row of the table of metrics.
type metric struct {
	name   string
	help   string
	kind   string
	labels []string // sorted
	// collect adds the values; it runs in the loop's goroutine.
	collect func(v *view, e *exposition)
}

// exposition is values in Prometheus' text format 0.0.4. It is rewritten into the same
// memory, so that a snapshot costs the loop no allocation.
type exposition struct {
	text []byte
	row  *metric
}

func (e *exposition) reset() { e.text = e.text[:0] }

// collect writes one metric with all of its series together, as the format requires.
func (e *exposition) collect(v *view, m *metric) {
	e.row = m
	start := len(e.text)
	e.text = append(e.text, "# HELP "...)
	e.text = append(e.text, m.name...)
	e.text = append(e.text, ' ')
	e.text = appendEscaped(e.text, m.help, false)
	e.text = append(e.text, "\n# TYPE "...)
	e.text = append(e.text, m.name...)
	e.text = append(e.text, ' ')
	e.text = append(e.text, m.kind...)
	e.text = append(e.text, '\n')
	head := len(e.text)
	if m.collect(v, e); len(e.text) == head { // no series now
		e.text = e.text[:start]
	}
}

// add writes one value of the metric that is being collected; labels are the values of
// its label names, in the same order.
func (e *exposition) add(v float64, labels ...string) {
	e.text = append(e.text, e.row.name...)
	for i, name := range e.row.labels {
		e.text = append(e.text, "{,"[min(i, 1)])
		e.text = append(e.text, name...)
		e.text = append(e.text, `="`...)
		e.text = appendEscaped(e.text, labels[i], true)
		e.text = append(e.text, '"')
	}
	if len(e.row.labels) > 0 {
		e.text = append(e.text, '}')
	}
	e.text = append(e.text, ' ')
	e.text = strconv.AppendFloat(e.text, v, 'g', -1, 64) // NaN, +Inf and -Inf are spelled as in the format
	e.text = append(e.text, '\n')
}

// appendEscaped writes a help text or, with quotes, a label value. The format is UTF-8;
// a cgroup's name is any bytes.
func appendEscaped(b []byte, s string, quotes bool) []byte {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, string(utf8.RuneError))
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c == '\\':
			b = append(b, `\\`...)
		case c == '\n':
			b = append(b, `\n`...)
		case c == '"' && quotes:
			b = append(b, `\"`...)
		default:
			b = append(b, c)
		}
	}
	return b
}
