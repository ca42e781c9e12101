package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quell-dev/quell/internal/core/sample"
)

// A store in a Bucket may be open in several servers. Each may know an outdated state of the log and finds out when the
// number of its next commit already exists. It then reads the new commits, drops from its gathered data what the others
// have committed, and tries again.

// span is what one batch added to a flight: the number of each kind.
type span struct {
	source                                                            Source
	n                                                                 uint64
	rows, incidents, rounds, suspects, actions, audit, specs, revoked int
}

// rebase drops the batches that marks lists as accepted, and returns their number.
func (f *pendingCommit) rebase(marks func(Source) Mark) (dropped uint64) {
	at := map[Source]sample.Millis{}
	for source, m := range f.marks {
		at[source] = m.At
	}
	clear(f.marks)
	spans, rows, incidents, actions, audit, specs, revoked := f.spans, f.pack.rows, f.incidents, f.actions, f.audit, f.specs, f.revoked
	rounds, suspects := f.rounds, f.suspects
	f.rounds, f.suspects = f.rounds[:0], f.suspects[:0]
	f.spans, f.pack.rows, f.incidents, f.actions, f.audit, f.specs, f.revoked = f.spans[:0], f.pack.rows[:0], f.incidents[:0], f.actions[:0], f.audit[:0], f.specs[:0], f.revoked[:0]
	for _, p := range spans {
		m, ok := f.marks[p.source]
		if !ok {
			m = marks(p.source)
		}
		if p.n > 0 && m.accepted(p.n) {
			dropped++
		} else {
			if p.n > 0 {
				f.marks[p.source] = m.accept(p.n, at[p.source])
			}
			f.spans = append(f.spans, p)
			f.pack.rows = append(f.pack.rows, rows[:p.rows]...)
			f.incidents, f.actions = append(f.incidents, incidents[:p.incidents]...), append(f.actions, actions[:p.actions]...)
			f.rounds, f.suspects = append(f.rounds, rounds[:p.rounds]...), append(f.suspects, suspects[:p.suspects]...)
			f.audit, f.specs = append(f.audit, audit[:p.audit]...), append(f.specs, specs[:p.specs]...)
			f.revoked = append(f.revoked, revoked[:p.revoked]...)
		}
		rounds, suspects = rounds[p.rounds:], suspects[p.suspects:]
		rows, incidents, actions, audit, specs, revoked = rows[p.rows:], incidents[p.incidents:], actions[p.actions:], audit[p.audit:], specs[p.specs:], revoked[p.revoked:]
	}
	return dropped
}

// refresh reads the commits of other servers and drops from the gathered and the flying
// data what is already in the store. The caller holds committing.
func (s *Store) refresh(ctx context.Context) error {
	s.mu.Lock()
	old := s.state.clone()
	s.mu.Unlock()
	fresh, commits, err := readLog(ctx, s.bucket, old)
	if err != nil || fresh.Generation == old.Generation {
		return err
	}
	now := sample.At(s.opt.Now())
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range old.Segments {
		if _, ok := fresh.Segments[name]; !ok {
			s.replaced[name] = now
		}
	}
	s.state = fresh
	s.settle(now)
	taken := func(source Source) Mark { return s.state.Marks[source] }
	if f := s.writing; f != nil {
		if slices.Contains(commits, f.id) {
			s.landed = true
		} else {
			s.stats.Duplicates += f.rebase(taken)
			taken = func(source Source) Mark {
				if m, ok := f.marks[source]; ok {
					return m
				}
				return s.state.Marks[source]
			}
		}
	}
	s.stats.Duplicates += s.next.rebase(taken)
	return nil
}

// Refresh reads what other servers have committed to the store's Bucket. A store in a
// folder alone is always up to date.
func (s *Store) Refresh() error {
	if !s.remote {
		return nil
	}
	s.committing.Lock()
	defer s.committing.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), briefTime)
	defer cancel()
	err := s.refresh(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.staleErr = err; err != nil {
		return fmt.Errorf("refresh store: %w", err)
	}
	s.refreshed = s.opt.Now()
	return nil
}

// Stale returns why nothing is stored now, or why the commits of other servers are not known any more; nil: neither.
func (s *Store) Stale() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flushErr != nil {
		return fmt.Errorf("what has come is not stored: %w", s.flushErr)
	}
	if s.staleErr == nil {
		return nil
	}
	return fmt.Errorf("what other servers have stored since %s is not known: %w", s.refreshed.UTC().Format(time.RFC3339), s.staleErr)
}

// live reports whether a file is part of the store.
func (s *Store) live(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.state.Segments[name]
	return ok
}

// Time limits of storage for a small file and for a segment.
const (
	briefTime = 30 * time.Second
	longTime  = 10 * time.Minute
)

// atOnce is how many files are stored, fetched or removed in parallel.
const atOnce = 8

// timeFor is the time limit of storage for a segment of some bytes: longTime, and what eight of them take at once on a
// link of 16 Mbit/s.
func timeFor(bytes int64) time.Duration { return longTime + time.Duration(bytes)*4*time.Microsecond }

// name returns a name that no other server and no other run of this one makes.
func (s *Store) name() string { return strings.ToLower(rand.Text()) }

func (s *Store) path(name string) string { return filepath.Join(s.dir, filepath.FromSlash(name)) }

// remove removes a file and its local copy.
func (s *Store) remove(ctx context.Context, name string) error {
	return errors.Join(s.bucket.Remove(ctx, name), s.removeCopy(ctx, name))
}

func (s *Store) removeCopy(_ context.Context, name string) error {
	if err := os.Remove(s.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeAll removes files, several in parallel. It returns those that are gone and the first error.
func removeAll(ctx context.Context, names []string, remove func(context.Context, string) error) (gone []string, err error) {
	errs := make([]error, len(names))
	var all errgroup.Group
	all.SetLimit(atOnce)
	for i, name := range names {
		all.Go(func() error {
			errs[i] = remove(ctx, name)
			return errs[i]
		})
	}
	err = all.Wait()
	for i, name := range names {
		if errs[i] == nil {
			gone = append(gone, name)
		}
	}
	return gone, err
}

// use counts users of local copies: +1 before they are fetched, −1 when they are not needed any more.
func (s *Store) use(segments []Segment, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range segments {
		name := segments[i].File
		if s.used[name] += n; s.used[name] == 0 {
			delete(s.used, name)
		}
	}
}

// fetch fetches the files that have no local copy. It waits for no other call, but for the files that both need.
func (s *Store) fetch(ctx context.Context, segments []Segment) error {
	if !s.remote {
		return nil
	}
	var all errgroup.Group
	all.SetLimit(atOnce)
	for i := range segments {
		if seg := &segments[i]; !s.here(seg) {
			all.Go(func() error { return s.fetchOne(ctx, seg) })
		}
	}
	return all.Wait()
}

// fetchOne fetches a file, unless another call has done so meanwhile.
func (s *Store) fetchOne(ctx context.Context, seg *Segment) error {
	s.mu.Lock()
	for s.fetching[seg.File] != nil {
		other := s.fetching[seg.File]
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return fmt.Errorf("fetch %s: %w", seg.File, ctx.Err())
		}
		s.mu.Lock()
	}
	ended := make(chan struct{})
	s.fetching[seg.File] = ended
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.fetching, seg.File)
		close(ended)
	}()
	if s.here(seg) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeFor(seg.Bytes)) // storage that stands still holds up all that need it
	defer cancel()
	path := s.path(seg.File)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = s.bucket.Get(ctx, seg.File, path)
	}
	if err != nil {
		return fmt.Errorf("fetch %s: %w", seg.File, err)
	}
	return nil
}

// here reports whether a local copy of a segment exists, whole, and records its use. Copies are not
// synced: after a power cut one may have its name and not its contents.
func (s *Store) here(seg *Segment) bool {
	path := s.path(seg.File)
	if info, err := os.Stat(path); err != nil || info.Size() != seg.Bytes {
		return false
	}
	now := s.opt.Now()
	return os.Chtimes(path, now, now) == nil
}

// evict removes the least recently used copies until the rest fit. The caller holds mu.
func (s *Store) evict() error {
	if !s.remote || s.opt.Copies <= 0 {
		return nil
	}
	type copied struct {
		name string
		size int64
		used time.Time
	}
	var all []copied
	total := int64(0)
	for _, name := range slices.Sorted(maps.Keys(s.state.Segments)) {
		if info, err := os.Stat(s.path(name)); err == nil {
			all = append(all, copied{name, info.Size(), info.ModTime()})
			total += info.Size()
		}
	}
	slices.SortStableFunc(all, func(a, b copied) int { return a.used.Compare(b.used) })
	var errs []error
	for _, c := range all {
		if total <= s.opt.Copies {
			break
		}
		if s.used[c.name] > 0 {
			continue
		}
		if err := os.Remove(s.path(c.name)); err != nil {
			errs = append(errs, err)
			continue
		}
		total -= c.size
	}
	return errors.Join(errs...)
}
