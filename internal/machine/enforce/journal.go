package enforce

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// disk is the directory of the journal; names are relative to it.
type disk interface {
	ReadFile(name string) ([]byte, error)
	Create(name string) (file, error) // empty, mode 0600
	Rename(from, to string) error
	Remove(name string) error
	Sync() error // the directory
	Close() error
}

type file interface {
	Write(b []byte) (int, error)
	Sync() error
	Truncate(size int64) error
	Close() error
}

const (
	journalName = "journal"
	maxAside    = 9
	// slack is how many bytes a journal may grow after its last rewrite.
	slack = 64 << 10
)

// journal is the file on disk. A failed write leaves it without a file in use
// until it is rewritten as a whole: after a failed fsync the kernel does not
// report again that data was lost.
type journal struct {
	disk disk
	dir  string // for messages
	f    file   // nil: must be rewritten
	size int64
	base int64 // size after rewriting
	err  error // why f is nil
}

// read returns the open changes of the journal and describes damage, "" for
// none. If there is damage, it first keeps a copy aside; without a copy the
// journal must not be rewritten, so it is left in the failed state.
func (j *journal) read() (open []entry, damage string, err error) {
	data, err := j.disk.ReadFile(journalName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("read journal: %w", err)
	}
	records, bad := parse(data)
	open = replay(records)
	lifted := j.lifted()
	open = slices.DeleteFunc(open, func(e entry) bool { return lifted.of(&e) != nil })
	if len(bad) > 0 {
		damage = describe(bad)
		if name, err := j.keepAside(data); err == nil {
			damage += ", kept as " + name
		}
	}
	return open, damage, nil
}

func describe(bad []string) string {
	if len(bad) == 0 {
		return ""
	}
	return fmt.Sprintf("%d damaged lines (%s)", len(bad), strings.Join(bad[:min(len(bad), 3)], "; "))
}

// keepAside writes a copy under the first free name, else over the highest.
func (j *journal) keepAside(data []byte) (string, error) {
	var name string
	for n := 1; n <= maxAside; n++ {
		name = fmt.Sprintf("%s.corrupt-%d", journalName, n)
		if _, err := j.disk.ReadFile(name); errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	f, err := writeFile(j.disk, name, data)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return "", j.fail(err)
	}
	return name, nil
}

// append adds one record and returns when it is on disk.
func (j *journal) append(r record) error {
	line, err := r.lines()
	if err != nil {
		return err
	}
	if _, err = j.f.Write(line); err == nil {
		err = j.f.Sync()
	}
	if err != nil {
		// Best effort: a torn line is dropped when the journal is read.
		_ = j.f.Truncate(j.size)
		return j.fail(err)
	}
	j.size += int64(len(line))
	return nil
}

// rewrite replaces the journal by one that holds the open changes only.
func (j *journal) rewrite(open []entry) error {
	records := []record{{Kind: begin, Version: version}}
	for i := range open {
		e := &open[i]
		records = append(records, record{Kind: intend, At: e.From, Boot: e.boot, Change: &e.Change})
		if e.applied {
			records = append(records, record{Kind: applied, At: e.From, ID: e.ID})
		}
	}
	var text []byte
	for i := range records {
		lines, err := records[i].lines()
		if err != nil {
			return err
		}
		text = append(text, lines...)
	}
	f, err := writeFile(j.disk, journalName, text)
	if err != nil {
		return j.fail(err)
	}
	j.drop()
	j.f, j.err = f, nil
	j.size, j.base = int64(len(text)), int64(len(text))
	return nil
}

// full reports whether the journal should be rewritten to be small again.
func (j *journal) full() bool { return j.size > j.base+slack }

func (j *journal) fail(cause error) error {
	j.drop()
	j.err = fmt.Errorf("%w: %w (make %s writable and free space on its file system, or set another state directory; "+
		"nothing is applied until then)", ErrJournal, cause, j.dir)
	return j.err
}

func (j *journal) drop() {
	if j.f != nil {
		// Everything that counts was fsynced or has failed already.
		_ = j.f.Close()
		j.f = nil
	}
}

func (j *journal) close() error {
	j.drop()
	return j.disk.Close()
}
