package plot

import (
	"math"
	"strings"
)

// Boxes draws box plots next to each other, one for each position on x: a box from
// quartile to quartile with a line at the median, and whiskers.
type Boxes struct {
	Title, About string
	X, Y         string // what the axes show, with the unit
	Boxes        []Box
	Levels       []Level
}

// Box is one distribution.
type Box struct {
	Name                      string // on the x axis
	Low, Q1, Median, Q3, High float64
}

// Level is a line across all boxes, for comparison.
type Level struct {
	Name string
	At   float64
}

// Draw draws the boxes. The y axis includes 0.
func (b *Boxes) Draw() Plot {
	y := empty()
	y.over(0)
	for _, x := range b.Boxes {
		y.over(x.Low, x.Q1, x.Median, x.Q3, x.High)
	}
	for _, l := range b.Levels {
		y.over(l.At)
	}
	yt := y.ticks(5)
	from, to := 14+fontWidth*widest(yt), plotWidth-12
	y.from, y.to = plotHeight-34, 20
	var d drawing
	var grid, whiskers, medians strings.Builder
	for _, v := range yt {
		grid.WriteString("M" + coordinate(from) + " " + coordinate(y.at(v)) + "H" + coordinate(to))
		d.text("end", from-4, y.at(v)+4, tick(v, yt[1]-yt[0]))
	}
	d.path("grid", grid.String())
	p := Plot{Title: b.Title, About: b.About}
	for k, l := range b.Levels {
		if !Finite(l.At) {
			continue
		}
		s := Series{Index: k + 1}
		d.path(s.class("line"), "M"+coordinate(from)+" "+coordinate(y.at(l.At))+"H"+coordinate(to))
		p.Legend = append(p.Legend, Key{(k + 1) % colours, NoMark, l.Name})
	}
	step := (to - from) / float64(max(1, len(b.Boxes)))
	wide := math.Min(step*0.6, 28)
	// Only as many names are drawn as there is room for.
	every := 1
	for _, x := range b.Boxes {
		every = max(every, int(math.Ceil(fontWidth*float64(len([]rune(x.Name))+1)/step)))
	}
	for k, x := range b.Boxes {
		at := from + (float64(k)+0.5)*step
		if k%every == 0 {
			d.text("middle", at, y.from+13, x.Name)
		}
		if !Finite(x.Low, x.Q1, x.Median, x.Q3, x.High) {
			continue
		}
		d.rect((&Series{}).class("bar"), at-wide/2, y.at(x.Q3), wide, y.at(x.Q1)-y.at(x.Q3))
		medians.WriteString("M" + coordinate(at-wide/2) + " " + coordinate(y.at(x.Median)) + "h" + coordinate(wide))
		for _, end := range []struct{ near, far float64 }{{x.Q3, x.High}, {x.Q1, x.Low}} {
			whiskers.WriteString("M" + coordinate(at) + " " + coordinate(y.at(end.near)) + "V" + coordinate(y.at(end.far)) +
				"M" + coordinate(at-wide/4) + " " + coordinate(y.at(end.far)) + "h" + coordinate(wide/2))
		}
	}
	d.path("whisker", whiskers.String())
	d.path("median", medians.String())
	d.path("axis", "M"+coordinate(from)+" "+coordinate(y.to)+"V"+coordinate(y.from)+"H"+coordinate(to))
	d.text("start", 2, 11, b.Y)
	d.text("middle", (from+to)/2, plotHeight-4, b.X)
	p.SVG = d.finish(plotHeight, b.Title, b.About)
	return p
}
