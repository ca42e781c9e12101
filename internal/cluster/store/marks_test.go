package store

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/core/sample"
)

// marksOf returns the marks of that many machines some time after their start: each at
// its own number, some with gaps, with boot names as agents make them.
func marksOf(machines int) map[Source]Mark {
	r := rand.New(rand.NewPCG(5, 6))
	all := map[Source]Mark{}
	for i := range machines {
		const letters = "abcdefghijklmnopqrstuvwxyz234567"
		boot := fmt.Sprintf("%x-", 0x19a0000000+r.IntN(1<<24))
		for range 6 {
			boot += string(letters[r.IntN(len(letters))])
		}
		m := Mark{High: 80_000 + r.Uint64N(9000), Seen: 1<<64 - 1, At: sample.At(start) + sample.Millis(r.IntN(2000))}
		if i%100 == 0 {
			m.Seen = r.Uint64()
		}
		all[Source{"samples", fmt.Sprintf("host-%05d", i), boot}] = m
	}
	return all
}

// TestMarksInTheLog: few and many marks are unchanged after a round trip through the log.
func TestMarksInTheLog(t *testing.T) {
	for _, n := range []int{0, 1, fewMarks, fewMarks + 1, 1000} {
		want := marksOf(n)
		text, err := json.Marshal(listMarks(want))
		if err != nil {
			t.Fatal(err)
		}
		if list := strings.HasPrefix(string(text), "["); list != (n <= fewMarks) {
			t.Errorf("%d marks: %.60s", n, text)
		}
		var list sourceMarks
		if err := json.Unmarshal(text, &list); err != nil {
			t.Fatal(err)
		}
		got := map[Source]Mark{}
		for _, m := range list {
			got[m.Source] = m.Mark
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d marks: %s", n, diff)
		}
	}
	for _, text := range []string{`"`, `"AAAA"`, `"KLUv"`, `7`} {
		var list sourceMarks
		if err := json.Unmarshal([]byte(text), &list); err == nil {
			t.Errorf("%s was read as %v", text, list)
		}
	}
}

// TestCommitsOfManyMachinesAreSmall: a commit of all machines of a large cluster is
// small: 512 commits are kept, and one is fsynced every few seconds.
func TestCommitsOfManyMachinesAreSmall(t *testing.T) {
	const n, most = 6000, 30 // bytes a machine
	dir, c := t.TempDir(), &clock{start}
	s := open(t, dir, c.options())
	marks := marksOf(n)
	for source, m := range marks {
		c.now = m.At.Time()
		s.Add(&Batch{Source: source, N: m.High})
	}
	flush(t, s)
	info, err := os.Stat(filepath.Join(dir, filepath.FromSlash(commitName(1))))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > n*most {
		t.Errorf("a commit of %d machines has %d bytes, %d each; want at most %d", n, info.Size(), info.Size()/n, most)
	}
	t.Logf("%d bytes a machine", info.Size()/n)
	want := s.Marks()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := open(t, dir, c.options()).Marks(); !maps.Equal(got, want) {
		t.Errorf("%d marks after a restart, %d before, not the same", len(got), len(want))
	}
}

// TestOlderLogs: the log of an older version, with every mark in a list, is readable.
func TestOlderLogs(t *testing.T) {
	dir, c := t.TempDir(), &clock{start.Add(time.Minute)}
	var old []string
	want := map[Source]Mark{}
	for i := range 2 * fewMarks {
		source, m := Source{"samples", fmt.Sprint("m", i), "b"}, Mark{uint64(i + 2), 1, sample.At(start)}
		want[source] = m
		old = append(old, fmt.Sprintf(`{"stream":"samples","machine":"m%d","boot":"b","high":%d,"seen":1,"at":%d}`, i, i+2, sample.At(start)))
	}
	text := fmt.Sprintf(`{"generation":1,"at":%d,"marks":[%s]}`, sample.At(start), strings.Join(old, ","))
	name := filepath.Join(dir, filepath.FromSlash(commitName(1)))
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, open(t, dir, c.options()).Marks()); diff != "" {
		t.Error(diff)
	}
}

// FuzzMarks: a damaged or hostile file of a store's log is refused, and not unpacked without bound.
func FuzzMarks(f *testing.F) {
	for _, n := range []int{1, fewMarks + 1} {
		text, err := json.Marshal(listMarks(marksOf(n)))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`[{"stream":"s","machine":"m","boot":"b","high":1,"seen":1,"at":1}]`))
	f.Add([]byte(`"KLUv/QQAAAAA"`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var m, again sourceMarks
		if json.Unmarshal(text, &m) != nil {
			return
		}
		out, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out, &again); err != nil || !slices.Equal(m, again) {
			t.Errorf("%v, written and read: %v, %v", m, again, err)
		}
	})
}

// TestImportsAreRemembered: a file that was imported is known as long as its samples are kept, and longer
// than an agent's run.
func TestImportsAreRemembered(t *testing.T) {
	const day = 24 * time.Hour
	imported, run := Source{Stream: "import", Machine: "0123456789abcdef"}, Source{"samples", "m1", "b"}
	for _, c := range []struct {
		keep, age     time.Duration
		imported, run bool
	}{{365 * day, 29 * day, true, true}, {365 * day, 31 * day, true, false}, {365 * day, 366 * day, false, false}, {day, 29 * day, true, true}, {day, 31 * day, false, false}, {0, 1000 * day, true, false}} {
		s, err := Open(t.TempDir(), Options{Keep: map[string]time.Duration{Samples: c.keep}})
		if err != nil {
			t.Fatal(err)
		}
		s.state.Marks[imported], s.state.Marks[run] = Mark{High: 3, At: sample.At(start)}, Mark{High: 3, At: sample.At(start)}
		s.forgetSources(sample.At(start.Add(c.age)))
		if got := [2]bool{s.state.Marks[imported].High == 3, s.state.Marks[run].High == 3}; got != [2]bool{c.imported, c.run} {
			t.Errorf("samples are kept for %s; after %s: %v", c.keep, c.age, got)
		}
		s.Close()
	}
}

// TestAClockThatIsSetForwardRemovesNothing: the server's clock is wrong by a hundred days for a while. What is
// stored stays, and what comes is accepted, also if the agent of its own machine has that clock. If most machines'
// clocks agree with it, it is believed.
func TestAClockThatIsSetForwardRemovesNothing(t *testing.T) {
	c := &clock{start}
	opt := c.options()
	opt.Keep = map[string]time.Duration{Samples: 24 * time.Hour, AuditLog: 24 * time.Hour}
	s := open(t, t.TempDir(), opt)
	passed := time.Hour
	s.elapsed = func() time.Duration { return passed }
	add := func(n uint64, at time.Time, samples int) {
		t.Helper()
		b := tick("m1", "a", n, samples)
		for i := range b.Samples {
			b.Samples[i].TS = sample.At(at)
		}
		s.Add(b)
		s.Add(&Batch{Audit: []Audit{{At: at.UnixMilli()}}})
		flush(t, s)
		if err := s.Retain(); err != nil {
			t.Fatal(err)
		}
	}
	add(1, start, 1)
	c.now = start.Add(100 * 24 * time.Hour)
	add(2, start.Add(passed), 1)
	add(3, c.now, 1)
	if st := s.Stats(); st.Expired != 0 || st.Rejected != 0 || st.Segments != 6 {
		t.Errorf("by a wrong clock: %+v", st)
	}
	add(4, c.now, 2)
	if st := s.Stats(); st.Expired != 4 || st.Segments != 4 {
		t.Errorf("by a right one: %+v", st)
	}
}

// TestMarksOfAClockThatWasAhead: when a machine was heard of last is known again once it is heard of.
func TestMarksOfAClockThatWasAhead(t *testing.T) {
	now := sample.At(start)
	m := Mark{}.accept(1, now.Add(365*24*time.Hour)).accept(2, now)
	if m.At != now {
		t.Errorf("%v, want %v", m.At, now)
	}
	if m = m.accept(3, now.Add(-time.Second)); m.At != now { // another server's clock
		t.Errorf("%v, want %v", m.At, now)
	}
}
