package render

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/format/plot"
	"github.com/quell-dev/quell/internal/lab/analyse"
)

// unknown is the text where there is no number.
const unknown = "–"

// number formats a value with three significant digits.
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

// decimals formats a value with n decimals.
func decimals(v float64, n int) string {
	if !plot.Finite(v) {
		return unknown
	}
	return strconv.FormatFloat(v, 'f', n, 64)
}

// between formats an interval's bounds.
func between(i analyse.Interval) string {
	if !plot.Finite(i.Low, i.High) {
		return "no interval (n = " + strconv.Itoa(i.N) + ")"
	}
	return "[" + number(i.Low) + ", " + number(i.High) + "]"
}

// estimate formats a value with its interval.
func estimate(i analyse.Interval) string {
	if !plot.Finite(i.Value) {
		return unknown
	}
	return number(i.Value) + " " + between(i)
}

// probability formats a p value in the usual way.
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
