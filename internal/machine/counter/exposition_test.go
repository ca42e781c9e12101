package counter

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// exposition is the output of a Go service and of a Java service, shortened.
const exposition = `# HELP go_goroutines Number of goroutines that currently exist.
# TYPE go_goroutines gauge
go_goroutines 11
# HELP http_requests_total Requests, "total".
# TYPE http_requests_total counter
http_requests_total{code="200",handler="/a b{c}"} 1027 1395066363000
http_requests_total{code="404",handler="/"} 3
  http_requests_total {code="200",handler="quote \" and \\ and \n"} 1.5e3
http_requests_total_created 1e9
http_requests 7
# TYPE rpc_seconds histogram
rpc_seconds_bucket{le="0.1"} 4
rpc_seconds_bucket{le="+Inf"} 6
rpc_seconds_sum 0.7
rpc_seconds_count 6
# TYPE untold untyped
untold	42
broken{ 1
not_a_number NaN
infinite +Inf
negative -1
# TYPE empty counter
`

func TestSumSeries(t *testing.T) {
	for _, c := range []struct {
		metric string
		labels map[string]string
		want   float64
		err    string // part of it
	}{
		{"http_requests_total", nil, 2530, ""},
		{"http_requests_total", map[string]string{"code": "200"}, 2527, ""},
		{"http_requests_total", map[string]string{"code": "404", "handler": "/"}, 3, ""},
		{"http_requests_total", map[string]string{"handler": "/a b{c}"}, 1027, ""},
		{"http_requests_total", map[string]string{"handler": "quote \" and \\ and \n"}, 1500, ""},
		{"http_requests_total", map[string]string{"code": "500"}, 0, "series not found"},
		{"http_requests_total", map[string]string{"method": "GET"}, 0, "series not found"},
		{"http_requests", nil, 7, ""},
		{"rpc_seconds_count", nil, 6, ""},
		{"rpc_seconds", nil, 0, "series not found"},
		{"untold", nil, 42, ""},
		{"go_goroutines", nil, 0, "is a gauge"},
		{"broken", nil, 0, "text format parsing error"},
		{"not_a_number", nil, 0, "not a count"},
		{"infinite", nil, 0, "not a count"},
		{"negative", nil, 0, "not a count"},
		{"empty", nil, 0, "series not found"},
		{"absent", nil, 0, "series not found"},
	} {
		got, err := sumSeries(strings.NewReader(exposition), c.metric, c.labels)
		switch {
		case c.err == "" && (err != nil || got != c.want):
			t.Errorf("%s%v: %v, %v; want %v", c.metric, c.labels, got, err, c.want)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s%v: %v, %v; want %q", c.metric, c.labels, got, err, c.err)
		}
	}
	// No newline at the end, no space, and the name in braces as Prometheus 3 has it.
	for _, text := range []string{"m 1", "m+1\n", "m_2 3\nm{} 1\nm:2 3\nm2 3", "{\"m\"} 1\n{\"n.o\",m=\"m\"} 3\n", "#TYPE m2 gauge\nm2 3\nm 1"} {
		if got, err := sumSeries(strings.NewReader(text), "m", nil); err != nil || got != 1 {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

// A gauge is none in each way to write it.
func TestSumSeriesOfAGauge(t *testing.T) {
	for _, text := range []string{"# TYPE m gauge\nm 1\n", "#TYPE m gauge\nm 1\n", "#\tTYPE \"m\"  gauge\n{\"m\"} 1\n", "# TYPE m GAUGE\nm 1\n"} {
		if got, err := sumSeries(strings.NewReader(text), "m", nil); err == nil || !strings.Contains(err.Error(), "is a gauge") {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

// An answer costs the agent no more than the bounds, wherever it exceeds them.
func TestSumSeriesIsBounded(t *testing.T) {
	long := strings.Repeat("x", 2*maxLine)
	for _, c := range []struct {
		name, text string
		want       float64
		err        string
	}{
		{"long line of another metric", "other{a=\"" + long + "\"} 1\nm 2\n", 2, ""},
		{"long comment", "# HELP m " + long + "\nm 2\n", 2, ""},
		{"long line", "m{a=\"" + long + "\"} 1\nm 2\n", 0, "a line longer than"},
		{"many series", strings.Repeat("m 1\n", maxSeriesText/4+1), 0, "bytes of series m"},
		{"long answer", strings.Repeat(strings.Repeat("y", 1023)+"\n", maxExposition>>10) + "m 1\n", 0, "more than 16777216 bytes"},
		{"one endless line", strings.Repeat("y", maxExposition+maxLine), 0, "more than 16777216 bytes"},
	} {
		got, err := sumSeries(strings.NewReader(c.text), "m", nil)
		if c.err == "" && (err != nil || got != c.want) || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v, %v; want %v %q", c.name, got, err, c.want, c.err)
		}
	}
}

// FuzzSumSeries compares the line filter with the parser on the whole text: if the
// parser accepts the text, both find the same sum.
func FuzzSumSeries(f *testing.F) {
	for _, metric := range []string{"http_requests_total", "go_goroutines", "rpc_seconds_count", "untold", "negative"} {
		f.Add(exposition, metric)
	}
	f.Add("m{a=\"b\"} 1\nm{a=\"c\",} 2 3\n#\n# TYPE m\n\n\tm 3", "m")
	f.Add("# TYPE m counter\nm 1\n# TYPE m gauge\n", "m")
	f.Add("m\x00 1\r\nm 2\r\n", "m")
	f.Fuzz(func(t *testing.T, text, metric string) {
		if !model.LegacyValidation.IsValidMetricName(metric) {
			return // the configuration refuses it
		}
		got, err := sumSeries(strings.NewReader(text), metric, nil)
		if err == nil && (math.IsNaN(got) || got < 0) {
			t.Fatalf("counted %v", got)
		}
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, whole := parser.TextToMetricFamilies(strings.NewReader(text))
		for name, f := range families {
			if typ := f.GetType().String(); (strings.HasSuffix(typ, "HISTOGRAM") || typ == "SUMMARY") && strings.HasPrefix(metric, name) {
				return // which has the series with its suffixes
			}
		}
		family := families[metric]
		if typ := family.GetType().String(); whole != nil || typ != "COUNTER" && typ != "UNTYPED" {
			return
		}
		sum, n := 0.0, 0
		for _, m := range family.GetMetric() {
			v := m.GetUntyped().GetValue() + m.GetCounter().GetValue()
			if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
				return
			}
			sum, n = sum+v, n+1
		}
		switch {
		case n == 0 && err == nil:
			t.Errorf("counted %v, the parser has no series", got)
		case n > 0 && errors.Is(err, errNoSeries):
			t.Errorf("no series, the parser has %d", n)
		case n > 0 && err == nil && got != sum:
			t.Errorf("counted %v, the parser says %v", got, sum)
		}
	})
}
