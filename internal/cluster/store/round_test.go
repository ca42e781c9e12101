package store

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/quell-dev/quell/internal/core/incident"
)

// compacted opens the store in a folder and compacts it until nothing is left to do.
func compacted(t *testing.T, dir string) (commits uint64) {
	t.Helper()
	s, err := Open(dir, Options{Now: func() time.Time { return time.Date(2011, 8, 6, 0, 0, 0, 0, time.UTC) }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for {
		more, err := s.Compact()
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			return s.Stats().Commits
		}
	}
}

func optional(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprint(*v)
}

// TestIncidentsOfAnOlderVersionGetTheirRounds: testdata/before_rounds was written before there
// were tables of rounds and suspects. It has case 4 of the paper (CPI², section 6.1) in two
// states, an incident of an agent without levels, and one whose document is damaged.
func TestIncidentsOfAnOlderVersionGetTheirRounds(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/before_rounds")); err != nil {
		t.Fatal(err)
	}
	before := read[Incident](t, dir, Incidents)
	if len(before) != 4 || len(read[Round](t, dir, Rounds)) != 0 {
		t.Fatalf("the old store has %d incidents", len(before))
	}
	if compacted(t, dir) == 0 {
		t.Fatal("nothing was upgraded")
	}
	var rounds []string
	for _, r := range read[Round](t, dir, Rounds) {
		rounds = append(rounds, fmt.Sprintf("%s %s of %s: %s %s %s %s %v", r.Machine, r.Incident, r.Job, optional(r.RelativeCost), r.Outcome, optional(r.UsageBefore), optional(r.MissesUnder), r.Ended != nil))
	}
	slices.Sort(rounds)
	const in = "m4 inc-20110804T164900.000-1 of scientific simulation: "
	if want := []string{in + "0.81 true-positive - - true", in + "0.99 noise - - true", in + "0.99 noise - - true", "node-3 inc-1 of hog: -  - - false"}; !slices.Equal(rounds, want) {
		t.Errorf("the rounds are\n%s", strings.Join(rounds, "\n"))
	}
	var suspects []string
	for _, s := range read[Suspect](t, dir, Suspects) {
		if s.Job == "a production service" || s.Job == "scientific simulation" || s.Machine != "m4" {
			suspects = append(suspects, fmt.Sprintf("%s: %s by %q, r %g, named %v", s.Job, s.Level, s.Method, s.Correlation, s.NamedFrom != nil))
		}
	}
	slices.Sort(suspects)
	if want := []string{`a production service: likely by "correlation", r 0.66, named true`, `a production service: likely by "correlation", r 0.66, named true`,
		`hog: likely by "", r 0.5, named true`, `idle: none by "", r 0.1, named false`,
		`scientific simulation: possible by "correlation", r 0.36, named true`, `scientific simulation: proven by "trial", r 0.36, named true`}; !slices.Equal(suspects, want) {
		t.Errorf("the suspects are\n%s", strings.Join(suspects, "\n"))
	}
	after := read[Incident](t, dir, Incidents)
	slices.SortFunc(after, func(a, b Incident) int { return strings.Compare(a.Doc, b.Doc) })
	slices.SortFunc(before, func(a, b Incident) int { return strings.Compare(a.Doc, b.Doc) })
	for i := range before {
		if after[i].Doc != before[i].Doc || after[i].Updated != before[i].Updated || len(after) != len(before) {
			t.Errorf("incident %+v is %+v", before[i], after[i])
		}
	}
	if n := compacted(t, dir); n != 0 || len(read[Round](t, dir, Rounds)) != 4 {
		t.Errorf("a second start made %d commits", n)
	}
}

// TestUpgradedTimesAreInTheCalendar: the document of an incident that an older version stored may have any
// number as a time. No query could read the tables that it is upgraded into.
func TestUpgradedTimesAreInTheCalendar(t *testing.T) {
	const far = 1 << 62
	var inc incident.Record
	if err := json.Unmarshal(fmt.Appendf(nil, `{"id":"i","rounds":[{"id":"r","from":-%[1]d,"until":%[1]d,"ended":%[1]d}],"findings":[{"from":-%[1]d,"until":%[1]d}],"latest":{"analysed":%[1]d}}`, int64(far)), &inc); err != nil {
		t.Fatal(err)
	}
	var b Batch
	b.addParts(&inc)
	if r := b.Rounds[0]; r.Began != -furthest || r.Until != furthest || *r.Ended != furthest {
		t.Errorf("%+v", r)
	}
	if s := b.Suspects[0]; *s.NamedFrom != -furthest || *s.NamedUntil != furthest || *s.Analysed != furthest {
		t.Errorf("%+v", s)
	}
}

// TestASegmentOfThisVersionIsNotUpgraded, nor one that was merged from such.
func TestASegmentOfThisVersionIsNotUpgraded(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, Options{Now: func() time.Time { return start }})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 9 {
		s.Add(&Batch{Source: Source{"records", "m", "b"}, N: uint64(i + 1), Incidents: []Incident{{Machine: "m", ID: fmt.Sprint(i), Updated: start.UnixMilli(), Doc: "{}"}}, Rounds: []Round{{Machine: "m", Incident: fmt.Sprint(i), ID: "r", Updated: start.UnixMilli()}}})
		flush(t, s)
	}
	for {
		more, err := s.Compact()
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			break
		}
	}
	if got := len(read[Round](t, dir, Rounds)); got != 9 || len(read[Incident](t, dir, Incidents)) != 9 || s.Stats().Merged == 0 {
		t.Errorf("%d rounds after %d merges", got, s.Stats().Merged)
	}
	sn := s.Snapshot(0, 0)
	defer sn.Close()
	for i := range sn.Segments {
		if sn.Segments[i].outdated() {
			t.Errorf("%+v is outdated", sn.Segments[i])
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestARoundHasARowForEachTask: tasks that were capped together share its ID and its costs.
func TestARoundHasARowForEachTask(t *testing.T) {
	text := `{"id":"inc-1","machine":"m","signal":"cpi","victim":{"task":"/web","job":"web"},"updated":9,"rounds":[{"id":"cap-1","suspect":{"task":"/a","job":"a"},"rate":0.1,"usage_before":2,
		"with":[{"suspect":{"task":"/b","job":"b"},"rate":0.01,"usage_before":3}],"from":1,"until":5,"ended":5,"by":"quell","cost_before":2,"cost_under":1,"relative_cost":0.5,"samples":3,"outcome":"true-positive"}]}`
	var inc incident.Record
	if err := json.Unmarshal([]byte(text), &inc); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range RoundsOf(&inc) {
		got = append(got, fmt.Sprint(r.ID, " ", r.Tasks, " ", r.Job, " ", *r.Rate, " ", *r.UsageBefore, " ", *r.CostUnder, " ", r.Outcome))
	}
	if want := []string{"cap-1 2 a 0.1 2 1 true-positive", "cap-1 2 b 0.01 3 1 true-positive"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestAttackAQuotedVictim: a name that is quoted as text is so once, and not for each row: they would take 160 MB
// that a message of 50 KB does not count for.
func TestAttackAQuotedVictim(t *testing.T) {
	var inc incident.Record
	if err := json.Unmarshal([]byte(`{"victim":{"task":"\"/\\xff\""},"rounds":[{},{},{}],"suspects":[{"task":"/a"},{"task":"/b"}]}`), &inc); err != nil {
		t.Fatal(err)
	}
	copies := map[string]map[*byte]bool{"rounds": {}, "suspects": {}}
	for _, r := range RoundsOf(&inc) {
		copies["rounds"][unsafe.StringData(r.VictimTask)] = r.VictimTask == `"/\xff"`
	}
	for _, s := range SuspectsOf(&inc) {
		copies["suspects"][unsafe.StringData(s.VictimTask)] = s.VictimTask == `"/\xff"`
	}
	for of, all := range copies {
		if names := slices.Collect(maps.Values(all)); !slices.Equal(names, []bool{true}) {
			t.Errorf("the %s have %d copies of the name; right: %v", of, len(all), names)
		}
	}
}

// TestAttackSuspectsTakeMemory: a suspect of a few bytes in a message is a row of hundreds. What waits to be
// committed is counted as it is in memory.
func TestAttackSuspectsTakeMemory(t *testing.T) {
	s, err := Open(t.TempDir(), Options{Now: func() time.Time { return start }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	b := Batch{Source: Source{"records", "m", "b"}, N: 1, Bytes: 5000, Suspects: make([]Suspect, 1000), Rounds: make([]Round, 1000)}
	for i := range b.Suspects {
		b.Suspects[i].Updated, b.Rounds[i].Updated = start.UnixMilli(), start.UnixMilli()
	}
	s.Add(&b)
	least := 1000 * int64(unsafe.Sizeof(Suspect{})+unsafe.Sizeof(Round{}))
	if got := s.PendingBytes(); got < least {
		t.Errorf("%d bytes wait, want at least %d", got, least)
	}
	flush(t, s)
	if got := s.PendingBytes(); got != 0 {
		t.Errorf("%d bytes wait, and all is stored", got)
	}
	for n := range uint64(100) { // the store remembers where each batch is
		s.Add(&Batch{Source: b.Source, N: n + 2, Bytes: 10})
	}
	if got, least := s.PendingBytes(), 100*int64(unsafe.Sizeof(span{})); got < least {
		t.Errorf("%d bytes of empty batches wait, want at least %d", got, least)
	}
}
