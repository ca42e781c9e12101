package agent

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/machine/counter"
)

// A reading of another variant than the source's own has that variant in its sample and
// its own spec.
func TestReadingsOfAnotherVariant(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.add("/batch/job-1", 1).cost = func() float64 { return 1 }
		r.add("/batch/job-2", 1).cost = func() float64 { return 100 }
		r.source.change = func(path string, read *counter.Reading) {
			if path == "/batch/job-2" {
				read.Variant = "otherwise"
			}
		}
		r.start()
		defer r.stop()
		r.pass(15 * time.Minute)
		variants := map[string]float32{}
		for _, s := range r.samples {
			if was, ok := variants[s.Variant]; ok && was != s.Cost {
				t.Errorf("variant %s is of costs %v and %v", s.Variant, was, s.Cost)
			}
			variants[s.Variant] = s.Cost
		}
		if len(variants) != 2 || variants["by-heart"] != 1 || variants["otherwise"] != 100 {
			t.Errorf("variants %v", variants)
		}
		// Both are tasks of one job: mixed, its mean would be 50.
		for path, want := range map[string]float64{"/batch/job-1": 1, "/batch/job-2": 100} {
			if s := r.task(path).Costs[0].Spec; s.Mean != want {
				t.Errorf("%s is judged by %+v, want a mean of %v", path, s, want)
			}
		}
	})
}

// A signal whose events get counters for no task is a degradation; that one task of two missed
// its turn is not.
func TestNoTaskHasCounters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		for _, path := range []string{"/batch/job-1", "/batch/job-2"} {
			r.add(path, 1).cost = func() float64 { return 1 }
		}
		without := map[string]bool{}
		r.source.change = func(path string, read *counter.Reading) {
			if without[path] {
				read.Cost, read.Coverage, read.Err = math.NaN(), 0, counter.ErrNoCounters
			}
		}
		r.start()
		defer r.stop()
		for _, step := range []struct{ first, second, degraded bool }{
			{false, false, false},
			{true, false, false},
			{true, true, true},
			{false, true, false},
		} {
			without["/batch/job-1"], without["/batch/job-2"] = step.first, step.second
			r.pass(2 * time.Minute)
			got := strings.Join(r.status().Degraded, "\n")
			if strings.Contains(got, "reading tasks for cpi: "+counter.ErrNoCounters.Error()) != step.degraded || !step.degraded && got != "" {
				t.Errorf("%+v: degraded %q", step, got)
			}
		}
	})
}

// A task's note says why it was not counted, until it is again; a uprobe that was
// removed degrades the agent.
func TestWhyAReadingIsMissing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.add("/batch/job-1", 1).cost = func() float64 { return 1 }
		var why error
		r.source.change = func(_ string, read *counter.Reading) {
			if read.Err = why; why != nil {
				read.Cost = math.NaN()
			}
		}
		r.start()
		defer r.stop()
		for _, step := range []struct {
			why            error
			note, degraded string
		}{
			{nil, "", ""},
			{errors.New("series not found"), "cpi: series not found", ""},
			{&counter.RateError{Place: "/bin/x:f", Rate: 9e5, Max: 2000, Rest: 4}, "cpi: uprobe /bin/x:f", "uprobes for cpi: uprobe /bin/x:f: 900000 hits"},
			{nil, "", ""},
		} {
			why = step.why
			r.pass(2 * time.Minute)
			note, degraded := r.task("/batch/job-1").Note, strings.Join(r.status().Degraded, "\n")
			if !strings.HasPrefix(note, step.note) || step.note == "" && note != "" {
				t.Errorf("%v: note %q, want %q", why, note, step.note)
			}
			if !strings.Contains(degraded, step.degraded) || step.degraded == "" && degraded != "" {
				t.Errorf("%v: degraded %q, want %q", why, degraded, step.degraded)
			}
		}
	})
}
