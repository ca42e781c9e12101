package logbook

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Name is the log's file in the agent's state directory.
const Name = "incidents.jsonl"

// Book is the log with its index. It is safe for concurrent use.
type Book struct {
	mu      sync.RWMutex
	dir     string
	lines   RotatingFile
	skipped int
	entries map[string]*entry // by ID
	// newest is the number of the file that is written; the file numbered n has been
	// rotated newest − n times. first is the oldest that is kept.
	newest, first int
}

// entry is the index entry of an incident.
type entry struct {
	id                      string
	victim                  sample.Task // its name and path
	opened, updated, closed sample.Millis
	file, length            int
	at                      int64
}

func (e *entry) compare(o *entry) int {
	return cmp.Or(cmp.Compare(e.opened, o.opened), cmp.Compare(e.id, o.id))
}

// Open reads the log below dir, and continues it with the first Add: files of at most
// maxBytes, with keep rotated files. A directory without a log has no incidents; a missing
// directory is an error. With an error the Book holds what could be read, and can be used.
func Open(dir string, maxBytes int64, keep int) (*Book, error) {
	b := &Book{dir: dir, entries: map[string]*entry{}}
	b.lines = RotatingFile{Path: filepath.Join(dir, Name), Max: maxBytes, Keep: keep, rotated: b.rotated}
	if err := b.scan(); err != nil {
		return b, fmt.Errorf("open incident log: %w", err)
	}
	return b, nil
}

// Read opens a log for reading only.
func Read(dir string) (*Book, error) { return Open(dir, 0, 0) }

// Load reads the complete log below dir, oldest incident first.
func Load(dir string) ([]incident.Record, error) {
	b, err := Read(dir)
	if err != nil {
		return nil, err
	}
	list, _, err := b.List(Query{Charts: true})
	return list, err
}

// Skipped counts the lines that were not an incident when the log was opened: a crash may truncate one.
func (b *Book) Skipped() int { return b.skipped }

// Add writes the current state of an incident.
func (b *Book) Add(inc *incident.Record) error {
	line, err := json.Marshal(inc)
	if err != nil {
		return fmt.Errorf("encode incident %s: %w", inc.ID, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	at, err := b.lines.append(append(line, '\n'))
	if err != nil {
		return err
	}
	b.note(&entry{id: inc.ID, victim: sample.Task{Name: inc.Victim.Name, Cgroup: inc.Victim.Cgroup}, opened: inc.Opened, updated: inc.Updated, closed: inc.Closed,
		file: b.newest, at: at, length: len(line) + 1})
	return nil
}

// note adds an entry, unless a newer file has one with the same ID.
func (b *Book) note(e *entry) {
	if old := b.entries[e.id]; old == nil || old.file <= e.file {
		b.entries[e.id] = e
	}
}

// rotated removes the entries of the oldest file.
func (b *Book) rotated() {
	b.newest++
	if b.newest-b.first <= b.lines.Keep {
		return
	}
	b.first = b.newest - b.lines.Keep
	maps.DeleteFunc(b.entries, func(_ string, e *entry) bool { return e.file < b.first })
}

// find lists the entries that are wanted, the oldest first.
func (b *Book) find(want func(*entry) bool) (found []*entry) {
	for _, e := range b.entries {
		if want(e) {
			found = append(found, e)
		}
	}
	slices.SortFunc(found, (*entry).compare)
	return found
}

// Query says which incidents are wanted; the zero value wants all. The tags are those of the agent's socket.
type Query struct {
	Open   bool          `key:"open"`                           // only those that are not closed
	Since  sample.Millis `key:"since"`                          // only those updated since
	Victim string        `key:"victim"`                         // only victims that it names, as commands do; with "*", which is any sequence of characters, those whose name or path matches; "" all
	Limit  int           `key:"limit" min:"0" max:"1000000000"` // at most this many, the newest; 0: all
	Charts bool          // with the points of their charts
}

// List returns incidents, the oldest first, and how many older ones the limit left out.
func (b *Book) List(q Query) (list []incident.Record, older int, err error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	found := b.find(func(e *entry) bool {
		return !(q.Open && e.closed != 0) && e.updated >= q.Since && (q.Victim == "" || Matches(q.Victim, &e.victim))
	})
	if q.Limit > 0 {
		older = max(0, len(found)-q.Limit)
	}
	found = found[older:]
	list = make([]incident.Record, 0, len(found))
	for _, e := range found {
		inc, err := b.read(e)
		if err != nil {
			return nil, 0, err
		}
		if !q.Charts {
			inc.Chart = pipeline.Chart{}
		}
		list = append(list, inc)
	}
	return list, older, nil
}

// Newest is when the newest state was made, 0 without one.
func (b *Book) Newest() (at sample.Millis) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, e := range b.entries {
		at = max(at, e.updated)
	}
	return at
}

// AmbiguousError is a part of an ID that several incidents share.
type AmbiguousError struct {
	ID  string
	All []string // the IDs, oldest first; at most ten
}

func (e *AmbiguousError) Error() string {
	return fmt.Sprintf("find incident %q: it matches %s", e.ID, strings.Join(e.All, ", "))
}

// ErrNotFound means that no incident has the ID.
var ErrNotFound = errors.New("not found")

// Incident returns one complete incident: the one with the ID, the only one whose ID
// contains it, or for "last" the newest.
func (b *Book) Incident(id string) (incident.Record, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	e := b.entries[id]
	if e == nil && id != "" {
		found := b.find(func(x *entry) bool { return id == "last" || strings.Contains(x.id, id) })
		if n := len(found); n > 1 && id != "last" {
			var all []string
			for _, x := range found[:min(n, 10)] {
				all = append(all, x.id)
			}
			return incident.Record{}, &AmbiguousError{id, all}
		} else if n > 0 {
			e = found[n-1]
		}
	}
	if e == nil {
		return incident.Record{}, fmt.Errorf("find incident %q: %w among %d incidents", id, ErrNotFound, len(b.entries))
	}
	return b.read(e)
}

// Close closes the file that is written.
func (b *Book) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lines.Close()
}

// path is the current path of a file.
func (b *Book) path(file int) string {
	if n := b.newest - file; n > 0 {
		return fmt.Sprintf("%s.%d", b.lines.Path, n)
	}
	return b.lines.Path
}

// read returns the incident of an entry.
func (b *Book) read(e *entry) (inc incident.Record, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("read incident %s: %w", e.id, err)
		}
	}()
	file, err := os.Open(b.path(e.file))
	if err != nil {
		return inc, err
	}
	defer file.Close()
	line := make([]byte, e.length)
	if _, err := file.ReadAt(line, e.at); err != nil {
		return inc, err
	}
	if err := json.Unmarshal(line, &inc); err != nil {
		return inc, err
	}
	if inc.ID != e.id {
		return inc, fmt.Errorf("another process changed the log: %w", fs.ErrInvalid)
	}
	return inc, nil
}

// Matches reports whether a text names a task, as in commands (sample.Task.IsNamed), or whether, with
// "*" in it, it matches the task's name or cgroup path: "*" is any sequence of characters, including
// "/", because cgroup paths are long.
func Matches(pattern string, t *sample.Task) bool {
	if !strings.Contains(pattern, "*") {
		name, err := sample.ParseName(pattern)
		return err == nil && t.IsNamed(name)
	}
	return matches(pattern, string(t.Name)) || matches(pattern, t.Path())
}

func matches(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	last := len(parts) - 1
	if last == 0 {
		return pattern == name
	}
	name, ok := strings.CutPrefix(name, parts[0])
	for _, part := range parts[1:last] {
		_, rest, found := strings.Cut(name, part)
		name, ok = rest, ok && found
	}
	return ok && strings.HasSuffix(name, parts[last])
}
