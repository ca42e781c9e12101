package main

import (
	"bytes"
	"flag"
	"io"
	"math"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// An episode is found within as many intervals as the recording has since its beginning, whatever
// was judged of them.
func TestEveryIntervalCounts(t *testing.T) {
	at := []sample.Millis{1000, 2000, 2000, 3000, 4000}
	c := counted{&some{at: at}, ends{}}
	for {
		if _, err := c.Next(); err != nil {
			break
		}
	}
	if n := c.intervals.since(1000, 4000); n != 3 {
		t.Errorf("%d intervals from 1 s to 4 s, want 3", n)
	}
}

// some is a recording with samples that end at these times, without a cost.
type some struct{ at []sample.Millis }

func (s *some) Next() ([]sample.Sample, error) {
	if len(s.at) == 0 {
		return nil, io.EOF
	}
	next := sample.Sample{TS: s.at[0], Cost: float32(math.NaN())}
	s.at = s.at[1:]
	return []sample.Sample{next}, nil
}

var update = flag.Bool("update", false, "write the golden file")

// The default rule's results on the recorded corpus: how often it is right, and each
// mistake. Changes need a review.
func TestScore(t *testing.T) {
	const dir = "../../../../testdata/corpus"
	var b bytes.Buffer
	if err := printScore(&b, dir, "", []detect.Method{detect.EvidenceMethod}, true); err != nil {
		t.Fatal(err)
	}
	golden := dir + "/found.txt"
	if *update {
		if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
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
