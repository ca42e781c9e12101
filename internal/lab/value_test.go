package lab

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/lab/study"
)

// The values that a workload reports are in its part's Values, the last one of each
// name. What is not a number is not stored.
func TestValues(t *testing.T) {
	copy, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer copy.Close()
	out := &output{copy: copy}
	w := &role.LineWriter{Line: out.line}
	text := role.ValueLine + "http.rate 1e3\n" + role.ValueLine + "http.rate 12.5\nother words\n" + role.ValueLine + "x NaN\n" + role.ValueLine + "y\n" + role.ValueLine + role.SaturatedValue + " 1\n"
	for i := 0; i < len(text); i += 7 { // arrives in pieces
		if _, err := w.Write([]byte(text[i:min(i+7, len(text))])); err != nil {
			t.Fatal(err)
		}
	}
	if want := map[string]float64{"http.rate": 12.5, role.SaturatedValue: 1}; !maps.Equal(out.values, want) {
		t.Errorf("%v, want %v", out.values, want)
	}
	if out.tail.String() != "other words\n" {
		t.Errorf("the rest is %q", out.tail.String())
	}
}

// A measured part whose command fails after its iterations, e.g. because the server is still
// busy with the last one, has done its work.
func TestFailureAfterTheIterations(t *testing.T) {
	for done, want := range map[int]int{0: 1, 1: 0} {
		a := &partRun{part: &study.Part{Measure: true, Workload: study.Workload{Iterations: 1}}, process: &fakeProcess{err: errors.New("exit status 1")},
			out: &output{iterations: make([]iteration, done)}}
		s := &execution{run: &result.Run{}}
		if err := s.handleExit(t.Context(), a); err != nil || len(s.run.Evidence) != want || (a.died != nil) != (want > 0) {
			t.Errorf("after %d iterations: %v, %+v, died of %v", done, err, s.run.Evidence, a.died)
		}
	}
}

// The lab waits until a measured client has printed its summary. It waits neither for
// other parts nor for a client that has ended.
func TestLastAnswersAreWaitedFor(t *testing.T) {
	client := func(measure bool) *partRun {
		return &partRun{part: &study.Part{Measure: measure, Workload: study.Workload{Builtin: study.HTTPClient}}, process: &fakeProcess{}, out: &output{}}
	}
	a := client(true)
	s := &execution{actors: []*partRun{a, client(false), {part: &study.Part{Measure: true, Workload: study.Workload{Builtin: "burn"}}, process: &fakeProcess{}, out: &output{}},
		{part: &study.Part{Measure: true, Idle: true, Workload: study.Workload{Builtin: study.HTTPClient}}}}}
	if s.concluded() {
		t.Error("a client that has said nothing is done")
	}
	a.out.value("http.latency 0.1")
	if !s.concluded() {
		t.Error("what it said is not seen")
	}
	b := client(true)
	if s.actors = append(s.actors, b); s.concluded() {
		t.Error("a second one is not waited for")
	}
	if b.ended = time.Now(); !s.concluded() {
		t.Error("one that has ended is waited for")
	}
}
