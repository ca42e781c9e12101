package enforce

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/core/sample"
)

// text returns a journal with one change closed and one open.
func text(t testing.TB) []byte {
	w := newWorld(map[string][]string{"/cg/a": {"x", "y"}, "/cg/bb": {"x"}})
	a, b := w.change("A", "/cg/a", "x", "y"), w.change("B", "/cg/bb", "x")
	b.Task, b.Why = "/batch/\"q\"\u2028<&>", "line\nbreak"
	var all []byte
	for _, r := range []record{
		{Kind: begin, Version: version},
		{Kind: intend, At: 1, Boot: "boot-1", Change: &a},
		{Kind: applied, At: 2, ID: "A"},
		{Kind: undone, At: 3, ID: "A", Result: "restored", Why: "lease over"},
		{Kind: intend, At: 4, Boot: "boot-1", Change: &b},
	} {
		line, err := r.line()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, line...)
	}
	return all
}

func TestReplay(t *testing.T) {
	records, damage := parse(text(t))
	if len(damage) > 0 || len(records) != 5 {
		t.Fatalf("%d records, damage %v", len(records), damage)
	}
	open := replay(records)
	if len(open) != 1 || open[0].ID != "B" || open[0].boot != "boot-1" || open[0].applied {
		t.Errorf("open: %+v", open)
	}
	if open[0].Task != "/batch/\"q\"\u2028<&>" || open[0].Why != "line\nbreak" {
		t.Errorf("strings came back as %q, %q", open[0].Task, open[0].Why)
	}
	if open := replay(records[:3]); len(open) != 1 || !open[0].applied {
		t.Errorf("before the undone record: %+v", open)
	}
}

// TestNamesOfAnyBytes: a cgroup whose name is no UTF-8, or has escape codes, is in the journal
// byte by byte, and its limit is undone after a crash. It could not be capped at all.
func TestNamesOfAnyBytes(t *testing.T) {
	for _, dir := range []string{"/cg/a\xff\xfe", "/cg/\x1b[2J", "/cg/\"q\"", "/cg/\uFFFD", "/cg/plain"} {
		w := newWorld(map[string][]string{dir: {"x"}, dir + "/below\xff": {"x"}})
		c := w.change("A", dir, "x")
		c.Task = sample.TaskName(strings.TrimPrefix(dir, "/cg"))
		r := record{Kind: intend, At: 1, Boot: "boot-1", Change: &c}
		line, err := r.line()
		if err != nil || !utf8.Valid(line) {
			t.Fatalf("%q: %q, %v", dir, line, err)
		}
		if got, err := parseLine(bytes.TrimSuffix(line, []byte("\n"))); err != nil || !cmp.Equal(got, r) {
			t.Errorf("%q: read as %+v, %v", dir, got, err)
		}
		e, err := open(fakeDisk{w}, "test", w)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Apply(2000, c); err != nil {
			t.Fatalf("%q: %v", dir, err)
		}
		if got := w.values[dir+"/x"]; got != c.Writes[0].New {
			t.Errorf("%q: the limit is %q", dir, got)
		}
		again, err := open(fakeDisk{w.clone()}, "test", w)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := again.RestoreAll(3000, "test"); err != nil || w.values[dir+"/x"] != c.Writes[0].Old {
			t.Errorf("%q: after a restart it holds %q, %v", dir, w.values[dir+"/x"], err)
		}
	}
}

// No single flipped bit may yield a different journal that looks intact.
func TestEveryFlippedBitIsSeen(t *testing.T) {
	whole := text(t)
	want, _ := parse(whole)
	for i := range whole {
		for bit := range 8 {
			bad := bytes.Clone(whole)
			bad[i] ^= 1 << bit
			got, damage := parse(bad)
			if len(damage) == 0 {
				t.Fatalf("bit %d of byte %d flipped unseen", bit, i)
			}
			for _, r := range got {
				if !slices.ContainsFunc(want, func(w record) bool { return reflect.DeepEqual(w, r) }) {
					t.Fatalf("bit %d of byte %d made up %+v", bit, i, r)
				}
			}
			// A flipped bit loses its line, a flipped newline the next line too.
			if len(got) < len(want)-2 {
				t.Fatalf("bit %d of byte %d left only %d records", bit, i, len(got))
			}
		}
	}
}

func TestTheRecordsBehindADamagedOneCount(t *testing.T) {
	lines := strings.SplitAfter(string(text(t)), "\n")
	lines[2] = "garbage\n"
	records, damage := parse([]byte(strings.Join(lines, "")))
	if len(damage) != 1 || !strings.HasPrefix(damage[0], "line 3") {
		t.Errorf("damage %v, want line 3", damage)
	}
	if open := replay(records); len(open) != 1 || open[0].ID != "B" {
		t.Errorf("open: %+v", open)
	}
}

// If an undone record is lost, the old change must not claim a file that a
// newer one holds: both may have the same new value.
func TestANewerChangeClosesAnOlderOneOnTheSameFile(t *testing.T) {
	w := oneDir()
	e := mustStart(t, w)
	older := w.change("A", "/cg/a", "x")
	older.Writes[0].New = "10"
	must(t, e.Apply(2000, older))
	_, err := e.Undo(2000, "A", "lease over")
	must(t, err)
	w.values["/cg/a/x"] = "500" // its owner's new limit
	newer := w.change("B", "/cg/a", "x")
	newer.Writes[0].New = "10"
	must(t, e.Apply(2000, newer))
	journal := w.names[journalName]
	var kept []byte
	for line := range bytes.Lines(journal.data) {
		if !bytes.Contains(line, []byte("undone")) {
			kept = append(kept, line...)
		}
	}
	if len(kept) == len(journal.data) {
		t.Fatal("no undone record to lose")
	}
	journal.data = kept
	e = mustStart(t, w)
	if got := e.Active(); len(got) != 1 || got[0].ID != "B" {
		t.Errorf("recovered %v, want B alone", got)
	}
	_, err = e.RestoreAll(3000, "start")
	must(t, err)
	if got := w.values["/cg/a/x"]; got != "500" {
		t.Errorf("restored %s, want 500", got)
	}
}

// The checksum proves that a line is intact, not that its content is valid.
func TestRecordsThatCannotBe(t *testing.T) {
	for _, payload := range []string{
		``, `{}`, `[]`, `{"kind":"begin"}`, `{"kind":"begin","version":2}`, `{"kind":"extend","id":"A"}`,
		`{"kind":"applied"}`, `{"kind":"undone"}`, `{"kind":"intend","boot":"b"}`,
		`{"kind":"intend","boot":"b","change":{"id":"A","dir":"/cg/a","inode":5,"writes":[]}}`,
		`{"kind":"intend","boot":"b","change":{"id":"A","dir":"/cg/a","inode":5,"writes":[{"file":"/etc/passwd","old":"1","new":"2"}]}}`,
		`{"kind":"intend","change":{"id":"A","dir":"/cg/a","inode":5,"writes":[{"file":"/cg/a/x","old":"1","new":"2"}]}}`,
	} {
		if r, err := parseLine(append(sum([]byte(payload)), payload...)); err == nil {
			t.Errorf("%s: taken as %+v", payload, r)
		}
	}
	fine := `{"kind":"intend","boot":"b","change":{"id":"A","dir":"/cg/a","inode":5,"writes":[{"file":"/cg/a/x","old":"1","new":"2"}]}}`
	if _, err := parseLine(append(sum([]byte(fine)), fine...)); err != nil {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	whole := text(f)
	f.Add(whole)
	f.Add(whole[:len(whole)-7])
	for line := range bytes.Lines(whole) {
		f.Add(line)
	}
	for line := range bytes.Lines(whole) {
		f.Add(line[9:])
	}
	f.Add([]byte("00000000 {}\n\n \n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		// The same bytes are also used as the payload of an intact line.
		if payload := bytes.ReplaceAll(data, []byte("\n"), nil); len(payload) > 0 {
			data = slices.Concat(sum(payload), payload, []byte("\n"), data)
		}
		records, damage := parse(data)
		lines := 0
		for line := range bytes.Lines(data) {
			if len(line) > 1 && line[len(line)-1] == '\n' {
				lines++
			}
		}
		if len(records) > lines || len(records)+len(damage) < lines {
			t.Fatalf("%d records and %d damaged of %d lines", len(records), len(damage), lines)
		}
		for i := range records {
			line, err := records[i].line()
			if err != nil {
				t.Fatal(err)
			}
			again, err := parseLine(bytes.TrimSuffix(line, []byte("\n")))
			if err != nil || !cmp.Equal(records[i], again) {
				t.Fatalf("%+v reads back as %+v, %v", records[i], again, err)
			}
		}
		for _, e := range replay(records) {
			if err := e.check(); err != nil || e.boot == "" {
				t.Fatalf("replay let through %+v: %v", e, err)
			}
		}
	})
}

func sum(payload []byte) []byte { return fmt.Appendf(nil, "%08x ", castagnoli(payload)) }
