package report

import (
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/clipperhouse/displaywidth"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/printable"
)

// Style describes the output device.
type Style struct {
	// Width in columns; 0: tables are as wide as necessary, drawings 80.
	Width int
	// Height is how many rows a table may have; 0: all.
	Height int
	// ASCII restricts the output to ASCII, names included.
	ASCII bool
	// Color marks bad and good values with ANSI colours.
	Color bool
	// Fold continues words that are longer than a line on the next one, where a screen would
	// cut them.
	Fold bool
	// Zone of the times; nil: UTC.
	Zone *time.Location
	// Now shortens times of the same day; 0: no time is shortened.
	Now sample.Millis
}

// Bold, Bad and Faint mark a text that is safe to print already.
func (s Style) Bold(text string) string  { return s.paint(bold, text) }
func (s Style) Bad(text string) string   { return s.paint(red, text) }
func (s Style) Faint(text string) string { return s.paint(dim, text) }

type color string

// The colours, as SGR parameters (ECMA-48, 8.3.117).
const (
	plain  color = ""
	bold   color = "1"
	dim    color = "2"
	red    color = "31"
	green  color = "32"
	yellow color = "33"
	cyan   color = "36"
)

func (s Style) paint(c color, text string) string {
	if !s.Color || c == plain || text == "" {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}

// page collects lines; only flush writes.
type page struct {
	Style
	b strings.Builder
}

func (p *page) line(text string) {
	p.b.WriteString(strings.TrimRight(text, " "))
	p.b.WriteByte('\n')
}

// lines are those written so far.
func (p *page) lines() []string { return strings.Split(strings.TrimSuffix(p.b.String(), "\n"), "\n") }

func (p *page) flush(w io.Writer) error {
	_, err := io.WriteString(w, p.b.String())
	return err
}

// fact writes a label and its text, wrapped with an indent.
func (p *page) fact(label, text string) { p.colored(label, plain, text) }

func (p *page) colored(label string, c color, text string) {
	const indent = 12
	parts := wrap(p.text(text), p.drawing()-indent)
	if p.Fold {
		parts = fold(parts, p.drawing()-indent)
	}
	for i, part := range parts {
		if i > 0 {
			label = ""
		}
		p.line(p.paint(bold, pad(label, indent)) + p.paint(c, part))
	}
}

// drawing is the width for drawings and wrapped text.
func (s Style) drawing() int {
	switch {
	case s.Width == 0:
		return 80
	case s.Width < 40:
		return 40
	}
	return min(s.Width, 132)
}

// ascii replaces the non-ASCII characters that quell itself writes.
var ascii = strings.NewReplacer("…", "~", "–", "-", "→", "->", "×", "x", "÷", "/", "±", "+-", "µ", "u", "σ", "sigma", "≥", ">=", "²", "2")

// text makes a string safe for a terminal: characters that are not graphic are escaped
// as in Go; with ASCII, all others outside ASCII, too.
func (s Style) text(t string) string {
	if s.ASCII {
		t = ascii.Replace(t)
		return printable.ASCII(t)
	}
	return printable.Text(t)
}

// Parts is one line of parts, two spaces apart. Where the width does not suffice whole parts are
// left out, the last first.
func (s Style) Parts(parts ...string) string {
	for len(parts) > 1 && !s.fits(parts) {
		parts = parts[:len(parts)-1]
	}
	return s.line(parts)
}

func (s Style) fits(parts []string) bool {
	return s.Width == 0 || width(s.text(strings.Join(parts, "  "))) <= s.Width
}

func (s Style) line(parts []string) string {
	text := s.text(strings.Join(parts, "  "))
	if s.Width == 0 {
		return text
	}
	return s.cutEnd(text, s.Width)
}

// width is how many columns of a terminal a text takes: a character of East Asia or an emoji takes two,
// a mark that is combined with a letter none.
func width(s string) int { return displaywidth.String(s) }

// glyphs are the parts of a text that a terminal shows as one.
func glyphs(text string) (all []string) {
	for g := displaywidth.StringGraphemes(text); g.Next(); {
		all = append(all, g.Value())
	}
	return all
}

func pad(s string, n int) string { return s + strings.Repeat(" ", max(0, n-width(s))) }

func padLeft(s string, n int) string { return strings.Repeat(" ", max(0, n-width(s))) + s }

// cut shortens a name to n columns from the left: the end of a cgroup's path is the
// most informative part, and commands accept it.
func (s Style) cut(text string, n int) string {
	if width(text) <= n || n < 1 {
		return text
	}
	all := glyphs(text)
	first := len(all)
	for left := n - 1; first > 0 && width(all[first-1]) <= left; first-- {
		left -= width(all[first-1])
	}
	return s.glyph("…", "~") + strings.Join(all[first:], "")
}

// Tail is the end of a text, in one line of at most n columns.
func (s Style) Tail(text string, n int) string { return s.cut(s.text(text), n) }

// Clock is the time of day of a point in time.
func (s Style) Clock(m sample.Millis) string { return s.clock(m) }

// cutEnd shortens text whose beginning is the most informative part.
func (s Style) cutEnd(text string, n int) string {
	if width(text) <= n || n < 1 {
		return text
	}
	var b strings.Builder
	left := n - 1
	for _, g := range glyphs(text) {
		if left -= width(g); left < 0 {
			break
		}
		b.WriteString(g)
	}
	return b.String() + s.glyph("…", "~")
}

func (s Style) glyph(utf8, ascii string) string {
	if s.ASCII {
		return ascii
	}
	return utf8
}

// wrap breaks text between words into lines of at most n columns; a longer word gets
// its own line.
func wrap(text string, n int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case width(line)+1+width(word) > n:
			lines = append(lines, line)
			line = word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}

// fold breaks lines that are longer than n columns.
func fold(lines []string, n int) (folded []string) {
	for _, line := range lines {
		if width(line) <= n {
			folded = append(folded, line)
			continue
		}
		var b strings.Builder
		left := n
		for _, g := range glyphs(line) {
			if w := width(g); w > left && b.Len() > 0 {
				folded, left = append(folded, b.String()), n
				b.Reset()
			}
			left -= width(g)
			b.WriteString(g)
		}
		folded = append(folded, b.String())
	}
	return folded
}

// Wrap breaks a text between words, and words that are longer than the width.
func (s Style) Wrap(text string) []string { return fold(wrap(s.text(text), s.drawing()), s.drawing()) }

var prefixes = [...]struct {
	factor float64
	name   string
}{{1, ""}, {1e3, "m"}, {1e6, "µ"}, {1e9, "n"}}

// number writes three significant digits, three decimals at most; smaller numbers with
// a prefix; "-" if it is not known.
func (s Style) number(v float64) string { return s.digits(v, 0.001) }

// cost is number for a signal's cost: CPU seconds per piece of work are written in
// milliseconds and less.
func (s Style) cost(sig sample.SignalName, v float64) string {
	if known, _ := sample.LookupSignal(sig); strings.HasPrefix(known.Unit, "CPU-s/") {
		return s.digits(v, 1)
	}
	return s.number(v)
}

// digits uses prefixes for values below small.
func (s Style) digits(v, small float64) string {
	a := math.Abs(v)
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "-"
	case a >= 1e7:
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	prefix := prefixes[0]
	if a < small && a != 0 {
		for _, prefix = range prefixes[1:] {
			if a*prefix.factor >= 0.9995 {
				break
			}
		}
	}
	v *= prefix.factor
	digits := 2
	switch a = math.Abs(v); {
	case a >= 99.95:
		digits = 0
	case a >= 9.995:
		digits = 1
	case a < 0.0995 && a != 0:
		digits = 3
	}
	return s.text(strconv.FormatFloat(v, 'f', digits, 64) + prefix.name)
}

// clock is the time of day of a point in time.
func (s Style) clock(m sample.Millis) string { return s.local(m).Format("15:04:05") }

// clockOf is the time of day of a point in time, with the date if that is not the day of another one,
// which the reader knows.
func (s Style) clockOf(m, known sample.Millis) string {
	t, other := s.local(m), s.local(known)
	if t.Year() == other.Year() && t.YearDay() == other.YearDay() {
		return s.clock(m)
	}
	return t.Format("2006-01-02 15:04:05")
}

// when is a point in time for a table: the time of day, with the part of the date that
// differs from Now's.
func (s Style) when(m sample.Millis) string {
	t, now := s.local(m), s.local(s.Now)
	switch {
	case t.Year() != now.Year():
		return t.Format("2006-01-02 15:04")
	case t.YearDay() != now.YearDay():
		return t.Format("01-02 15:04")
	}
	return t.Format("15:04:05")
}

func (s Style) local(m sample.Millis) time.Time {
	if s.Zone == nil {
		return m.Time()
	}
	return m.Time().In(s.Zone)
}

// span writes a duration in at most two units, for people.
func span(d time.Duration) string {
	switch d = d.Round(time.Second); {
	case d >= 48*time.Hour:
		return strconv.Itoa(int(d.Hours()/24)) + "d" + strconv.Itoa(int(d.Hours())%24) + "h"
	case d >= time.Hour:
		return strconv.Itoa(int(d.Hours())) + "h" + strconv.Itoa(int(d.Minutes())%60) + "m"
	case d >= time.Minute && d%time.Minute == 0:
		return strconv.Itoa(int(d.Minutes())) + "m"
	}
	return d.String()
}
