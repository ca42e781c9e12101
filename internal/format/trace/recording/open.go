package recording

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace"
	"github.com/quell-dev/quell/internal/format/trace/parquet"
)

// Reader reads a recording of any format.
type Reader interface {
	// Read reads the next sample, in the order of the file, or returns io.EOF.
	Read(*sample.Sample) error
	Report() trace.Report
	// Labels returns those read so far, and whether the recording is labelled.
	Labels() ([]trace.Label, bool)
	// Unlabelled returns the stretches read so far about which labels say nothing.
	Unlabelled() []trace.Stretch
}

// Recording is a file that samples are read from.
type Recording struct {
	Reader
	// Format describes the format that was found in the file.
	Format   string
	size     int64
	taken    *atomic.Int64 // bytes of the file
	progress func() float64
	closers  []func() error
	buffer   []sample.Sample
}

// Options say what a file's content does not.
type Options struct {
	// Columns says what the columns of a CSV are that is not a trace; nil: a CSV must
	// be a trace.
	Columns *Columns
}

// FormatError says that a file is in no format that this package can read.
type FormatError struct {
	Name string
	Err  error
	do   string
}

func (e *FormatError) Error() string  { return fmt.Sprintf("read %s: %v", e.Name, e.Err) }
func (e *FormatError) Unwrap() error  { return e.Err }
func (e *FormatError) Remedy() string { return e.do }

// Open opens a file, "-" for standard input.
func Open(name string, o Options) (*Recording, error) {
	f := os.Stdin
	r := &Recording{taken: new(atomic.Int64)}
	if name != "-" {
		var err error
		if f, err = os.Open(name); err != nil {
			return nil, fmt.Errorf("open recording: %w", err)
		}
		r.closers = append(r.closers, f.Close)
	}
	if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
		r.size = st.Size()
	}
	if err := r.open(f, o); err != nil {
		err = errors.Join(err, r.Close())
		do := "quell replay reads quell's traces, Prometheus JSON and Rezolus Parquet; other CSV files need --columns; see docs/replay.md"
		return nil, &FormatError{name, err, do}
	}
	return r, nil
}

// batch is how many samples Next reads from a Reader that returns one at a time.
const batch = 256

// Next returns the next samples, possibly none, or io.EOF. They are valid until the
// next call. It is Read without a copy: use only one of the two.
func (r *Recording) Next() ([]sample.Sample, error) {
	if b, ok := r.Reader.(interface {
		Next() ([]sample.Sample, error)
	}); ok {
		return b.Next()
	}
	if r.buffer == nil {
		r.buffer = make([]sample.Sample, batch)
	}
	for i := range r.buffer {
		if err := r.Read(&r.buffer[i]); err == io.EOF && i > 0 {
			return r.buffer[:i], nil
		} else if err != nil {
			return r.buffer[:i], err
		}
	}
	return r.buffer, nil
}

// Close closes the file.
func (r *Recording) Close() error {
	var err error
	for i := len(r.closers) - 1; i >= 0; i-- {
		err = errors.Join(err, r.closers[i]())
	}
	r.closers = nil
	return err
}

// Progress returns how much of the file was read, 0 to 1; 0 if its size is not known.
func (r *Recording) Progress() float64 {
	if r.progress != nil {
		return r.progress()
	}
	if r.size == 0 {
		return 0
	}
	return min(1, float64(r.taken.Load())/float64(r.size))
}

// counting counts the bytes that were read of a file.
type counting struct {
	io.Reader
	n *atomic.Int64
}

func (c counting) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// The first bytes of files (RFC 1952, RFC 8878, Parquet's file format).
const (
	gzipMagic    = "\x1f\x8b"
	zstdMagic    = "\x28\xb5\x2f\xfd"
	parquetMagic = "PAR1"
)

// maxPacked is how many times a file may be packed: more is malicious.
const maxPacked = 3

func (r *Recording) open(f *os.File, o Options) error {
	b := bufio.NewReaderSize(counting{f, r.taken}, 1<<16)
	packed := ""
	for range maxPacked {
		start, err := b.Peek(4)
		if err != nil && err != io.EOF {
			return err
		}
		switch {
		case bytes.HasPrefix(start, []byte(gzipMagic)):
			z, err := gzip.NewReader(b)
			if err != nil {
				return fmt.Errorf("unpack gzip: %w", err)
			}
			r.closers = append(r.closers, z.Close)
			b, packed = bufio.NewReaderSize(z, 1<<16), packed+", gzip"
		case bytes.HasPrefix(start, []byte(zstdMagic)):
			z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<28))
			if err != nil {
				return fmt.Errorf("unpack zstd: %w", err)
			}
			r.closers = append(r.closers, func() error { z.Close(); return nil })
			b, packed = bufio.NewReaderSize(z, 1<<16), packed+", zstd"
		case bytes.HasPrefix(start, []byte(parquetMagic)):
			if packed != "" || r.size == 0 {
				return errors.New("read Parquet: want a regular, uncompressed file: decompress it first")
			}
			return r.parquet(f)
		default:
			err := r.text(b, start, o)
			r.Format += packed
			return err
		}
	}
	return errors.New("compressed too many times")
}

// text opens a file that is not Parquet.
func (r *Recording) text(b *bufio.Reader, start []byte, o Options) (err error) {
	if bytes.HasPrefix(start, []byte("\ufeff")) {
		_, _ = b.Discard(len("\ufeff")) // it is in the buffer
		start, _ = b.Peek(4)
	}
	start = bytes.TrimLeft(start, " \t\r\n")
	switch {
	case bytes.HasPrefix(start, []byte("{")):
		r.Format = "Kepler's counters as Prometheus JSON"
		r.Reader, err = newPrometheus(b)
	case o.Columns != nil:
		r.Format = "CSV by a column map"
		r.Reader, err = newMapped(b, o.Columns)
	default:
		r.Format = "trace as CSV"
		r.Reader, err = trace.NewReader(b)
	}
	return err
}

func (r *Recording) parquet(f *os.File) error {
	own, err := parquet.NewReader(f, r.size)
	if err == nil {
		r.Format, r.Reader, r.progress = "trace as Parquet", own, own.Progress
		r.closers = append(r.closers, func() error { own.Close(); return nil })
		return nil
	}
	if !errors.Is(err, trace.ErrHeader) {
		return err
	}
	rez, other := newRezolus(f, r.size)
	if other != nil {
		return errors.Join(err, other)
	}
	r.Format, r.Reader = "Rezolus' cgroup counters as Parquet", rez
	return nil
}
