package plot

import (
	"math"
	"strings"
)

// Chart draws series of points over two or three axes.
type Chart struct {
	Title  string
	About  string // text for a reader that cannot see the chart
	X, Y   string // what the axes show, with the unit
	Right  string // label of the right axis; "" for none
	Zero   bool   // the y axes include 0
	Series []Series
}

// Interval is a value with its bounds; NaN for an unknown one.
type Interval struct{ Value, Low, High float64 }

// Series is the points of one quantity.
type Series struct {
	Name  string // in the legend; "" leaves it out
	Index int    // colour and dashes
	Mark  Mark
	Line  bool
	Right bool // on the right axis
	Quiet bool // grey, behind the others

	x, y      []float64
	low, high []float64 // the bounds of points that are intervals
}

// Add adds a point; NaN breaks the line.
func (s *Series) Add(x, y float64) { s.x, s.y = append(s.x, x), append(s.y, y) }

// AddInterval adds a point with its bounds.
func (s *Series) AddInterval(x float64, i Interval) {
	s.Add(x, i.Value)
	s.low, s.high = append(s.low, i.Low), append(s.high, i.High)
}

// class is a series' class in the style sheet.
func (s *Series) class(kind string) string {
	switch {
	case s.Quiet && s.Mark == Stair:
		return kind + " stair"
	case s.Quiet:
		return kind + " quiet"
	}
	return kind + " s" + string(rune('0'+s.Index%colours))
}

// colours is the number of series that the style sheet distinguishes.
const colours = 8

// Draw draws the chart.
func (c *Chart) Draw() Plot {
	x, y, r := empty(), empty(), empty()
	for i := range c.Series {
		s := &c.Series[i]
		x.over(s.x...)
		side := &y
		if s.Right {
			side = &r
		}
		side.over(s.y...)
		side.over(s.low...)
		side.over(s.high...)
	}
	if c.Zero {
		y.over(0)
		r.over(0)
	}
	yt := y.ticks(5)
	rt := r.ticks(5)
	left := 14 + fontWidth*widest(yt)
	margin := 12.0
	if c.Right != "" {
		margin = 14 + fontWidth*widest(rt)
	}
	x.from, x.to = left, plotWidth-margin
	y.from, y.to = plotHeight-34, 20
	r.from, r.to = y.from, y.to
	xt := x.ticks(6)
	var d drawing
	var grid strings.Builder
	for _, v := range yt {
		grid.WriteString("M" + coordinate(x.from) + " " + coordinate(y.at(v)) + "H" + coordinate(x.to))
		d.text("end", left-4, y.at(v)+4, tick(v, yt[1]-yt[0]))
	}
	d.path("grid", grid.String())
	for _, v := range xt {
		d.text("middle", x.at(v), y.from+13, tick(v, xt[1]-xt[0]))
	}
	if c.Right != "" {
		for _, v := range rt {
			d.text("start", x.to+4, r.at(v)+4, tick(v, rt[1]-rt[0]))
		}
		d.text("end", plotWidth-2, 11, c.Right)
	}
	d.path("axis", "M"+coordinate(x.from)+" "+coordinate(y.to)+"V"+coordinate(y.from)+"H"+coordinate(x.to))
	d.text("start", 2, 11, c.Y)
	d.text("middle", (x.from+x.to)/2, plotHeight-4, c.X)
	for i := range c.Series {
		s := &c.Series[i]
		axis := y
		if s.Right {
			axis = r
		}
		d.series(s, x, axis)
	}
	return Plot{Title: c.Title, About: c.About, SVG: d.finish(plotHeight, c.Title, c.About), Legend: c.legend()}
}

func widest(ticks []float64) float64 {
	n := 0
	for _, v := range ticks {
		n = max(n, len(tick(v, ticks[1]-ticks[0])))
	}
	return float64(n)
}

func (d *drawing) series(s *Series, x, y span) {
	xs, ys := make([]float64, len(s.x)), make([]float64, len(s.y))
	var marks, bars strings.Builder
	for i := range s.x {
		xs[i], ys[i] = x.at(s.x[i]), y.at(s.y[i])
		if !Finite(s.x[i], s.y[i]) {
			xs[i], ys[i] = math.NaN(), math.NaN()
			continue
		}
		marks.WriteString(s.Mark.at(xs[i], ys[i]))
		if i < len(s.low) && Finite(s.low[i], s.high[i]) {
			bars.WriteString("M" + coordinate(xs[i]) + " " + coordinate(y.at(s.low[i])) + "V" + coordinate(y.at(s.high[i])))
		}
	}
	d.path(s.class("error"), bars.String())
	if s.Line {
		d.path(s.class("line"), outline(xs, ys))
	}
	d.path(s.class("mark"), marks.String())
}

func (c *Chart) legend() []Key {
	var keys []Key
	for i := range c.Series {
		s := &c.Series[i]
		if s.Name == "" {
			continue
		}
		k := Key{s.Index % colours, s.Mark, s.Name}
		if s.Quiet {
			k.Series = -1
		}
		keys = append(keys, k)
	}
	return keys
}

// Bars draws values with their intervals as horizontal bars, in groups. Horizontal bars
// leave room for the names, also on a phone.
type Bars struct {
	Title, About string
	Unit         string
	Groups       []Group
	Series       []string // names of the bars of a group, by index
}

// Group is a set of bars that are drawn together.
type Group struct {
	Name   string
	Values []Interval // one per series; NaN for none
}

// Draw draws the bars.
func (b *Bars) Draw() Plot {
	const thick, gap, top = 11.0, 6.0, 8.0
	x := span{}
	label, height := 0, top
	for _, g := range b.Groups {
		label = max(label, len([]rune(g.Name)))
		height += gap
		for _, v := range g.Values {
			if Finite(v.Value) {
				height += thick
				x.over(v.Value, v.Low, v.High)
			}
		}
	}
	wide := min(fontWidth*float64(label)+8, plotWidth*0.45)
	xt := x.ticks(5)
	x.from, x.to = wide+8, plotWidth-14
	var d drawing
	var grid, whiskers strings.Builder
	for _, v := range xt {
		grid.WriteString("M" + coordinate(x.at(v)) + " " + coordinate(top) + "V" + coordinate(height+2))
		d.text("middle", x.at(v), height+14, tick(v, xt[1]-xt[0]))
	}
	d.path("grid", grid.String())
	at := top
	for _, g := range b.Groups {
		at += gap
		first := at
		for k, v := range g.Values {
			if !Finite(v.Value) {
				continue
			}
			s := Series{Index: k}
			a, e := x.at(0), x.at(v.Value)
			d.rect(s.class("bar"), min(a, e), at+1, math.Abs(e-a), thick-2)
			if Finite(v.Low, v.High) {
				whiskers.WriteString("M" + coordinate(x.at(v.Low)) + " " + coordinate(at+thick/2) + "H" + coordinate(x.at(v.High)))
			}
			at += thick
		}
		d.text("end", wide, (first+at)/2+4, shorten(g.Name, int((wide-8)/fontWidth)))
	}
	d.path("whisker", whiskers.String())
	d.path("axis", "M"+coordinate(x.at(0))+" "+coordinate(top)+"V"+coordinate(height+2))
	d.text("middle", (x.from+x.to)/2, height+28, b.Unit)
	p := Plot{Title: b.Title, About: b.About, SVG: d.finish(height+34, b.Title, b.About)}
	if len(b.Series) > 1 {
		for k, name := range b.Series {
			p.Legend = append(p.Legend, Key{k % colours, Bar, name})
		}
	}
	return p
}

// shorten keeps the beginning and the end of a name.
func shorten(name string, n int) string {
	r := []rune(name)
	if len(r) <= n || n < 5 {
		return name
	}
	return string(r[:n*2/3]) + "…" + string(r[len(r)-(n-n*2/3-1):])
}
