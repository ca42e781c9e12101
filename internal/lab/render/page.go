package render

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/plot"
)

// page is a report before it is HTML or Markdown.
type page struct {
	Title    string
	Question string
	Refute   string
	Stamps   []string
	Head     []table // what the study is of, machines, verdicts
	Sections []section
}

type section struct {
	ID       string
	Title    string
	Notes    []string // what is shown, whose definition it is, what it does not say
	Exhibits []exhibit
}

// exhibit is a table with the plots of it.
type exhibit struct {
	Plots []plot.Plot
	Table table
}

type table struct {
	Caption string
	Head    []string
	Rows    [][]cell // the first cell of a row names it
	Long    bool     // folded away until it is asked for
}

// cell is text with the paper's two ways to say more with it.
type cell struct {
	Text  string
	Style string // bold, sans, italic, or plain
	// Shade is the darkness of what lies behind, −1..1: negative values in
	// another colour; Shaded: it has one.
	Shade  float64
	Shaded bool
}

func row(texts ...string) []cell {
	r := make([]cell, len(texts))
	for i, t := range texts {
		r[i].Text = t
	}
	return r
}

// unknown is what stands where there is no number.
const unknown = "–"

// number is a value with as many digits as tell something: three.
func number(v float64) string {
	switch {
	case !plot.Finite(v):
		return unknown
	case v == math.Trunc(v) && math.Abs(v) < 1e6:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case math.Abs(v) >= 1000:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case math.Abs(v) >= 0.001:
		s := strconv.FormatFloat(v, 'f', max(0, 2-int(math.Floor(math.Log10(math.Abs(v))))), 64)
		if strings.Contains(s, ".") {
			s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
		}
		return s
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// decimals is a value with so many of them.
func decimals(v float64, n int) string {
	if !plot.Finite(v) {
		return unknown
	}
	return strconv.FormatFloat(v, 'f', n, 64)
}

// between are an interval's bounds for people.
func between(i analyse.Interval) string {
	if !plot.Finite(i.Low, i.High) {
		return "no interval (n = " + strconv.Itoa(i.N) + ")"
	}
	return "[" + number(i.Low) + ", " + number(i.High) + "]"
}

// estimate is a value with its interval.
func estimate(i analyse.Interval) string {
	if !plot.Finite(i.Value) {
		return unknown
	}
	return number(i.Value) + " " + between(i)
}

// probability is a p value as it is usually printed.
func probability(p float64) string {
	switch {
	case math.IsNaN(p):
		return unknown
	case p < 0.001:
		return "< 0.001"
	}
	return decimals(p, 3)
}

func percentage(share float64) string {
	if !plot.Finite(share) {
		return unknown
	}
	return number(100*share) + " %"
}

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
