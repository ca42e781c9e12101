package enforce

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
)

// record is one line of a journal, "CCCCCCCC JSON\n": the CRC-32C of the JSON
// in hexadecimal, then the record. Empty lines mean nothing. A change is open
// from its intend record to its undone record.
type record struct {
	Kind    kind          `json:"kind"`
	At      sample.Millis `json:"at,omitempty"`
	ID      string        `json:"id,omitempty"`
	Boot    string        `json:"boot,omitempty"`    // intend, lifted
	Change  *Change       `json:"change,omitempty"`  // intend, lifted
	Result  string        `json:"result,omitempty"`  // undone, lifted; absent if never applied
	Why     string        `json:"why,omitempty"`     // undone
	Note    string        `json:"note,omitempty"`    // undone, lifted
	Version int           `json:"version,omitempty"` // begin
}

type kind string

const (
	begin   kind = "begin" // first line of a journal
	intend  kind = "intend"
	applied kind = "applied"
	undone  kind = "undone"
	lifted  kind = "lifted" // in a file of its own: see RestoreOverdue
)

const version = 1

var errRecord = errors.New("damaged record")

func castagnoli(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// line encodes a record.
func (r *record) line() ([]byte, error) {
	out := *r
	if r.Change != nil {
		out.Change, _ = r.Change.renamed(func(path string) (string, error) { return sample.NameText(path), nil }) // it gives no error
	}
	text, err := json.Marshal(&out)
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	return fmt.Appendf(nil, "%08x %s\n", castagnoli(text), text), nil
}

// renamed returns the change with its paths as "name" has them. In a journal they are text forms
// (sample.TaskName): a cgroup may have any bytes as its name, and JSON has only text.
func (c *Change) renamed(name func(string) (string, error)) (*Change, error) {
	out := *c
	var err error
	if out.Dir, err = name(c.Dir); err != nil {
		return nil, err
	}
	out.Writes = slices.Clone(c.Writes)
	for i := range out.Writes {
		if out.Writes[i].File, err = name(c.Writes[i].File); err != nil {
			return nil, err
		}
	}
	return &out, nil
}

// lines returns the record as it is on disk. Only an intend record tells how to undo a
// change in force, so it is written twice, with an empty line between: damage to one
// line or the newline after it, by flipped bits or a lost tail, leaves the other intact.
func (r *record) lines() ([]byte, error) {
	line, err := r.line()
	if r.Kind == intend {
		line = slices.Concat(line, []byte("\n"), line)
	}
	return line, err
}

// parseLine reads one line, without its newline.
func parseLine(line []byte) (record, error) {
	var r record
	sum, text, ok := bytes.Cut(line, []byte(" "))
	if !ok || string(sum) != fmt.Sprintf("%08x", castagnoli(text)) {
		return r, fmt.Errorf("%w: checksum", errRecord)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%w: %w", errRecord, err)
	}
	if r.Change != nil {
		c, err := r.Change.renamed(sample.ParseName)
		if err != nil {
			return r, fmt.Errorf("%w: %w", errRecord, err)
		}
		r.Change = c
	}
	switch {
	case r.Kind == begin && r.Version == version:
	case (r.Kind == intend || r.Kind == lifted) && r.Change != nil && r.Boot != "":
		return r, r.Change.check()
	case (r.Kind == applied || r.Kind == undone) && r.ID != "":
	default:
		return r, fmt.Errorf("%w: kind %q, version %d", errRecord, r.Kind, r.Version)
	}
	return r, nil
}

// parse reads a journal. Each line has its own checksum, so a damaged line
// affects no other: the later ones may be the only trace of a change in force.
func parse(data []byte) (records []record, damage []string) {
	for n := 1; len(data) > 0; n++ {
		line, rest, whole := bytes.Cut(data, []byte("\n"))
		data = rest
		if !whole {
			damage = append(damage, fmt.Sprintf("line %d: truncated after %d bytes", n, len(line)))
			break
		}
		if len(line) == 0 {
			continue
		}
		r, err := parseLine(line)
		if err != nil {
			damage = append(damage, fmt.Sprintf("line %d: %v", n, err))
			continue
		}
		records = append(records, r)
	}
	return records, damage
}

// entry is an open change.
type entry struct {
	Change
	boot    string
	applied bool // every write was made
	// recovered: an earlier process made it.
	recovered bool
	held      bool // its files are: see Files.Hold
	stuck     retryState
}

// replay returns the open changes in the order they were made.
func replay(records []record) []entry {
	var open []entry
	remove := func(match func(*entry) bool) {
		kept := open[:0]
		for i := range open {
			if !match(&open[i]) {
				kept = append(kept, open[i])
			}
		}
		open = kept
	}
	for _, r := range records {
		switch r.Kind {
		case intend:
			// Apply never allows two open changes to share a file: an older one
			// that does was closed by a record that is lost.
			remove(func(e *entry) bool { return e.overlaps(r.Change) })
			open = append(open, entry{Change: *r.Change, boot: r.Boot})
		case applied:
			for i := range open {
				if open[i].ID == r.ID {
					open[i].applied = true
				}
			}
		case undone:
			remove(func(e *entry) bool { return e.ID == r.ID })
		}
	}
	return open
}
