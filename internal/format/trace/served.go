package trace

import (
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
	// room is memory for the next elements: one allocation serves many rows.
	room []sample.Served
	text []byte // rest of the field that is read
	name []byte // of the element that is read, if it had to be unescaped
}

// servedRoom is how many elements one allocation holds.
const servedRoom = 256

var errServed = errors.New("want a list of {by, s, fair}")

// Read reads a field. An empty one gives nil, which says that nothing was counted.
func (r *ServedReader) Read(field []byte) ([]sample.Served, error) {
	if len(field) == 0 {
		return nil, nil
	}
	r.text = field
	if len(r.room) == cap(r.room) {
		r.room = make([]sample.Served, 0, servedRoom)
	}
	start := len(r.room)
	if !r.token('[') {
		return nil, errServed
	}
	if !r.token(']') {
		for {
			if len(r.room) == cap(r.room) { // continue in a larger piece
				all := r.room[start:]
				r.room = append(make([]sample.Served, 0, max(servedRoom, 2*len(all))), all...)
				start = 0
			}
			r.room = r.room[:len(r.room)+1]
			if err := r.element(&r.room[len(r.room)-1]); err != nil {
				r.room = r.room[:start]
				return nil, err
			}
			if r.token(',') {
				continue
			}
			if r.token(']') {
				break
			}
			r.room = r.room[:start]
			return nil, errServed
		}
	}
	if r.blank(); len(r.text) > 0 {
		r.room = r.room[:start]
		return nil, errServed
	}
	return r.room[start:len(r.room):len(r.room)], nil
}

// element reads an object. Keys of a newer version are skipped.
func (r *ServedReader) element(s *sample.Served) error {
	*s = sample.Served{}
	if !r.token('{') {
		return errServed
	}
	if r.token('}') {
		return nil
	}
	for {
		key, err := r.string()
		if err != nil {
			return err
		}
		if !r.token(':') {
			return errServed
		}
		switch string(key) {
		case "by":
			if key, err = r.string(); err == nil {
				s.By = sample.TaskName(r.Intern(key))
			}
		case "by64":
			if key, err = r.string(); err == nil {
				if key, err = base64.StdEncoding.AppendDecode(nil, key); err == nil {
					s.By = sample.TaskName(r.Intern(key))
				}
			}
		case "s":
			s.Time, err = r.number()
		case "fair":
			s.Fair, err = r.number()
		default:
			if r.blank(); len(r.text) > 0 && r.text[0] == '"' {
				_, err = r.string()
			} else {
				_, err = r.number()
			}
		}
		switch {
		case err != nil:
			return err
		case r.token(','):
		case r.token('}'):
			return nil
		default:
			return errServed
		}
	}
}

func (r *ServedReader) blank() {
	for len(r.text) > 0 && (r.text[0] == ' ' || r.text[0] == '\t') {
		r.text = r.text[1:]
	}
}

// token reads the character c if it comes next.
func (r *ServedReader) token(c byte) bool {
	if len(r.text) > 0 && r.text[0] != c {
		r.blank()
	}
	if len(r.text) == 0 || r.text[0] != c {
		return false
	}
	r.text = r.text[1:]
	return true
}

// string reads a string, which is valid until the next one.
func (r *ServedReader) string() ([]byte, error) {
	if !r.token('"') {
		return nil, errServed
	}
	for i := 0; i < len(r.text); i++ {
		switch c := r.text[i]; {
		case c == '"':
			s := r.text[:i]
			r.text = r.text[i+1:]
			if !utf8.Valid(s) {
				return nil, fmt.Errorf("%q is not UTF-8", s)
			}
			return s, nil
		case c == '\\':
			return r.escaped(i)
		case c < ' ':
			return nil, fmt.Errorf("byte %#02x in a string", c)
		}
	}
	return nil, errServed
}

// escaped reads a string with a backslash at i.
func (r *ServedReader) escaped(i int) ([]byte, error) {
	for ; i < len(r.text) && r.text[i] != '"'; i++ {
		if r.text[i] == '\\' {
			i++
		}
	}
	if i >= len(r.text) {
		return nil, errServed
	}
	var s string
	whole := append(append(append(r.name[:0], '"'), r.text[:i]...), '"')
	if err := json.Unmarshal(whole, &s); err != nil {
		return nil, errServed
	}
	r.text, r.name = r.text[i+1:], append(whole[:0], s...)
	return r.name, nil
}

func (r *ServedReader) number() (float64, error) {
	r.blank()
	i := 0
	for i < len(r.text) && (r.text[i] >= '0' && r.text[i] <= '9' || r.text[i] == '-' || r.text[i] == '+' || r.text[i] == '.' || r.text[i] == 'e' || r.text[i] == 'E') {
		i++
	}
	v, err := strconv.ParseFloat(string(r.text[:i]), 64)
	r.text = r.text[i:]
	return v, err
}
