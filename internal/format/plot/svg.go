package plot

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/format/printable"
)

// A plot is 400 units wide. At the width of a phone its text keeps its size, and a wide
// screen shows several plots next to each other.
const (
	plotWidth  = 400.0
	plotHeight = 240.0
	fontWidth  = 6.6 // average width of a character at the style sheet's 11 units
)

// drawing writes SVG with coordinates to a tenth: the digits of the plots determine the
// size of a report.
type drawing struct{ strings.Builder }

func coordinate(v float64) string {
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
}

func (d *drawing) path(class, data string) {
	if data != "" {
		fmt.Fprintf(d, `<path class="%s" d="%s"/>`, class, data)
	}
}

func (d *drawing) rect(class string, x, y, w, h float64) {
	fmt.Fprintf(d, `<rect class="%s" x="%s" y="%s" width="%s" height="%s"/>`, class, coordinate(x), coordinate(y), coordinate(w), coordinate(h))
}

// text writes a label; anchor is start, middle or end.
func (d *drawing) text(anchor string, x, y float64, s string) {
	if s == "" {
		return // an axis without a name
	}
	fmt.Fprintf(d, `<text class="%s" x="%s" y="%s">%s</text>`, anchor, coordinate(x), coordinate(y), safe(s))
}

// safe is a text, which may come from a task, as text of SVG: a file of XML has no control characters.
func safe(text string) string { return html.EscapeString(printable.Text(text)) }

// finish wraps the drawing in an svg element. Its title and description are for a reader
// that cannot see it.
func (d *drawing) finish(height float64, title, about string) string {
	return fmt.Sprintf(`<svg viewBox="0 0 %s %s" role="img" aria-label="%s"><title>%s</title><desc>%s</desc>%s</svg>`,
		coordinate(plotWidth), coordinate(height), safe(title), safe(title), safe(about), d.String())
}

// Finite reports whether all values are finite, so that they can be drawn.
func Finite(values ...float64) bool {
	for _, v := range values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return false
		}
	}
	return true
}

// outline joins points with straight lines; a NaN breaks the line.
func outline(xs, ys []float64) string {
	var b strings.Builder
	pen := "M"
	for i := range xs {
		if math.IsNaN(ys[i]) {
			pen = "M"
			continue
		}
		b.WriteString(pen + coordinate(xs[i]) + " " + coordinate(ys[i]))
		pen = "L"
	}
	return b.String()
}

// Mark is the shape of a point.
type Mark int

// The shapes.
const (
	NoMark Mark = iota
	Dot
	Up   // a triangle that points up: the rising half of a staircase
	Down // the falling half
	Bar
	Stair // a broad line: a target load
)

func (m Mark) at(x, y float64) string {
	p := coordinate(x) + " "
	switch m {
	case Dot:
		return "M" + coordinate(x-2.5) + " " + coordinate(y) + "a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0-5 0"
	case Up:
		return "M" + p + coordinate(y-3) + "l3 5h-6z"
	case Down:
		return "M" + p + coordinate(y+3) + "l3-5h-6z"
	}
	return ""
}

// span is an axis: its range of values, and its range of coordinates.
type span struct {
	low, high float64
	from, to  float64
}

func (s span) at(v float64) float64 {
	return s.from + (v-s.low)/(s.high-s.low)*(s.to-s.from)
}

// over widens an axis to include its finite values.
func (s *span) over(values ...float64) {
	for _, v := range values {
		if Finite(v) {
			s.low, s.high = min(s.low, v), max(s.high, v)
		}
	}
}

func empty() span { return span{low: math.Inf(1), high: math.Inf(-1)} }

const (
	// furthest is where an axis ends at most: the length of one from end to end of all numbers is none.
	furthest = 1e300
	// sameValue is the part of values within which they are one, with rounding: marks between them would be
	// so close that a step from one leads to no other number.
	sameValue = 1e-9
)

// ticks rounds an axis to marks at multiples of 1, 2 or 5 times a power of ten, about n
// of them, and returns the marks.
func (s *span) ticks(n int) []float64 {
	if !(s.high >= s.low) || math.IsInf(s.low, 0) {
		s.low, s.high = 0, 1
	}
	s.low, s.high = min(max(s.low, -furthest), furthest), min(max(s.high, -furthest), furthest)
	if s.high-s.low <= max(sameValue*max(math.Abs(s.low), math.Abs(s.high)), 1e-300) {
		s.low, s.high = s.low-math.Abs(s.low)/2-1e-9, s.high+math.Abs(s.high)/2+1e-9
	}
	raw := (s.high - s.low) / float64(n)
	step := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, f := range []float64{1, 2, 5, 10} {
		if step*f >= raw*(1-1e-9) {
			step *= f
			break
		}
	}
	first, last := math.Floor(s.low/step+1e-9), math.Ceil(s.high/step-1e-9)
	s.low, s.high = first*step, last*step
	var at []float64
	for k := first; k <= last; k++ {
		at = append(at, k*step)
	}
	return at
}

// tick is the label of a mark, with as many decimals as the step needs.
func tick(v, step float64) string {
	if v == 0 {
		return "0"
	}
	if math.Abs(v) >= 1e5 || step < 1e-4 {
		digits := max(3, int(math.Ceil(math.Log10(math.Abs(v)/step)-1e-9))+1) // that distinguish it from the next mark
		return strconv.FormatFloat(v, 'g', digits, 64)
	}
	return strconv.FormatFloat(v, 'f', max(0, int(math.Ceil(-math.Log10(step)-1e-9))), 64)
}
