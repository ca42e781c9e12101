package workload

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// Lines is the parser of a command that reports the times of its own iterations, in the
// format of RunKernel.
const Lines = "iterations"

// ParserNames are the names that MeanMetric accepts: Lines, the length of a run, and the tools
// whose figure no path and no regular expression finds. testdata/output has recordings.
func ParserNames() []string {
	return []string{Lines, "time", "sysbench", "stress-ng", "iperf3", "sockperf"}
}

// rateParsers are those whose figure is work per second.
var rateParsers = []string{"sysbench", "stress-ng", "iperf3"}

// parse reads the output of a tool by its name.
func parse(name, text string) (v float64, values map[string]float64, err error) {
	switch name {
	case "sysbench":
		v, err = sysbench(text) // events/s
	case "stress-ng":
		v, err = stressNG(text) // bogo operations/s
	case "iperf3":
		v, values, err = iperf3(text) // bits/s
	case "sockperf":
		v, values, err = sockperf(text) // s
	default:
		return 0, nil, fmt.Errorf("parse output: %q: want one of %s, json:PATH, or /a regular expression/", name, strings.Join(ParserNames(), ", "))
	}
	if err != nil {
		return 0, nil, fmt.Errorf("parse output of %s: %w", name, err)
	}
	return v, values, nil
}

// JSONPath begins a parser that reads a number of a tool's JSON by the names and indices on
// the way to it: "json:end.sum_received.bits_per_second", "json:jobs.0.read.iops".
const JSONPath = "json:"

// inJSON reads the first JSON object of an output; text may precede it.
func inJSON(path string, output []byte) (float64, error) {
	at := bytes.IndexByte(output, '{')
	if at < 0 {
		return 0, missing(0, "")
	}
	var v any
	if err := json.NewDecoder(bytes.NewReader(output[at:])).Decode(&v); err != nil {
		return 0, err
	}
	for name := range strings.SplitSeq(path, ".") {
		switch in := v.(type) {
		case map[string]any:
			v = in[name]
		case []any:
			n, err := strconv.Atoi(name)
			if err != nil || n < 0 || n >= len(in) {
				return 0, fmt.Errorf("no element %s of %d", name, len(in))
			}
			v = in[n]
		default:
			return 0, fmt.Errorf("nothing has a %q", name)
		}
	}
	n, ok := v.(float64)
	if !ok {
		return 0, fmt.Errorf("%v is not a number", v)
	}
	return n, nil
}

// ParseMetric reads a figure from a command's output by the tool's name, by a path in its
// JSON, or by a regular expression with one group between slashes, whose last match counts.
// Some tools report more, which is in values by the names of package role.
func ParseMetric(how string, output []byte) (v float64, values map[string]float64, err error) {
	if pattern, ok := strings.CutPrefix(how, "/"); ok {
		re, err := regexp.Compile(strings.TrimSuffix(pattern, "/"))
		if err != nil || re.NumSubexp() != 1 {
			return 0, nil, fmt.Errorf("parse output by %s: want a regular expression with one group", how)
		}
		all := re.FindAllSubmatch(output, -1)
		if len(all) == 0 {
			return 0, nil, fmt.Errorf("parse output: no match for %s", how)
		}
		v, err = number(string(all[len(all)-1][1]))
		return v, nil, err
	}
	if path, ok := strings.CutPrefix(how, JSONPath); ok {
		if v, err = inJSON(path, output); err != nil {
			return 0, nil, fmt.Errorf("parse output by %s: %w", how, err)
		}
		return v, nil, nil
	}
	return parse(how, string(bytes.ReplaceAll(output, []byte("\r"), []byte("\n"))))
}

func number(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, fmt.Errorf("%q is not a number", text)
	}
	return v, nil
}

func missing(n int, remedy string) error {
	if n == 0 {
		return errors.New("no result in the output: the tool did not finish, or its output format differs")
	}
	return fmt.Errorf("the output has %d results, want one: %s", n, remedy)
}

var (
	sysbenchRate   = regexp.MustCompile(`(?m)^\s+events per second:\s+([0-9.]+)\s*$`)
	sysbenchEvents = regexp.MustCompile(`(?m)^\s+total number of events:\s+([0-9]+)\s*$`)
	sysbenchTime   = regexp.MustCompile(`(?m)^\s+total time:\s+([0-9.]+)s\s*$`)
)

// sysbench reads sysbench 1.0: cpu prints its rate, the other tests events and time.
func sysbench(text string) (float64, error) {
	if m := sysbenchRate.FindAllStringSubmatch(text, -1); len(m) == 1 {
		return number(m[0][1])
	}
	events, time := sysbenchEvents.FindAllStringSubmatch(text, -1), sysbenchTime.FindAllStringSubmatch(text, -1)
	if len(events) != 1 || len(time) != 1 {
		return 0, missing(len(events), "run one test")
	}
	n, err := number(events[0][1])
	s, err2 := number(time[0][1])
	if err := errors.Join(err, err2); err != nil {
		return 0, err
	}
	if s == 0 {
		return 0, errors.New("the total time is 0")
	}
	return n / s, nil
}

// stressLine is the line per stressor of stress-ng --metrics: its name, bogo operations,
// real, user and system time, and the operations per second of real time.
var stressLine = regexp.MustCompile(`(?m)^stress-ng: (?:metrc|info): +\[[0-9]+\] ([a-z0-9-]+) +[0-9]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +([0-9.]+) +[0-9.]+`)

func stressNG(text string) (float64, error) {
	all := stressLine.FindAllStringSubmatch(text, -1)
	if len(all) != 1 {
		return 0, missing(len(all), "run one stressor, with --metrics")
	}
	return number(all[0][2])
}
