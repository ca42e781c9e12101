package agent

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// parse reads an exposition with Prometheus' own library.
func parse(t *testing.T, text []byte) map[string]*dto.MetricFamily {
	t.Helper()
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(strings.NewReader(string(text)))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return families
}

// Other readers parse what is written, whatever the names and values.
func FuzzExposition(f *testing.F) {
	f.Add("app", "a \"b\"\\\n", 1.5)
	f.Add("", "\xff", math.Inf(-1))
	f.Add(`\`, "ü", math.NaN())
	f.Fuzz(func(t *testing.T, first, second string, v float64) {
		m := metric{name: "quell_x", help: "Half a\nline, " + strings.ToValidUTF8(first, "?"), kind: gauge, labels: []string{"a", "b"},
			collect: func(_ *view, e *exposition) { e.add(v, first, second) }}
		var e exposition
		e.collect(nil, &m)
		got := parse(t, e.text)["quell_x"]
		if got == nil || len(got.Metric) != 1 || got.GetType() != dto.MetricType_GAUGE || got.GetHelp() != m.help {
			t.Fatalf("%v from %q", got, e.text)
		}
		if x := got.Metric[0].GetGauge().GetValue(); x != v && !(math.IsNaN(x) && math.IsNaN(v)) {
			t.Errorf("%v is read as %v", v, x)
		}
		for i, want := range []string{first, second} {
			if !utf8.ValidString(want) {
				want = strings.ToValidUTF8(want, "�")
			}
			if l := got.Metric[0].Label[i]; l.GetName() != m.labels[i] || l.GetValue() != want {
				t.Errorf("label %d is %v, want %q", i, l, want)
			}
		}
	})
}

// A metric without series writes nothing.
func TestExpositionOfNothing(t *testing.T) {
	e := exposition{text: []byte("before\n")}
	e.collect(nil, &metric{name: "quell_x", help: "Help.", kind: count, collect: func(*view, *exposition) {}})
	if string(e.text) != "before\n" {
		t.Errorf("%q", e.text)
	}
	e.collect(nil, &metric{name: "quell_x_total", help: "Help.", kind: count, collect: func(_ *view, e *exposition) { e.add(3) }})
	if want := "before\n# HELP quell_x_total Help.\n# TYPE quell_x_total counter\nquell_x_total 3\n"; string(e.text) != want {
		t.Errorf("%q, want %q", e.text, want)
	}
}

func TestExpositionAllocatesNothing(t *testing.T) {
	jobs := make([]string, 100)
	for i := range jobs {
		jobs[i] = fmt.Sprintf("job \"%d\"", i)
	}
	m := metric{name: "quell_x", help: "Help.", kind: gauge, labels: []string{"job"}, collect: func(_ *view, e *exposition) {
		for i, j := range jobs {
			e.add(float64(i)/3, j)
		}
	}}
	var e exposition
	if n := testing.AllocsPerRun(10, func() { e.reset(); e.collect(nil, &m) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
