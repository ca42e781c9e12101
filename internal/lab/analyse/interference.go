package analyse

import (
	"math"

	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Interference is the performance interference metric of one cell: the share of its
// throughput that a foreground loses as the background's load goes from 0 to 1 (paper
// 003, section IV-B).
type Interference struct {
	Levels []study.Level `json:"levels"`
	Role   string        `json:"role"`
	// Metric is the arithmetic mean over runs of each run's mean of the two halves'
	// −100·slope/intercept, as in the paper.
	Metric float64 `json:"metric"`
	// Halves are those of the first run, rising and falling.
	Halves [2]Half `json:"halves"`
	// Angle is the difference of the angles of the normalised slopes, in degrees;
	// Symmetric: it is under 3. Significant: all four p are under 0.05.
	Angle       float64 `json:"angle"`
	Symmetric   bool    `json:"symmetric"`
	Significant bool    `json:"significant"`
	// Interval is quell's addition to the paper: over runs for three or more runs, else
	// by the delta method over the steps.
	Interval Interval `json:"interval"`
	// Points are those of all runs, at the load that was achieved.
	Points []Point `json:"points"`
	// Background is the climbing role's own throughput at its steps: what a placement that
	// is kind to the foreground takes from the background (figure 4).
	Background []Point `json:"background,omitempty"`
}

// Half is the line of one half of a staircase.
type Half struct {
	Line   Line    `json:"line"`
	Metric float64 `json:"metric"`
}

// Point is the average of a step.
type Point struct {
	Load       float64 `json:"load"`
	Throughput float64 `json:"throughput"`
	Up         bool    `json:"up"`
	Run        int     `json:"run"`
}

// Style is how the paper prints the metric: bold if both criteria hold, sans if
// only the halves differ, plain if only a p is too high, italic if both fail.
func (i *Interference) Style() string {
	switch {
	case i.Symmetric && i.Significant:
		return "bold"
	case i.Significant:
		return "sans"
	case i.Symmetric:
		return "plain"
	}
	return "italic"
}

// Interferences computes the metric of every cell with a staircase.
func Interferences(runs []result.Run) []Interference {
	var out []Interference
	for _, group := range byCell(valid(runs), study.Main) {
		c := &group[0].Cell
		if len(c.Steps) == 0 {
			continue
		}
		for _, p := range c.Parts {
			if !p.Measure || p.Role == c.Steps[0].Role {
				continue
			}
			if one, ok := interference(group, p.Name()); ok {
				out = append(out, one)
			}
		}
	}
	return out
}

// interference computes the metric of one part from the runs of one cell.
func interference(group []*result.Run, name string) (Interference, bool) {
	out := Interference{Levels: group[0].Cell.Levels, Role: name, Symmetric: true, Significant: true}
	var metrics, variances []float64
	df := 0.0
	for k, run := range group {
		part := partOf(run, name)
		if part == nil {
			continue
		}
		if bg := partOf(run, run.Cell.Steps[0].Role); bg != nil && len(bg.Iterations) > 0 {
			out.Background = append(out.Background, Steps(run, bg, k)...)
		}
		points := Steps(run, part, k)
		out.Points = append(out.Points, points...)
		halves, angle, ok := Halves(points)
		if !ok {
			continue
		}
		if len(metrics) == 0 {
			out.Halves, out.Angle = halves, angle
		}
		out.Symmetric = out.Symmetric && math.Abs(angle) < 3
		for _, h := range halves {
			out.Significant = out.Significant && h.Line.PSlope < 0.05 && h.Line.PIntercept < 0.05
			df += float64(h.Line.N - 2)
		}
		metrics = append(metrics, (halves[0].Metric+halves[1].Metric)/2)
		variances = append(variances, (delta(halves[0].Line)+delta(halves[1].Line))/4)
	}
	if len(metrics) == 0 {
		return out, false
	}
	if len(metrics) >= 3 {
		out.Interval = meanInterval(metrics, "t over runs")
	} else {
		n := float64(len(metrics))
		out.Interval = Interval{Value: stat.Mean(metrics), Level: level, N: len(out.Points), Method: "delta method over steps"}
		h := tQuantile(df) * math.Sqrt(stat.Mean(variances)/n)
		out.Interval.Low, out.Interval.High = out.Interval.Value-h, out.Interval.Value+h
	}
	out.Metric = out.Interval.Value
	return out, true
}

// Steps returns the averages of a run's steps, cut at both ends as the study says.
func Steps(run *result.Run, part *result.Part, k int) []Point {
	var points []Point
	for _, s := range run.Steps {
		points = append(points, Point{Load: s.Achieved, Throughput: Throughput(part.Iterations, s.From+s.Settle, s.To-s.Trail), Up: s.Up, Run: k})
	}
	return points
}

// Halves fits the rising and the falling half separately, and returns the difference of
// the angles of their normalised slopes in degrees; ok is false if either has no line.
func Halves(points []Point) (h [2]Half, angle float64, ok bool) {
	for i, up := range []bool{true, false} {
		var x, y []float64
		for _, p := range points {
			if p.Up == up {
				x, y = append(x, p.Load), append(y, p.Throughput)
			}
		}
		l, ok := Fit(x, y)
		if !ok || l.Intercept == 0 {
			return h, 0, false
		}
		h[i] = Half{l, -100 * l.Slope / l.Intercept}
	}
	degrees := func(l Line) float64 { return math.Atan(l.Slope/l.Intercept) * 180 / math.Pi }
	return h, degrees(h[0].Line) - degrees(h[1].Line), true
}

// delta is the variance of −100·slope/intercept by the delta method.
func delta(l Line) float64 {
	a, b := l.Intercept, l.Slope
	return 1e4 * (l.VarSlope/(a*a) + b*b*l.VarIntercept/(a*a*a*a) - 2*b*l.Cov/(a*a*a))
}

// Scale maps metrics to shades of one colour, 0 the lightest for the lowest value and 1
// the darkest for the highest, for all tables of one kind of environment together.
// Values of excluded foregrounds do not count for the range and get its nearest end
// (paper 003, IV-B: avrora).
type Scale struct{ low, high float64 }

// NewScale returns the scale whose range is that of the values.
func NewScale(values []float64) Scale {
	s := Scale{math.Inf(1), math.Inf(-1)}
	for _, v := range values {
		if finite(v) {
			s.low, s.high = min(s.low, v), max(s.high, v)
		}
	}
	return s
}

// Shade is the position of a value in the range, 0..1.
func (s Scale) Shade(v float64) float64 {
	if !(s.high > s.low) || !finite(v) {
		return 0
	}
	return min(max((v-s.low)/(s.high-s.low), 0), 1)
}
