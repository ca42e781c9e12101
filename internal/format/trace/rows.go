package trace

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
)

// Rows cuts text into rows of fields as RFC 4180 defines them, except that a row is
// always one line: damage costs only its own line, and memory is bounded by the longest
// line.
type Rows struct {
	r         *bufio.Reader
	separator byte
	line      int
	fields    [][]byte
	unquote   []byte // text of the quoted fields of one row
}

// maxLine bounds a row; a longer one is skipped as bad.
const maxLine = 1 << 16

// ErrLong says that a line was too long to be a row.
var ErrLong = fmt.Errorf("line longer than %d bytes", maxLine)

// NewRows returns the rows of r, with fields that are separated by a comma or
// another byte.
func NewRows(r io.Reader, separator byte) *Rows {
	return &Rows{r: bufio.NewReaderSize(r, maxLine), separator: separator}
}

// Line is the number of the line that Next returned, from 1.
func (r *Rows) Line() int { return r.line }

// Next returns the next line without its end, valid until the next call. Its
// error is io.EOF, that of the reader, or ErrLong for a line that was skipped.
func (r *Rows) Next() ([]byte, error) {
	line, err := r.r.ReadSlice('\n')
	if len(line) == 0 && err != nil {
		return nil, err
	}
	r.line++
	if err == bufio.ErrBufferFull {
		for err == bufio.ErrBufferFull {
			_, err = r.r.ReadSlice('\n')
		}
		if err != nil && err != io.EOF {
			return nil, err
		}
		return nil, ErrLong
	}
	if err != nil && err != io.EOF {
		return nil, err
	}
	line = bytes.TrimSuffix(line, []byte("\n"))
	return bytes.TrimSuffix(line, []byte("\r")), nil
}

// Split cuts a line into fields, which are valid until the next call, and
// reports whether its quotes are in order.
func (r *Rows) Split(line []byte) (fields [][]byte, ok bool) {
	r.fields, r.unquote = r.fields[:0], r.unquote[:0]
	if cap(r.unquote) < len(line) {
		r.unquote = make([]byte, 0, maxLine) // never moves while fields point into it
	}
	for {
		if len(line) == 0 || line[0] != '"' {
			i := bytes.IndexByte(line, r.separator)
			field := line
			if i >= 0 {
				field = line[:i]
			}
			if bytes.IndexByte(field, '"') >= 0 {
				return nil, false
			}
			r.fields = append(r.fields, field)
			if i < 0 {
				return r.fields, true
			}
			line = line[i+1:]
			continue
		}
		start := len(r.unquote)
		line = line[1:]
		for {
			i := bytes.IndexByte(line, '"')
			if i < 0 {
				return nil, false
			}
			r.unquote = append(r.unquote, line[:i]...)
			line = line[i+1:]
			if len(line) == 0 || line[0] != '"' {
				break
			}
			r.unquote = append(r.unquote, '"')
			line = line[1:]
		}
		r.fields = append(r.fields, r.unquote[start:])
		if len(line) == 0 {
			return r.fields, true
		}
		if line[0] != r.separator {
			return nil, false
		}
		line = line[1:]
	}
}
