package logbook

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
)

func slurp(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The content of the log while it is rotated, truncated and continued.
func TestIncidentLog(t *testing.T) {
	dir := t.TempDir()
	l := RotatingFile{Path: filepath.Join(dir, Name), Max: 2000, Keep: 3}
	inc := func(id string, updated int) *incident.Record {
		return &incident.Record{Incident: plan.Incident{ID: id, Opened: 1, Updated: sample.Millis(updated), Analysis: plan.Analysis{Reason: strings.Repeat("x", 100)}}}
	}
	ids := func() (all []string) {
		t.Helper()
		list, err := Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range list {
			all = append(all, fmt.Sprint(i.ID, "@", i.Updated))
		}
		return all
	}
	write := func(i *incident.Record) {
		t.Helper()
		if err := l.Write(i); err != nil {
			t.Fatal(err)
		}
	}
	write(inc("a", 1))
	for n := range 20 { // rotates every few lines
		write(inc("b", n))
	}
	if got := strings.Join(ids(), " "); got != "b@19" && got != "a@1 b@19" {
		t.Errorf("incidents %s", got)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 4 {
		t.Errorf("files %q, want the log and the 3 that are kept", files)
	}
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil || info.Size() > 2000 || info.Size() == 0 {
			t.Errorf("%s has %d bytes, %v", f, info.Size(), err)
		}
		if text := slurp(t, dir, filepath.Base(f)); !strings.HasSuffix(text, "\n") {
			t.Errorf("%s does not end with a line", f)
		}
	}
	// A crash truncates the last line: the next line is separate.
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(l.Path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString(`{"id":"torn","upd`)
	f.Close()
	write(inc("c", 1))
	l.Close()
	if got := strings.Join(ids(), " "); !strings.HasSuffix(got, "c@1") || strings.Contains(got, "torn") {
		t.Errorf("after the torn line: %s", got)
	}
	// A write that fails, here to a closed file, loses only its own line.
	write(inc("d", 1))
	l.f.Close()
	if err := l.Write(inc("e", 1)); err == nil {
		t.Error("writing to a closed file worked")
	}
	write(inc("f", 1))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(ids(), " "); !strings.HasSuffix(got, "d@1 f@1") {
		t.Errorf("after the failed write: %s", got)
	}
	if bytes.Contains([]byte(slurp(t, dir, Name)), []byte("\n\n")) {
		t.Error("an empty line")
	}
}

// A line longer than the limit gets its own file, and nothing is lost.
func TestLogLineOverTheLimit(t *testing.T) {
	dir := t.TempDir()
	l := RotatingFile{Path: filepath.Join(dir, "log"), Max: 10, Keep: 5}
	for _, s := range []string{"short", strings.Repeat("long", 10), "end"} {
		if err := l.Write(s); err != nil {
			t.Fatal(err)
		}
	}
	l.Close()
	if got := slurp(t, dir, "log.2") + slurp(t, dir, "log.1") + slurp(t, dir, "log"); strings.Count(got, "\n") != 3 ||
		!strings.HasPrefix(got, `"short"`) || !strings.HasSuffix(got, "\"end\"\n") {
		t.Errorf("logs %q", got)
	}
}
