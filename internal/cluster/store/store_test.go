package store

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/core/sample"
	trace "github.com/quell-dev/quell/internal/format/trace/parquet"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// start is the time at which tests begin: ten seconds before the end of an hour.
var start = time.Date(2026, 11, 21, 13, 59, 50, 0, time.UTC)

// clock is a time set by tests.
type clock struct{ now time.Time }

func (c *clock) options() Options {
	return Options{Now: func() time.Time { return c.now }}
}

func open(t testing.TB, dir string, opt Options) *Store {
	t.Helper()
	s, err := Open(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// tick makes batch n of a machine: its tasks' samples for that second.
func tick(machine, boot string, n uint64, tasks int) *Batch {
	b := &Batch{Source: Source{"samples", machine, boot}, N: n, Seq: n}
	for i := range tasks {
		s := sample.Sample{TS: sample.At(start).Add(time.Duration(n) * time.Second), Machine: machine, Job: sample.JobName(fmt.Sprint("job-", i%3)),
			Task: sample.TaskName(fmt.Sprintf("/pods/%d", i)), Platform: "p", Signal: sample.CPI, Variant: "ref-cycles",
			Class: sample.Class(i % 3), CPU: float32(i), Cost: float32(n), Coverage: 1, Flags: sample.Flags(i % 4)}
		if i == 0 {
			s.Cost = float32(math.NaN())
			s.Extras.Set(sample.Cycles, 1e9)
			s.Extras.Set(sample.CPUStall, 0)
		}
		b.Samples = append(b.Samples, s)
	}
	return b
}

func flush(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
}

// read returns the rows that a new reader finds, file by file.
func read[T any](t testing.TB, dir, table string) []T {
	t.Helper()
	sn, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []T
	for _, name := range sn.Files(table) {
		rows, err := parquet.ReadFile[T](name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, rows...)
	}
	return all
}

// text formats a row, so that rows can be compared.
func text(r *trace.Row) string {
	var b strings.Builder
	fmt.Fprint(&b, r.TS, r.Machine, r.Job, r.Task, r.Platform, r.Signal, r.Variant, r.Class, r.CPU, r.Coverage, r.Flags)
	if r.Cost != nil {
		fmt.Fprint(&b, " cost ", *r.Cost)
	}
	for _, x := range []*float64{r.Cycles, r.Instructions, r.LLCMisses, r.Transactions, r.Syscalls, r.WaitOther, r.WaitSelf, r.WaitThrottled, r.Wakeups, r.Threads, r.CPUStall} {
		if x == nil {
			fmt.Fprint(&b, " -")
		} else {
			fmt.Fprint(&b, " ", *x)
		}
	}
	return b.String()
}

func texts(rows []trace.Row) []string {
	var all []string
	for i := range rows {
		all = append(all, text(&rows[i]))
	}
	slices.Sort(all)
	return all
}

// rowsOf returns the rows expected for the batches' samples.
func rowsOf(batches ...*Batch) []trace.Row {
	var rows []trace.Row
	for _, b := range batches {
		for i := range b.Samples {
			var r trace.Row
			r.Set(&b.Samples[i], nil)
			rows = append(rows, r)
		}
	}
	return rows
}

func same(t testing.TB, what string, got, want []trace.Row) {
	t.Helper()
	g, w := texts(got), texts(want)
	if !slices.Equal(g, w) {
		t.Fatalf("%s: %d rows, want %d\ngot  %.400v\nwant %.400v", what, len(g), len(w), g, w)
	}
}

func TestWhatIsFlushedIsRead(t *testing.T) {
	dir, c := t.TempDir(), &clock{start}
	s := open(t, dir, c.options())
	var want []*Batch
	for n := range uint64(30) {
		b := tick("m1", "a", n+1, 5)
		want = append(want, b)
		if !s.Add(b) {
			t.Fatalf("batch %d was not new", n+1)
		}
	}
	if rows := read[trace.Row](t, dir, Samples); len(rows) != 0 {
		t.Errorf("%d rows are there before the flush", len(rows))
	}
	flush(t, s)
	same(t, "flushed", read[trace.Row](t, dir, Samples), rowsOf(want...))
	sn := s.Snapshot(0, 0)
	defer sn.Close()
	if len(sn.Segments) != 2 || sn.Segments[0].folder() != "samples/day=2026-11-21/hour=13" || sn.Segments[1].folder() != "samples/day=2026-11-21/hour=14" {
		t.Errorf("segments %+v, want one in each hour", sn.Segments)
	}
	if seg := sn.Segments[1]; seg.From != sample.At(start)+10_000 || seg.To != sample.At(start)+30_000 || seg.Rows != 105 || seg.Bytes == 0 {
		t.Errorf("segment %+v", seg)
	}
}

// TestSegmentsAreSorted: a segment has the order that it declares. Reading a job's specs
// and compression depend on it.
func TestSegmentsAreSorted(t *testing.T) {
	dir, c := t.TempDir(), &clock{start}
	s := open(t, dir, c.options())
	for n := uint64(40); n > 10; n-- {
		for _, m := range []string{"m2", "m1"} {
			s.Add(tick(m, fmt.Sprint(n), n, 7))
		}
	}
	flush(t, s)
	s.Add(tick("m0", "a", 35, 9))
	flush(t, s)
	sorted := func() {
		t.Helper()
		rows := read[trace.Row](t, dir, Samples)
		if !slices.IsSortedFunc(rows, func(a, b trace.Row) int {
			return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Task, b.Task), cmp.Compare(a.Machine, b.Machine), cmp.Compare(a.TS, b.TS))
		}) {
			t.Error("rows are not sorted")
		}
	}
	c.now = start.Add(3 * time.Hour)
	for more, err := s.Compact(); more; more, err = s.Compact() {
		if err != nil {
			t.Fatal(err)
		}
	}
	if st := s.Stats(); st.Segments != 1 || st.Merged != 2 {
		t.Fatalf("%+v, want one segment of two", st)
	}
	sorted()
}

// TestTasksComeAndGo: tasks come, go and change their order and class between ticks, late
// batches lie in other hours, and the index is replaced: the rows are unchanged.
func TestTasksComeAndGo(t *testing.T) {
	dir, c := t.TempDir(), &clock{start}
	s := open(t, dir, c.options())
	rng := rand.New(rand.NewPCG(7, 8))
	var all []*Batch
	n := map[string]uint64{}
	for range 120 {
		machine := fmt.Sprint("m", rng.IntN(3))
		n[machine]++
		b := tick(machine, "a", n[machine], 8)
		rng.Shuffle(len(b.Samples), func(i, k int) {
			if rng.IntN(4) == 0 {
				b.Samples[i], b.Samples[k] = b.Samples[k], b.Samples[i]
			}
		})
		b.Samples = b.Samples[rng.IntN(3) : 5+rng.IntN(4)]
		for i := range b.Samples {
			b.Samples[i].TS = sample.At(c.now)
			if rng.IntN(20) == 0 {
				b.Samples[i].TS -= sample.Millis(rng.IntN(3 * hourMS))
			}
			if rng.IntN(9) == 0 {
				b.Samples[i].Class = sample.BestEffort
			}
		}
		all = append(all, b)
		if !s.Add(b) {
			t.Fatal("a batch was not new")
		}
		if rng.IntN(10) == 0 {
			flush(t, s)
		}
		c.now = c.now.Add(time.Duration(rng.IntN(120)) * time.Second)
	}
	flush(t, s)
	same(t, "flushed", read[trace.Row](t, dir, Samples), rowsOf(all...))
	c.now = c.now.Add(24 * time.Hour)
	for more, err := s.Compact(); more; more, err = s.Compact() {
		if err != nil {
			t.Fatal(err)
		}
	}
	if s.Stats().Merged == 0 {
		t.Error("nothing was merged")
	}
	same(t, "merged", read[trace.Row](t, dir, Samples), rowsOf(all...))
}

// TestForeignSegmentsAreMerged: files that another program wrote, and quell did not write
// by series, are merged by rows.
func TestForeignSegmentsAreMerged(t *testing.T) {
	dir, c := t.TempDir(), &clock{start}
	s := open(t, dir, c.options())
	var all []*Batch
	for n := range uint64(3) {
		b := tick("m1", "a", n+1, 4)
		all = append(all, b)
		s.Add(b)
		flush(t, s)
	}
	// The second is rewritten, as older versions wrote it.
	sn := s.Snapshot(0, 0)
	name := sn.Files(Samples)[1]
	rows, err := parquet.ReadFile[trace.Row](name)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeRecords(file, Samples, rows); err != nil {
		t.Fatal(err)
	}
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	seg := s.state.Segments[sn.Segments[1].File]
	seg.Bytes = info.Size()
	s.state.Segments[seg.File] = seg
	s.mu.Unlock()
	sn.Close()
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	c.now = c.now.Add(3 * time.Hour)
	if more, err := s.Compact(); !more || err != nil {
		t.Fatal(more, err)
	}
	same(t, "merged", read[trace.Row](t, dir, Samples), rowsOf(all...))
}

func TestABatchCountsOnce(t *testing.T) {
	dir, c := t.TempDir(), &clock{start}
	s := open(t, dir, c.options())
	add := func(n uint64, want bool) {
		t.Helper()
		if got := s.Add(tick("m1", "a", n, 1)); got != want {
			t.Errorf("batch %d: new %v, want %v", n, got, want)
		}
	}
	add(1, true)
	add(1, false) // before the flush
	flush(t, s)
	add(1, false) // after it
	add(5, true)
	add(3, true) // after its successor
	add(3, false)
	s.Close()
	s = open(t, dir, c.options())
	add(1, false) // after a restart
	add(5, true)  // it was not flushed
	add(3, true)
	add(4, true)
	flush(t, s)
	s.Close()
	s = open(t, dir, c.options())
	for n := uint64(3); n <= 5; n++ {
		add(n, false)
	}
	add(2, true)
	add(500, true)
	add(400, false) // too long ago to tell: better lost than twice
	if !s.Add(tick("m1", "b", 1, 1)) || !s.Add(tick("m2", "a", 1, 1)) {
		t.Error("another boot or machine counts apart")
	}
	flush(t, s)
	want := rowsOf(tick("m1", "a", 1, 1), tick("m1", "a", 2, 1), tick("m1", "a", 3, 1), tick("m1", "a", 4, 1), tick("m1", "a", 5, 1), tick("m1", "a", 500, 1),
		tick("m1", "b", 1, 1), tick("m2", "a", 1, 1))
	same(t, "all", read[trace.Row](t, dir, Samples), want)
}

// TestMarkAgreesWithASet compares the window of numbers with a set of them.
func TestMarkAgreesWithASet(t *testing.T) {
	var m Mark
	seen := map[uint64]bool{}
	high := uint64(0)
	for i, n := range []uint64{3, 1, 2, 3, 10, 9, 11, 75, 74, 11, 12, 139, 76, 75, 74, 203, 140, 139, 1000, 936, 935, 936, 999} {
		want := seen[n] || high > n && high-n > window
		if got := m.accepted(n); got != want {
			t.Fatalf("step %d: %d taken %v, want %v (%+v)", i, n, got, want, m)
		}
		if !want {
			m = m.accept(n, 0)
			seen[n], high = true, max(high, n)
		}
	}
}

func TestTimesThatCannotBe(t *testing.T) {
	c := &clock{start}
	opt := c.options()
	opt.Keep = map[string]time.Duration{Samples: time.Hour}
	dir := t.TempDir()
	s := open(t, dir, opt)
	b := tick("m1", "a", 1, 4)
	for i, off := range []time.Duration{-59 * time.Minute, -61 * time.Minute, 59 * time.Minute, 61 * time.Minute} {
		b.Samples[i].TS = sample.At(start.Add(off))
	}
	s.Add(b)
	flush(t, s)
	if rows, st := read[trace.Row](t, dir, Samples), s.Stats(); len(rows) != 3 || st.Rejected != 1 || st.Redated != 1 || st.Samples != 3 {
		t.Errorf("%d rows, %+v; want 3 taken, one of them with another time, 1 rejected", len(rows), st)
	}
	if b.Samples[3].TS != sample.At(start) || b.Samples[2].TS == sample.At(start) {
		t.Errorf("times %v, %v", b.Samples[2].TS, b.Samples[3].TS)
	}
}

// TestClockSetBack: after the server's clock was set back by two hours, or an agent's, whose
// own time never goes back, no sample is lost until the clocks agree again, and an incident
// keeps its duration.
func TestClockSetBack(t *testing.T) {
	c := &clock{start}
	dir := t.TempDir()
	s := open(t, dir, c.options())
	agent := start // the agent's time
	for n := range 180 {
		if n == 30 {
			c.now = c.now.Add(-2 * time.Hour)
		}
		b := tick("m1", "a", uint64(n+1), 5)
		for i := range b.Samples {
			b.Samples[i].TS = sample.At(agent)
		}
		closed := agent.UnixMilli()
		b.Incidents = []Incident{{Machine: "m1", ID: strconv.Itoa(n), Updated: closed, Began: closed - 60_000, Opened: closed - 30_000, Closed: &closed}}
		if !s.Add(b) {
			t.Fatalf("batch %d was not accepted", n)
		}
		c.now, agent = c.now.Add(time.Minute), agent.Add(time.Minute)
	}
	flush(t, s)
	rows, st := read[trace.Row](t, dir, Samples), s.Stats()
	if len(rows) != 900 || st.Rejected != 0 || st.Redated == 0 {
		t.Errorf("%d rows of 900, %+v", len(rows), st)
	}
	for _, r := range read[Incident](t, dir, Incidents) {
		if r.Closed == nil || *r.Closed != r.Updated || *r.Closed-r.Began != 60_000 || *r.Closed-r.Opened != 30_000 {
			t.Errorf("%+v", r)
		}
	}
}

// TestRecordsOfAWrongClock: records of a machine with a wrong clock are kept, at a time
// at which they can be found and will expire. Records past their retention are not kept.
func TestRecordsOfAWrongClock(t *testing.T) {
	c := &clock{start}
	opt := c.options()
	opt.Keep = map[string]time.Duration{Incidents: 24 * time.Hour, Actions: 24 * time.Hour}
	dir := t.TempDir()
	s := open(t, dir, opt)
	now := start.UnixMilli()
	at := func(d time.Duration) int64 { return now + d.Milliseconds() }
	b := &Batch{Source: Source{"records", "m1", "a"}, N: 1}
	for _, d := range []time.Duration{-time.Hour, 59 * time.Minute, 50 * 365 * 24 * time.Hour, -25 * time.Hour, -50 * 365 * 24 * time.Hour} {
		b.Incidents = append(b.Incidents, Incident{Machine: "m1", ID: d.String(), Updated: at(d)})
		b.Actions = append(b.Actions, Action{Machine: "m1", ID: d.String(), At: at(d)})
	}
	s.Add(b)
	flush(t, s)
	var got []int64
	for _, r := range read[Incident](t, dir, Incidents) {
		got = append(got, r.Updated)
	}
	for _, r := range read[Action](t, dir, Actions) {
		got = append(got, r.At)
	}
	slices.Sort(got)
	want := []int64{at(-time.Hour), at(-time.Hour), now, now, at(59 * time.Minute), at(59 * time.Minute)}
	if !slices.Equal(got, want) {
		t.Errorf("kept at %v, want %v", got, want)
	}
	if st := s.Stats(); st.Records != 6 || st.Rejected != 4 {
		t.Errorf("%+v, want 6 records taken, 4 rejected", st)
	}
	if b.Incidents[2].Updated == now {
		t.Error("the caller's batch was changed")
	}
}

func TestOneProcessWrites(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, Options{})
	if _, err := Open(dir, Options{}); err == nil || !strings.Contains(err.Error(), ErrLocked.Error()) {
		t.Errorf("opened twice: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, dir, Options{})
}

// TestASnapshotKeepsItsFiles: files are removed only when no reader uses them any more.
func TestASnapshotKeepsItsFiles(t *testing.T) {
	dir, c := t.TempDir(), &clock{start}
	opt := c.options()
	opt.Keep = map[string]time.Duration{Samples: 2 * time.Hour}
	s := open(t, dir, opt)
	for n := range uint64(fanIn) {
		s.Add(tick("m1", "a", n+20, 3))
		flush(t, s)
	}
	sn := s.Snapshot(0, 0)
	if more, err := s.Compact(); !more || err != nil {
		t.Fatal(more, err)
	}
	c.now = c.now.Add(time.Hour)
	if err := s.Retain(); err != nil {
		t.Fatal(err)
	}
	count := func() (n int) {
		for _, f := range sn.Files(Samples) {
			if _, err := os.Stat(f); err == nil {
				n++
			}
		}
		return n
	}
	if n := count(); n != fanIn {
		t.Errorf("%d of %d files are left for the snapshot", n, fanIn)
	}
	sn.Close()
	if err := s.Retain(); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 0 {
		t.Errorf("%d files are left after it", n)
	}
	c.now = c.now.Add(2 * time.Hour)
	if err := s.Retain(); err != nil {
		t.Fatal(err)
	}
	if rows := read[trace.Row](t, dir, Samples); len(rows) != 0 || s.Stats().Expired != 1 {
		t.Errorf("%d rows are kept past their time, %+v", len(rows), s.Stats())
	}
	c.now = c.now.Add(2 * time.Minute)
	if err := s.Retain(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, Samples)); err == nil {
		t.Error("empty folders are left")
	}
}

func TestASnapshotOfATimeLeavesOutTheRest(t *testing.T) {
	dir, c := t.TempDir(), &clock{start}
	s := open(t, dir, c.options())
	for n := range uint64(40) {
		s.Add(tick("m1", "a", n+1, 1))
	}
	flush(t, s)
	hour := sample.At(start) + 10_000
	for _, w := range []struct {
		from, to sample.Millis
		n        int
	}{{0, 0, 2}, {hour, 0, 1}, {0, hour - 1, 1}, {hour + 40_000, 0, 0}, {hour - 1000, hour, 2}} {
		sn := s.Snapshot(w.from, w.to)
		if len(sn.Segments) != w.n {
			t.Errorf("%v to %v: %d segments, want %d", w.from, w.to, len(sn.Segments), w.n)
		}
		sn.Close()
	}
}

// TestAFullDiskLosesNothing: a full disk delays the commit and loses nothing.
func TestAFullDiskLosesNothing(t *testing.T) {
	dir, c := t.TempDir(), &clock{start}
	s := open(t, dir, c.options())
	s.Add(tick("m1", "a", 1, 3))
	// A file in place of a folder fails as a full disk does, at the first write.
	blocked := filepath.Join(dir, Samples)
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Flush(); err == nil {
			t.Fatal("flushed to nowhere")
		}
		if err := s.Stale(); err == nil {
			t.Error("the store does not say that it stores nothing")
		}
		s.Add(tick("m1", "a", 2, 3))
	}
	if st := s.Stats(); st.Pending != 6 || st.Commits != 0 || st.Duplicates != 1 {
		t.Errorf("%+v, want 6 samples pending", st)
	}
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	flush(t, s)
	if err := s.Stale(); err != nil {
		t.Error(err)
	}
	same(t, "afterwards", read[trace.Row](t, dir, Samples), rowsOf(tick("m1", "a", 1, 3), tick("m1", "a", 2, 3)))
}

func TestMain(m *testing.M) {
	if dir := os.Getenv("QUELL_TEST_INGEST"); dir != "" {
		ingestForEver(dir)
	}
	quelltest.Main(m)
}
