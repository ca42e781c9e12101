package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/cluster/store/segment"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Options are the options of a store; the zero value keeps everything for ever.
type Options struct {
	// Now is the clock, time.Now if nil.
	Now func() time.Time
	// Keep is how long a table's rows are kept; 0 or no entry: for ever.
	Keep map[string]time.Duration
	// Bucket is the storage of the files; nil: the folder itself. With a Bucket the folder has copies, and several
	// servers may open the same store, each with its own folder.
	Bucket Bucket
	// Copies bounds the size of the copies, bytes. Those that a query or a merge needs
	// are kept in any case. 0: no bound.
	Copies int64
}

// Stats holds counts since Open.
type Stats struct {
	Batches    uint64 // accepted
	Duplicates uint64 // batches dropped because they were accepted before
	Jumped     uint64 // batches dropped because their number is too far ahead, or of too many runs
	Samples    uint64 // accepted
	Records    uint64 // accepted
	Rejected   uint64 // samples and records too old to be kept, or of too many hours
	Redated    uint64 // samples and records from the future, which got the current time
	Commits    uint64
	Merged     uint64 // segments replaced by larger ones
	Expired    uint64 // segments past their retention time

	Segments int   // live ones
	Rows     int64 // in live segments
	Bytes    int64 // of live segments
	Pending  int   // samples and records not yet committed
}

// ErrLocked means that another process has the store open.
var ErrLocked = errors.New("another process writes to this store")

// Store is a folder that is open for writing. Its methods are safe for concurrent use.
type Store struct {
	dir    string
	lock   *os.File
	opt    Options
	bucket Bucket // the folder itself if there is no other
	remote bool   // there is another
	suffix string // of file names, so that no two servers make the same name

	started time.Time
	elapsed func() time.Duration // since then, by a clock that is not set; nil: that of opt.Now

	mu       sync.Mutex // guards the following fields
	state    state
	pins     map[string]int           // files that snapshots hold
	used     map[string]int           // files whose copies are in use
	fetching map[string]chan struct{} // files that are being fetched; closed when that has ended
	replaced map[string]sample.Millis // files no longer listed, and since when
	doubtful []string                 // files of commits whose result is unknown
	stats    Stats
	index    *index         // of the series that next gathers
	next     *pendingCommit // gathers
	writing  *pendingCommit // being written, or to be tried again
	idle     *pendingCommit // written, to be reused
	begun    map[Source]int // runs since the newest checkpoint, by stream and machine
	broken   error          // why nothing can be committed any more
	landed   bool           // the flying commit is in the log, as found out later
	newest   sample.Millis  // of retainedAt
	newestOf uint64         // the generation of state that newest was found in

	checkpointErr error     // of the newest checkpoint
	staleErr      error     // of the newest Refresh
	flushErr      error     // of the newest Flush
	refreshed     time.Time // the newest that succeeded

	upkeep sync.Mutex               // one Compact or Retain at a time; taken before committing
	merger *segment.Writer          // under upkeep
	rests  map[string]sample.Millis // segments and folders that could not be compacted, and when; under upkeep

	committing sync.Mutex      // one commit at a time; taken before mu
	columns    *segment.Writer // under committing
	files      int             // made by this process
}

// Open opens the store in a folder, which it creates if needed, and removes files of a crash that no commit names.
func Open(dir string, opt Options) (*Store, error) {
	var elapsed func() time.Duration
	if opt.Now == nil {
		begun := time.Now()
		opt.Now, elapsed = time.Now, func() time.Duration { return time.Since(begun) }
	}
	if err := os.MkdirAll(filepath.Join(dir, logDir), 0o700); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := &Store{dir: dir, lock: lock, opt: opt, started: opt.Now(), refreshed: opt.Now(), elapsed: elapsed, bucket: opt.Bucket, remote: opt.Bucket != nil, pins: map[string]int{}, used: map[string]int{}, begun: map[Source]int{}, fetching: map[string]chan struct{}{}, rests: map[string]sample.Millis{}, replaced: map[string]sample.Millis{}, index: newIndex(sample.At(opt.Now()))}
	s.next = newFlight(s.index)
	if s.remote {
		s.suffix = "-" + s.name()[:10]
	} else {
		s.bucket = folder{dir}
	}
	ctx, cancel := context.WithTimeout(context.Background(), longTime)
	defer cancel()
	if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrLocked
	}
	if err == nil {
		s.state, _, err = readLog(ctx, s.bucket, newState())
	}
	if err == nil && s.remote {
		err = s.onlyCopies(ctx)
	}
	if err == nil {
		err = s.sweepOrphans(ctx)
	}
	if err == nil {
		err = writeSchemas(dir)
	}
	if err == nil { // for programs that read the bucket
		w := s.writer()
		for _, table := range Tables() {
			w.made = append(w.made, Segment{File: schemaName(table)})
		}
		err = w.put()
	}
	if err == nil {
		s.columns, err = segment.NewWriter()
	}
	if err == nil {
		s.merger, err = segment.NewWriter()
	}
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", dir, errors.Join(err, lock.Close()))
	}
	return s, nil
}

// ErrOwnFiles means that the folder for a bucket's copies has a store of its own.
var ErrOwnFiles = errors.New("the folder has a store that is not in the bucket: move the folder away, or copy it into an empty bucket (docs/store.md)")

// onlyCopies returns ErrOwnFiles for a folder whose log, from before there was a bucket, names files that are here and
// not in the bucket: they would be removed. A log of which all is in the bucket, or gone, is removed: from now on the
// folder has copies.
func (s *Store) onlyCopies(ctx context.Context) error {
	own, _, err := readLog(ctx, folder{s.dir}, newState())
	if err != nil {
		return fmt.Errorf("%w: %w", ErrOwnFiles, err)
	}
	for name, seg := range own.Segments {
		there := s.state.Segments[name]
		if there.Rows != seg.Rows || there.Bytes != seg.Bytes { // two servers have made the same names
			if _, err := os.Lstat(s.path(name)); err == nil {
				return ErrOwnFiles
			}
		}
	}
	return os.RemoveAll(s.path(logDir))
}

// Close releases the folder. What was not flushed is lost.
func (s *Store) Close() error { return s.lock.Close() }

// orphanAge is the age from which a file in a Bucket can no longer be named by a commit:
// no server takes that long to write one.
const orphanAge = 24 * time.Hour

// sweepOrphans removes files of a crash, which no commit names. In a Bucket, other
// servers may be writing such files now.
func (s *Store) sweepOrphans(ctx context.Context) error {
	for _, b := range []Bucket{folder{s.dir}, s.bucket} {
		_, local := b.(folder)
		var orphans []string
		for _, below := range append(Tables(), logDir) {
			all, err := b.List(ctx, below)
			if err != nil {
				return fmt.Errorf("remove leftovers of a crash: %w", err)
			}
			for _, e := range all {
				_, live := s.state.Segments[e.Name]
				switch {
				case below == logDir && !unfinished(e.Name), live:
				case !local && s.opt.Now().Sub(e.At) < orphanAge:
				default:
					orphans = append(orphans, e.Name)
				}
			}
		}
		if _, err := removeAll(ctx, orphans, b.Remove); err != nil {
			return fmt.Errorf("remove leftovers of a crash: %w", err)
		}
		if !s.remote {
			break
		}
	}
	return nil
}

// Stats returns the counts.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Segments = len(s.state.Segments)
	for _, seg := range s.state.Segments {
		st.Rows += seg.Rows
		st.Bytes += seg.Bytes
	}
	st.Pending = s.pending()
	return st
}

// Err returns the store's current error: nil, why nothing can be committed any more, or why its log grows.
func (s *Store) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return s.broken
	}
	if s.checkpointErr != nil {
		return fmt.Errorf("make checkpoint: %w", s.checkpointErr)
	}
	return nil
}

// Marks returns the marks of all sources.
func (s *Store) Marks() map[Source]Mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.state.Marks)
}

// Snapshot is the segments that were live at one commit. They stay on disk until Close.
type Snapshot struct {
	Dir        string
	Generation uint64
	Segments   []Segment // by file
	store      *Store
	bucket     Bucket
	fetched    []Segment
}

// Snapshot returns the segments that may hold rows between from and to; 0 is no bound. The caller must close it.
func (s *Store) Snapshot(from, to sample.Millis) *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	sn := &Snapshot{Dir: s.dir, Generation: s.state.Generation, store: s, bucket: s.bucket}
	for _, seg := range s.state.Segments {
		if (from == 0 || seg.To >= from) && (to == 0 || seg.From <= to) {
			sn.Segments = append(sn.Segments, seg)
			s.pins[seg.File]++
		}
	}
	sortSegments(sn.Segments)
	return sn
}

func sortSegments(all []Segment) {
	slices.SortFunc(all, func(a, b Segment) int { return strings.Compare(a.File, b.File) })
}

// Remote reports whether segments may have no local copy and need Fetch.
func (sn *Snapshot) Remote() bool { return sn.store != nil && sn.store.remote }

// Fetch fetches the segments of some tables that have no local copy. It must be called
// before Files are read. In a folder all are local.
func (sn *Snapshot) Fetch(ctx context.Context, tables ...string) error {
	var of []Segment
	for i := range sn.Segments {
		if slices.Contains(tables, sn.Segments[i].Table()) {
			of = append(of, sn.Segments[i])
		}
	}
	return sn.FetchSegments(ctx, of)
}

// FetchSegments is Fetch for given segments. Their copies stay until Release or Close.
func (sn *Snapshot) FetchSegments(ctx context.Context, segments []Segment) error {
	if !sn.Remote() {
		return nil
	}
	sn.fetched = append(sn.fetched, segments...)
	sn.store.use(segments, 1)
	return sn.store.fetch(ctx, segments)
}

// Release lets go of the copies of fetched segments: those that are too many are removed.
func (sn *Snapshot) Release() error {
	if !sn.Remote() {
		return nil
	}
	sn.store.use(sn.fetched, -1)
	sn.fetched = nil
	sn.store.mu.Lock()
	defer sn.store.mu.Unlock()
	return sn.store.evict()
}

// URLs returns the addresses of a table's segments for programs on other machines.
func (sn *Snapshot) URLs(table string) []string { return sn.named(table, sn.bucket.URL) }

// SchemaURL returns the address of a table's file without rows (SchemaFile).
func (sn *Snapshot) SchemaURL(table string) string { return sn.bucket.URL(schemaName(table)) }

// Files returns the paths of a table's segments.
func (sn *Snapshot) Files(table string) []string { return sn.named(table, folder{sn.Dir}.URL) }

func (sn *Snapshot) named(table string, name func(file string) string) (all []string) {
	for i := range sn.Segments {
		if sn.Segments[i].Table() == table {
			all = append(all, name(sn.Segments[i].File))
		}
	}
	return all
}

// Close releases the segments.
func (sn *Snapshot) Close() {
	s := sn.store
	if s == nil {
		return
	}
	s.use(sn.fetched, -1)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range sn.Segments {
		name := sn.Segments[i].File
		if s.pins[name]--; s.pins[name] == 0 {
			delete(s.pins, name)
		}
	}
	sn.store = nil
}

// Read returns the segments of a store that may be open elsewhere, without holding them.
// If a file is gone when it is opened, it has been replaced meanwhile: call Read again.
func Read(dir string) (*Snapshot, error) {
	if _, err := os.Stat(filepath.Join(dir, logDir)); err != nil {
		return nil, fmt.Errorf("read store %s: %w", dir, err)
	}
	return ReadBucket(context.Background(), folder{dir}, dir)
}

// ReadBucket is Read for a store in a Bucket; Files are paths below dir.
func ReadBucket(ctx context.Context, b Bucket, dir string) (*Snapshot, error) {
	st, _, err := readLog(ctx, b, newState())
	if err != nil {
		return nil, fmt.Errorf("read store %s: %w", b.URL(""), err)
	}
	sn := &Snapshot{Dir: dir, Generation: st.Generation, Segments: slices.Collect(maps.Values(st.Segments)), bucket: b}
	sortSegments(sn.Segments)
	return sn, nil
}

// Pending is the number of samples and records that are not yet committed.
func (s *Store) Pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pending()
}

// PendingBytes is the size of the messages with them, and of their rows as far as those take more.
func (s *Store) PendingBytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.next.bytes
	if s.writing != nil {
		n += s.writing.bytes
	}
	return n
}

func (s *Store) pending() int {
	n := s.next.size()
	if s.writing != nil {
		n += s.writing.size()
	}
	return n
}
