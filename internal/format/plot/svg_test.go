package plot

import (
	"bytes"
	"encoding/xml"
	"io"
	"math"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		low, high float64
		want      []float64
	}{
		{0, 5.1, []float64{0, 2, 4, 6}},
		{0, 1, []float64{0, 0.2, 0.4, 0.6000000000000001, 0.8, 1}},
		{-3, 49, []float64{-20, 0, 20, 40, 60}},
		{math.Inf(1), math.Inf(-1), []float64{0, 0.2, 0.4, 0.6000000000000001, 0.8, 1}},
	} {
		s := span{low: c.low, high: c.high}
		if d := cmp.Diff(c.want, s.ticks(5)); d != "" {
			t.Errorf("%g..%g: %s", c.low, c.high, d)
		}
	}
	// For any range, the marks include the range and are few.
	r := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		a := r.NormFloat64() * math.Pow(10, r.Float64()*12-6)
		s := span{low: a, high: a + math.Abs(a)*r.Float64()*r.Float64()}
		low, high := s.low, s.high
		at := s.ticks(5)
		if len(at) < 2 || len(at) > 8 || at[0] > low+math.Abs(low)*1e-6 || at[len(at)-1] < high-math.Abs(high)*1e-6 {
			t.Fatalf("%g..%g: %v", low, high, at)
		}
	}
}

var places = regexp.MustCompile(`[MLHV](-?[\d.]+)(?: (-?[\d.]+))?|x="(-?[\d.]+)" y="(-?[\d.]+)"`)

// Nothing is drawn outside the drawing, for any values.
func TestDrawingsKeepWithinTheirBounds(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	value := func() float64 {
		switch r.IntN(12) {
		case 0:
			return math.NaN()
		case 1:
			return 0
		}
		return r.NormFloat64() * math.Pow(10, r.Float64()*10-5)
	}
	interval := func() Interval {
		v, h := value(), math.Abs(value())
		return Interval{Value: v, Low: v - h, High: v + h}
	}
	for range 500 {
		c := Chart{Title: "t", About: "a", X: "x", Y: "y", Zero: r.IntN(2) == 0}
		if r.IntN(2) == 0 {
			c.Right = "right"
		}
		b := Bars{Title: "t", About: "a", Unit: "u", Series: []string{"one", "other"}}
		for k := range r.IntN(4) {
			s := Series{Name: "s", Index: k, Mark: Mark(r.IntN(6)), Line: r.IntN(2) == 0, Right: r.IntN(2) == 0}
			for range r.IntN(20) {
				s.AddInterval(value(), interval())
			}
			c.Series = append(c.Series, s)
			b.Groups = append(b.Groups, Group{"a name that is rather long for a bar's label", []Interval{interval(), interval()}})
		}
		for _, p := range []Plot{c.Draw(), b.Draw()} {
			var height float64
			if m := regexp.MustCompile(`viewBox="0 0 400 ([\d.]+)"`).FindStringSubmatch(p.SVG); m == nil {
				t.Fatal(p.SVG)
			} else {
				height, _ = strconv.ParseFloat(m[1], 64)
			}
			if regexp.MustCompile(`NaN|Inf`).MatchString(p.SVG) {
				t.Fatalf("NaN or Inf was drawn: %s", p.SVG)
			}
			for _, m := range places.FindAllStringSubmatch(p.SVG, -1) {
				x, errX := strconv.ParseFloat(m[1]+m[3], 64)
				y, errY := strconv.ParseFloat(m[2]+m[4], 64)
				if m[2] != "" || m[4] != "" {
					if errX != nil || errY != nil || x < -4 || x > plotWidth+4 || y < -4 || y > height+4 {
						t.Fatalf("%s is outside: %s", m[0], p.SVG)
					}
				}
			}
		}
	}
}

// A point is where its axes say: half of the range is half of the length.
func TestPointsAreWhereTheyBelong(t *testing.T) {
	c := Chart{X: "x", Y: "y", Zero: true, Series: []Series{{Mark: Down, x: []float64{0, 5, 10}, y: []float64{0, 1, 2}}}}
	m := regexp.MustCompile(`class="mark s0" d="M([\d.]+) ([\d.]+)l3-5h-6zM([\d.]+) ([\d.]+)l3-5h-6zM([\d.]+) ([\d.]+)l3-5h-6z"`).FindStringSubmatch(c.Draw().SVG)
	if m == nil {
		t.Fatal(c.Draw().SVG)
	}
	var v [7]float64
	for i := 1; i < 7; i++ {
		v[i], _ = strconv.ParseFloat(m[i], 64)
	}
	if math.Abs((v[1]+v[5])/2-v[3]) > 0.11 || math.Abs((v[2]+v[6])/2-v[4]) > 0.11 || v[5] <= v[1] || v[6] >= v[2] {
		t.Errorf("points at %v", v[1:])
	}
}

// An axis without a name gets no empty label: a browser gives it no height.
func TestNoEmptyLabels(t *testing.T) {
	series := []Series{{x: []float64{0, 5}, y: []float64{0, 1}}}
	for _, svg := range []string{
		(&Chart{X: "x", Series: series}).Draw().SVG, (&Chart{Y: "y", Series: series}).Draw().SVG,
		(&Boxes{Boxes: []Box{{Median: 1}}}).Draw().SVG,
	} {
		if !strings.Contains(svg, "<text") || strings.Contains(svg, "></text>") {
			t.Error(svg)
		}
	}
}

// A file of its own is one well-formed SVG element with the title, the drawing and each
// series of the legend, and names nothing outside itself but its namespace.
func TestFile(t *testing.T) {
	one := Series{Name: "a < b", Index: 0, Mark: Dot, Line: true}
	one.Add(1, 2)
	one.Add(2, 3)
	two := one
	two.Name, two.Index, two.Mark = "stairs", 1, Up
	c := Chart{Title: "Rate & load", X: "x", Y: "y", Series: []Series{one, two}}
	text := c.Draw().File()
	depth, words := 0, ""
	for d := xml.NewDecoder(bytes.NewReader(text)); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		switch e := token.(type) {
		case xml.StartElement:
			if depth++; depth == 1 && e.Name.Local != "svg" || depth > 1 && e.Name.Local == "svg" {
				t.Errorf("element %s at depth %d", e.Name.Local, depth)
			}
			for _, a := range e.Attr {
				if strings.Contains(a.Value, "://") && a.Name.Local != "xmlns" {
					t.Errorf("%s=%q", a.Name.Local, a.Value)
				}
			}
		case xml.EndElement:
			depth--
		case xml.CharData:
			words += string(e)
		}
	}
	for _, want := range []string{"Rate & load", "a < b", "stairs"} {
		if !strings.Contains(words, want) {
			t.Errorf("no %q", want)
		}
	}
}
