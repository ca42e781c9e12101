package report

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
)

// drawn returns the cells of a chart, top row first.
func drawn(c chart, a axis) [][]rune {
	p := &page{}
	c.draw(p, a)
	var rows [][]rune
	for line := range strings.Lines(p.b.String()) {
		cells := []rune(strings.TrimSuffix(line, "\n"))[margin:]
		for len(cells) < a.cols {
			cells = append(cells, ' ')
		}
		rows = append(rows, cells)
	}
	return rows
}

func TestExactlyTheBarsOverTheThresholdBreakItsLine(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		n := 1 + rng.IntN(40)
		times, values := make([]sample.Millis, n), make([]incident.Value, n)
		limit := math.Exp(rng.Float64()*20 - 10)
		for i := range times {
			times[i] = noon.Add(time.Duration(i) * time.Minute)
			values[i] = incident.Value(limit * math.Exp(rng.Float64()*6-3))
			switch rng.IntN(8) {
			case 0:
				values[i] = nan
			case 1:
				values[i] = incident.Value(limit) // not over it
			case 2:
				values[i] = incident.Value(math.Nextafter(limit, math.Inf(1)))
			}
		}
		a := newAxis(times, 10+rng.IntN(100))
		c := chart{values: values, limit: limit, rows: 10, peak: true, write: Style{}.number}
		columns := c.columns(a)
		_, line := c.scale(columns)
		cells := drawn(c, a)[c.rows-1-line]
		for col, v := range columns {
			if unbroken := cells[col] == '╌'; unbroken == (v > limit) {
				t.Fatalf("column %d: value %v, threshold %v, drawn %q", col, v, limit, cells[col])
			}
		}
	}
}

func TestEverySampleIsInSomeColumnOfItsTime(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		times := []sample.Millis{noon}
		for range rng.IntN(300) {
			times = append(times, times[len(times)-1].Add(time.Duration(1+rng.IntN(5000))*time.Millisecond))
		}
		a := newAxis(times, 1+rng.IntN(120))
		for i := range times {
			first, past := a.columns(i)
			if first < 0 || past > a.cols || past <= first {
				t.Fatalf("sample %d of %d fills [%d, %d) of %d columns", i, len(times), first, past, a.cols)
			}
			if at := a.at(times[i]); float64(past) < at-1 || float64(first) > at {
				t.Fatalf("sample %d at %.2f fills [%d, %d)", i, at, first, past)
			}
		}
	}
}

func TestPeaksAreNotAveragedAway(t *testing.T) {
	var times []sample.Millis
	var values []incident.Value
	for i := range 500 {
		times = append(times, noon.Add(time.Duration(i)*time.Second))
		values = append(values, 1)
	}
	values[333] = 9
	a := newAxis(times, 50)
	highest := func(peak bool) (v float64) {
		for _, c := range (chart{values: values, peak: peak}).columns(a) {
			v = max(v, c)
		}
		return v
	}
	if v := highest(true); v != 9 {
		t.Errorf("highest cost drawn is %v, want 9", v)
	}
	if v := highest(false); math.Abs(v-1.8) > 1e-9 {
		t.Errorf("highest mean usage is %v, want 1.8", v)
	}
}

func TestGapsStayEmpty(t *testing.T) {
	times := []sample.Millis{noon, noon.Add(time.Minute), noon.Add(2 * time.Minute), noon.Add(30 * time.Minute)}
	a := newAxis(times, 60)
	columns := chart{values: []incident.Value{1, 1, 1, 1}}.columns(a)
	empty := 0
	for _, v := range columns {
		if math.IsNaN(v) {
			empty++
		}
	}
	if empty < 45 || empty > 55 {
		t.Errorf("%d of 60 columns are empty, want those of 27 of 31 minutes", empty)
	}
}

func TestNumber(t *testing.T) {
	for _, c := range []struct {
		v    float64
		want string
	}{
		{0, "0.00"}, {1.446, "1.45"}, {0.05, "0.050"}, {0.0123, "0.012"}, {12.34, "12.3"}, {9.996, "10.0"}, {123.4, "123"}, {1e6, "1000000"}, {2.5e9, "2.5e+09"},
		{0.0009, "900µ"}, {23.1e-6, "23.1µ"}, {4.2e-9, "4.20n"}, {1e-12, "0.001n"}, {-1.5, "-1.50"}, {math.NaN(), "-"}, {math.Inf(1), "-"},
	} {
		if got := (Style{}).number(c.v); got != c.want {
			t.Errorf("%v is written %q, want %q", c.v, got, c.want)
		}
	}
}

func TestCostsPerPieceOfWorkAreInMilliseconds(t *testing.T) {
	for sig, want := range map[sample.SignalName]string{sample.CPT: "2.15m", sample.CPS: "2.15m", sample.RunQ: "0.002", sample.CPI: "0.002", "other": "0.002"} {
		if got := (Style{}).cost(sig, 0.00215); got != want {
			t.Errorf("%s: %q, want %q", sig, got, want)
		}
	}
}

func TestText(t *testing.T) {
	for _, c := range []struct{ in, utf8, ascii string }{
		{"/a/b-1.service", "/a/b-1.service", "/a/b-1.service"},
		{`/a/b\x2dc`, `/a/b\x2dc`, `/a/b\x2dc`},
		{"a\x1b[31mb", `a\x1b[31mb`, `a\x1b[31mb`},
		{"a\nb\x00", `a\nb\x00`, `a\nb\x00`},
		{"bad\xff", `bad\xff`, `bad\xff`},
		{"é ÷ ±", "é ÷ ±", `\u00e9 / +-`},
		{"right\u202eleft", `right\u202eleft`, `right\u202eleft`},
	} {
		if got := (Style{}).text(c.in); got != c.utf8 {
			t.Errorf("%q: %q, want %q", c.in, got, c.utf8)
		}
		if got := (Style{ASCII: true}).text(c.in); got != c.ascii {
			t.Errorf("%q in ASCII: %q, want %q", c.in, got, c.ascii)
		}
	}
}
