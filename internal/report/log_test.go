package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/plan"
	"github.com/quell-dev/quell/internal/sample"
)

// lines makes a file of the log; an Incident is written in full, a string as
// it is.
func lines(t *testing.T, all ...any) string {
	t.Helper()
	var b strings.Builder
	for _, l := range all {
		switch l := l.(type) {
		case string:
			b.WriteString(l)
		case plan.Incident:
			text, err := json.Marshal(l)
			if err != nil {
				t.Fatal(err)
			}
			b.Write(text)
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func incident(id string, opened sample.Millis, reason string) plan.Incident {
	return plan.Incident{ID: id, Opened: opened, Reason: reason}
}

func TestLoadIncidents(t *testing.T) {
	for _, c := range []struct {
		name    string
		files   map[string]string
		want    string // ID:reason of each
		skipped int
	}{
		{"nothing yet", map[string]string{"specs.json": "{}"}, "", 0},
		{"the last line counts", map[string]string{
			LogName: lines(t, incident("a", 1, "first"), incident("b", 2, "only"), incident("a", 1, "second"))}, "a:second b:only", 0},
		{"rotated ones are older", map[string]string{
			LogName:         lines(t, incident("c", 3, "new")),
			LogName + ".1":  lines(t, incident("c", 3, "old"), incident("b", 2, "new")),
			LogName + ".2":  lines(t, incident("b", 2, "old"), incident("a", 1, "old")),
			LogName + ".10": lines(t, incident("a", 1, "oldest"), incident("z", 0, "oldest"))}, "z:oldest a:old b:new c:new", 0},
		{"a torn last line", map[string]string{
			LogName: lines(t, incident("a", 1, "whole"), incident("b", 2, "whole"), `{"id":"a","reas`)}, "a:whole b:whole", 1},
		{"torn in the middle by a crash, then written on", map[string]string{
			LogName: lines(t, incident("a", 1, "whole"), `{"id":"b"`, "\n", incident("c", 3, "whole"))}, "a:whole c:whole", 1},
		{"a whole last line without its end", map[string]string{
			LogName: strings.TrimSpace(lines(t, incident("a", 1, "whole")))}, "a:whole", 0},
		{"not incidents", map[string]string{LogName: "\n\nnull\n{}\n[1]\n7\n"}, "", 4},
		{"other names are other files", map[string]string{
			LogName + ".0": lines(t, incident("a", 1, "")), LogName + ".x": lines(t, incident("a", 1, "")),
			"old-" + LogName: lines(t, incident("a", 1, ""))}, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range c.files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			list, skipped, err := LoadIncidents(dir)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, inc := range list {
				got = append(got, inc.ID+":"+inc.Reason)
			}
			if s := strings.Join(got, " "); s != c.want || skipped != c.skipped {
				t.Errorf("got %q and %d skipped, want %q and %d", s, skipped, c.want, c.skipped)
			}
		})
	}
}

func TestLoadIncidentsGivesBackWhatWasWritten(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, LogName), []byte(lines(t, quieted(), queued())), 0o600); err != nil {
		t.Fatal(err)
	}
	list, _, err := LoadIncidents(dir)
	if err != nil || len(list) != 2 {
		t.Fatalf("%d incidents, %v", len(list), err)
	}
	var want, got bytes.Buffer
	if err := errors.Join(Incident(&want, quieted(), Style{}), Incident(&got, list[1], Style{})); err != nil {
		t.Fatal(err)
	}
	if want.String() != got.String() {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want.String())
	}
}

func TestLoadIncidentsFails(t *testing.T) {
	if _, _, err := LoadIncidents(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing directory: %v", err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, LogName), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := LoadIncidents(dir); err == nil || !strings.Contains(err.Error(), LogName) {
		t.Errorf("a log that cannot be read: %v", err)
	}
}

func FuzzReadIncidents(f *testing.F) {
	for _, inc := range []plan.Incident{quieted(), queued(), throttled()} {
		text, err := json.Marshal(inc)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(text, '\n'))
	}
	f.Add([]byte(`{"id":"a","opened":1,"times":[5,3],"victim_cost":[1e308,null,2],"rounds":[null],"antagonists":-3,"suspects":[{}]}`))
	f.Add([]byte(`{"id":"a","times":[1,9000000000],"victim_cost":[1],"threshold":-1,"suspect_usage":[{"task":"\u001b[2J","usage":[1]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		found, skipped, err := readIncidents(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(text, []byte("\n")) + 1; len(found)+skipped > n {
			t.Errorf("%d incidents and %d skipped of %d lines", len(found), skipped, n)
		}
		for id, inc := range found {
			if id != inc.ID || id == "" {
				t.Errorf("%q is kept as %q", inc.ID, id)
			}
			var b bytes.Buffer
			for _, s := range []Style{{}, {Width: 80, ASCII: true}, {Width: 20, Color: true}} {
				if err := errors.Join(Incident(&b, inc, s), Incidents(io.Discard, []plan.Incident{inc}, s)); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
