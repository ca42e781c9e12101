package trace

import (
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

// ErrHeader means that the first line does not name the columns of a trace.
var ErrHeader = errors.New("invalid trace header")

// Report is what a Reader has found so far.
type Report struct {
	Rows    int      // samples read
	Bad     int      // rows skipped because they hold no sample
	Reasons []string // of the first few bad rows, with their line numbers
	Unknown []string // columns that this version does not know, ignored
}

// maxReasons is how many bad rows are explained; the rest are only counted.
const maxReasons = 5

// Skip counts bad rows, and explains them in the format of fmt.Sprintf.
func (r *Report) Skip(rows int, reason string, args ...any) {
	r.Bad += rows
	if len(r.Reasons) < maxReasons {
		r.Reasons = append(r.Reasons, fmt.Sprintf(reason, args...))
	}
}

// Names keeps equal strings once.
type Names map[string]string

// Intern returns the text as a string.
func (n Names) Intern(text []byte) string {
	if s, ok := n[string(text)]; ok {
		return s
	}
	s := string(text)
	n[s] = s
	return s
}

// Reader reads samples from CSV, a row at a time. The header decides which
// column is where. A bad row is counted and skipped. Equal strings are kept
// once, so memory grows with the distinct names, not with the rows.
type Reader struct {
	Contents
	rows   *Rows
	header []byte
	cols   []int // by field: column, -1 unknown
	names  Names
	served ServedReader
}

// NewReader reads the header. It fails with ErrHeader if a column that every sample
// needs is missing or a column is there twice.
func NewReader(r io.Reader) (*Reader, error) {
	t := &Reader{rows: NewRows(r, ','), names: Names{}}
	t.served.Intern = t.names.Intern
	line, err := t.rows.Next()
	for err == nil && bytes.HasPrefix(line, []byte(remark)) {
		if err := t.parseComment(line); err != nil {
			t.bad(err)
		}
		line, err = t.rows.Next()
	}
	if err == io.EOF {
		return nil, fmt.Errorf("read trace: %w: file is empty", ErrHeader)
	}
	if err == ErrLong {
		return nil, fmt.Errorf("read trace: %w: %w", ErrHeader, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	if err := t.parseHeader(line); err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	return t, nil
}

// parseHeader takes the columns of the rows that follow from a line.
func (r *Reader) parseHeader(line []byte) error {
	fields, ok := r.rows.Split(bytes.TrimPrefix(line, []byte("\ufeff")))
	if !ok {
		return fmt.Errorf("%w: %.80q", ErrHeader, line)
	}
	var cols []int
	seen := map[int]bool{}
	for _, f := range fields {
		name := strings.TrimSpace(string(f))
		col, ok := columnOf(name)
		switch {
		case !ok:
			col = -1
			if !slices.Contains(r.Found.Unknown, name) {
				r.Found.Unknown = append(r.Found.Unknown, name)
			}
		case seen[col]:
			return fmt.Errorf("%w: duplicate column %s", ErrHeader, name)
		}
		seen[col] = true
		cols = append(cols, col)
	}
	for _, col := range needed {
		if !seen[col] {
			return fmt.Errorf("%w: no column %s", ErrHeader, columns[col])
		}
	}
	r.header, r.cols = bytes.Clone(line), cols
	return nil
}

// Read reads the next sample into s, overwriting all of it. It returns io.EOF
// at the end, and other errors only if the underlying reader fails.
func (r *Reader) Read(s *sample.Sample) error {
	for {
		line, err := r.rows.Next()
		switch {
		case err == ErrLong:
			r.bad(err)
			continue
		case err == io.EOF:
			return io.EOF
		case err != nil:
			return fmt.Errorf("read trace: line %d: %w", r.rows.line, err)
		case len(line) == 0 || bytes.Equal(line, r.header):
			continue // traces may be joined end to end
		case bytes.HasPrefix(line, []byte(written)): // also those of different versions
			if err := r.parseHeader(line); err != nil {
				r.bad(err)
			}
			continue
		case bytes.HasPrefix(line, []byte(remark)):
			if err := r.parseComment(line); err != nil {
				r.bad(err)
			}
			continue
		}
		if err := r.parse(line, s); err != nil {
			r.bad(err)
			continue
		}
		r.Found.Rows++
		return nil
	}
}

func (r *Reader) bad(err error) { r.Found.Skip(1, "line %d: %v", r.rows.line, err) }

func (r *Reader) parse(line []byte, s *sample.Sample) error {
	fields, ok := r.rows.Split(line)
	if !ok {
		return errors.New("malformed quotes")
	}
	if len(fields) != len(r.cols) {
		return fmt.Errorf("%d fields, the header has %d", len(fields), len(r.cols))
	}
	*s = sample.Sample{Coverage: 1}
	for i, f := range fields {
		if col := r.cols[i]; col >= 0 {
			if err := r.set(s, col, f); err != nil {
				return fmt.Errorf("%s: %w", columnName(col), err)
			}
		}
	}
	return Check(s)
}

func (r *Reader) set(s *sample.Sample, col int, f []byte) (err error) {
	switch col {
	case colTS:
		var ms int64
		ms, err = strconv.ParseInt(string(f), 10, 64)
		s.TS = sample.Millis(ms)
	case colMachine:
		s.Machine = r.name(f)
	case colJob:
		s.Job = sample.JobName(r.name(f))
	case colTask:
		s.Task = sample.TaskName(r.name(f))
	case colPlatform:
		s.Platform = sample.Platform(r.name(f))
	case colSignal:
		s.Signal = sample.SignalName(r.name(f))
	case colVariant:
		s.Variant = r.name(f)
	case colClass:
		s.Class, err = sample.ParseClass(r.names.Intern(f))
	case colCPU:
		s.CPU, err = float32Of(f)
	case colCost:
		if s.Cost = float32(math.NaN()); len(f) > 0 {
			s.Cost, err = float32Of(f)
		}
	case colCoverage:
		s.Coverage, err = float32Of(f)
	case colFlags:
		s.Flags, err = sample.ParseFlags(r.names.Intern(f))
	case colServed:
		s.Served, err = r.served.Read(f)
	default:
		if len(f) == 0 {
			return nil // not measured
		}
		var v float64
		if v, err = strconv.ParseFloat(string(f), 64); err == nil && (math.IsNaN(v) || math.IsInf(v, 0)) {
			err = fmt.Errorf("%v", v)
		}
		s.Extras.Set(sample.Extra(col-colExtra), v)
	}
	return err
}

// name returns a name as it was before it was made inert (formula).
func (r *Reader) name(f []byte) string {
	if len(f) > 1 && f[0] == '\'' && formula(f) {
		f = f[1:]
	}
	return r.names.Intern(f)
}

func float32Of(f []byte) (float32, error) {
	v, err := strconv.ParseFloat(string(f), 32)
	if err == nil && math.IsNaN(v) {
		err = errors.New("NaN is not allowed: leave the field empty")
	}
	return float32(v), err
}

// Load reads all samples of a file. A bad row is an error.
func Load(name string) ([]sample.Sample, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	defer f.Close()
	r, err := NewReader(f)
	var all []sample.Sample
	for err == nil {
		var s sample.Sample
		if err = r.Read(&s); err == nil {
			all = append(all, s)
		}
	}
	if err == io.EOF && r.Found.Bad > 0 {
		err = fmt.Errorf("%d bad rows", r.Found.Bad)
	}
	if err != io.EOF {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return all, nil
}
