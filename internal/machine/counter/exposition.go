package counter

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// The bounds on what one answer may make the agent read and keep.
const (
	maxExposition = 16 << 20 // bytes of an answer
	maxSeriesText = 1 << 20  // of these, bytes that are about the metric
	maxLine       = 64 << 10
)

var errNoSeries = errors.New("series not found")

// sumSeries adds up the series of a metric that have all the given labels, in
// Prometheus's text format 0.0.4. Lines about other metrics are skipped unparsed: there
// may be thousands. If there is no series the error is errNoSeries. A gauge, a negative
// and a non-finite number are errors, since they are not counts.
func sumSeries(r io.Reader, metric string, labels map[string]string) (float64, error) {
	text, err := linesAbout(r, metric)
	if err != nil {
		return 0, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation) // other names may stand in a line that is read
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return 0, err
	}
	sum, found := 0.0, false
	for _, m := range families[metric].GetMetric() {
		missing := len(labels)
		for _, l := range m.GetLabel() {
			if v, ok := labels[l.GetName()]; ok && v == l.GetValue() {
				missing--
			}
		}
		if missing > 0 {
			continue
		}
		v := m.GetUntyped().GetValue()
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return 0, fmt.Errorf("%s is %v, which is not a count", metric, v)
		}
		sum, found = sum+v, true
	}
	if !found {
		return 0, errNoSeries
	}
	return sum, nil
}

// linesAbout returns the sample lines of a metric. Its TYPE line is left out: the
// parser would look for the parts of a histogram under it, but for quell
// http_request_duration_seconds_count is a counter like any other.
func linesAbout(r io.Reader, metric string) ([]byte, error) {
	limited := io.LimitedReader{R: r, N: maxExposition + 1}
	in := bufio.NewReaderSize(&limited, maxLine)
	var text []byte
	for {
		line, err := in.ReadSlice('\n')
		long := errors.Is(err, bufio.ErrBufferFull)
		if err != nil && !long && !errors.Is(err, io.EOF) {
			return nil, err
		}
		trimmed := bytes.TrimLeft(line, " \t")
		switch {
		case isAbout(trimmed, metric):
			if text = append(append(text, bytes.TrimRight(line, "\n")...), '\n'); long || len(text) > maxSeriesText {
				return nil, fmt.Errorf("more than %d bytes of series %s, or a line longer than %d", maxSeriesText, metric, maxLine)
			}
		case isGauge(trimmed, metric):
			return nil, fmt.Errorf("%s is a gauge, want a counter", metric)
		}
		for long { // the rest of a long line
			_, err = in.ReadSlice('\n')
			long = errors.Is(err, bufio.ErrBufferFull)
		}
		if limited.N <= 0 {
			return nil, fmt.Errorf("more than %d bytes", maxExposition)
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				return text, nil
			}
			return nil, err
		}
	}
}

// isAbout reports whether a line can be a series of the metric: its name comes first, or within braces, {"m",a="b"} 1.
// The parser wants no space after it, as in m+1.
func isAbout(line []byte, metric string) bool {
	if bytes.HasPrefix(line, []byte("{")) {
		return bytes.Contains(line, []byte(metric))
	}
	rest, ok := bytes.CutPrefix(line, []byte(metric))
	return ok && len(rest) > 0 && !model.LegacyValidation.IsValidMetricName("m"+string(rest[:1]))
}

func isGauge(line []byte, metric string) bool {
	comment, ok := bytes.CutPrefix(line[:min(len(line), len(metric)+64)], []byte("#"))
	f := bytes.Fields(comment)
	return ok && len(f) == 3 && string(f[0]) == "TYPE" && string(bytes.Trim(f[1], `"`)) == metric && bytes.EqualFold(f[2], []byte("gauge"))
}
