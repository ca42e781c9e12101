package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/cluster/store/segment"
	"github.com/quell-dev/quell/internal/core/sample"
	trace "github.com/quell-dev/quell/internal/format/trace/parquet"
)

const (
	// fanIn is how many segments of one tier are worth merging. Each row is rewritten once per tier: log₈ of the number
	// of commits in an hour, which is three or four times.
	fanIn = 8
	// maxMerge bounds the bytes that one merge reads, and thus its duration and the size of a segment.
	maxMerge = 1 << 30 // bytes
	// small is up to which size a segment is merged with any others. A larger one needs others that have an eighth
	// of its size: what one machine sends late would else have an hour of all machines written again each time.
	small = 4 << 20 // bytes
	// settled is how long after its end an hour or a day is merged into one segment,
	// whatever the number of segments: hardly any rows arrive later.
	settled = 10 * 60 * 1000 // ms
)

// Compact merges the small segments of the partition that has most of them and reports whether there was one. Call it
// until it returns false. Readers see either the old segments or the new one, never both. Before that it adds the
// rounds and suspects of incidents that an older version stored, which had no tables of them.
func (s *Store) Compact() (bool, error) {
	s.upkeep.Lock()
	defer s.upkeep.Unlock()
	now := sample.At(s.opt.Now())
	if old := s.oldest(now); old != nil {
		return s.stepped(old.File, now, s.upgradeSegment(*old))
	}
	from, folder := s.pick(now)
	if len(from) == 0 {
		return false, nil
	}
	return s.stepped(folder, now, s.merge(from, folder))
}

// retryAfter is how long a segment or folder is left alone that could not be upgraded or merged: one file that is
// damaged or lost does not keep the others as they are.
const retryAfter = 10 * time.Minute

// stepped records the end of an upgrade or a merge for Compact.
func (s *Store) stepped(what string, now sample.Millis, err error) (bool, error) {
	if err != nil && !errors.Is(err, errConflict) { // the other server may have done the same
		s.rests[what] = now
		return false, fmt.Errorf("compact %s: %w", what, err)
	}
	delete(s.rests, what)
	return true, nil
}

// resting reports whether a segment or folder is left alone.
func (s *Store) resting(what string, now sample.Millis) bool {
	at, ok := s.rests[what]
	return ok && now < at.Add(retryAfter)
}

// pick selects the segments to merge: the most segments of one tier, or all of a partition that has ended.
func (s *Store) pick(now sample.Millis) (best []Segment, folder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	type group struct {
		folder string
		tier   int
	}
	tiers, whole := map[group][]Segment{}, map[string][]Segment{}
	for _, seg := range s.state.Segments {
		at := seg.folder()
		if seg.outdated() || s.resting(at, now) { // outdated: added since by a server of an older version
			continue
		}
		tiers[group{at, seg.Tier}] = append(tiers[group{at, seg.Tier}], seg)
		whole[at] = append(whole[at], seg)
	}
	consider := func(at string, all []Segment) {
		slices.SortFunc(all, func(a, b Segment) int { return cmp.Compare(a.Bytes, b.Bytes) })
		all = worth(all)
		if n := len(all); n > 0 && (n > len(best) || n == len(best) && at < folder) {
			best, folder = all, at
		}
	}
	for g, all := range tiers {
		if len(all) >= fanIn {
			consider(g.folder, all)
		}
	}
	if len(best) > 0 {
		return best, folder
	}
	for at, all := range whole {
		if len(all) > 1 && all[0].over(now) {
			consider(at, all)
		}
	}
	return best, folder
}

// worth returns those of some segments, the smallest first, that are worth merging: two or more, or none.
func worth(all []Segment) []Segment {
	n, bytes := 0, int64(0)
	for ; n < len(all) && bytes+all[n].Bytes <= maxMerge && (n == 0 || all[n].Bytes <= max(small, fanIn*bytes)); n++ {
		bytes += all[n].Bytes
	}
	if n == 1 { // the next is too large for it
		return worth(all[1:])
	}
	return all[:n]
}

// over reports whether a segment's partition has ended and settled.
func (seg *Segment) over(now sample.Millis) bool {
	length := sample.Millis(24 * hourMS)
	if seg.Table() == Samples {
		length = hourMS
	}
	return (seg.From/length+1)*length+settled < now
}

// merge writes several segments as one and replaces them by it.
func (s *Store) merge(from []Segment, folder string) error {
	seg := Segment{From: from[0].From, To: from[0].To, Layout: layoutOf(from[0].Table())}
	c := &commit{}
	s.use(from, 1)
	defer s.use(from, -1)
	if err := s.fetch(context.Background(), from); err != nil {
		return err
	}
	for i := range from {
		f := &from[i]
		seg.Rows += f.Rows
		seg.From, seg.To, seg.Tier = min(seg.From, f.From), max(seg.To, f.To), max(seg.Tier, f.Tier+1)
		c.Remove = append(c.Remove, f.File)
	}
	slices.Sort(c.Remove)
	w := s.writer()
	w.segment(folder, seg, func(out io.Writer) error { return s.mergeTo(out, seg.Rows, from) })
	err := w.finish() // storage may take minutes for it: commits go on meanwhile
	s.committing.Lock()
	defer s.committing.Unlock()
	if err == nil && slices.ContainsFunc(c.Remove, func(name string) bool { return !s.live(name) }) {
		err = errConflict // another server has merged them, and Refresh has read that since
	}
	if err == nil {
		c.Add = w.made
		err = s.commit(c)
	}
	if err != nil {
		return s.failed(w, err)
	}
	s.mu.Lock()
	s.stats.Merged += uint64(len(from))
	s.mu.Unlock()
	return nil
}

func (s *Store) mergeTo(out io.Writer, rows int64, from []Segment) (err error) {
	defer func() {
		if p := recover(); p != nil { // the library panics on a damaged file
			err = fmt.Errorf("read segments, the first is %s: %v", from[0].File, p)
		}
	}()
	var files []segment.Input
	quick := from[0].Table() == Samples
	// In time order: the samples of one series then follow each other in runs.
	slices.SortFunc(from, func(a, b Segment) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.File, b.File)) })
	for i := range from {
		f, err := os.Open(filepath.Join(s.dir, filepath.FromSlash(from[i].File)))
		if err != nil {
			return err
		}
		defer f.Close() // it was only read
		p, err := trace.Open(f, from[i].Bytes)
		if err != nil {
			return fmt.Errorf("%s: %w", from[i].File, err)
		}
		if p.NumRows() != from[i].Rows {
			return fmt.Errorf("%s has %d rows, its manifest says %d", from[i].File, p.NumRows(), from[i].Rows)
		}
		files = append(files, segment.Input{Name: from[i].File, File: p.File})
		quick = quick && segment.Mergeable(p.File)
	}
	if !quick {
		return mergeRows(out, from[0].Table(), files)
	}
	s.merger.Reset(out)
	n, err := segment.Merge(s.merger, files)
	if err == nil && n != rows {
		err = fmt.Errorf("merged %d rows, want %d", n, rows)
	}
	return errors.Join(err, s.merger.Close())
}

// Retain removes from the store the segments all of whose rows are past their table's retention time. It removes from
// disk the files that are no longer in the store and are not read any more.
func (s *Store) Retain() error {
	s.upkeep.Lock()
	defer s.upkeep.Unlock()
	return errors.Join(s.expire(), s.sweep(sample.At(s.opt.Now()), true))
}

// retainedAt is the time from which retention counts. If the clock was set forward by more than ahead since the
// store was opened, that is believed as far as most samples are as new: else a clock that is wrong for a minute, and
// that of one machine, such as the agent's next to this server, would remove everything. The caller holds mu.
func (s *Store) retainedAt() sample.Millis {
	now := s.opt.Now().Round(0)
	if s.elapsed == nil {
		return sample.At(now)
	}
	steady := s.started.Round(0).Add(s.elapsed())
	if now.Sub(steady) <= ahead {
		return sample.At(now)
	}
	at := sample.At(steady)
	if s.newestOf != s.state.Generation { // once for a commit: there are many segments, and this is called for each batch
		s.newest, s.newestOf = s.newestBeyond(at), s.state.Generation
	}
	return min(max(at, s.newest), sample.At(now))
}

// newestBeyond is the time of the newest sample, if those beyond a time are not fewer than those around it; 0 if
// they are.
func (s *Store) newestBeyond(at sample.Millis) (newest sample.Millis) {
	around, beyond := int64(0), int64(0) // samples
	for _, seg := range s.state.Segments {
		switch {
		case seg.Table() != Samples || seg.To < at.Add(-ahead):
		case seg.From <= at.Add(ahead):
			around += seg.Rows
		default:
			beyond += seg.Rows
			newest = max(newest, seg.To)
		}
	}
	if beyond < around {
		return 0
	}
	return newest
}

// Sweep is the part of Retain that works on disk. It is for a server that only answers
// queries while another maintains their store.
func (s *Store) Sweep() error {
	s.upkeep.Lock()
	defer s.upkeep.Unlock()
	return s.sweep(sample.At(s.opt.Now()), !s.remote)
}

// expire removes expired segments from the store.
func (s *Store) expire() error {
	s.committing.Lock()
	defer s.committing.Unlock()
	c := &commit{}
	s.mu.Lock()
	now := s.retainedAt()
	for name, seg := range s.state.Segments {
		if keep := s.opt.Keep[seg.Table()]; keep > 0 && seg.To < now.Add(-keep) {
			c.Remove = append(c.Remove, name)
		}
	}
	s.mu.Unlock()
	if len(c.Remove) == 0 {
		return nil
	}
	slices.Sort(c.Remove)
	switch err := s.commit(c); {
	case errors.Is(err, errConflict): // the next Retain does it
	case err != nil:
		return fmt.Errorf("retain: %w", err)
	default:
		s.mu.Lock()
		s.stats.Expired += uint64(len(c.Remove))
		s.mu.Unlock()
	}
	return nil
}

// sweep removes replaced files that no reader uses any more. No new reader can start: a Snapshot has only files that
// are part of the store. Slow storage therefore delays neither commits nor queries. Without maintains only copies are
// removed: what reads the files in the bucket, such as Spark, reads a snapshot of the server that maintains the store.
func (s *Store) sweep(now sample.Millis, maintains bool) error {
	// Readers in other processes may have found the file in the log; from a Bucket, other
	// servers' queries may still be fetching it.
	stay := time.Minute
	if s.remote {
		stay = 10 * time.Minute
	}
	remove, forget := s.remove, now.Add(-stay)
	if !maintains { // that server may end before it has removed them, and this one be the next
		remove, forget = s.removeCopy, now.Add(-2*stay)
	}
	s.mu.Lock()
	errs := []error{s.evict()}
	var due []string
	for name, since := range s.replaced {
		if s.pins[name] == 0 && since <= now.Add(-stay) {
			due = append(due, name)
		}
	}
	s.mu.Unlock()
	slices.Sort(due)
	ctx, cancel := context.WithTimeout(context.Background(), briefTime)
	defer cancel()
	gone, err := removeAll(ctx, due, remove)
	errs = append(errs, err)
	s.committing.Lock() // no folder is created meanwhile
	defer s.committing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	alone := len(s.fetching) == 0
	for _, name := range gone {
		if s.replaced[name] <= forget {
			delete(s.replaced, name)
		}
		// The last file of an hour is removed with its folders; a non-empty folder stays.
		for dir := filepath.Dir(s.path(name)); alone && dir != s.dir && os.Remove(dir) == nil; dir = filepath.Dir(dir) {
		}
	}
	return errors.Join(errs...)
}
