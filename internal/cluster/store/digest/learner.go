package digest

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// Learner computes specs. Only one at a time may use a folder.
type Learner struct {
	// Dir is the folder of digests. It holds nothing else.
	Dir string
	// Threads is how many segments are read in parallel.
	Threads int
	// Stats describes the last computation.
	Stats Stats
}

// Stats describes the work of a computation.
type Stats struct {
	Segments int   // segments whose samples are in the specs
	Read     int   // of them, those read because they had no digest
	Rows     int64 // of the segments that were read
	Dropped  int   // keys without enough tasks or machines, beyond maxUnfit
}

// maxUnfit bounds the keys without enough tasks or machines in a result: no task is judged by
// them, and anybody's agent can report as many job names as it likes.
const maxUnfit = 100_000

// Learn computes the specs of all keys of a snapshot's samples, sorted by key. Hours are
// whole, hence from is not needed: the snapshot begins there. Samples in windows are excluded.
func (l *Learner) Learn(ctx context.Context, sn *store.Snapshot, _ sample.Millis, windows []store.Window, p spec.Params, now sample.Millis) ([]spec.Computed, error) {
	var all []source
	for i := range sn.Segments {
		if seg := &sn.Segments[i]; seg.Table() == store.Samples {
			all = append(all, source{seg, filepath.Join(sn.Dir, filepath.FromSlash(seg.File)), filepath.Join(l.Dir, name(seg, overlapping(windows, seg)))})
		}
	}
	l.Stats = Stats{Segments: len(all)}
	learnt, err := l.merge(ctx, sn, all, windows, p, now)
	if errors.Is(err, errDamaged) { // and removed: it is computed again
		learnt, err = l.merge(ctx, sn, all, windows, p, now)
	}
	if err != nil {
		return nil, err
	}
	return learnt, l.sweep(all)
}

// source is a segment and the path of its digest. It has not the windows that overlap it: a machine's 10,000 may overlap
// each of hundreds of segments.
type source struct {
	seg          *store.Segment
	path, digest string
}

// overlapping returns the windows that exclude samples of a segment, clipped to it. A
// window that is extended beyond the segment later is thus unchanged.
func overlapping(windows []store.Window, seg *store.Segment) (of []store.Window) {
	for _, w := range windows {
		if w.From <= seg.To && w.To >= seg.From {
			w.From, w.To = max(w.From, seg.From), min(w.To, seg.To)
			of = append(of, w)
		}
	}
	slices.SortFunc(of, func(a, b store.Window) int {
		return cmp.Or(cmp.Compare(a.Machine, b.Machine), cmp.Compare(a.Job, b.Job), cmp.Compare(a.Task, b.Task), cmp.Compare(a.Signal, b.Signal), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	return slices.Compact(of)
}

// format is part of the names of digests: those of another format are computed again.
const format = 3

// name returns the name of a segment's digest without the samples of some windows.
func name(seg *store.Segment, windows []store.Window) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %d %d", format, seg.Rows, seg.Bytes)
	for _, w := range windows {
		fmt.Fprintf(h, "\n%q %q %q %q %d %d", w.Machine, w.Job, w.Task, w.Signal, w.From, w.To)
	}
	return fmt.Sprintf("%s-%016x.parquet", strings.TrimSuffix(filepath.FromSlash(seg.File), ".parquet"), h.Sum64())
}

// merge computes the missing digests, and specs from all of them.
func (l *Learner) merge(ctx context.Context, sn *store.Snapshot, all []source, windows []store.Window, p spec.Params, now sample.Millis) (learnt []spec.Computed, err error) {
	if err := l.digest(ctx, sn, all, windows); err != nil {
		return nil, err
	}
	var open queue
	defer func() {
		for _, d := range open {
			err = errors.Join(err, d.close())
		}
	}()
	for i := range all {
		d, err := opened(all[i].digest, held(len(all)))
		if err != nil {
			return nil, err
		}
		if d.row() == nil {
			if err := d.close(); err != nil {
				return nil, err
			}
			continue
		}
		open = append(open, d)
	}
	heap.Init(&open)
	var hours []spec.Hour
	unfit := 0
	for open.Len() > 0 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		k := open[0].row().key()
		for hours = hours[:0]; open.Len() > 0 && open[0].row().key() == k; {
			d := open[0]
			h, err := d.row().hour()
			if err == nil {
				hours = append(hours, h)
				err = d.next()
			}
			if err != nil {
				return nil, errors.Join(err, os.Remove(d.path))
			}
			if d.row() == nil {
				heap.Pop(&open)
				if err := d.close(); err != nil {
					return nil, err
				}
				continue
			}
			heap.Fix(&open, 0)
		}
		c := spec.Learn(p, k, hours, now)
		if c.State == spec.Insufficient {
			if unfit++; unfit > maxUnfit {
				l.Stats.Dropped++
				continue
			}
		}
		learnt = append(learnt, c)
	}
	return learnt, nil
}

// opened opens a digest and removes an unreadable one.
func opened(path string, rows int) (*digest, error) {
	d, err := open(path, rows)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("%w: %w", errDamaged, err), os.Remove(path))
	}
	return d, err
}

// digest computes the missing digests.
func (l *Learner) digest(ctx context.Context, sn *store.Snapshot, all []source, windows []store.Window) error {
	var missing []source
	for _, s := range all {
		if _, err := os.Stat(s.digest); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, s)
			l.Stats.Read++
			l.Stats.Rows += s.seg.Rows
		} else if err != nil {
			return fmt.Errorf("look for digest: %w", err)
		}
	}
	for some := range slices.Chunk(missing, atOnce) {
		if err := l.make(ctx, sn, some, windows); err != nil {
			return err
		}
	}
	return nil
}

// atOnce is how many segments are fetched before they are read: a server that becomes the leader has no digests, and may
// have no room for all segments.
const atOnce = 8

// make makes some digests.
func (l *Learner) make(ctx context.Context, sn *store.Snapshot, some []source, windows []store.Window) error {
	segments := make([]store.Segment, len(some))
	for i := range some {
		segments[i] = *some[i].seg
	}
	if err := sn.FetchSegments(ctx, segments); err != nil {
		return fmt.Errorf("digest: %w", err)
	}
	readers, ctx := errgroup.WithContext(ctx)
	readers.SetLimit(max(1, l.Threads))
	for _, s := range some {
		readers.Go(func() error { return s.make(ctx, windows) })
	}
	return errors.Join(readers.Wait(), sn.Release())
}

func (s *source) make(ctx context.Context, windows []store.Window) error {
	if err := ctx.Err(); err != nil { // another has failed
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.digest), 0o700); err != nil {
		return fmt.Errorf("write digest: %w", err)
	}
	return write(s.digest, func(emit func(spec.Key, *spec.Hour) error) error {
		return read(ctx, s.path, overlapping(windows, s.seg), emit)
	})
}

// sweep removes everything that is not a digest of these segments.
func (l *Learner) sweep(all []source) error {
	used := make(map[string]bool, len(all))
	for i := range all {
		used[all[i].digest] = true
	}
	err := filepath.WalkDir(l.Dir, func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil || used[path]:
			return err
		case d.IsDir():
			if path != l.Dir && os.Remove(path) == nil { // it was empty
				return fs.SkipDir
			}
			return nil
		}
		return os.Remove(path)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove old digests: %w", err)
	}
	return nil
}

// queue is a heap of digests by their next key.
type queue []*digest

func (q queue) Len() int      { return len(q) }
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q queue) Less(i, j int) bool {
	a, b := q[i].row(), q[j].row()
	return cmp.Or(strings.Compare(a.Job, b.Job), strings.Compare(a.Platform, b.Platform), strings.Compare(a.Signal, b.Signal), strings.Compare(a.Variant, b.Variant)) < 0
}

// Push implements heap.Interface.
func (q *queue) Push(d any) { *q = append(*q, d.(*digest)) }

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
