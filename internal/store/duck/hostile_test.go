package duck

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/store"
)

// census says what is in a folder: names, sizes and times of change.
func census(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			b.WriteString(path + " " + info.ModTime().String() + " " + info.Mode().String() + "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestHostileStatements asks everything of testdata/hostile.txt: it is refused or
// bounded, gives nothing away and leaves nothing behind.
func TestHostileStatements(t *testing.T) {
	text, err := os.ReadFile("testdata/hostile.txt")
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, store.Options{Now: clock})
	b.add(t, &store.Batch{Source: store.Source{Stream: "samples", Machine: "m1"}, N: 1, Samples: []sample.Sample{one(0, "m1", "/a", 1, 2)}})
	out := t.TempDir()
	secret := filepath.Join(filepath.Dir(b.dir), "secret.txt")
	if err := os.WriteFile(secret, []byte("the secret is kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	job := b.job("")
	job.Limits = Limits{Time: time.Second, MemoryMB: 100, Threads: 1, Rows: 1000, Bytes: 1 << 20}
	job.Machines = []Machine{{Machine: "m1"}}
	fill := strings.NewReplacer("{SEG}", job.Files[store.Samples][1], "{STORE}", b.dir, "{SECRET}", secret, "{OUT}", out)
	before := census(t, b.dir) + census(t, out)
	n := 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		want, sql, ok := strings.Cut(line, " ")
		if line == "" || want == "#" {
			continue
		}
		if !ok || !slices.Contains([]string{"no", "big", "ok"}, want) {
			t.Fatalf("%q is no line of the list", line)
		}
		n++
		job.SQL = fill.Replace(sql)
		begun := time.Now()
		a, err := b.runner.Query(t.Context(), job)
		took := time.Since(begun)
		answer, bad := json.Marshal(a)
		if bad != nil {
			t.Fatal(bad)
		}
		var e *Error
		switch {
		case err != nil && !errors.As(err, &e):
			t.Errorf("%s: %v", sql, err)
		case want == "no" && (err == nil || e.Kind != Refused && e.Kind != Wrong):
			t.Errorf("%s: answered %.200s, %v", sql, answer, err)
		case want == "big" && (err == nil && !a.Truncated || err != nil && e.Kind != Exceeded && e.Kind != Wrong):
			t.Errorf("%s: answered %.200s, %v", sql, answer, err)
		case want == "ok" && err != nil && e.Kind == Broken:
			t.Errorf("%s: %v", sql, err)
		}
		if text := string(answer) + errorText(err); strings.Contains(text, "secret is kept") || strings.Contains(text, "root:x:0") {
			t.Errorf("%s gave it away: %.300s", sql, text)
		}
		if took > job.Limits.Time+grace+10*time.Second {
			t.Errorf("%s took %v", sql, took)
		}
		if e != nil && want == "big" {
			t.Logf("%-9s %6dms %.60s: %.100s", e.Kind, took.Milliseconds(), sql, e.Message)
		}
	}
	if n < 100 {
		t.Errorf("only %d statements", n)
	}
	if after := census(t, b.dir) + census(t, out); after != before {
		t.Errorf("something was written:\n%s\nbefore:\n%s", after, before)
	}
	t.Logf("%d hostile statements", n)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestTheOuterFencesHold takes DuckDB's own fence away: what is left must do.
func TestTheOuterFencesHold(t *testing.T) {
	b := newBench(t, store.Options{Now: clock})
	b.add(t, &store.Batch{Samples: []sample.Sample{one(0, "m1", "/a", 1, 2)}})
	a := b.ask(t, "SELECT 1")
	runner := NewRunner(1, os.Args[0], "query-child-unfenced", b.dir)
	seg := b.job("").Files[store.Samples][1]
	for _, sql := range []string{"COPY (SELECT * FROM range(100000)) TO '" + seg + "'", "COPY (SELECT 1) TO '" + b.dir + "/x.csv'"} {
		job := b.job(sql)
		if _, err := runner.Query(t.Context(), job); err == nil {
			t.Errorf("%s: it was written", sql)
		}
	}
	if got := rows(b.ask(t, "SELECT count(*) FROM samples")); got != "[1]" {
		t.Errorf("the segment holds %s now", got)
	}
	if !slices.Contains(a.Fences, "landlock") {
		t.Log("no Landlock here: reading files is left to DuckDB's fence")
		return
	}
	if _, err := runner.Query(t.Context(), b.job("SELECT * FROM read_text('/etc/passwd')")); err == nil {
		t.Error("/etc/passwd was read")
	}
}
