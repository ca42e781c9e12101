package record

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// recorded is a folder with runs whose agents took a sample of each part every second,
// from 5 s before the window to 5 s after it.
func recorded(t *testing.T, runs []*result.Run, caches []string) (*result.Folder, *study.Study) {
	t.Helper()
	f, err := result.Create(filepath.Join(t.TempDir(), "r"), result.Lock{Study: "corpus", Hash: "x"})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range runs {
		a, err := f.Begin(r.CellKey, r.N, r.Try)
		if err != nil {
			t.Fatal(err)
		}
		var text bytes.Buffer
		w := trace.NewWriter(&text)
		for s := -5; s <= 45; s++ {
			at := sample.At(r.Start.Add(time.Duration(s) * time.Second))
			for _, job := range []string{"victim", "antagonist", "bystander/0", "bystander/1", "(other)", "stranger"} {
				if len(r.Steps) == 0 && job == "antagonist" {
					continue
				}
				one := sample.Sample{TS: at, Machine: "here", Job: sample.JobName(job), Task: sample.TaskName("/quell-lab-1/e" + fmt.Sprint(i) + "." + strings.ReplaceAll(job, "/", ".")),
					Platform: "p", Signal: sample.RunQ, Class: sample.LatencySensitive, CPU: 0.5, Cost: 1, Coverage: 1}
				if err := w.Write(&one); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{TraceFile: text.String(), CachesFile: caches[i]} {
			if text == "" {
				continue
			}
			if err := os.WriteFile(filepath.Join(a.Dir(), name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.Finish(r); err != nil {
			t.Fatal(err)
		}
	}
	return f, &study.Study{Name: "corpus", Observe: study.Observe{Agent: &study.Recording{Period: time.Second}}}
}

func TestTraces(t *testing.T) {
	free := [4]float64{0.03, 0.9, 0.9, 0.03}
	later := func(r *result.Run, n int) *result.Run {
		r.N, r.Start = n, r.Start.Add(time.Duration(n)*time.Minute)
		return r
	}
	alone := staircase([4]time.Duration{1e8, 1e8, 1e8, 1e8}, free)
	alone.Steps, alone.Cell.Parts = nil, append(alone.Cell.Parts[:1:1], alone.Cell.Parts[2:]...)
	invalid := later(staircase([4]time.Duration{1e8, 2e8, 2e8, 1e8}, free), 4)
	invalid.Verdict = result.Invalid
	runs := []*result.Run{
		later(staircase([4]time.Duration{1e8, 2e8, 2e8, 1e8}, free), 1), // hurt; began after the next one
		alone,
		later(staircase([4]time.Duration{1e8, 1e8, 1e8, 1e8}, free), 2),     // spared
		later(staircase([4]time.Duration{1e8, 1.1e8, 1.1e8, 1e8}, free), 3), // unclear
		invalid,
	}
	f, s := recorded(t, runs, []string{`[{"0-1": 90}, {"0-1": 380}]`, "", `[{"0-1": 90}, {"0-1": 100}]`, "", ""})
	all, err := f.Runs()
	if err != nil {
		t.Fatal(err)
	}
	traces, err := Traces(f, s, all)
	if err != nil || len(traces) != 1 || traces[0].Name != "a" {
		t.Fatalf("%+v, %v", traces, err)
	}
	tr := traces[0]
	if len(tr.Runs) != 4 || tr.Runs[0].Cell != alone.Cell.String() || tr.Runs[3].LeftOut == "" || tr.Runs[1].Caches != "CPUs 0-1: 90 ns before, 380 ns after" || tr.Runs[2].Caches != "" {
		t.Errorf("%+v", tr.Runs)
	}
	// From each window of 40 s the 40 intervals within it; none of the stranger, none of
	// the unclear run.
	if want := 40 * (4 + 5 + 5); len(tr.Samples) != want {
		t.Errorf("%d samples, want %d", len(tr.Samples), want)
	}
	tasks := map[sample.TaskName]sample.JobName{}
	for i, one := range tr.Samples {
		tasks[one.Task] = one.Job
		if i > 0 && one.TS < tr.Samples[i-1].TS {
			t.Fatalf("sample %d is before the one before it", i)
		}
	}
	want := map[sample.TaskName]sample.JobName{"/corpus/victim-a": "a", "/corpus/antagonist-b": "b", "/corpus/bystander-0-light": "light", "/corpus/bystander-1-light": "light", "(other)": "(other)"}
	if fmt.Sprint(tasks) != fmt.Sprint(want) {
		t.Errorf("%v", tasks)
	}
	start := runs[0].Start
	label := trace.Label{Machine: "corpus", Victim: "/corpus/victim-a", Antagonist: "/corpus/antagonist-b", Cause: "cache",
		From: sample.At(start.Add(10 * time.Second)), To: sample.At(start.Add(30 * time.Second))}
	if len(tr.Labels) != 1 || tr.Labels[0] != label {
		t.Errorf("%+v", tr.Labels)
	}
	// The written trace reads back with its labels.
	var text bytes.Buffer
	if err := tr.Write(&text); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"# cache sharing changed in main pair=a-b: CPUs 0-1: 90 ns before, 380 ns after", "# left out main pair=a-b: unclear: a slowdown of 10 %"} {
		if !strings.Contains(text.String(), line) {
			t.Errorf("no line %q", line)
		}
	}
	in, err := trace.NewReader(&text)
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for {
		var one sample.Sample
		err := in.Read(&one)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		rows++
	}
	if labels, labelled := in.Labels(); rows != len(tr.Samples) || !labelled || len(labels) != 1 || in.Report().Bad > 0 {
		t.Errorf("%d rows, %v, %+v", rows, labels, in.Report())
	}
}

// A damaged trace is an error: labels must not refer to missing samples.
func TestDamagedRecording(t *testing.T) {
	r := staircase([4]time.Duration{1e8, 2e8, 2e8, 1e8}, [4]float64{0.03, 0.9, 0.9, 0.03})
	f, s := recorded(t, []*result.Run{r}, []string{""})
	name := f.RunPath(r, TraceFile)
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, text[:len(text)-20], 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Traces(f, s, []result.Run{*r}); err == nil || !strings.Contains(err.Error(), "1 bad rows") {
		t.Errorf("%v", err)
	}
	// Without a trace file the run was not recorded.
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if all, err := Traces(f, s, []result.Run{*r}); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestAttackATraceElsewhere: a pack of a stranger's names a workload like a file outside of the folder of traces.
func TestAttackATraceElsewhere(t *testing.T) {
	r := staircase([4]time.Duration{1e8, 2e8, 2e8, 1e8}, [4]float64{0.03, 0.9, 0.9, 0.03})
	r.Cell.Parts[0].Workload.Name = "../../x"
	f, s := recorded(t, []*result.Run{r}, []string{""})
	if all, err := Traces(f, s, []result.Run{*r}); err == nil || !strings.Contains(err.Error(), `"../../x"`) {
		t.Errorf("%d traces, %v", len(all), err)
	}
}
