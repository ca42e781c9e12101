package agent

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// exposed returns what readers get of one metric, through the text format.
func exposed(t *testing.T, m *metric) map[string]*dto.MetricFamily {
	t.Helper()
	s := &series{row: m, desc: prometheus.NewDesc(m.name, m.help, m.labels, nil)}
	m.collect(nil, s)
	r := prometheus.NewRegistry()
	r.MustRegister(s)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			t.Fatal(err)
		}
	}
	p := expfmt.NewTextParser(model.UTF8Validation)
	got, err := p.TextToMetricFamilies(&text)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// A series is readable whatever the names and values.
func FuzzExposition(f *testing.F) {
	f.Add("app", "a \"b\"\\\n", 1.5)
	f.Add("", "\xff", math.Inf(-1))
	f.Add(`\`, "ü", math.NaN())
	f.Fuzz(func(t *testing.T, first, second string, v float64) {
		m := metric{name: "quell_x", help: "Half a\nline, " + strings.ToValidUTF8(first, "?"), kind: gauge, labels: []string{"a", "b"},
			collect: func(_ *view, s *series) { s.add(v, first, second) }}
		got := exposed(t, &m)["quell_x"]
		if got == nil || len(got.Metric) != 1 || got.GetType() != dto.MetricType_GAUGE || got.GetHelp() != m.help {
			t.Fatalf("%v", got)
		}
		if x := got.Metric[0].GetGauge().GetValue(); x != v && !(math.IsNaN(x) && math.IsNaN(v)) {
			t.Errorf("%v is read as %v", v, x)
		}
		for i, want := range []string{first, second} {
			if !utf8.ValidString(want) {
				want = strings.ToValidUTF8(want, "\uFFFD")
			}
			if l := got.Metric[0].Label[i]; l.GetName() != m.labels[i] || l.GetValue() != want {
				t.Errorf("label %d is %v, want %q", i, l, want)
			}
		}
	})
}

// A metric without series writes nothing.
func TestExpositionOfNothing(t *testing.T) {
	m := metric{name: "quell_x_total", help: "Help.", kind: count, collect: func(*view, *series) {}}
	if got := exposed(t, &m); len(got) != 0 {
		t.Errorf("%v", got)
	}
}
