package spec

import (
	"cmp"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Span is a time from From to To, both included.
type Span struct{ From, To sample.Millis }

// Spans are sorted and apart, so that a sample is looked for in few of them: a machine may report thousands of
// incidents of one task.
type Spans []Span

// SpansOf joins what overlaps.
func SpansOf(all []Span) (s Spans) {
	slices.SortFunc(all, func(a, b Span) int { return cmp.Compare(a.From, b.From) })
	for _, x := range all {
		if n := len(s); n > 0 && x.From <= s[n-1].To {
			s[n-1].To = max(s[n-1].To, x.To)
		} else if x.From <= x.To {
			s = append(s, x)
		}
	}
	return s
}

// Has reports whether a time is in one of them.
func (s Spans) Has(at sample.Millis) bool {
	i, _ := slices.BinarySearchFunc(s, at, func(x Span, at sample.Millis) int { return cmp.Compare(x.To, at) })
	return i < len(s) && s[i].From <= at
}
