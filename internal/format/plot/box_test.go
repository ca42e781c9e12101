package plot

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The height of a box is the distance between its quartiles on the axis, the whiskers end
// at Low and High, and a level is at its value.
func TestBoxesAreWhereTheyBelong(t *testing.T) {
	b := Boxes{Title: "t", X: "x", Y: "y", Boxes: []Box{{"1", 0, 25, 50, 75, 100}, {"2", math.NaN(), 0, 0, 0, 0}}, Levels: []Level{{"half", 50}, {"none", math.NaN()}}}
	p := b.Draw()
	// The axis goes from 0 at 206 to 100 at 20.
	at := func(v float64) string { return coordinate(206 - v/100*186) }
	for _, want := range []string{
		fmt.Sprintf(`y="%s" width="28" height="93"`, at(75)),
		"V" + at(100), "V" + at(0), " " + at(50) + "h28",
		fmt.Sprintf(`class="line s1" d="M33.8 %sH388"`, at(50)),
	} {
		if !strings.Contains(p.SVG, want) {
			t.Errorf("no %q in %s", want, p.SVG)
		}
	}
	if n := strings.Count(p.SVG, "<rect"); n != 1 {
		t.Errorf("%d boxes, one of them empty", n)
	}
	if len(p.Legend) != 1 || p.Legend[0].Text != "half" || !strings.Contains(p.SVG, ">2</text>") {
		t.Errorf("legend %+v", p.Legend)
	}
}

// Nothing is drawn outside the drawing, for any values.
func TestBoxesKeepWithinTheirBounds(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for range 300 {
		b := Boxes{Title: "t", X: "x", Y: "y"}
		for k := range r.IntN(60) {
			v := make([]float64, 5)
			for i := range v {
				v[i] = r.NormFloat64() * math.Pow(10, r.Float64()*10-5)
			}
			slices.Sort(v)
			b.Boxes = append(b.Boxes, Box{strconv.Itoa(k * 1000), v[0], v[1], v[2], v[3], v[4]})
		}
		for range r.IntN(3) {
			b.Levels = append(b.Levels, Level{"l", r.NormFloat64() * 1e3})
		}
		svg := b.Draw().SVG
		if regexp.MustCompile(`NaN|Inf`).MatchString(svg) {
			t.Fatalf("NaN or Inf was drawn: %s", svg)
		}
		for _, m := range places.FindAllStringSubmatch(svg, -1) {
			x, errX := strconv.ParseFloat(m[1]+m[3], 64)
			y, errY := strconv.ParseFloat(m[2]+m[4], 64)
			if m[2] != "" || m[4] != "" {
				if errX != nil || errY != nil || x < -4 || x > plotWidth+4 || y < -4 || y > plotHeight+4 {
					t.Fatalf("%s is outside: %s", m[0], svg)
				}
			}
		}
	}
}
