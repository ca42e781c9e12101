package store

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	trace "github.com/quell-dev/quell/internal/format/trace/parquet"
)

// TestHoursAreStoredInParallel: what an agent sends after a long outage is of many hours, each of which is a file.
// Storage that takes long for each gets several at once.
func TestHoursAreStoredInParallel(t *testing.T) {
	c := &clock{start}
	b := newMemory(c)
	opt := c.options()
	opt.Bucket = b
	s := open(t, t.TempDir(), opt)
	batch := tick("m1", "a", 1, 3*atOnce)
	for i := range batch.Samples {
		batch.Samples[i].TS = sample.At(start).Add(-time.Duration(i) * time.Hour)
	}
	s.Add(batch)
	begun, goOn, ended := make(chan struct{}, len(batch.Samples)), make(chan struct{}), make(chan error, 1)
	b.puts = func() { begun <- struct{}{}; <-goOn }
	go func() { ended <- s.Flush() }()
	for n := range atOnce {
		select {
		case <-begun:
		case <-time.After(4 * time.Minute):
			t.Fatalf("%d files are being stored, want %d", n, atOnce)
		}
	}
	if len(begun) > 0 {
		t.Errorf("more than %d files are being stored", atOnce)
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	same(t, "stored in parallel", remoteRows[trace.Row](t, b, Samples), rowsOf(batch))
}

// TestALogIsCleanedInParallel: a checkpoint removes 255 commits within its time from storage that takes long for each:
// else the log would grow until no server can read it in time.
func TestALogIsCleanedInParallel(t *testing.T) {
	c := &clock{start}
	b := newMemory(c)
	opt := c.options()
	opt.Bucket = b
	s := open(t, t.TempDir(), opt)
	for range 2*everyCommits - 1 {
		if err := s.commit(&commit{}); err != nil {
			t.Fatal(err)
		}
	}
	begun, goOn, ended := make(chan struct{}, everyCommits), make(chan struct{}), make(chan error, 1)
	b.slow = func() { begun <- struct{}{}; <-goOn }
	go func() { ended <- s.commit(&commit{}) }()
	for n := range atOnce {
		select {
		case <-begun:
		case <-time.After(4 * time.Minute):
			t.Fatalf("%d commits are being removed, want %d", n, atOnce)
		}
	}
	close(goOn)
	if err := errors.Join(<-ended, s.Err()); err != nil {
		t.Fatal(err)
	}
	if all, err := b.List(t.Context(), logDir); err != nil || len(all) != everyCommits+1+2 {
		t.Errorf("%d files are left in the log, want %d and two checkpoints; %v", len(all), everyCommits+1, err)
	}
}

// TestALogIsReadInParallel: a server that was cut off reads hundreds of commits within the time of Refresh from storage
// that takes long for each: else it would never catch up, and could not lead.
func TestALogIsReadInParallel(t *testing.T) {
	c := &clock{start}
	b := newMemory(c)
	opt := c.options()
	opt.Bucket = b
	leader, other := open(t, t.TempDir(), opt), open(t, t.TempDir(), opt)
	for range 2*atOnce + 1 {
		if err := leader.commit(&commit{}); err != nil {
			t.Fatal(err)
		}
	}
	begun, goOn, ended := make(chan struct{}, 2*atOnce+1), make(chan struct{}), make(chan error, 1)
	b.reads = func() { begun <- struct{}{}; <-goOn }
	go func() { ended <- other.Refresh() }()
	for n := range atOnce {
		select {
		case <-begun:
		case <-time.After(4 * time.Minute):
			t.Fatalf("%d commits are being read, want %d", n, atOnce)
		}
	}
	close(goOn)
	if err := <-ended; err != nil || other.state.Generation != 2*atOnce+1 {
		t.Errorf("read up to commit %d: %v", other.state.Generation, err)
	}
}

// TestAMergeWaitsForNoFetch: a merge of files that are here goes on while a query fetches others.
func TestAMergeWaitsForNoFetch(t *testing.T) {
	c := &clock{start}
	b := newMemory(c)
	opt := c.options()
	opt.Bucket = b
	s, other := open(t, t.TempDir(), opt), open(t, t.TempDir(), opt)
	other.Add(tick("m1", "a", 1, 3)) // of the hour before
	flush(t, other)
	for n := range uint64(fanIn) {
		s.Add(tick("m1", "a", n+20, 3))
		flush(t, s)
	}
	sn := s.Snapshot(0, 0)
	defer sn.Close()
	begun, goOn, fetched, merged := make(chan struct{}), make(chan struct{}), make(chan error, 1), make(chan error, 1)
	b.reads = func() { close(begun); <-goOn }
	go func() { fetched <- sn.Fetch(t.Context(), Samples) }()
	<-begun
	go func() { _, err := s.Compact(); merged <- err }()
	select {
	case err := <-merged:
		if err != nil || s.Stats().Merged != fanIn {
			t.Errorf("%d merged, %v", s.Stats().Merged, err)
		}
	case <-time.After(4 * time.Minute):
		t.Error("a merge waits for a query")
	}
	close(goOn)
	if err := <-fetched; err != nil {
		t.Error(err)
	}
}

// TestAFetchWaitsForNoOther: a list, or a server that begins to lead, needs a small file. It does not wait until a user's
// query over days of samples has all of its own. What both need is fetched once.
func TestAFetchWaitsForNoOther(t *testing.T) {
	c := &clock{start}
	b := newMemory(c)
	opt := c.options()
	opt.Bucket = b
	s, other := open(t, t.TempDir(), opt), open(t, t.TempDir(), opt)
	other.Add(tick("m1", "a", 1, 3))
	other.Add(&Batch{Audit: []Audit{{At: start.UnixMilli(), Who: "anna"}}})
	flush(t, other)
	if err := s.Refresh(); err != nil {
		t.Fatal(err)
	}
	begun, goOn := make(chan struct{}), make(chan struct{})
	var reads atomic.Int32
	b.reads = func() {
		if reads.Add(1) == 1 {
			close(begun)
			<-goOn
		}
	}
	fetch := func(table string) chan error {
		sn, ended := s.Snapshot(0, 0), make(chan error, 1)
		t.Cleanup(sn.Close)
		go func() { ended <- sn.Fetch(t.Context(), table) }()
		return ended
	}
	first := fetch(Samples)
	<-begun
	second := fetch(Samples)
	select {
	case err := <-fetch(AuditLog):
		if err != nil {
			t.Error(err)
		}
	case <-time.After(4 * time.Minute):
		t.Error("a fetch waits for another")
	}
	close(goOn)
	if err := errors.Join(<-first, <-second); err != nil || reads.Load() != 2 {
		t.Errorf("%d files were fetched, want 2: %v", reads.Load(), err)
	}
}

// timed is a memory that answers no Get, and records the time that each has.
type timed struct {
	*memory
	left time.Duration
}

func (b *timed) Get(ctx context.Context, _, _ string) error {
	until, _ := ctx.Deadline()
	b.left = time.Until(until)
	return errLost
}

// TestALargeFileHasTime: storage that stands still ends a fetch, and a slow link does not: eight segments of 1 GiB take
// 11 minutes at 100 Mbit/s.
func TestALargeFileHasTime(t *testing.T) {
	c := &clock{start}
	b := &timed{memory: newMemory(c)}
	opt := c.options()
	opt.Bucket = b
	s := open(t, t.TempDir(), opt)
	if err := s.fetch(t.Context(), []Segment{{File: "samples/large", Bytes: maxMerge}}); !errors.Is(err, errLost) || b.left < time.Hour || b.left > 24*time.Hour {
		t.Errorf("it has %v: %v", b.left, err)
	}
}
