package report

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
)

// margin is the width left of a drawing: a label of the scale and an edge.
const margin = 9

// axis is the time axis that an incident's drawings share.
type axis struct {
	ends []sample.Millis // of the intervals; one sample each
	from sample.Millis
	// step is the usual distance of samples; after a distance of more than 1½ steps a
	// gap is drawn.
	step time.Duration
	cols int
}

func newAxis(times []sample.Millis, cols int) axis {
	a := axis{ends: times, cols: max(cols, 1)}
	if len(times) == 0 {
		return a
	}
	steps := make([]time.Duration, 0, len(times))
	for i := 1; i < len(times); i++ {
		steps = append(steps, times[i].Sub(times[i-1]))
	}
	a.step = time.Second
	if len(steps) > 0 {
		slices.Sort(steps)
		a.step = max(steps[len(steps)/2], time.Millisecond)
	}
	a.from = times[0].Add(-a.step)
	return a
}

func (a axis) to() sample.Millis { return max(a.ends[len(a.ends)-1], a.from+1) }

// at maps a time to a fractional column.
func (a axis) at(m sample.Millis) float64 {
	return float64(m-a.from) / float64(a.to()-a.from) * float64(a.cols)
}

// columns returns the columns that the interval of a sample fills: those whose middle
// is in it, or the one in which it ends.
func (a axis) columns(i int) (first, past int) {
	begin := a.ends[i].Add(-a.step * 3 / 2)
	if i > 0 {
		begin = max(begin, a.ends[i-1])
	} else {
		begin = a.from
	}
	return a.between(begin, a.ends[i])
}

func (a axis) between(begin, end sample.Millis) (first, past int) {
	first = int(math.Ceil(a.at(begin) - 0.5))
	past = int(math.Ceil(a.at(end) - 0.5))
	if past <= first {
		first = int(math.Ceil(a.at(end))) - 1
		past = first + 1
	}
	return min(max(first, 0), a.cols), min(max(past, 0), a.cols)
}

// marks returns the columns that a time span overlaps.
func (a axis) marks(spans [][2]sample.Millis) []bool {
	m := make([]bool, a.cols)
	for _, s := range spans {
		if s[1] <= a.from || s[0] >= a.to() {
			continue
		}
		first, past := a.between(max(s[0], a.from), min(s[1], a.to()))
		for c := first; c < past; c++ {
			m[c] = true
		}
	}
	return m
}

// ruler writes the axis with times below it.
func (a axis) ruler(p *page) {
	edge, tick := "─", "┬"
	corner := "└"
	if p.ASCII {
		edge, tick, corner = "-", "+", "+"
	}
	every := a.tick()
	layout := "15:04"
	if every < time.Minute {
		layout = "15:04:05"
	}
	line := slices.Repeat([]string{edge}, a.cols)
	labels := []rune(strings.Repeat(" ", a.cols+margin))
	free := 0
	zone := p.local(a.from)
	_, offset := zone.Zone()
	t := zone.Add(time.Duration(offset) * time.Second).Truncate(every).Add(-time.Duration(offset) * time.Second)
	for ; ; t = t.Add(every) {
		m := sample.At(t)
		if m > a.to() {
			break
		}
		c := int(math.Round(a.at(m)))
		if c < 0 || c >= a.cols {
			continue
		}
		line[c] = tick
		text := []rune(t.Format(layout))
		at := min(max(margin+c-len(text)/2, 0), len(labels)-len(text))
		if at < free {
			continue
		}
		copy(labels[at:], text)
		free = at + len(text) + 1
	}
	p.line(strings.Repeat(" ", margin-1) + p.paint(dim, corner+strings.Join(line, "")))
	p.line(string(labels))
}

// tick is a round time that leaves enough space for the labels.
func (a axis) tick() time.Duration {
	least := time.Duration(float64(a.to().Sub(a.from)) * 12 / float64(a.cols))
	steps := []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
		time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour}
	if i, _ := slices.BinarySearch(steps, least); i < len(steps) {
		return steps[i]
	}
	const day = 24 * time.Hour
	return (least + day - 1) / day * day
}

// chart draws one quantity over time as bars.
type chart struct {
	values []incident.Value // one per sample of the axis
	// limit is the threshold; NaN: none. Only bars over it interrupt its line.
	limit  float64
	capped [][2]sample.Millis
	rows   int
	// peak: a column shows the highest of its samples, else their mean.
	peak bool
	// write formats a value of the scale.
	write func(float64) string
	fill  color
}

// columns returns the value of each column, NaN if there was none.
func (c chart) columns(a axis) []float64 {
	sum, n := make([]float64, a.cols), make([]float64, a.cols)
	for i := range min(len(a.ends), len(c.values)) {
		v := float64(c.values[i])
		if math.IsNaN(v) {
			continue
		}
		first, past := a.columns(i)
		for col := first; col < past; col++ {
			switch {
			case n[col] == 0 || !c.peak:
				sum[col] += v
				n[col]++
			default:
				sum[col] = max(sum[col], v)
			}
		}
	}
	for col := range sum {
		sum[col] /= n[col] // 0/0 is NaN
	}
	return sum
}

// scale returns the value of the top edge and the row of the threshold's line, counted
// from below; -1: none.
func (c chart) scale(columns []float64) (top float64, line int) {
	highest := 0.0
	for _, v := range columns {
		if v > highest { // false for NaN
			highest = v
		}
	}
	if !(c.limit > 0) {
		return nice(highest), -1
	}
	line = min(int(c.limit/max(highest, c.limit)*float64(c.rows)), c.rows-1)
	if line < 1 {
		return nice(highest), 0
	}
	return c.limit * float64(c.rows) / float64(line), line
}

// nice rounds up to a number that is easy to read on a scale.
func nice(v float64) float64 {
	if !(v > 0) {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, step := range [...]float64{1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8} {
		if v <= step*unit {
			return step * unit
		}
	}
	return 10 * unit
}

// level is the height of a bar in eighths of a row.
func (c chart) level(v, top float64, line int) int {
	l := int(math.Round(v / top * float64(c.rows) * 8))
	if line > 0 { // rounding must not move it across the line
		if v > c.limit {
			l = max(l, line*8+1)
		} else {
			l = min(l, line*8)
		}
	}
	return min(max(l, 1), c.rows*8)
}

func (c chart) draw(p *page, a axis) {
	eighths, dash, shade, edge := []rune(" ▁▂▃▄▅▆▇█"), "╌", "░", "│"
	if p.ASCII {
		eighths, dash, shade, edge = []rune(" ....:::#"), "-", "'", "|"
	}
	values := c.columns(a)
	capped := a.marks(c.capped)
	top, line := c.scale(values)
	for row := c.rows - 1; row >= 0; row-- {
		label := ""
		switch row {
		case line:
			label = c.write(c.limit)
		case c.rows - 1:
			label = c.write(top)
		}
		var b strings.Builder
		b.WriteString(padLeft(label, margin-2) + " " + p.paint(dim, edge))
		for col, v := range values {
			fill := 0
			if !math.IsNaN(v) {
				fill = min(max(c.level(v, top, line)-8*row, 0), 8)
			}
			over := v > c.limit
			if row == 0 && line == 0 && !over {
				fill = 0 // a bar below the threshold would hide its line
			}
			switch {
			case fill > 0 && over:
				b.WriteString(p.paint(red, string(eighths[fill])))
			case fill > 0:
				b.WriteString(p.paint(c.fill, string(eighths[fill])))
			case row == line:
				b.WriteString(p.paint(yellow, dash))
			case capped[col]:
				b.WriteString(p.paint(dim, shade))
			default:
				b.WriteByte(' ')
			}
		}
		p.line(b.String())
	}
}

// strip writes one row of marks under a chart.
func (a axis) strip(p *page, label string, marked []bool, c color, glyph, plain string) {
	if !slices.Contains(marked, true) {
		return
	}
	if p.ASCII {
		glyph = plain
	}
	var b strings.Builder
	for _, m := range marked {
		if m {
			b.WriteString(p.paint(c, glyph))
		} else {
			b.WriteByte(' ')
		}
	}
	p.line(padLeft(label, margin-2) + "  " + b.String())
}
