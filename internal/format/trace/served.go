package trace

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/quell-dev/quell/internal/core/sample"
)

// ServedColumn is the name of the column that holds sample.Sample.Served.
const ServedColumn = "served"

// AppendServed appends the content of a served column to b: nothing for nil, else a
// JSON list of {"by":task,"s":seconds,"fair":share}, without a fair share that is not
// known. A name that is not UTF-8, which JSON cannot represent, is written as "by64",
// its bytes in base64 (RFC 4648).
func AppendServed(b []byte, all []sample.Served) []byte {
	if all == nil {
		return b
	}
	b = append(b, '[')
	for i := range all {
		s := &all[i]
		if i > 0 {
			b = append(b, ',')
		}
		if utf8.ValidString(string(s.By)) {
			b = appendJSONString(append(b, `{"by":`...), string(s.By))
		} else {
			b = base64.StdEncoding.AppendEncode(append(b, `{"by64":"`...), []byte(s.By))
			b = append(b, '"')
		}
		b = strconv.AppendFloat(append(b, `,"s":`...), s.Time, 'g', -1, 64)
		if s.Fair != 0 {
			b = strconv.AppendFloat(append(b, `,"fair":`...), s.Fair, 'g', -1, 64)
		}
		b = append(b, '}')
	}
	return append(b, ']')
}

// appendJSONString appends valid UTF-8 as a JSON string (RFC 8259, section 7).
func appendJSONString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ':
			const hex = "0123456789abcdef"
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// checkServed returns why a sample's Served cannot be in a trace; nil if it can.
func checkServed(all []sample.Served) error {
	for i := range all {
		s := &all[i]
		switch {
		case s.By == "":
			return fmt.Errorf("%w: served task has no name", ErrSample)
		case !(s.Time >= 0) || math.IsInf(s.Time, 0):
			return fmt.Errorf("%w: %s was served for %v s", ErrSample, s.By, s.Time)
		case !(s.Fair >= 0 && s.Fair <= 1):
			return fmt.Errorf("%w: %s has a fair share of %v, which is not in 0..1", ErrSample, s.By, s.Fair)
		}
		if err := oneLine(string(s.By)); err != nil {
			return fmt.Errorf("%w: %w", ErrSample, err)
		}
	}
	return nil
}

// ServedReader reads the content of served columns. What it returns stays valid.
type ServedReader struct {
	// Intern makes names; most rows have the same ones.
	Intern func([]byte) string
	// room is memory for the next lists: one allocation serves many rows.
	room []sample.Served
	list []sample.Served // that is read
}

// servedRoom is how many elements one allocation holds.
const servedRoom = 256

var errServed = errors.New("want a list of {by, s, fair}")

// Read reads a field. An empty one gives nil, which says that nothing was counted.
func (r *ServedReader) Read(field []byte) ([]sample.Served, error) {
	if len(field) == 0 {
		return nil, nil
	}
	if !r.written(field) {
		if err := r.parse(field); err != nil {
			return nil, err
		}
	}
	start, n := len(r.room), len(r.list)
	if r.room == nil || n > cap(r.room)-start {
		r.room, start = make([]sample.Served, 0, max(servedRoom, n)), 0
	}
	r.room = append(r.room, r.list...)
	return r.room[start : start+n : start+n], nil
}

// written reads a field as AppendServed writes it if all names are plain text. For any
// other it returns false. It takes a fraction of the time that encoding/json takes.
func (r *ServedReader) written(field []byte) bool {
	r.list = r.list[:0]
	if string(field) == "[]" {
		return true
	}
	text, ok := bytes.CutPrefix(field, []byte(`[{"by":"`))
	for ok {
		end := bytes.IndexByte(text, '"')
		if end < 0 || !plain(text[:end]) {
			return false
		}
		s := sample.Served{By: sample.TaskName(r.Intern(text[:end]))}
		if text, ok = bytes.CutPrefix(text[end+1:], []byte(`,"s":`)); !ok {
			return false
		}
		if s.Time, text, ok = leadingNumber(text); !ok {
			return false
		}
		if fair, has := bytes.CutPrefix(text, []byte(`,"fair":`)); has {
			if s.Fair, text, ok = leadingNumber(fair); !ok {
				return false
			}
		}
		r.list = append(r.list, s)
		if string(text) == "}]" {
			return true
		}
		text, ok = bytes.CutPrefix(text, []byte(`},{"by":"`))
	}
	return false
}

// plain reports whether a text is itself as a JSON string.
func plain(text []byte) bool {
	for _, c := range text {
		if c < ' ' || c == '\\' {
			return false
		}
	}
	return utf8.Valid(text)
}

// leadingNumber cuts a number off the beginning of a text.
func leadingNumber(text []byte) (v float64, rest []byte, ok bool) {
	i := 0
	for i < len(text) && (text[i] >= '0' && text[i] <= '9' || text[i] == '-' || text[i] == '+' || text[i] == '.' || text[i] == 'e') {
		i++
	}
	v, err := strconv.ParseFloat(string(text[:i]), 64)
	return v, text[i:], err == nil
}

// parse reads a list in any JSON. Keys of a newer version are skipped.
func (r *ServedReader) parse(field []byte) error {
	if !utf8.Valid(field) {
		return fmt.Errorf("%q is not UTF-8", field)
	}
	var all []struct {
		By      string
		By64    []byte
		S, Fair float64
	}
	if err := json.Unmarshal(field, &all); err != nil || all == nil {
		return errServed
	}
	r.list = r.list[:0]
	for i := range all {
		s := &all[i]
		name := s.By64
		if name == nil {
			name = []byte(s.By)
		}
		r.list = append(r.list, sample.Served{By: sample.TaskName(r.Intern(name)), Time: s.S, Fair: s.Fair})
	}
	return nil
}
