package helper

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/host"
)

// eye is an observer that remembers what it is asked.
type eye struct {
	of     lab.Observed
	opened []bool
	closed int
}

func (e *eye) Second(now time.Time) (result.Sample, []result.Evidence) {
	return result.Sample{At: now.Sub(e.of.Start), Values: map[string]float64{"cpu.steal": 0.25}}, []result.Evidence{{Reason: result.Steal, Text: "stolen"}}
}

func (e *eye) Window(open bool) error {
	e.opened = append(e.opened, open)
	if len(e.opened) == 3 {
		return errors.New("a third window")
	}
	return nil
}

func (e *eye) Close(parts []result.Part) ([]result.Evidence, error) {
	e.closed++
	for i := range parts {
		parts[i].Events = map[string]float64{"cycles": 7}
		parts[i].Missing = map[string]string{"l2": "none"}
		parts[i].Audit = &result.Audit{Method: "poll", OnPlace: 1}
	}
	return []result.Evidence{{Reason: result.OOM}}, nil
}

func (e *eye) Energy(w result.Window) (float64, string) { return (w.To - w.From).Seconds() * 3, "RAPL" }

// A run is observed at the helper: samples are of the helper and on the run's clock, what is
// counted comes back into the parts, and the observation ends with the connection too.
func TestObserving(t *testing.T) {
	here, there := net.Pipe()
	e := &eye{}
	served := make(chan error, 1)
	go func() {
		served <- ServeEnvironment(t.Context(), there, &shelf{closed: make(chan struct{})}, func(o lab.Observed) (lab.Observer, error) {
			if e.of.Cell != nil && e.closed == 0 {
				return nil, errors.New("the observation before is still open")
			}
			e.of = o
			return e, nil
		})
	}()
	over := errors.New("it is over")
	c := Connect(here, here, ClientOptions{Lost: func(error, time.Duration) error { return over }})
	<-c.Hello()
	start := time.Now()
	o := lab.Observed{Cell: &study.Cell{For: time.Minute}, Names: []string{"fg"}, Envs: []lab.Environment{c.Environment()}, Sets: [][]sample.Set{{sample.SetOf(1, 2)}},
		Start: start, Want: study.Observe{Sets: []string{"cpu"}}, Run: study.Run{MaxSteal: 0.5}}
	w, err := c.Observe(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if e.of.Cell.For != time.Minute || len(e.of.Envs) != 1 || e.of.Sets[0][0].String() != "1-2" || e.of.Want.Sets[0] != "cpu" || e.of.Run.MaxSteal != 0.5 {
		t.Errorf("observed %+v", e.of)
	}
	offset, within, _ := w.(*observer).Clock()
	if away := e.of.Start.Sub(start).Abs(); away > time.Minute || offset.Abs() > within {
		t.Errorf("the run began %v away, the clock is %v ± %v behind", away, offset, within)
	}
	if h, err := host.Open("/"); err != nil {
		t.Error(err)
	} else if p, err := h.Platform(); err != nil || w.(*observer).Platform() != string(p) {
		t.Errorf("its CPUs are %q, want %q: %v", w.(*observer).Platform(), p, err)
	}
	if got := w.(*observer).Machine(); got != machine() {
		t.Errorf("its machine is %q, want %q", got, machine())
	}
	for s := (result.Sample{}); s.Values == nil; {
		var evidence []result.Evidence
		if s, evidence = w.Second(time.Now()); s.Values != nil && (s.At < time.Second || s.Values["cpu.steal"] != 0.25 || len(evidence) != 1) {
			t.Errorf("%+v, %+v", s, evidence)
		}
		if c.Reason() != nil {
			t.Fatal("lost")
		}
	}
	if err := errors.Join(w.Window(true), w.Window(false)); err != nil || !cmp.Equal(e.opened, []bool{true, false}) {
		t.Errorf("%v, %v", e.opened, err)
	}
	if err := w.Window(true); err == nil || err.Error() != "a third window" {
		t.Error(err)
	}
	parts := []result.Part{{Name: "fg", CPUTime: 3}}
	evidence, err := w.Close(parts)
	want := []result.Part{{Name: "fg", CPUTime: 3, Events: map[string]float64{"cycles": 7}, Missing: map[string]string{"l2": "none"}, Audit: &result.Audit{Method: "poll", OnPlace: 1}}}
	if d := cmp.Diff(want, parts); d != "" || err != nil || len(evidence) != 1 || evidence[0].Reason != result.OOM {
		t.Errorf("%v, %+v, %s", err, evidence, d)
	}
	if j, source := w.Energy(result.Window{From: time.Second, To: 3 * time.Second}); j != 6 || source != "RAPL" {
		t.Errorf("%v J by %q", j, source)
	}
	// A second run is observed too; its observation is not ended by the lab.
	o.Envs = []lab.Environment{&shelf{}}
	if _, err := c.Observe(t.Context(), o); err == nil {
		t.Error("it observes an environment that is not there")
	}
	o.Names, o.Envs, o.Sets = nil, nil, nil
	if _, err := c.Observe(t.Context(), o); err != nil {
		t.Error(err)
	}
	if err := here.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil || e.closed != 2 {
		t.Errorf("closed %d times, %v", e.closed, err)
	}
	if _, err := w.Close(nil); !errors.Is(err, over) {
		t.Errorf("after the end: %v", err)
	}
}
