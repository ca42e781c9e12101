// Package spool is a queue of messages on disk between producer and sender. It is bounded
// and ordered and survives a kill -9. A message stays until it is released.
//
// Messages are frames in segment files named by the number of their first message. A
// segment is removed as a whole: when all of it is released, or, oldest first, when the
// spool exceeds its bound.
package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/quell-dev/quell/internal/format/atomicfile"
)

// Spool is safe for one goroutine that appends and others that read and release.
type Spool struct {
	dir     string
	max     int64 // bytes on disk
	segment int64 // a segment is closed at this size
	lock    *os.File
	mark    *os.File // stores released

	mu       sync.Mutex
	segments []*segment // oldest first; the last is written to
	w        *os.File   // of the last segment; nil: the next message starts a segment
	next     uint64     // number of the next message
	syncedTo uint64     // all below are on disk; no other is returned, since its number is reused if writing it fails
	released uint64     // all below are no longer needed
	stats    Stats

	sync func(*os.File) error // called at the end of an append; tests have one that fails
}

// Stats counts the contents of a spool and its losses.
type Stats struct {
	Messages uint64 // on disk, not released
	Bytes    int64  // on disk
	Appended uint64 // since Open
	Dropped  uint64 // messages removed to keep the bound, never released
	Damaged  uint64 // messages, or ends of segments, that cannot be read
}

// MinBytes is the minimum bound of a spool.
const MinBytes = 1 << 20

const (
	suffix     = ".seg"
	maxSegment = 4 << 20
	// MaxMessage bounds a message.
	MaxMessage = 8 << 20
)

// Open opens the spool in a directory, which it creates if needed, and locks it until
// Close. maxBytes, at least MinBytes, bounds the size on disk; a single message may
// exceed it.
func Open(dir string, maxBytes int64) (*Spool, error) {
	if maxBytes < MinBytes {
		return nil, fmt.Errorf("open spool %s: bound of %d bytes, want at least %d", dir, maxBytes, MinBytes)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open spool: %w", err)
	}
	s := &Spool{dir: dir, max: maxBytes, segment: min(maxSegment, maxBytes/8), sync: func(f *os.File) error { return syscall.Fdatasync(int(f.Fd())) }}
	err := s.open()
	if err != nil {
		s.closeFiles()
		return nil, fmt.Errorf("open spool %s: %w", dir, err)
	}
	return s, nil
}

func (s *Spool) open() (err error) {
	if s.lock, err = os.OpenFile(filepath.Join(s.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	if err := syscall.Flock(int(s.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("another process has it open: %w", err)
	}
	if s.mark, err = os.OpenFile(filepath.Join(s.dir, "released"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	entries, err := os.ReadDir(s.dir) // sorted by name and thus by number: all have 20 digits
	if err != nil {
		return err
	}
	for _, e := range entries {
		number, ok := strings.CutSuffix(e.Name(), suffix)
		first, bad := strconv.ParseUint(number, 10, 64)
		if !ok || bad != nil || e.Name() != segmentName(first) {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if n := len(s.segments); n > 0 {
			s.segments[n-1].end = first
		}
		s.segments = append(s.segments, &segment{path: filepath.Join(s.dir, e.Name()), first: first, end: first, size: info.Size()})
		s.stats.Bytes += info.Size()
	}
	s.next = 1
	if n := len(s.segments); n > 0 {
		if err := s.reopen(s.segments[n-1]); err != nil {
			return err
		}
	}
	s.syncedTo = s.next
	s.readMark()
	s.removeReleased()
	return nil
}

// reopen finds the end of the newest segment, truncates what a crash left half written,
// and continues writing to it.
func (s *Spool) reopen(last *segment) error {
	good, err := last.scan()
	if err != nil {
		return err
	}
	last.end = last.first + uint64(len(last.offsets))
	s.next = last.end
	f, err := os.OpenFile(last.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if good < last.size {
		s.stats.Damaged++
		if err := errors.Join(f.Truncate(good), f.Sync()); err != nil {
			return errors.Join(err, f.Close())
		}
		s.stats.Bytes -= last.size - good
		last.size = good
	}
	if good == 0 {
		n, err := f.WriteAt([]byte(magic), 0)
		if err != nil {
			return errors.Join(err, f.Close())
		}
		last.size += int64(n)
		s.stats.Bytes += int64(n)
	}
	s.w = f
	return nil
}

// readMark reads the mark. If it is unreadable, or from a spool that lost its end,
// nothing counts as released: sending again does no harm.
func (s *Spool) readMark() {
	text := make([]byte, 20)
	if n, _ := s.mark.ReadAt(text, 0); n == len(text) {
		s.released, _ = strconv.ParseUint(string(text), 10, 64)
	}
	s.released = min(s.released, s.next)
	if len(s.segments) > 0 {
		s.released = max(s.released, s.segments[0].first)
	}
}

// Append adds messages in order and returns when they are on disk. After an error none of
// them is in the spool.
func (s *Spool) Append(messages ...[]byte) error {
	for _, m := range messages {
		if len(m) == 0 || len(m) > MaxMessage {
			return fmt.Errorf("append to spool: a message of %d bytes, want 1 to %d", len(m), MaxMessage)
		}
	}
	if len(messages) == 0 {
		return nil
	}
	s.mu.Lock()
	err := s.append(messages)
	w := s.w
	s.mu.Unlock()
	if err == nil {
		err = s.synced(w, uint64(len(messages)))
	}
	if err != nil {
		return fmt.Errorf("append to spool %s: %w", s.dir, err)
	}
	return nil
}

// synced syncs the last n messages to disk and makes them readable. On an error it
// removes them.
func (s *Spool) synced(w *os.File, n uint64) error {
	err := s.sync(w)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.cut(n)
		return err
	}
	s.syncedTo = s.next
	s.stats.Appended += n
	return nil
}

func (s *Spool) append(messages [][]byte) error {
	var size int64
	for _, m := range messages {
		size += frameHeader + int64(len(m))
	}
	if s.w != nil && s.last().size+size > s.segment && s.last().end > s.last().first {
		s.closeWriter()
	}
	if s.w == nil {
		if err := s.begin(); err != nil {
			return err
		}
	}
	last := s.last()
	buf := make([]byte, 0, size)
	for _, m := range messages {
		last.offsets = append(last.offsets, last.size+int64(len(buf)))
		buf = appendFrame(buf, m)
	}
	last.end += uint64(len(messages))
	s.next = last.end
	_, err := s.w.WriteAt(buf, last.size)
	last.size += size
	s.stats.Bytes += size
	if err != nil {
		s.cut(uint64(len(messages)))
		return err
	}
	s.bound()
	return nil
}

// begin starts a new segment.
func (s *Spool) begin() error {
	path := filepath.Join(s.dir, segmentName(s.next))
	// A file of that name holds no message, else the next message had a higher number.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write([]byte(magic)); err == nil {
		err = atomicfile.SyncDir(s.dir)
	}
	if err != nil {
		return errors.Join(err, f.Close(), os.Remove(path))
	}
	if n := len(s.segments); n > 0 && s.segments[n-1].first == s.next {
		s.stats.Bytes -= s.segments[n-1].size
		s.segments = s.segments[:n-1]
	}
	s.w = f
	s.segments = append(s.segments, &segment{path: path, first: s.next, end: s.next, size: int64(len(magic)), offsets: []int64{}})
	s.stats.Bytes += int64(len(magic))
	return nil
}

func (s *Spool) last() *segment { return s.segments[len(s.segments)-1] }

// cut removes the last n messages. The file is not written to any more, because its
// contents are unknown.
func (s *Spool) cut(n uint64) {
	last := s.last()
	keep := len(last.offsets) - int(n)
	size := last.offsets[keep]
	s.stats.Bytes -= last.size - size
	last.offsets, last.size = last.offsets[:keep], size
	last.end -= n
	s.next = last.end
	_ = s.w.Truncate(size) // else it is found damaged, at the end of a segment
	s.closeWriter()
}

func (s *Spool) closeWriter() {
	if s.w != nil {
		_ = s.w.Close() // everything that matters was synced
		s.w = nil
	}
}

// bound removes the oldest segments until the rest is small enough.
func (s *Spool) bound() {
	for s.stats.Bytes > s.max && len(s.segments) > 1 {
		old := s.segments[0]
		if from := max(old.first, s.released); from < old.end {
			s.stats.Dropped += old.end - from
		}
		s.remove()
	}
}

// remove removes the oldest segment.
func (s *Spool) remove() {
	old := s.segments[0]
	_ = os.Remove(old.path) // on failure it is found and sent again
	s.stats.Bytes -= old.size
	s.segments = s.segments[1:]
	s.released = max(s.released, old.end)
}

// Read returns the first readable message with that number or a higher one, and its
// number; nil if there is none yet. Numbers begin at 1 and have gaps where messages were
// dropped or damaged.
func (s *Spool) Read(from uint64) (number uint64, message []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	oldest := from <= s.released // then what is lost is not looked for, and counted, at each attempt to send
	for _, g := range s.segments {
		for from = max(from, g.first); from < min(g.end, s.syncedTo); from++ {
			if g.offsets == nil {
				if _, err := g.scan(); err != nil {
					return 0, nil, fmt.Errorf("read spool: %w", err)
				}
			}
			if from-g.first >= uint64(len(g.offsets)) { // the end of the segment is damaged
				s.stats.Damaged += g.end - from
				if oldest {
					s.released = max(s.released, g.end)
				}
				g.end = from
				break
			}
			message, err := g.read(int(from - g.first))
			removed := errors.Is(err, fs.ErrNotExist) // by an operator, to free the disk
			if removed && g == s.last() {
				s.closeWriter() // what comes next goes to a file that is there
			}
			if removed || errors.Is(err, errDamaged) {
				s.stats.Damaged++
				if oldest {
					s.released = max(s.released, from+1)
				}
				continue
			}
			if err != nil {
				return 0, nil, fmt.Errorf("read spool: %w", err)
			}
			return from, message, nil
		}
	}
	return 0, nil, nil
}

// Release releases all messages below next. They may still be read again after a restart.
func (s *Spool) Release(next uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if next = min(next, s.next); next <= s.released {
		return
	}
	s.released = next
	// Not synced: an older mark after a crash only causes resending.
	_, _ = s.mark.WriteAt(fmt.Appendf(nil, "%020d\n", next), 0)
	s.removeReleased()
}

func (s *Spool) removeReleased() {
	for len(s.segments) > 1 && s.segments[0].end <= s.released {
		s.remove()
	}
}

// Released is the number of the first message that is still needed.
func (s *Spool) Released() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.released
}

// Stats returns the current contents and the losses since Open.
func (s *Spool) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Messages = s.syncedTo - min(s.syncedTo, max(s.released, 1))
	return st
}

// Close closes the spool; its contents stay on disk.
func (s *Spool) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeFiles()
	return nil
}

func (s *Spool) closeFiles() {
	s.closeWriter()
	for _, f := range []*os.File{s.mark, s.lock} {
		if f != nil {
			_ = f.Close()
		}
	}
}
