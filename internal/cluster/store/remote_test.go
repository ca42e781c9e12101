package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/core/sample"
	trace "github.com/quell-dev/quell/internal/format/trace/parquet"
)

// memory is a Bucket in memory whose answers may be lost.
type memory struct {
	mu    sync.Mutex
	files map[string][]byte
	now   func() time.Time
	lose  func() (before, after bool) // in a Create; nil: none
	slow  func()                      // before a Remove; nil: nothing
	puts  func()                      // before a Put; nil: nothing
	reads func()                      // before a Read; nil: nothing
}

func newMemory(c *clock) *memory {
	return &memory{files: map[string][]byte{}, now: func() time.Time { return c.now }}
}

var errLost = errors.New("no answer")

func (m *memory) Put(_ context.Context, name, path string) error {
	if m.puts != nil {
		m.puts()
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files[name] = data
	return nil
}

func (m *memory) Create(_ context.Context, name string, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, after := false, false
	if m.lose != nil {
		before, after = m.lose()
	}
	if before {
		return errLost
	}
	if _, ok := m.files[name]; ok {
		return fs.ErrExist
	}
	m.files[name] = slices.Clone(data)
	if after {
		return errLost
	}
	return nil
}

func (m *memory) Read(_ context.Context, name string) ([]byte, error) {
	if m.reads != nil {
		m.reads()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	data, ok := m.files[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return slices.Clone(data), nil
}

func (m *memory) Get(ctx context.Context, name, path string) error {
	data, err := m.Read(ctx, name)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

func (m *memory) List(_ context.Context, folder string) ([]Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []Entry
	for _, name := range slices.Sorted(maps.Keys(m.files)) {
		if strings.HasPrefix(name, folder+"/") {
			all = append(all, Entry{Name: name, Bytes: int64(len(m.files[name])), At: m.now()})
		}
	}
	return all, nil
}

func (m *memory) Remove(_ context.Context, name string) error {
	if m.slow != nil {
		m.slow()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.files, name)
	return nil
}

func (m *memory) URL(name string) string { return "memory://" + name }

// remoteRows returns the rows that a new reader of the bucket finds.
func remoteRows[T any](t testing.TB, b Bucket, table string) []T {
	t.Helper()
	dir := t.TempDir()
	sn, err := ReadBucket(t.Context(), b, dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []T
	for i := range sn.Segments {
		if sn.Segments[i].Table() != table {
			continue
		}
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := b.Get(t.Context(), sn.Segments[i].File, path); err != nil {
			t.Fatal(err)
		}
		rows, err := parquet.ReadFile[T](path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, rows...)
	}
	return all
}

// TestSeveralServersCommitEachBatchOnce: several servers on one bucket each get some of
// the batches, many of them repeatedly. What is committed is stored once, over merges by
// all of them, lost answers and restarts.
func TestSeveralServersCommitEachBatchOnce(t *testing.T) {
	for seed := range uint64(15) {
		severalServers(t, seed)
	}
}

func severalServers(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(11, seed))
	c := &clock{start}
	b := newMemory(c)
	if seed > 4 {
		b.lose = func() (bool, bool) { return rng.IntN(6) == 0, rng.IntN(6) == 0 }
	}
	opt := c.options()
	opt.Bucket = b
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	var stores []*Store
	for _, dir := range dirs {
		stores = append(stores, open(t, dir, opt))
	}
	pending := make([][]*Batch, len(stores)) // added since the last commit
	committed := map[string]*Batch{}
	lost := 0
	for n := uint64(1); n <= 40; n++ {
		batch := tick("m1", "a", n, 3)
		for i, s := range stores {
			if rng.IntN(2) == 0 {
				s.Add(batch)
				pending[i] = append(pending[i], batch)
			}
		}
		i := rng.IntN(len(stores))
		switch s := stores[i]; rng.IntN(8) {
		case 0, 1, 2:
			if err := s.Flush(); err == nil {
				for _, p := range pending[i] {
					committed[fmt.Sprint(p.N)] = p
				}
				pending[i] = nil
			} else if lost++; !errors.Is(err, errLost) {
				t.Fatalf("seed %d: %v", seed, err)
			}
		case 3:
			if _, err := s.Compact(); err != nil && !errors.Is(err, errLost) {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if err := s.Retain(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		case 4:
			if err := s.Refresh(); err != nil {
				t.Fatal(err)
			}
		case 5: // killed: its batches are redelivered to another
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			stores[i], pending[i] = open(t, dirs[i], opt), nil
		}
		c.now = c.now.Add(time.Minute)
	}
	b.lose = nil
	for i, s := range stores {
		flush(t, s)
		for _, p := range pending[i] {
			committed[fmt.Sprint(p.N)] = p
		}
	}
	if err := stores[0].Refresh(); err != nil {
		t.Fatal(err)
	}
	rows := remoteRows[trace.Row](t, b, Samples)
	if got := stores[0].Stats().Rows; got != int64(len(rows)) {
		t.Errorf("seed %d: the store says that it has %d rows, it has %d", seed, got, len(rows))
	}
	seen := map[string]int{}
	for i := range rows {
		seen[text(&rows[i])]++
	}
	for row, n := range seen {
		if n != 1 {
			t.Fatalf("seed %d: %s is there %d times", seed, row, n)
		}
	}
	// A commit whose answer was lost may exist in addition to the known ones.
	for _, row := range rowsOf(slices.Collect(maps.Values(committed))...) {
		if seen[text(&row)] != 1 {
			t.Fatalf("seed %d: a sample that was committed is not there: %s", seed, text(&row))
		}
	}
	if len(committed) == 0 || seed > 4 && lost == 0 {
		t.Errorf("seed %d: %d batches committed, %d answers lost", seed, len(committed), lost)
	}
}

// TestTwoServersMergeTheSame: a server that loses its lease during a merge does not add the rows that its successor
// has merged, although it knows of that before it commits.
func TestTwoServersMergeTheSame(t *testing.T) {
	c := &clock{start}
	b := newMemory(c)
	opt := c.options()
	opt.Bucket = b
	first, second := open(t, t.TempDir(), opt), open(t, t.TempDir(), opt)
	for n := range uint64(fanIn) {
		first.Add(tick("m1", "a", n+1, 3))
		flush(t, first)
	}
	from, folder := first.pick(sample.At(c.now))
	if err := second.Refresh(); err != nil {
		t.Fatal(err)
	}
	if merged, err := second.Compact(); !merged || err != nil {
		t.Fatal(merged, err)
	}
	if err := first.Refresh(); err != nil {
		t.Fatal(err)
	}
	if err := first.merge(from, folder); len(from) != fanIn || !errors.Is(err, errConflict) {
		t.Errorf("%d segments, %v", len(from), err)
	}
	if n := len(remoteRows[trace.Row](t, b, Samples)); n != 3*fanIn {
		t.Errorf("%d rows, want %d", n, 3*fanIn)
	}
}

// TestALostAnswerIsFoundOut: data without numbers, such as the server's own audit, is not
// stored twice either if the answer to its commit was lost.
func TestALostAnswerIsFoundOut(t *testing.T) {
	c := &clock{start}
	b := newMemory(c)
	opt := c.options()
	opt.Bucket = b
	s := open(t, t.TempDir(), opt)
	s.Add(&Batch{Source: Source{Stream: "audit"}, Audit: []Audit{{At: int64(1e12), Who: "anna"}}})
	b.lose = func() (bool, bool) { return false, true }
	if err := s.Flush(); !errors.Is(err, errLost) {
		t.Fatal(err)
	}
	b.lose = nil
	s.Add(&Batch{Source: Source{Stream: "audit"}, Audit: []Audit{{At: int64(1e12), Who: "bob"}}})
	flush(t, s)
	flush(t, s)
	rows := remoteRows[Audit](t, b, AuditLog)
	var who []string
	for _, r := range rows {
		who = append(who, r.Who)
	}
	slices.Sort(who)
	if !slices.Equal(who, []string{"anna", "bob"}) {
		t.Errorf("the audit says %v", who)
	}
}

// TestCopies: copies are fetched when they are needed, and bounded.
func TestCopies(t *testing.T) {
	c := &clock{start}
	b := newMemory(c)
	opt := c.options()
	opt.Bucket, opt.Copies = b, 1
	s := open(t, t.TempDir(), opt)
	s.Add(tick("m1", "a", 1, 3))
	flush(t, s)
	there := func(sn *Snapshot) bool {
		_, err := os.Stat(sn.Files(Samples)[0])
		return err == nil
	}
	sn := s.Snapshot(0, 0)
	if err := errors.Join(sn.Fetch(t.Context(), Samples), s.Retain()); err != nil {
		t.Fatal(err)
	}
	if !there(sn) {
		t.Error("a file that is read was removed")
	}
	sn.Close()
	if err := s.Retain(); err != nil {
		t.Fatal(err)
	}
	sn = s.Snapshot(0, 0)
	defer sn.Close()
	if there(sn) {
		t.Error("the copy is over the bound and stays")
	}
	if err := sn.Fetch(t.Context(), Incidents); err != nil || there(sn) {
		t.Errorf("brought what was not asked for, %v", err)
	}
	if err := sn.Fetch(t.Context(), Tables()...); err != nil {
		t.Fatal(err)
	}
	if !there(sn) {
		t.Error("the copy was not brought")
	}
	if got := sn.URLs(Samples); len(got) != 1 || !strings.HasPrefix(got[0], "memory://samples/day=") {
		t.Errorf("URLs %v", got)
	}
	// A file missing in the bucket is an error with its name.
	if err := b.Remove(t.Context(), sn.Segments[0].File); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(sn.Files(Samples)[0]); err != nil {
		t.Fatal(err)
	}
	if err := sn.Fetch(t.Context(), Tables()...); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), sn.Segments[0].File) {
		t.Errorf("brought what is gone: %v", err)
	}
}

// TestACopyOfAPowerCut: a local copy that lost its contents in a power cut is fetched again.
func TestACopyOfAPowerCut(t *testing.T) {
	c := &clock{start.Add(time.Hour)}
	b := newMemory(c)
	o := c.options()
	o.Bucket = b
	s, err := Open(t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.Add(tick("m", "a", 1, 4))
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	sn := s.Snapshot(0, 0)
	defer sn.Close()
	path := sn.Files(Samples)[0]
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if err := sn.Fetch(t.Context(), Samples); err != nil {
		t.Fatal(err)
	}
	if rows, err := parquet.ReadFile[trace.Row](path); err != nil || len(rows) != 4 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

// TestSlowRemovalHoldsUpNobody: slow removal of files delays neither ingest nor queries.
func TestSlowRemovalHoldsUpNobody(t *testing.T) {
	c := &clock{start}
	b := newMemory(c)
	opt := c.options()
	opt.Bucket = b
	s := open(t, t.TempDir(), opt)
	for n := range uint64(fanIn) {
		s.Add(tick("m1", "a", n+20, 3))
		flush(t, s)
	}
	if more, err := s.Compact(); !more || err != nil {
		t.Fatal(more, err)
	}
	c.now = c.now.Add(time.Hour)
	removes, goOn := make(chan struct{}, fanIn), make(chan struct{})
	b.slow = func() { removes <- struct{}{}; <-goOn }
	ended := make(chan error, 1)
	go func() { ended <- s.Retain() }()
	<-removes
	answered := make(chan error, 1)
	go func() {
		s.Snapshot(0, 0).Close()
		s.Add(tick("m1", "a", 40, 3))
		answered <- s.Flush()
	}()
	select {
	case err := <-answered:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(4 * time.Minute):
		t.Error("no batch was accepted and no query answered while a file is removed")
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if all, err := b.List(t.Context(), Samples); err != nil || len(all) != 2 {
		t.Errorf("%d files are left, want the merged one and the new one; %v", len(all), err)
	}
}

// A server that only answers queries keeps no copies of what another server has merged. It leaves the bucket's files to
// that server, on whose behalf Spark may read them for hours.
func TestAReaderLetsGoOfCopies(t *testing.T) {
	c := &clock{start}
	opt := c.options()
	b := newMemory(c)
	opt.Bucket = b
	leader, dir := open(t, t.TempDir(), opt), t.TempDir()
	reader := open(t, dir, opt)
	for n := range uint64(fanIn) {
		leader.Add(tick("m1", "a", n+20, 3))
		flush(t, leader)
	}
	look := func() *Snapshot {
		t.Helper()
		if err := reader.Refresh(); err != nil {
			t.Fatal(err)
		}
		sn := reader.Snapshot(0, 0)
		if err := sn.Fetch(t.Context(), Samples); err != nil {
			t.Fatal(err)
		}
		return sn
	}
	look().Close()
	spark := leader.Snapshot(0, 0)
	if more, err := leader.Compact(); !more || err != nil {
		t.Fatal(more, err)
	}
	sn := look()
	defer sn.Close()
	c.now = c.now.Add(time.Hour)
	if err := reader.Sweep(); err != nil {
		t.Fatal(err)
	}
	copies, err := folder{dir}.List(t.Context(), Samples)
	if err != nil || len(copies) != 1 || copies[0].Name != sn.Segments[0].File || len(reader.replaced) != 0 {
		t.Errorf("copies %v, %d doomed, %v; want one, of %s", copies, len(reader.replaced), err, sn.Segments[0].File)
	}
	for _, want := range []int{fanIn + 1, 1} {
		if err := leader.Retain(); err != nil {
			t.Fatal(err)
		}
		if all, err := b.List(t.Context(), Samples); err != nil || len(all) != want {
			t.Errorf("%d files in the bucket, want %d; %v", len(all), want, err)
		}
		spark.Close()
	}
}

// TestOrphansInABucket: a file in the bucket that no commit names stays as long as a
// server may still commit it.
func TestOrphansInABucket(t *testing.T) {
	c := &clock{start}
	b := newMemory(c)
	made := c.now
	b.now = func() time.Time { return made }
	opt := c.options()
	opt.Bucket = b
	const name = "samples/day=2026-11-21/hour=13/000000000001-0001-other.parquet"
	b.files[name] = []byte("x")
	open(t, t.TempDir(), opt)
	if b.files[name] == nil {
		t.Error("it was removed at once")
	}
	c.now = c.now.Add(25 * time.Hour)
	open(t, t.TempDir(), opt)
	if b.files[name] != nil {
		t.Error("it was never removed")
	}
}
