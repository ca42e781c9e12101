package replay

import (
	"context"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/detect"
	"github.com/quell-dev/quell/internal/trace/recording"
)

var update = flag.Bool("update", false, "write golden files")

// corpusSpec is how many samples a job must have for a spec: a recording's
// first run, which has no antagonist, has about 50.
const corpusSpec = 40

// half says what a recording may be used for: to make rules better or to judge
// them (docs/studies/corpus.md).
func half(name string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte("corpus/" + name)) // never fails
	if h.Sum64()>>63 == 0 {
		return "tuning"
	}
	return "judging"
}

// tally is what became of some recordings.
type tally struct {
	outliers, anomalies     int
	precision, recall, top1 Share
}

func (t *tally) add(r *Result, s *Score) {
	t.precision, t.recall, t.top1 = t.precision.Plus(s.Precision), t.recall.Plus(s.Recall), t.top1.Plus(s.Top1)
	t.outliers, t.anomalies = t.outliers+r.Outliers, t.anomalies+r.Anomalies
}

func (t *tally) String() string {
	return fmt.Sprintf("%d outliers, %d anomalies, precision %s, recall %s, top-1 %s", t.outliers, t.anomalies, said(t.precision), said(t.recall), said(t.top1))
}

// What each rule makes of the recorded corpus (docs/studies/corpus.md): every
// accusation with whether it is right, every episode that was missed, and the
// sums. Nothing here says what it ought to be; a change is to be looked at.
func TestCorpus(t *testing.T) {
	files, err := filepath.Glob(traces + "corpus/*.csv.gz")
	if err != nil || len(files) == 0 {
		t.Fatalf("no corpus: %v", err)
	}
	var b strings.Builder
	for _, rule := range []detect.Rule{detect.Quell, detect.Evident, detect.CPI2} {
		var all tally
		halves := map[string]*tally{"tuning": {}, "judging": {}}
		for _, file := range files {
			o := byDefault(t, rule)
			o.Step(time.Second)
			o.Sampling, o.Spec.MinSamples = time.Second, corpusSpec
			name := strings.TrimSuffix(filepath.Base(file), ".csv.gz")
			r := corpus(t, file)
			result, err := Run(context.Background(), r, o, 1)
			if err != nil {
				t.Fatal(err)
			}
			labels, labelled := r.Labels()
			if report := r.Report(); report.Bad > 0 || result.Late > 0 || !labelled || result.Judged == 0 {
				t.Errorf("%s: %+v, %d late, labelled %t, %d samples judged", name, report, result.Late, labelled, result.Judged)
			}
			s := Judge(labels, r.Unlabelled(), result.Accusations)
			all.add(result, &s)
			halves[half(name)].add(result, &s)
			fmt.Fprintf(&b, "%s %s (%s): %d samples, %d outliers, %d anomalies, %d labels\n", rule, name, half(name),
				result.Judged, result.Outliers, result.Anomalies, len(labels))
			since := func(at int64) string {
				return (time.Duration(at-int64(result.From)) * time.Millisecond).Round(time.Second).String()
			}
			for _, a := range s.Verdicts {
				verdict := "right"
				if !a.Right {
					verdict = "WRONG"
				}
				fmt.Fprintf(&b, "  %s %s by %s accuses %s at %s (%.2f)\n", verdict, a.Victim, a.Signal, a.Suspect, since(int64(a.At)), a.Correlation)
			}
			for _, e := range s.Missed {
				fmt.Fprintf(&b, "  missed %s beside %s, %s to %s (%s)\n", e.Victim, e.Antagonists[0], since(int64(e.From)), since(int64(e.To)), strings.Join(e.Causes, ", "))
			}
		}
		for _, h := range []string{"tuning", "judging"} {
			fmt.Fprintf(&b, "%s, %s half: %s\n", rule, h, halves[h])
		}
		fmt.Fprintf(&b, "%s in all: %s\n\n", rule, &all)
	}
	golden := traces + "corpus/found.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), b.String()); d != "" {
		t.Errorf("%s (-update to accept, after a look at it):\n%s", golden, d)
	}
}

// corpus opens a trace, whose format is quell's own.
func corpus(t *testing.T, file string) *recording.Recording {
	t.Helper()
	r, err := recording.Open(file, recording.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func said(s Share) string { return fmt.Sprintf("%d of %d (%.2f to %.2f)", s.K, s.N, s.Low, s.High) }

// The corpus's labels are of tasks that are in it, and lie within it.
func TestCorpusLabels(t *testing.T) {
	files, err := filepath.Glob(traces + "corpus/*.csv.gz")
	if err != nil {
		t.Fatal(err)
	}
	hurt := 0
	for _, file := range files {
		r := corpus(t, file)
		seen := map[string]int{}
		type span struct{ from, to int64 }
		at := map[string]span{}
		for {
			some, err := r.Next()
			if err != nil {
				break
			}
			for _, s := range some {
				seen[string(s.Task)]++
				p, ok := at[string(s.Task)]
				if !ok {
					p.from = int64(s.TS)
				}
				p.to = int64(s.TS)
				at[string(s.Task)] = p
			}
		}
		labels, _ := r.Labels()
		for _, l := range labels {
			if err := l.Check(); err != nil {
				t.Errorf("%s: %v", file, err)
			}
			hurt++
			v, a := at[string(l.Victim)], at[string(l.Antagonist)]
			if int64(l.From) < v.from || int64(l.To) > v.to+1000 || int64(l.From) < a.from-2000 || int64(l.To) > a.to+2000 || l.Cause == "" {
				t.Errorf("%s: label %+v, victim seen in %+v, antagonist in %+v", file, l, v, a)
			}
		}
		if seen["(other)"] == 0 {
			t.Errorf("%s: it does not say what ran outside any task", file)
		}
	}
	if hurt == 0 {
		t.Error("nobody hurts anybody in the whole corpus")
	}
}
