package render

import (
	"math"
	"strings"

	"github.com/quell-dev/quell/internal/lab/analyse"
)

// chart draws series of points over two axes, or three.
type chart struct {
	title, about string
	x, y         string // what the axes show, with the unit
	right        string // of the right axis; "" for none
	zero         bool   // the y axis has 0
	series       []series
}

// series are the points of one thing. Low and High, where there are such, are
// intervals.
type series struct {
	name      string
	index     int // colour and dashes
	mark      mark
	line      bool
	right     bool // on the right axis
	quiet     bool // grey, behind the others
	x, y      []float64
	low, high []float64
}

func (s *series) add(x, y float64) { s.x, s.y = append(s.x, x), append(s.y, y) }

func (s *series) addInterval(x float64, i analyse.Interval) {
	s.add(x, i.Value)
	s.low, s.high = append(s.low, i.Low), append(s.high, i.High)
}

// class is a series' class in the style sheet.
func (s *series) class(kind string) string {
	switch {
	case s.quiet && s.mark == stair:
		return kind + " stair"
	case s.quiet:
		return kind + " quiet"
	}
	return kind + " s" + string(rune('0'+s.index%colours))
}

// colours is how many series the style sheet tells apart.
const colours = 8

func (c *chart) draw() plot {
	x, y, r := empty(), empty(), empty()
	for i := range c.series {
		s := &c.series[i]
		x.over(s.x...)
		side := &y
		if s.right {
			side = &r
		}
		side.over(s.y...)
		side.over(s.low...)
		side.over(s.high...)
	}
	if c.zero {
		y.over(0)
		r.over(0)
	}
	yt := y.ticks(5)
	rt := r.ticks(5)
	left := 14 + fontWidth*widest(yt)
	margin := 12.0
	if c.right != "" {
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
	if c.right != "" {
		for _, v := range rt {
			d.text("start", x.to+4, r.at(v)+4, tick(v, rt[1]-rt[0]))
		}
		d.text("end", plotWidth-2, 11, c.right)
	}
	d.path("axis", "M"+coordinate(x.from)+" "+coordinate(y.to)+"V"+coordinate(y.from)+"H"+coordinate(x.to))
	d.text("start", 2, 11, c.y)
	d.text("middle", (x.from+x.to)/2, plotHeight-4, c.x)
	for i := range c.series {
		s := &c.series[i]
		axis := y
		if s.right {
			axis = r
		}
		d.series(s, x, axis)
	}
	return plot{Title: c.title, About: c.about, SVG: d.finish(plotHeight, c.title, c.about), Legend: c.legend()}
}

func widest(ticks []float64) float64 {
	n := 0
	for _, v := range ticks {
		n = max(n, len(tick(v, ticks[1]-ticks[0])))
	}
	return float64(n)
}

func (d *drawing) series(s *series, x, y span) {
	xs, ys := make([]float64, len(s.x)), make([]float64, len(s.y))
	var marks, bars strings.Builder
	for i := range s.x {
		xs[i], ys[i] = x.at(s.x[i]), y.at(s.y[i])
		if !finite(s.x[i], s.y[i]) {
			xs[i], ys[i] = math.NaN(), math.NaN()
			continue
		}
		marks.WriteString(s.mark.at(xs[i], ys[i]))
		if i < len(s.low) && finite(s.low[i], s.high[i]) {
			bars.WriteString("M" + coordinate(xs[i]) + " " + coordinate(y.at(s.low[i])) + "V" + coordinate(y.at(s.high[i])))
		}
	}
	d.path(s.class("error"), bars.String())
	if s.line {
		d.path(s.class("line"), outline(xs, ys))
	}
	d.path(s.class("mark"), marks.String())
}

func (c *chart) legend() []key {
	var keys []key
	for i := range c.series {
		s := &c.series[i]
		if s.name == "" {
			continue
		}
		k := key{s.index % colours, s.mark, s.name}
		if s.quiet {
			k.Series = -1
		}
		keys = append(keys, k)
	}
	return keys
}

// bars draws values with their intervals as horizontal bars, in groups: names
// have room, also on a phone.
type bars struct {
	title, about string
	unit         string
	groups       []group
	series       []string // names of the bars of a group, by index
}

type group struct {
	name   string
	values []analyse.Interval // one per series; NaN for none
}

func (b *bars) draw() plot {
	const thick, gap, top = 11.0, 6.0, 8.0
	x := span{}
	label, height := 0, top
	for _, g := range b.groups {
		label = max(label, len([]rune(g.name)))
		height += gap
		for _, v := range g.values {
			if finite(v.Value) {
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
	for _, g := range b.groups {
		at += gap
		first := at
		for k, v := range g.values {
			if !finite(v.Value) {
				continue
			}
			s := series{index: k}
			a, e := x.at(0), x.at(v.Value)
			d.rect(s.class("bar"), min(a, e), at+1, math.Abs(e-a), thick-2)
			if finite(v.Low, v.High) {
				whiskers.WriteString("M" + coordinate(x.at(v.Low)) + " " + coordinate(at+thick/2) + "H" + coordinate(x.at(v.High)))
			}
			at += thick
		}
		d.text("end", wide, (first+at)/2+4, shorten(g.name, int((wide-8)/fontWidth)))
	}
	d.path("whisker", whiskers.String())
	d.path("axis", "M"+coordinate(x.at(0))+" "+coordinate(top)+"V"+coordinate(height+2))
	d.text("middle", (x.from+x.to)/2, height+28, b.unit)
	p := plot{Title: b.title, About: b.about, SVG: d.finish(height+34, b.title, b.about)}
	if len(b.series) > 1 {
		for k, name := range b.series {
			p.Legend = append(p.Legend, key{k % colours, bar, name})
		}
	}
	return p
}

// shorten keeps a name's beginning and end.
func shorten(name string, n int) string {
	r := []rune(name)
	if len(r) <= n || n < 5 {
		return name
	}
	return string(r[:n*2/3]) + "…" + string(r[len(r)-(n-n*2/3-1):])
}
