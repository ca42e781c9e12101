package main

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/core/detect"
)

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
