package store

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	trace "github.com/quell-dev/quell/internal/format/trace/parquet"
)

// retried is a memory whose client asks again after a lost answer, and learns that there is such a file: its own.
// Then storage answers no more.
type retried struct {
	*memory
	fails bool
}

func (r *retried) Create(ctx context.Context, name string, data []byte) error {
	if err := r.memory.Create(ctx, name, data); err != nil || !r.fails {
		return err
	}
	return fs.ErrExist
}

func (r *retried) List(ctx context.Context, folder string) ([]Entry, error) {
	if r.fails {
		return nil, errLost
	}
	return r.memory.List(ctx, folder)
}

// TestACommitThatMayBeThereKeepsItsFiles: as long as a server cannot read whose commit has its number, that may be its
// own, and needs the files.
func TestACommitThatMayBeThereKeepsItsFiles(t *testing.T) {
	c := &clock{start}
	b := &retried{memory: newMemory(c)}
	opt := c.options()
	opt.Bucket = b
	s := open(t, t.TempDir(), opt)
	batch := tick("m1", "a", 1, 3)
	s.Add(batch)
	b.fails = true
	if err := s.Flush(); !errors.Is(err, errLost) {
		t.Fatal(err)
	}
	b.fails = false
	flush(t, s)
	same(t, "the commit that was there", remoteRows[trace.Row](t, b, Samples), rowsOf(batch))
}

// TestAServerThatStoodStill commits what it has, although others have removed the commit with its next number.
func TestAServerThatStoodStill(t *testing.T) {
	c := &clock{start}
	b := newMemory(c)
	opt := c.options()
	opt.Bucket = b
	still, other := open(t, t.TempDir(), opt), open(t, t.TempDir(), opt)
	first, second := tick("m1", "a", 1, 3), tick("m1", "a", 2, 3)
	still.Add(first)
	still.Add(second)
	other.Add(first)
	flush(t, other)
	for range 2 * everyCommits {
		if err := other.commit(&commit{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, there := b.files[commitName(1)]; there {
		t.Fatal("the log still has the first commit")
	}
	flush(t, still)
	same(t, "it and another have stored", remoteRows[trace.Row](t, b, Samples), rowsOf(first, second))
}

// paused is a memory in front of which a server stands still once, before a List.
type paused struct {
	*memory
	meanwhile func()
}

func (p *paused) List(ctx context.Context, folder string) ([]Entry, error) {
	if do := p.meanwhile; do != nil {
		p.meanwhile = nil
		do()
	}
	return p.memory.List(ctx, folder)
}

// TestACommitThatOthersHaveRead: a server makes a commit and stands still. Others go on from it, and their checkpoint
// removes the commit before. That takes nothing back, and nothing is stored a second time.
func TestACommitThatOthersHaveRead(t *testing.T) {
	c := &clock{start}
	b := &paused{memory: newMemory(c)}
	opt := c.options()
	opt.Bucket = b
	other := open(t, t.TempDir(), opt)
	for range everyCommits - 1 {
		if err := other.commit(&commit{}); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, t.TempDir(), opt)
	s.Add(&Batch{Source: Source{Stream: "audit"}, Audit: []Audit{{At: start.UnixMilli(), Who: "anna"}}})
	b.meanwhile = func() {
		err := other.Refresh()
		for range everyCommits {
			err = errors.Join(err, other.commit(&commit{}))
		}
		if _, there := b.files[commitName(everyCommits-1)]; there || err != nil {
			t.Errorf("the commit before is there: %v, %v", there, err)
		}
	}
	flush(t, s)
	if rows := remoteRows[Audit](t, b, AuditLog); len(rows) != 1 {
		t.Errorf("%d entries, want 1", len(rows))
	}
}

// TestARestoredBucket: a server that is running when its bucket is restored from a copy commits nothing there, since
// the commits before are not in it.
func TestARestoredBucket(t *testing.T) {
	c := &clock{start}
	b := newMemory(c)
	opt := c.options()
	opt.Bucket = b
	s := open(t, t.TempDir(), opt)
	first := tick("m1", "a", 1, 3)
	s.Add(first)
	flush(t, s)
	yesterday := maps.Clone(b.files)
	for n := range uint64(2) {
		s.Add(tick("m1", "a", n+2, 3))
		flush(t, s)
	}
	b.files = yesterday
	last := tick("m1", "a", 4, 3)
	s.Add(last)
	flushed, refreshed := s.Flush(), s.Refresh()
	b.files[commitName(4)] = []byte(`{"generation":4}`) // of a server that could not list the log to take it back
	for _, err := range []error{flushed, refreshed, s.Refresh()} {
		if err == nil || !strings.Contains(err.Error(), "has no commit 3") {
			t.Errorf("went on: %v", err)
		}
	}
	delete(b.files, commitName(4))
	again := open(t, t.TempDir(), opt)
	again.Add(last)
	flush(t, again)
	same(t, "after a restart", remoteRows[trace.Row](t, b, Samples), rowsOf(first, last))
}

// TestFilesInDoubt: storage that refuses commits for hours gets the files of each attempt. They fill no disk, and are
// removed when it is known that no commit names them.
func TestFilesInDoubt(t *testing.T) {
	for _, stored := range []bool{false, true} { // the first of the commits
		dir, c := t.TempDir(), &clock{start}
		b := newMemory(c)
		opt := c.options()
		opt.Bucket = b
		s := open(t, dir, opt)
		batch := tick("m1", "a", 1, 3)
		s.Add(batch)
		b.lose = func() (bool, bool) { return !stored, true }
		for range 3 {
			if err := s.Flush(); !stored && !errors.Is(err, errLost) {
				t.Fatal(err)
			}
		}
		copies, err := folder{dir}.List(t.Context(), Samples)
		if err != nil || len(copies) > 0 {
			t.Errorf("copies are left: %v, %v", copies, err)
		}
		b.lose = nil
		flush(t, s)
		c.now = c.now.Add(time.Hour)
		if err := s.Retain(); err != nil {
			t.Fatal(err)
		}
		same(t, "stored", remoteRows[trace.Row](t, b, Samples), rowsOf(batch))
		if all, err := b.List(t.Context(), Samples); err != nil || len(all) != 1 {
			t.Errorf("%d files are left, want 1; %v", len(all), err)
		}
	}
}

// TestTwoServersUpgradeTheSame: a server that loses its lease during an upgrade adds no rows a second time, although it
// knows of its successor's upgrade before it commits.
func TestTwoServersUpgradeTheSame(t *testing.T) {
	c := &clock{start}
	b := newMemory(c)
	opt := c.options()
	opt.Bucket = b
	first, second := open(t, t.TempDir(), opt), open(t, t.TempDir(), opt)
	first.Add(&Batch{Source: Source{"records", "m", "b"}, N: 1, Incidents: []Incident{{Machine: "m", ID: "i", Updated: start.UnixMilli(), Doc: `{"id":"i","rounds":[{"id":"r"}]}`}}})
	flush(t, first)
	sn := first.Snapshot(0, 0)
	old := sn.Segments[0]
	sn.Close()
	old.Layout = 0 // as an older version has stored it
	if err := first.commit(&commit{Add: []Segment{old}}); err != nil {
		t.Fatal(err)
	}
	if err := second.Refresh(); err != nil {
		t.Fatal(err)
	}
	if upgraded, err := second.Compact(); !upgraded || err != nil {
		t.Fatal(upgraded, err)
	}
	if err := first.Refresh(); err != nil {
		t.Fatal(err)
	}
	if err := first.upgradeSegment(old); !errors.Is(err, errConflict) {
		t.Error(err)
	}
	if n := len(remoteRows[Round](t, b, Rounds)); n != 1 {
		t.Errorf("%d rounds, want 1", n)
	}
}

// TestAFolderIsNotTakenForCopies: a server that gets a bucket keeps what its folder has, until that is in the bucket.
func TestAFolderIsNotTakenForCopies(t *testing.T) {
	dir, c := t.TempDir(), &clock{start}
	s := open(t, dir, c.options())
	batch, next := tick("m1", "a", 1, 3), tick("m1", "a", 2, 3)
	s.Add(batch)
	flush(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b := newMemory(c)
	opt := c.options()
	opt.Bucket = b
	if _, err := Open(dir, opt); !errors.Is(err, ErrOwnFiles) {
		t.Errorf("opened: %v", err)
	}
	same(t, "the folder", read[trace.Row](t, dir, Samples), rowsOf(batch))
	for _, below := range []string{Samples, logDir} {
		all, err := folder{dir}.List(t.Context(), below)
		for _, e := range all {
			err = errors.Join(err, b.Put(t.Context(), e.Name, filepath.Join(dir, e.Name)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s = open(t, dir, opt)
	s.Add(next)
	flush(t, s)
	same(t, "the bucket", remoteRows[trace.Row](t, b, Samples), rowsOf(batch, next))
}

// TestALogWithoutFiles: an earlier version has removed the files of a folder when it got a bucket, and left their log.
// That keeps no server from starting.
func TestALogWithoutFiles(t *testing.T) {
	dir, c := t.TempDir(), &clock{start}
	s := open(t, dir, c.options())
	s.Add(tick("m1", "a", 1, 3))
	flush(t, s)
	if err := errors.Join(s.Close(), os.RemoveAll(s.path(Samples))); err != nil {
		t.Fatal(err)
	}
	opt := c.options()
	opt.Bucket = newMemory(c)
	open(t, dir, opt)
}

// TestADamagedFileTakesNoMemory: a segment whose metadata say that they hold two thousand million row groups
// is refused by a merge, before memory is allocated for them: that would end the server.
func TestADamagedFileTakesNoMemory(t *testing.T) {
	dir, c := t.TempDir(), &clock{start}
	s := open(t, dir, c.options())
	s.Add(tick("m1", "a", 1, 1))
	flush(t, s)
	sn := s.Snapshot(0, 0)
	defer sn.Close()
	file := sn.Files(Samples)[0]
	const claims = "PAR1" + "\x49\xfc\xff\xff\xff\xff\x07\x00" + "\x08\x00\x00\x00PAR1"
	if err := os.WriteFile(file, []byte(claims), 0o600); err != nil {
		t.Fatal(err)
	}
	name, err := filepath.Rel(dir, file)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.mergeTo(io.Discard, 1, []Segment{{File: name, Bytes: int64(len(claims))}}); err == nil || !strings.Contains(err.Error(), "a list of 2147483647") || !strings.Contains(err.Error(), name) {
		t.Error(err)
	}
}

// TestALostFile: a segment that is gone keeps its own hour from being merged, and no other hour.
func TestALostFile(t *testing.T) {
	dir, c := t.TempDir(), &clock{start}
	s := open(t, dir, c.options())
	for n := range uint64(2 * fanIn) {
		batch := tick("m1", "a", n+20, 1)
		if n < fanIn+1 { // one more, so that these are to be merged first
			batch.Samples[0].TS = batch.Samples[0].TS.Add(-time.Hour)
		}
		s.Add(batch)
		flush(t, s)
	}
	s.Add(tick("m1", "a", 60, 1))
	flush(t, s)
	sn := s.Snapshot(0, 0)
	lost := sn.Files(Samples)[0] // of the earlier hour
	sn.Close()
	if err := os.Remove(lost); err != nil {
		t.Fatal(err)
	}
	if more, err := s.Compact(); more || !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(more, err)
	}
	if more, err := s.Compact(); !more || err != nil || s.Stats().Merged != fanIn {
		t.Errorf("%d merged, %v", s.Stats().Merged, err)
	}
	if more, err := s.Compact(); more || err != nil {
		t.Errorf("tried again at once: %v", err)
	}
	c.now = c.now.Add(retryAfter)
	if more, err := s.Compact(); more || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("not tried again: %v", err)
	}
}

// TestALostOldSegment: a segment that cannot be upgraded keeps nothing from being merged.
func TestALostOldSegment(t *testing.T) {
	dir, c := t.TempDir(), &clock{start}
	s := open(t, dir, c.options())
	s.Add(&Batch{Source: Source{"records", "m", "b"}, N: 1, Incidents: []Incident{{Machine: "m", ID: "i", Updated: start.UnixMilli(), Doc: "{}"}}})
	flush(t, s)
	sn := s.Snapshot(0, 0)
	old := sn.Segments[0]
	sn.Close()
	old.Layout = 0 // as an older version has stored it
	if err := errors.Join(s.commit(&commit{Add: []Segment{old}}), os.Remove(s.path(old.File))); err != nil {
		t.Fatal(err)
	}
	for n := range uint64(fanIn) {
		s.Add(tick("m1", "a", n+20, 1))
		flush(t, s)
	}
	if more, err := s.Compact(); more || !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(more, err)
	}
	if more, err := s.Compact(); !more || err != nil || s.Stats().Merged != fanIn {
		t.Errorf("%d merged, %v", s.Stats().Merged, err)
	}
}
