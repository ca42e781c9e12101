package logbook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// lines makes the content of a log file; an incident is written as JSON, a string
// unchanged.
func lines(t testing.TB, all ...any) string {
	t.Helper()
	var b strings.Builder
	for _, l := range all {
		switch l := l.(type) {
		case string:
			b.WriteString(l)
		case *incident.Record:
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

func incidentOf(id string, opened sample.Millis, reason string) *incident.Record {
	return &incident.Record{Incident: plan.Incident{ID: id, Opened: opened, Updated: opened, Analysis: plan.Analysis{Reason: reason}},
		Chart: pipeline.Chart{Times: []sample.Millis{1, 2}, VictimCost: []incident.Value{1, 2}}}
}

// told is ID:reason of each incident.
func told(list []incident.Record) string {
	var all []string
	for _, inc := range list {
		all = append(all, inc.ID+":"+inc.Reason)
	}
	return strings.Join(all, " ")
}

func put(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRead(t *testing.T) {
	for _, c := range []struct {
		name    string
		files   map[string]string
		want    string
		skipped int
	}{
		{"nothing yet", map[string]string{"specs.json": "{}"}, "", 0},
		{"the last line counts", map[string]string{
			Name: lines(t, incidentOf("a", 1, "first"), incidentOf("b", 2, "only"), incidentOf("a", 1, "second"))}, "a:second b:only", 0},
		{"rotated ones are older", map[string]string{
			Name:         lines(t, incidentOf("c", 3, "new")),
			Name + ".1":  lines(t, incidentOf("c", 3, "old"), incidentOf("b", 2, "new")),
			Name + ".2":  lines(t, incidentOf("b", 2, "old"), incidentOf("a", 1, "old")),
			Name + ".10": lines(t, incidentOf("a", 1, "oldest"), incidentOf("z", 0, "oldest"))}, "z:oldest a:old b:new c:new", 0},
		{"a torn last line", map[string]string{
			Name: lines(t, incidentOf("a", 1, "whole"), incidentOf("b", 2, "whole"), `{"id":"a","reas`)}, "a:whole b:whole", 1},
		{"torn behind what the index reads", map[string]string{
			Name: lines(t, incidentOf("a", 1, "whole"), strings.TrimSuffix(lines(t, incidentOf("a", 1, "torn")), "null}\n"))}, "a:whole", 1},
		{"torn in the middle by a crash, then written on", map[string]string{
			Name: lines(t, incidentOf("a", 1, "whole"), `{"id":"b"`, "\n", incidentOf("c", 3, "whole"))}, "a:whole c:whole", 1},
		{"a whole last line without its end", map[string]string{
			Name: strings.TrimSpace(lines(t, incidentOf("a", 1, "whole")))}, "a:whole", 0},
		{"a name that looks like a key", map[string]string{
			Name: lines(t, incidentOf(`a","mode":"on`, 1, "whole"))}, `a","mode":"on:whole`, 0},
		{"not incidents", map[string]string{Name: "\n\nnull\n{}\n[1]\n7\n"}, "", 4},
		{"other names are other files", map[string]string{
			Name + ".0": lines(t, incidentOf("a", 1, "")), Name + ".x": lines(t, incidentOf("a", 1, "")),
			"old-" + Name: lines(t, incidentOf("a", 1, ""))}, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			put(t, dir, c.files)
			b, err := Read(dir)
			if err != nil {
				t.Fatal(err)
			}
			list, older, err := b.List(Query{})
			if got := told(list); got != c.want || err != nil || older != 0 || b.Skipped() != c.skipped || len(b.entries) != len(list) {
				t.Errorf("got %q, %d older, %d skipped, %d long, %v; want %q and %d skipped", got, older, b.Skipped(), len(b.entries), err, c.want, c.skipped)
			}
			if whole, err := Load(dir); err != nil || told(whole) != c.want {
				t.Errorf("loaded %q, %v", told(whole), err)
			}
		})
	}
}

func TestWhatCannotBeReadIsSaid(t *testing.T) {
	if _, err := Read(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing directory: %v", err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, Name), 0o700); err != nil {
		t.Fatal(err)
	}
	b, err := Read(dir)
	if err == nil || !strings.Contains(err.Error(), Name) || len(b.entries) != 0 {
		t.Errorf("a log that cannot be read: %v", err)
	}
	// Another process replaces the log by another file.
	dir = t.TempDir()
	put(t, dir, map[string]string{Name: lines(t, incidentOf("a", 1, "mine"))})
	if b, err = Read(dir); err != nil {
		t.Fatal(err)
	}
	put(t, dir, map[string]string{Name: lines(t, incidentOf("b", 1, "them"))})
	if inc, err := b.Incident("a"); err == nil {
		t.Errorf("found %+v in another file", inc)
	}
}

func TestQueries(t *testing.T) {
	dir := t.TempDir()
	closed, moved := incidentOf("inc-2", 20, "closed"), incidentOf("inc-3", 30, "moved")
	closed.Closed, closed.Updated, moved.Updated = 25, 25, 90
	first, second := incidentOf("inc-1", 10, "open"), incidentOf("inc-12", 40, "open")
	first.Victim.Name, closed.Victim.Name, moved.Victim.Name, second.Victim.Name = "/a/web", "/a/db", "/b/web", "/b/db"
	put(t, dir, map[string]string{Name: lines(t, second, moved, closed, first)})
	b, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		query Query
		want  string
		older int
	}{
		{Query{}, "inc-1 inc-2 inc-3 inc-12", 0},
		{Query{Open: true}, "inc-1 inc-3 inc-12", 0},
		{Query{Since: 40}, "inc-3 inc-12", 0},
		{Query{Victim: "*web"}, "inc-1 inc-3", 0},
		{Query{Victim: "/b/*", Open: true, Since: 50}, "inc-3", 0},
		{Query{Limit: 1}, "inc-12", 3},
		{Query{Limit: 2, Open: true}, "inc-3 inc-12", 1},
		{Query{Limit: 4}, "inc-1 inc-2 inc-3 inc-12", 0},
		{Query{Victim: "nobody"}, "", 0},
	} {
		list, older, err := b.List(c.query)
		var ids []string
		for _, inc := range list {
			ids = append(ids, inc.ID)
			if inc.Times != nil || inc.VictimCost != nil || inc.Usage != nil {
				t.Errorf("%+v comes with its picture", inc)
			}
		}
		if got := strings.Join(ids, " "); got != c.want || older != c.older || err != nil {
			t.Errorf("%+v: %q and %d older, %v; want %q and %d", c.query, got, older, err, c.want, c.older)
		}
	}
	for id, want := range map[string]string{"inc-1": "inc-1", "inc-12": "inc-12", "-3": "inc-3", "last": "inc-12"} {
		if inc, err := b.Incident(id); err != nil || inc.ID != want || len(inc.Times) != 2 {
			t.Errorf("%q is %+v, %v; want %s with its picture", id, inc, err, want)
		}
	}
	var many *AmbiguousError
	if _, err := b.Incident("inc"); !errors.As(err, &many) || !slices.Equal(many.All, []string{"inc-1", "inc-2", "inc-3", "inc-12"}) {
		t.Errorf("a part that all have: %v", err)
	}
	for _, id := range []string{"", "nothing"} {
		if _, err := b.Incident(id); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// A book that is written gives the same answers as one that is read again, through
// rotations and restarts.
func TestTheIndexIsWhatTheFilesSay(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 1))
	dir := t.TempDir()
	b, err := Open(dir, 8000, 3)
	if err != nil {
		t.Fatal(err)
	}
	longest := 0
	for n := range 300 {
		id := n/5 + rng.IntN(4)
		inc := incidentOf(fmt.Sprintf("inc-%03d", id), sample.Millis(id), strings.Repeat("x", rng.IntN(100)))
		inc.Updated = sample.Millis(1000 + n)
		if rng.IntN(3) == 0 {
			inc.Closed = inc.Updated
		}
		if err := b.Add(inc); err != nil {
			t.Fatal(err)
		}
		longest = max(longest, len(b.entries))
		if n%17 != 0 {
			continue
		}
		fresh, err := Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range []Query{{}, {Open: true}, {Limit: 3}, {Since: sample.Millis(990 + n)}} {
			got, older, err := b.List(q)
			want, also, bad := fresh.List(q)
			if err != nil || bad != nil || told(got) != told(want) || older != also {
				t.Fatalf("after %d, %+v: %q and %d, read anew %q and %d; %v, %v", n, q, told(got), older, told(want), also, err, bad)
			}
		}
		if rng.IntN(4) == 0 { // the agent is restarted
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			if b, err = Open(dir, 8000, 3); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if longest > 30 || longest < 10 {
		t.Errorf("the log held up to %d incidents; 4 files of 8000 bytes hold some 15", longest)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(lines(f, incidentOf("a", 1, "x"), incidentOf("b", 2, "y")))
	f.Add(`{"id":"a","opened":1,"mode":"on"}` + "\n" + `{"id":"a","mode":"on","opened":7}`)
	f.Add("{\"id\":\"a\",\"mode\":\n\n{}")
	f.Fuzz(func(t *testing.T, text string) {
		dir := t.TempDir()
		put(t, dir, map[string]string{Name: text})
		b, err := Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(text, "\n") + 1; len(b.entries)+b.Skipped() > n {
			t.Errorf("%d incidents and %d skipped of %d lines", len(b.entries), b.Skipped(), n)
		}
		// An index entry that is not an incident causes an error, never a crash.
		for _, e := range b.entries {
			if inc, err := b.Incident(e.id); err == nil && inc.ID != e.id {
				t.Errorf("%q is %q", e.id, inc.ID)
			}
		}
	})
}
