package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/atomicfile"
)

// pendingCommit is the contents of one commit.
type pendingCommit struct {
	pack      rowBuffer
	known     seriesTable // the index's state when writing starts
	incidents []Incident
	rounds    []Round
	suspects  []Suspect
	actions   []Action
	audit     []Audit
	specs     []Spec
	revoked   []Revocation
	marks     map[Source]Mark
	spans     []span
	bytes     int64  // of the messages, and of the rows that take more
	id        string // commit ID, set when writing starts
}

func newFlight(x *index) *pendingCommit {
	return &pendingCommit{pack: newPack(x), marks: map[Source]Mark{}}
}

func (f *pendingCommit) size() int {
	return len(f.pack.rows) + len(f.incidents) + len(f.rounds) + len(f.suspects) + len(f.actions) + len(f.audit) + len(f.specs) + len(f.revoked)
}

// clear prepares it for the next commit.
func (f *pendingCommit) clear(x *index) {
	f.pack.clear(x)
	f.known = seriesTable{}
	f.incidents, f.rounds, f.suspects, f.actions, f.audit, f.specs, f.revoked = nil, nil, nil, nil, nil, nil, nil
	clear(f.marks)
	f.spans, f.bytes, f.id = f.spans[:0], 0, ""
}

// ahead is how far in the future a sample or a record may lie. A machine with a wrong clock would otherwise create a
// partition that no query reads. What lies further in the future gets the current time: the machine's clock, or this
// one, was set back, but what was measured did happen. It is also the newest, since agents send in order.
const ahead = time.Hour

// furthest is the end of the year 9999, ms. An agent may report any number as a time, and no query
// could read a column with one that the query engine cannot represent.
const furthest = 253402300799999

// partBytes is what a batch, a round or a suspect takes without its texts: in a message it may be a few bytes.
const partBytes = 512

// Add accepts a batch and reports whether it was new. It is stored by the next Flush. The caller may reuse the batch's
// memory when Add returns. Samples from the future get the current time in the batch too, and names that are not UTF-8
// their text forms (sample.TaskName): no query could read a column that has them. The same is true of texts of the
// audit log.
func (s *Store) Add(b *Batch) bool {
	now := sample.At(s.opt.Now())
	newest := now.Add(ahead)
	s.mu.Lock()
	defer s.mu.Unlock()
	oldest := sample.Millis(0)
	if keep := s.opt.Keep[Samples]; keep > 0 {
		oldest = s.retainedAt().Add(-keep)
	}
	f := s.next
	if b.N > 0 {
		m := s.mark(b.Source)
		if m.accepted(b.N) {
			s.stats.Duplicates++
			return false
		}
		if m.jumps(b.N) || m.High == 0 && !s.begins(b.Source) {
			s.stats.Jumped++
			return false
		}
		f.marks[b.Source] = m.accept(b.N, now)
		s.stats.Batches++
	}
	had := len(f.pack.rows)
	var from *lastBatch
	if b.Source.Boot != "" {
		from = s.index.machine(b.Source.Machine)
	}
	last, known := s.index.before(b)
	for i := range b.Samples {
		ts := &b.Samples[i].TS
		if *ts > newest {
			*ts = now
			s.stats.Redated++
		}
		if *ts < oldest || *ts <= 0 || !from.takes(int64(*ts)/hourMS) {
			s.stats.Rejected++
			last.shape = 0 // the series of this one is not found
			continue
		}
		if !known {
			if textual(&b.Samples[i]) {
				last.shape = 0 // the next ones have to be changed too
			}
			last.last = s.index.number(last.last, &b.Samples[i])
			last.series[i] = last.last
		}
		f.pack.add(last.series[i], &b.Samples[i])
		s.stats.Samples++
	}
	p := span{source: b.Source, n: b.N, rows: len(f.pack.rows) - had}
	f.incidents, p.incidents = withinRetention(s, from, f.incidents, Incidents, b.Incidents, func(r *Incident) []*int64 { return []*int64{&r.Updated, &r.Began, &r.Opened, clone(&r.Closed)} })
	f.rounds, p.rounds = withinRetention(s, from, f.rounds, Rounds, b.Rounds, (*Round).times)
	f.suspects, p.suspects = withinRetention(s, from, f.suspects, Suspects, b.Suspects, (*Suspect).times)
	f.actions, p.actions = withinRetention(s, from, f.actions, Actions, b.Actions, func(r *Action) []*int64 { return []*int64{&r.At, clone(&r.Until)} })
	f.audit, p.audit = withinRetention(s, from, f.audit, AuditLog, b.Audit, func(r *Audit) []*int64 {
		r.text()
		return []*int64{&r.At}
	})
	f.specs, p.specs = withinRetention(s, from, f.specs, Specs, b.Specs, func(r *Spec) []*int64 { return []*int64{&r.At} })
	// Only the server makes them. Their order counts, also if its clock was ahead, and they are kept.
	f.revoked, p.revoked = append(f.revoked, b.Revocations...), len(b.Revocations)
	f.spans, f.bytes = append(f.spans, p), f.bytes+int64(b.Bytes)+partBytes*int64(1+p.rounds+p.suspects)
	s.stats.Records += uint64(p.incidents + p.rounds + p.suspects + p.actions + p.audit + p.specs + p.revoked)
	return true
}

// textual makes a sample's names text, and reports whether some were not.
func textual(m *sample.Sample) (changed bool) {
	if !utf8.ValidString(string(m.Task)) {
		m.Task, changed = sample.TaskName(m.Task.Text()), true
	}
	for _, s := range [...]*string{&m.Machine, (*string)(&m.Job), (*string)(&m.Platform), (*string)(&m.Signal), &m.Variant} {
		changed = asText(s) || changed
	}
	return changed
}

// text makes an entry's texts UTF-8: a client of the bus may use any bytes as a subject.
func (r *Audit) text() {
	for _, s := range [...]*string{&r.Who, &r.From, &r.Scope, &r.What, &r.Target, &r.Why, &r.Outcome} {
		asText(s)
	}
}

// asText makes a string UTF-8, and reports whether it was not.
func asText(s *string) (changed bool) {
	if utf8.ValidString(*s) {
		return false
	}
	*s = strings.ToValidUTF8(*s, "\uFFFD")
	return true
}

// withinRetention appends rows of a table to the gathered ones and returns their number. It
// drops rows past the retention time, and of too many days. The times of a row from the future, which would never
// expire, are moved so that the first becomes the current time. None is beyond furthest.
func withinRetention[T any](s *Store, from *lastBatch, to []T, table string, rows []T, times func(*T) []*int64) (all []T, n int) {
	now := sample.At(s.opt.Now())
	newest, oldest := int64(now.Add(ahead)), int64(math.MinInt64)
	if keep := s.opt.Keep[table]; keep > 0 {
		oldest = int64(s.retainedAt().Add(-keep))
	}
	had := len(to)
	for i := range rows {
		r := rows[i]
		ts := times(&r)
		at := *ts[0]
		if at < oldest {
			s.stats.Rejected++
			continue
		}
		if at > newest {
			for _, t := range ts {
				if t != nil {
					*t -= at - int64(now)
				}
			}
			s.stats.Redated++
		}
		if !from.takes(-1 - *ts[0]/(24*hourMS)) { // days are not hours
			s.stats.Rejected++
			continue
		}
		inCalendar(ts)
		to = append(to, r)
	}
	return to, len(to) - had
}

// inCalendar moves times that no query could read.
func inCalendar(ts []*int64) {
	for _, t := range ts {
		if t != nil {
			*t = min(max(*t, -furthest), furthest)
		}
	}
}

func (r *Round) times() []*int64 { return []*int64{&r.Updated, &r.Began, &r.Until, clone(&r.Ended)} }

func (r *Suspect) times() []*int64 {
	return []*int64{&r.Updated, clone(&r.Analysed), clone(&r.NamedFrom), clone(&r.NamedUntil)}
}

// clone makes an optional time of a row its own, and returns it.
func clone(t **int64) *int64 {
	if *t != nil {
		own := **t
		*t = &own
	}
	return *t
}

// mark returns what was accepted from a source, committed or not.
func (s *Store) mark(source Source) Mark {
	if m, ok := s.next.marks[source]; ok {
		return m
	}
	if s.writing != nil {
		if m, ok := s.writing.marks[source]; ok {
			return m
		}
	}
	return s.state.Marks[source]
}

// Flush commits everything that was added before the call. When it returns without an error, that is on disk and in
// every later Snapshot. After an error nothing is lost and nothing is stored; the next Flush tries again.
func (s *Store) Flush() (err error) {
	s.committing.Lock()
	defer s.committing.Unlock()
	defer func() { s.mu.Lock(); s.flushErr = err; s.mu.Unlock() }()
	for range 2 { // a flight that failed last time is written first, separately
		s.mu.Lock()
		if s.broken != nil {
			s.mu.Unlock()
			return s.broken
		}
		f, again := s.writing, s.writing != nil
		if !again {
			f = s.next
			if f.size() == 0 && len(f.marks) == 0 {
				f.spans, f.bytes = f.spans[:0], 0 // nothing of the messages was kept
				s.mu.Unlock()
				return nil
			}
			f.known, f.id = s.index.seriesTable, s.name()
			s.writing, s.next = f, s.spare()
		}
		s.mu.Unlock()
		if err := s.write(f); err != nil {
			return fmt.Errorf("flush: %w", err)
		}
		if !again {
			return nil
		}
	}
	return nil
}

// spare returns the flight that gathers while another is written: the previous one, whose memory is reused.
func (s *Store) spare() *pendingCommit {
	if now := sample.At(s.opt.Now()); s.index.old(now) {
		s.index = s.index.next(now)
	}
	f := s.idle
	if s.idle = nil; f == nil {
		return newFlight(s.index)
	}
	f.clear(s.index)
	return f
}

// write writes the segments of a flight and commits them, except what other servers have committed meanwhile.
func (s *Store) write(f *pendingCommit) error {
	for {
		s.mu.Lock()
		landed := s.landed // an attempt whose result was unknown
		s.mu.Unlock()
		var err error
		if !landed {
			err = s.tryWrite(f)
		}
		if err == nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.landed, s.writing, s.idle = false, nil, f
			return nil
		}
		if !errors.Is(err, errConflict) {
			return err
		}
	}
}

func (s *Store) tryWrite(f *pendingCommit) error {
	c := &commit{ID: f.id, Marks: listMarks(f.marks)}
	w := s.writer()
	for hour, rows := range f.pack.hours() {
		from, to := rows[0].ts, rows[0].ts
		for i := range rows {
			from, to = min(from, rows[i].ts), max(to, rows[i].ts)
		}
		w.segment(partition(Samples, hour), Segment{Rows: int64(len(rows)), From: sample.Millis(from), To: sample.Millis(to)},
			func(out io.Writer) error { return f.pack.write(s.columns, out, &f.known, rows) })
	}
	writeTable(w, Incidents, f.incidents, func(r *Incident) int64 { return r.Updated })
	writeTable(w, Rounds, f.rounds, func(r *Round) int64 { return r.Updated })
	writeTable(w, Suspects, f.suspects, func(r *Suspect) int64 { return r.Updated })
	writeTable(w, Actions, f.actions, func(r *Action) int64 { return r.At })
	writeTable(w, AuditLog, f.audit, func(r *Audit) int64 { return r.At })
	writeTable(w, Specs, f.specs, func(r *Spec) int64 { return r.At })
	writeTable(w, Revocations, f.revoked, func(r *Revocation) int64 { return r.At })
	c.Add = w.made
	err := w.finish()
	if err == nil {
		err = s.commit(c)
	}
	if err != nil {
		return s.failed(w, err)
	}
	return nil
}

// failed removes the files of a failed commit, unless the commit may exist.
func (s *Store) failed(w *writer, err error) error {
	var unsure *unknownResultError
	switch {
	case errors.Is(err, ErrBroken):
		s.mu.Lock()
		s.broken = err
		s.mu.Unlock()
	case errors.As(err, &unsure): // until its number is taken
		s.mu.Lock()
		defer s.mu.Unlock()
		for i := range w.made {
			s.doubtful = append(s.doubtful, w.made[i].File)
			err = errors.Join(err, s.removeCopy(context.Background(), w.made[i].File)) // each attempt makes others
		}
	default:
		w.undo()
	}
	return err
}

// settle has the files removed whose commit was in doubt and is not in the log: its number is taken now. The caller
// holds mu.
func (s *Store) settle(now sample.Millis) {
	for _, name := range s.doubtful {
		if _, live := s.state.Segments[name]; !live {
			s.replaced[name] = now
		}
	}
	s.doubtful = nil
}

// writeTable writes records, one segment per day.
func writeTable[T any](w *writer, table string, rows []T, at func(*T) int64) {
	byDay := map[string][]T{}
	for i := range rows {
		p := partition(table, sample.Millis(at(&rows[i])))
		byDay[p] = append(byDay[p], rows[i])
	}
	for _, p := range slices.Sorted(maps.Keys(byDay)) {
		day := byDay[p]
		slices.SortStableFunc(day, func(a, b T) int { return cmp.Compare(at(&a), at(&b)) })
		w.segment(p, Segment{Layout: layoutOf(table), Rows: int64(len(day)), From: sample.Millis(at(&day[0])), To: sample.Millis(at(&day[len(day)-1]))},
			func(out io.Writer) error { return writeRecords(out, table, day) })
	}
}

// errConflict means that another server has committed since and that its commits are now
// known, or that this commit itself exists although its answer was lost.
var errConflict = errors.New("another server has committed meanwhile")

// commit makes c the newest commit. It takes effect when its file exists. The caller holds committing.
func (s *Store) commit(c *commit) error {
	now := sample.At(s.opt.Now())
	s.mu.Lock()
	c.Generation, c.At = s.state.Generation+1, now
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), briefTime)
	defer cancel()
	err := createJSON(ctx, s.bucket, commitName(c.Generation), c)
	if err == nil && s.remote {
		err = withdraw(ctx, s.bucket, c.Generation)
	}
	if errors.Is(err, fs.ErrExist) {
		if err = s.refresh(ctx); err == nil {
			return errConflict
		}
	}
	if err != nil && s.remote { // also of a commit whose number exists: it may be this one
		err = &unknownResultError{err}
	}
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	s.mu.Lock()
	s.state.apply(c)
	for _, name := range c.Remove {
		s.replaced[name] = now
	}
	s.settle(now)
	s.stats.Commits++
	if c.Generation%everyCommits != 0 {
		s.mu.Unlock()
		return nil
	}
	s.forgetSources(s.retainedAt())
	all := s.state.clone()
	s.mu.Unlock()
	// The commits hold all of it: a failed checkpoint is repeated 256 commits later.
	ctx, cancel = context.WithTimeout(context.Background(), briefTime)
	defer cancel()
	err = all.checkpoint(ctx, s.bucket)
	s.mu.Lock()
	s.checkpointErr = err
	s.mu.Unlock()
	return nil
}

// ErrBroken means that a commit neither succeeded nor could be undone: only reopening the store shows which.
var ErrBroken = errors.New("commit, and undo the commit")

// unknownResultError is a commit that storage may have or may still receive: the next attempt shows it.
type unknownResultError struct{ error }

func (e *unknownResultError) Unwrap() error { return e.error }

// writer writes the files of one commit. After its first error it does nothing.
type writer struct {
	store *Store
	dirs  map[string]bool // to be synced
	made  []Segment
	err   error
}

func (s *Store) writer() *writer { return &writer{store: s, dirs: map[string]bool{}} }

// segment writes one file. seg lacks its name and size.
func (w *writer) segment(folder string, seg Segment, fill func(io.Writer) error) {
	if w.err != nil {
		return
	}
	s := w.store
	s.mu.Lock()
	s.files++
	seg.File = fmt.Sprintf("%s/%012d-%04d%s.parquet", folder, s.state.Generation+1, s.files, s.suffix)
	s.mu.Unlock()
	path := filepath.Join(s.dir, filepath.FromSlash(seg.File))
	if w.err = w.mkdir(filepath.Dir(path)); w.err != nil {
		return
	}
	if seg.Bytes, w.err = create(path, fill); w.err != nil {
		return
	}
	w.made = append(w.made, seg)
}

// mkdir makes a folder and its parents, and records which must be synced.
func (w *writer) mkdir(dir string) error {
	w.dirs[dir] = true
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := w.mkdir(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make segment: %w", err)
	}
	return nil
}

// create writes a file completely or not at all. Its folder must be synced afterwards.
// Until it is complete its name begins with a dot, so that Parquet readers skip it.
func create(path string, fill func(io.Writer) error) (size int64, err error) {
	part := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	f, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, fmt.Errorf("write segment: %w", err)
	}
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	if info, bad := f.Stat(); bad == nil {
		size = info.Size()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		return 0, fmt.Errorf("write segment %s: %w", path, errors.Join(err, os.Remove(part)))
	}
	return size, nil
}

// finish stores the files, makes them durable and returns the first error.
func (w *writer) finish() error {
	if w.err == nil {
		w.err = w.put()
	}
	for _, dir := range slices.Sorted(maps.Keys(w.dirs)) {
		if w.err == nil {
			w.err = atomicfile.SyncDir(dir)
		}
	}
	return w.err
}

// put stores the files in the bucket: in parallel, since samples of many hours are as many files.
func (w *writer) put() error {
	all, ctx := errgroup.WithContext(context.Background())
	all.SetLimit(atOnce)
	for i := range w.made {
		all.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, timeFor(w.made[i].Bytes))
			defer cancel()
			if err := w.store.bucket.Put(ctx, w.made[i].File, w.store.path(w.made[i].File)); err != nil {
				return fmt.Errorf("store segment: %w", err)
			}
			return nil
		})
	}
	return all.Wait()
}

// undo removes the files of a failed commit. Files that cannot be removed now are not
// part of the store; the next Open removes them.
func (w *writer) undo() {
	ctx, cancel := context.WithTimeout(context.Background(), briefTime)
	defer cancel()
	var names []string
	for i := range w.made {
		if name := w.made[i].File; !w.store.live(name) { // else the commit exists after all
			names = append(names, name)
		}
	}
	_, _ = removeAll(ctx, names, w.store.remove)
}
