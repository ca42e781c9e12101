package main

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// Each file holds go test -json events in "events" and the expected output in
// "want"; its comment ends in "verdict: ok" or "verdict: bad".
func TestTally(t *testing.T) {
	fixtures, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(fixtures) == 0 {
		t.Fatalf("fixtures %v, %v", fixtures, err)
	}
	for _, path := range fixtures {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			files := map[string]string{}
			for _, f := range a.Files {
				files[f.Name] = string(f.Data)
			}
			var out strings.Builder
			y := newTally(&out)
			if err := y.read(strings.NewReader(files["events"])); err != nil {
				t.Fatal(err)
			}
			ok := y.summary()
			if got := out.String(); got != files["want"] {
				t.Errorf("got:\n%s\nwant:\n%s", got, files["want"])
			}
			verdict := "verdict: bad"
			if ok {
				verdict = "verdict: ok"
			}
			if !strings.HasSuffix(strings.TrimSpace(string(a.Comment)), verdict) {
				t.Errorf("%s, but the fixture says: %s", verdict, a.Comment)
			}
		})
	}
}
