package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Writer writes samples as CSV. It buffers: call Flush at the end, and whenever
// a reader should see what was written so far. It is not safe for use from
// several goroutines.
type Writer struct {
	to               io.Writer
	file             string // that is continued, "" for none
	w                *bufio.Writer
	extras           []sample.Extra
	served           bool
	headed, labelled bool
	line             []byte
	list             []byte // content of the served column
}

// NewWriter returns a Writer that writes the fixed columns and one for each of
// the given extras; other extras of a sample are left out.
func NewWriter(w io.Writer, extras ...sample.Extra) *Writer {
	return &Writer{to: w, w: bufio.NewWriterSize(w, 1<<16), extras: extras}
}

// Served adds the column of the served tasks, which is left out otherwise. It returns
// the Writer and must be called before the first row.
func (w *Writer) Served() *Writer {
	w.served = true
	return w
}

// Continue must be called before the first row if the rows are appended to a file that may hold a trace: they have
// a header only if its own is a different one, and the first begins a line, whatever the file ends with. The same holds
// after a Flush that failed, since a disk that was full may have room again.
func (w *Writer) Continue(file string) error {
	w.file, w.headed = file, false
	info, err := os.Stat(file)
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	want := w.header(nil)
	head, end := make([]byte, len(want)), make([]byte, 1)
	if _, err := f.ReadAt(head, 0); err != nil && err != io.EOF {
		return err
	}
	if _, err := f.ReadAt(end, info.Size()-1); err != nil {
		return err
	}
	if end[0] != '\n' {
		_ = w.w.WriteByte('\n') // Flush returns its error too
	}
	w.headed = bytes.Equal(head, want)
	return nil
}

// Write adds one row, and the header before the first. A sample that could not
// be read back is refused with ErrSample and nothing is written.
func (w *Writer) Write(s *sample.Sample) error {
	if err := Check(s); err != nil {
		return err
	}
	b := w.line[:0]
	if !w.headed {
		b = w.header(b)
	}
	b = strconv.AppendInt(b, int64(s.TS), 10)
	for _, text := range [...]string{s.Machine, string(s.Job), string(s.Task), string(s.Platform), string(s.Signal), s.Variant} {
		b = append(b, ',')
		if formula(text) {
			text = "'" + text
		}
		b = appendField(b, text)
	}
	b = append(b, ',')
	b = append(b, s.Class.String()...)
	b = append(b, ',')
	b = appendFloat32(b, s.CPU)
	b = append(b, ',')
	b = appendFloat32(b, s.Cost)
	b = append(b, ',')
	b = appendFloat32(b, s.Coverage)
	b = append(b, ',')
	b = append(b, s.Flags.String()...)
	for _, e := range w.extras {
		b = append(b, ',')
		v, ok := s.Extras.Get(e)
		if !ok {
			continue
		}
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("%w: %v %v", ErrSample, e, v)
		}
		b = strconv.AppendFloat(b, v, 'g', -1, 64)
	}
	if w.served {
		b = append(b, ',')
		if s.Served != nil {
			w.list = AppendServed(w.list[:0], s.Served)
			b = appendField(b, string(w.list))
		}
	}
	w.line = append(b, '\n')
	if len(w.line) > maxLine {
		return fmt.Errorf("%w: %w", ErrSample, ErrLong)
	}
	w.headed = true
	if _, err := w.w.Write(w.line); err != nil {
		return fmt.Errorf("write trace: %w", err)
	}
	return nil
}

// WriteAll writes a complete labelled trace, with the columns that its samples have.
func WriteAll(w io.Writer, samples []sample.Sample, labels []Label, unlabelled []Stretch) error {
	var used []sample.Extra
	for _, e := range sample.AllExtras() {
		if slices.ContainsFunc(samples, func(s sample.Sample) bool { _, ok := s.Extras.Get(e); return ok }) {
			used = append(used, e)
		}
	}
	out := NewWriter(w, used...)
	out.served = slices.ContainsFunc(samples, func(s sample.Sample) bool { return s.Served != nil })
	err := errors.Join(out.Labels(labels...), out.Unlabelled(unlabelled...))
	for i := range samples {
		if err == nil {
			err = out.Write(&samples[i])
		}
	}
	return errors.Join(err, out.Flush())
}

// Flush writes what is buffered; a trace without samples gets its header.
func (w *Writer) Flush() error {
	if !w.headed {
		w.headed = true
		_, _ = w.w.Write(w.header(nil)) // Flush returns its error too
	}
	err := w.w.Flush()
	if err == nil {
		return nil
	}
	if w.file != "" {
		w.w.Reset(w.to) // else it refuses all that follows
		err = errors.Join(err, w.Continue(w.file))
	}
	return fmt.Errorf("write trace: %w", err)
}

func (w *Writer) header(b []byte) []byte {
	names := slices.Clone(columns[:])
	for _, e := range w.extras {
		names = append(names, e.String())
	}
	if w.served {
		names = append(names, ServedColumn)
	}
	return append(append(b, strings.Join(names, ",")...), '\n')
}

// appendFloat32 writes the shortest text that reads back as the same float32,
// nothing for NaN.
func appendFloat32(b []byte, f float32) []byte {
	if f != f {
		return b
	}
	return strconv.AppendFloat(b, float64(f), 'g', -1, 32)
}

// formula reports whether a spreadsheet would take a name for a formula: it begins with = + - @
// or a tab. Names come from tasks, so they are written with an apostrophe before them, which
// makes them inert and which a Reader removes. A name with an apostrophe before such a character
// gets another one.
func formula[T string | []byte](name T) bool {
	const start = "=+-@\t"
	switch {
	case len(name) == 0:
		return false
	case name[0] == '\'':
		return len(name) > 1 && strings.IndexByte(start+"'", name[1]) >= 0
	}
	return strings.IndexByte(start, name[0]) >= 0
}

// appendField quotes where RFC 4180 asks for it. Spaces at the ends are quoted
// too, since spreadsheets drop them.
func appendField(b []byte, s string) []byte {
	quote := s != "" && (s[0] == ' ' || s[len(s)-1] == ' ')
	for i := 0; i < len(s) && !quote; i++ {
		quote = s[i] == ',' || s[i] == '"'
	}
	if !quote {
		return append(b, s...)
	}
	b = append(b, '"')
	for i := range len(s) {
		if s[i] == '"' {
			b = append(b, '"')
		}
		b = append(b, s[i])
	}
	return append(b, '"')
}
