package store

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/cluster/store/segment"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestAttackANumberFarAhead: a number that no run of an agent reaches does not make the
// batches that follow look old.
func TestAttackANumberFarAhead(t *testing.T) {
	s, err := Open(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	add := func(n uint64) bool {
		return s.Add(&Batch{Source: Source{"samples", "m2", "b"}, N: n, Samples: []sample.Sample{{TS: sample.At(time.Now()), Machine: "m2"}}})
	}
	for _, c := range []struct {
		n  uint64
		ok bool
	}{{5_000_000_000, true}, {5_000_000_001, true}, {1 << 60, false}, {5_000_000_001 + maxJump + 1, false}, {5_000_000_002, true}, {5_000_000_002 + maxJump, true}, {1 << 63, false}} {
		if got := add(c.n); got != c.ok {
			t.Errorf("batch %d: %v, want %v", c.n, got, c.ok)
		}
	}
	if n := s.Stats().Jumped; n != 3 {
		t.Errorf("%d jumped, want 3", n)
	}
}

// TestAttackManyRuns: a machine that invents runs of its agent displaces its own, and no
// other machine's.
func TestAttackManyRuns(t *testing.T) {
	s, err := Open(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	now := sample.At(time.Now())
	for i := range 3 * maxRuns {
		s.state.Marks[Source{"samples", "m1", fmt.Sprint("run", i)}] = Mark{High: 1, At: now - sample.Millis(3*maxRuns-i)}
	}
	s.state.Marks[Source{"samples", "m2", "b"}] = Mark{High: 9, At: now - sample.Millis(time.Hour.Milliseconds())}
	s.forgetSources(now)
	if n := len(s.state.Marks); n != maxRuns+1 || s.state.Marks[Source{"samples", "m2", "b"}].High != 9 {
		t.Errorf("%d runs are remembered, want %d of m1 and that of m2", n, maxRuns)
	}
	if _, newest := s.state.Marks[Source{"samples", "m1", fmt.Sprint("run", 3*maxRuns-1)}]; !newest {
		t.Error("the newest is not among them")
	}
}

// TestAttackRunsBetweenCheckpoints: the runs of a machine are bounded also in the 256 commits after which the oldest are
// forgotten. At 300,000 messages a second they would take gigabytes until then, also of a server that starts.
func TestAttackRunsBetweenCheckpoints(t *testing.T) {
	c := &clock{start}
	s := open(t, t.TempDir(), c.options())
	add := func(machine, boot string, n uint64) bool {
		return s.Add(&Batch{Source: Source{"samples", machine, boot}, N: n, Samples: []sample.Sample{{TS: sample.At(start), Machine: machine}}})
	}
	add("m2", "before", 1)
	for i := range 3 * maxRuns {
		if got := add("m1", fmt.Sprint("run", i), 1); got != (i < maxRuns) {
			t.Fatalf("run %d: %v", i, got)
		}
		if i%200 == 0 {
			flush(t, s)
		}
	}
	if n := len(s.Marks()); n > maxRuns+1 {
		t.Errorf("%d runs are remembered", n)
	}
	if !add("m1", "run0", 2) || !add("m2", "before", 2) || !add("m2", "after", 1) {
		t.Error("a run that is known, or of another machine, is not taken")
	}
	for s.Stats().Commits%everyCommits != 0 || s.Stats().Commits == 0 {
		add("m2", "after", s.Stats().Commits+2)
		flush(t, s)
	}
	if !add("m1", "later", 1) {
		t.Error("after a checkpoint the machine has no new run")
	}
}

// TestAttackHoursOfManySeries: a machine makes many series, and sends a sample of each of many hours. Each hour is a file, and
// to write it does not take a look at all series.
func TestAttackHoursOfManySeries(t *testing.T) {
	segments := func(others int) (took time.Duration, text []byte) {
		x := newIndex(0)
		for i := range others {
			x.number(0, &sample.Sample{Task: sample.TaskName(fmt.Sprint("z", i))})
		}
		p := newPack(x)
		for i := range 200 { // of four tasks, out of order
			s := sample.Sample{TS: sample.Millis(1000 - i), Machine: "m", Task: sample.TaskName(fmt.Sprint("/", i%4)), Cost: float32(i)}
			p.add(x.number(0, &s), &s)
		}
		w, err := segment.NewWriter()
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		for range 50 {
			var out bytes.Buffer
			if err := p.write(w, &out, &x.seriesTable, p.rows); err != nil {
				t.Fatal(err)
			}
			text = out.Bytes()
		}
		return time.Since(begun), text
	}
	var want, got []byte
	without := quelltest.Fastest(func() (took time.Duration) { took, want = segments(0); return took })
	with := quelltest.Fastest(func() (took time.Duration) { took, got = segments(500_000); return took })
	if !bytes.Equal(got, want) {
		t.Error("the segments differ")
	}
	if with > 20*without+200*time.Millisecond {
		t.Errorf("50 segments took %s, without other series %s", with, without)
	}
}

// TestAttackLongNames: an agent names a new task with each sample, at length. What is remembered of
// series is dropped when it is large, and not after an hour only.
func TestAttackLongNames(t *testing.T) {
	x := newIndex(0)
	long := strings.Repeat("x", 1<<20)
	for i := range indexBytes >> 20 {
		if x.old(1) {
			t.Fatalf("it is dropped after %d names", i)
		}
		x.number(0, &sample.Sample{Task: sample.TaskName(fmt.Sprint(i, long))})
	}
	if !x.old(1) {
		t.Errorf("%d bytes are remembered", x.size)
	}
	// Five million real tasks have more than that, and are remembered (docs/scale.md).
	x = newIndex(0)
	x.series, x.size = make([]series, 5_000_000), 5_000_000*200
	if x.old(1) {
		t.Error("an index of many tasks is dropped")
	}
}

// TestAttackAnHourForEachSample: each hour of samples and each day of records is a file. A machine that makes up times
// does not make any number of them, and keeps no other from sending what it has of weeks.
func TestAttackAnHourForEachSample(t *testing.T) {
	c := &clock{start}
	s := open(t, t.TempDir(), c.options())
	hour := func(machine string, n, back int) {
		s.Add(&Batch{Source: Source{"samples", machine, "b"}, N: uint64(n), Samples: []sample.Sample{{TS: sample.At(start).Add(-time.Duration(back) * time.Hour), Machine: machine}}})
	}
	for i := range 3 * maxParts {
		hour("m1", i+1, i)
	}
	if st := s.Stats(); st.Samples != maxParts || st.Rejected != 2*maxParts {
		t.Errorf("%d samples of as many hours, %d rejected; want %d", st.Samples, st.Rejected, maxParts)
	}
	for i := range 30 * 24 {
		hour("m2", i+1, 30*24-i)
	}
	hour("m1", 3*maxParts+1, maxParts-1) // what it sends of the same hour
	if st := s.Stats(); st.Samples != maxParts+30*24+1 {
		t.Errorf("%d samples, want %d", st.Samples, maxParts+30*24+1)
	}
	for i := range 2 * maxParts {
		s.Add(&Batch{Source: Source{"records", "m3", "b"}, N: uint64(i + 1), Actions: []Action{{At: start.AddDate(0, 0, -i).UnixMilli(), Machine: "m3"}}})
	}
	if st := s.Stats(); st.Records != maxParts {
		t.Errorf("%d records of as many days, want %d", st.Records, maxParts)
	}
	// With names so long that the index is replaced it may not begin again, but after an hour.
	s.next = newFlight(s.index) // thousands of files need not be written
	for i, want := range []uint64{0, 0, 1} {
		if i == 2 {
			c.now = start.Add(2 * time.Hour)
		}
		before, had := s.index, s.Stats().Samples
		s.index.size = 2*indexBytes + seriesText*len(s.index.series)
		s.Add(&Batch{Audit: []Audit{{At: start.UnixMilli()}}})
		flush(t, s)
		hour("m1", 3*maxParts+2+i, 3*maxParts+i)
		if got := s.Stats().Samples - had; got != want || s.index == before {
			t.Errorf("time %d: %d samples of another hour are taken, want %d", i, got, want)
		}
	}
}

// TestAttackLargeIncidents: a machine reports incidents of 1 MB each, and as much of their suspects. A query holds a row
// group's texts at once: those of no row group are too large for it, of a commit or of a merge. No document is in a file
// another time, not compressed, as the least or the greatest of a page or a row group.
func TestAttackLargeIncidents(t *testing.T) {
	dir, c := t.TempDir(), &clock{start}
	s := open(t, dir, c.options())
	doc := strings.Repeat("x", 1<<20)
	for n := range uint64(2) {
		b := &Batch{Source: Source{"records", "m2", "b"}, N: n + 1}
		for i := range 20 {
			b.Incidents = append(b.Incidents, Incident{Machine: "m2", ID: fmt.Sprint(n, "-", i), Updated: start.UnixMilli(), Doc: doc})
			b.Suspects = append(b.Suspects, Suspect{Machine: "m2", Incident: fmt.Sprint(n, "-", i), Updated: start.UnixMilli(), Why: doc})
		}
		s.Add(b)
		flush(t, s)
	}
	check := func(files int) {
		t.Helper()
		sn := s.Snapshot(0, 0)
		defer sn.Close()
		all := append(sn.Files(Incidents), sn.Files(Suspects)...)
		if len(all) != files {
			t.Fatalf("%d files, want %d", len(all), files)
		}
		for _, name := range all {
			f, err := os.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			info, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			p, err := parquet.OpenFile(f, info.Size())
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(name, "/incidents/") && info.Size() > 1<<20 {
				t.Errorf("%s has %d bytes", name, info.Size())
			}
			for _, g := range p.RowGroups() {
				if g.NumRows() > 16 {
					t.Errorf("%s has a row group of %d MB", name, g.NumRows())
				}
			}
		}
	}
	check(4)
	c.now = c.now.Add(48 * time.Hour)
	for range 2 {
		if more, err := s.Compact(); !more || err != nil {
			t.Fatal(more, err)
		}
	}
	check(2)
	if rows := read[Incident](t, dir, Incidents); len(rows) != 40 || rows[0].Doc != doc || rows[39].Doc != doc {
		t.Errorf("%d rows", len(rows))
	}
}

// TestLateSamplesAreMergedApart: a machine whose clock is slow, or that sends samples of an hour that has ended one by
// one, does not have that hour of all machines written again each time.
func TestLateSamplesAreMergedApart(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct{ all, want []int64 }{
		{[]int64{1, 2, 3}, []int64{1, 2, 3}},
		{[]int64{3 * mb, 4 * mb}, []int64{3 * mb, 4 * mb}},
		{[]int64{1, 500 * mb}, nil},
		{[]int64{1, 2, 500 * mb}, []int64{1, 2}},
		{[]int64{62 * mb, 500 * mb}, nil},
		{[]int64{63 * mb, 500 * mb}, []int64{63 * mb, 500 * mb}},
		{[]int64{1, 100 * mb, 110 * mb}, []int64{100 * mb, 110 * mb}},
		{[]int64{600 * mb, 700 * mb}, nil},
	} {
		var all []Segment
		for _, n := range c.all {
			all = append(all, Segment{Bytes: n})
		}
		var got []int64
		for _, seg := range worth(all) {
			got = append(got, seg.Bytes)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("of %d bytes are merged %d, want %d", c.all, got, c.want)
		}
	}
}
