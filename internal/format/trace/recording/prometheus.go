package recording

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/core/sample"
)

// keplerCounter is the counter of a container that a metric of Kepler's stands for, and
// its unit.
type keplerCounter struct {
	set  func(*reading, float64)
	unit float64
}

// kepler are the metrics that make a sample. The metric that was named _us_ until
// February 2024 is in milliseconds: Kepler renamed it to _ms_ then (its commit
// 0278c389).
var kepler = map[string]keplerCounter{
	"kepler_container_cpu_cycles_total":       {func(r *reading, v float64) { r.cycles = v }, 1},
	"kepler_container_cpu_instructions_total": {func(r *reading, v float64) { r.instructions = v }, 1},
	"kepler_container_cache_miss_total":       {func(r *reading, v float64) { r.misses = v }, 1},
	"kepler_container_bpf_cpu_time_us_total":  {func(r *reading, v float64) { r.s = v }, 1e-3},
	"kepler_container_bpf_cpu_time_ms_total":  {func(r *reading, v float64) { r.s = v }, 1e-3},
}

// container identifies the task of a series. One container can have several series of a
// metric, one for each exporter that saw it.
type container struct{ node, exporter, namespace, pod, name, id string }

// prometheus reads the answer of Prometheus' HTTP API to a range query, or an object of
// such answers by metric, as Kepler's tests keep them. Series follow each other in the
// file, so the needed ones are held in memory.
type prometheus struct {
	buffered
	tasks map[container]map[sample.Millis]reading
}

func newPrometheus(r io.Reader) (Reader, error) {
	p := &prometheus{tasks: map[container]map[sample.Millis]reading{}}
	d := json.NewDecoder(r)
	d.UseNumber()
	err := p.value(d, 0)
	for err == nil && d.More() { // the answers to several queries, joined
		err = p.value(d, 0)
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	} else if err == nil {
		if _, err = d.Token(); err == io.EOF {
			err = nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read Prometheus JSON: %w", err)
	}
	if len(p.tasks) == 0 {
		return nil, errors.New("read Prometheus JSON: no series of Kepler's cycles, instructions and CPU time of containers")
	}
	p.assemble()
	if len(p.samples) == 0 {
		why := append([]string{"no container has cycles, instructions and CPU time together at two times"}, p.Found.Reasons...)
		return nil, fmt.Errorf("read Prometheus JSON: %s", strings.Join(why, "; "))
	}
	return &p.buffered, nil
}

// maxDepth bounds the nesting of the JSON.
const maxDepth = 20

// value reads the next value and stores every series in it: an object with "metric" and
// "values".
func (p *prometheus) value(d *json.Decoder, depth int) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	if depth > maxDepth {
		return errors.New("nested too deeply")
	}
	switch t {
	case json.Delim('['):
		for d.More() {
			if err := p.value(d, depth+1); err != nil {
				return err
			}
		}
		_, err = d.Token()
	case json.Delim('{'):
		err = p.object(d, depth)
	}
	return err
}

func (p *prometheus) object(d *json.Decoder, depth int) error {
	var metric map[string]string
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		switch _, wanted := kepler[metric["__name__"]]; {
		case key == "metric":
			var labels json.RawMessage
			if err := d.Decode(&labels); err != nil {
				return err
			}
			if json.Unmarshal(labels, &metric) != nil {
				p.Found.Skip(1, "metric labels are not strings")
			}
		case key == "values" && wanted:
			var points [][]json.RawMessage
			if err := d.Decode(&points); err != nil {
				return err
			}
			p.series(metric, points)
		case key == "values" && metric != nil: // without a look at each number
			var skipped json.RawMessage
			if err := d.Decode(&skipped); err != nil {
				return err
			}
		default:
			if err := p.value(d, depth+1); err != nil {
				return err
			}
		}
	}
	_, err := d.Token()
	return err
}

func (p *prometheus) series(metric map[string]string, points [][]json.RawMessage) {
	counter := kepler[metric["__name__"]]
	c := container{metric["instance"], metric["pod"], metric["container_namespace"], metric["pod_name"], metric["container_name"], metric["container_id"]}
	readings := p.tasks[c]
	if readings == nil {
		readings = map[sample.Millis]reading{}
		p.tasks[c] = readings
	}
	for _, point := range points {
		at, v, err := parsePoint(point)
		if err != nil {
			p.Found.Skip(1, "%s of %s: %v", metric["__name__"], c.id, err)
			continue
		}
		r, ok := readings[at]
		if !ok {
			nan := math.NaN()
			r = reading{at: at, cycles: nan, instructions: nan, s: nan, misses: nan}
		}
		counter.set(&r, v*counter.unit)
		readings[at] = r
	}
}

var errPoint = errors.New("point is not [seconds, \"value\"]")

// textOf reads a string, which is a number almost always: without escapes.
func textOf(raw json.RawMessage) (text string, err error) {
	if n := len(raw); n > 2 && raw[0] == '"' && bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : n-1]), nil
	}
	err = json.Unmarshal(raw, &text)
	return text, err
}

// parsePoint reads [seconds, "value"].
func parsePoint(point []json.RawMessage) (sample.Millis, float64, error) {
	if len(point) != 2 {
		return 0, 0, errPoint
	}
	text, err := textOf(point[1])
	if err != nil {
		return 0, 0, errPoint
	}
	at, err := strconv.ParseFloat(string(point[0]), 64)
	if err != nil || math.Abs(at) > 1e12 {
		return 0, 0, fmt.Errorf("invalid time %s", point[0])
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(v, 0) {
		return 0, 0, fmt.Errorf("invalid value %q", text)
	}
	return sample.Millis(math.Round(at * 1000)), v, nil
}

// assemble makes samples of the readings that are complete.
func (p *prometheus) assemble() {
	all := make([]container, 0, len(p.tasks))
	for c := range p.tasks {
		all = append(all, c)
	}
	// If several exporters saw a container, samples of one come first each time: a replay takes those.
	slices.SortFunc(all, func(a, b container) int { return cmp.Compare(a.exporter, b.exporter) })
	for _, c := range all {
		var readings []reading
		for _, r := range p.tasks[c] {
			if !math.IsNaN(r.s) && !math.IsNaN(r.cycles) && !math.IsNaN(r.instructions) {
				readings = append(readings, r)
			}
		}
		slices.SortFunc(readings, func(a, b reading) int { return int(a.at - b.at) })
		id := c.id[:min(len(c.id), 12)]
		s := sample.Sample{Machine: c.node, Signal: sample.CPI, Variant: "kepler", Job: sample.JobName(c.namespace + "/" + c.name),
			Task: sample.TaskName("/" + c.namespace + "/" + c.pod + "/" + c.name + "/" + id)}
		for i := 1; i < len(readings); i++ {
			if readings[i].since(readings[i-1], &s) {
				p.add(&s)
			}
		}
	}
	p.tasks = nil
	p.sort()
}
