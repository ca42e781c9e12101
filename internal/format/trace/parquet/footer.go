package parquet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/parquet-go/parquet-go"
)

// maxDepth bounds the structures and lists within others; Parquet's metadata have fewer than 16.
const maxDepth = 32

// errFooter means that the metadata of a file claim to hold more than they can.
var errFooter = errors.New("damaged: metadata exceed the file")

// File is an open file in which memory is allocated only for what it can hold: a file of a few bytes that
// claims more must not take gigabytes.
type File struct {
	*parquet.File
	raw  io.ReaderAt
	size int64 // bytes
}

// Open opens a file of the given size in bytes, without page indexes and Bloom filters. It checks first what
// the metadata at its end claim. That a file is damaged is an error, and no panic.
func Open(r io.ReaderAt, size int64, options ...parquet.FileOption) (f *File, err error) {
	defer recovered(&err)
	if err := checkFooter(r, size); err != nil {
		return nil, fmt.Errorf("read Parquet: %w", err)
	}
	in, err := parquet.OpenFile(r, size, append(options, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))...)
	if err != nil {
		return nil, fmt.Errorf("read Parquet: %w", err)
	}
	return &File{in, r, size}, nil
}

// CheckPages checks what the pages of a column of a row group claim, both counted from 0. It is to be called
// before the column is read.
func (f *File) CheckPages(group, column int) error {
	g := &f.Metadata().RowGroups[group]
	return checkPages(f.raw, f.size, &g.Columns[column].MetaData, g.NumRows)
}

// checkFooter checks the metadata of a file: their length, then "PAR1", are its last 8 bytes, and the first
// 4 are "PAR1" too (Apache Parquet, File Format). Other files are left to parquet.OpenFile, which refuses them.
func checkFooter(r io.ReaderAt, size int64) error {
	const tail, magic = 8, 4
	var end [tail]byte
	if size < magic+tail {
		return fmt.Errorf("%d bytes are no Parquet file", size)
	}
	if _, err := r.ReadAt(end[:], size-tail); err != nil && err != io.EOF {
		return err
	}
	n := int64(binary.LittleEndian.Uint32(end[:]))
	if n > size-magic-tail {
		return fmt.Errorf("%w: %d bytes of metadata in a file of %d bytes", errFooter, n, size)
	}
	if string(end[magic:]) != "PAR1" {
		return nil
	}
	b := make([]byte, n)
	if _, err := r.ReadAt(b, size-tail-n); err != nil && err != io.EOF {
		return err
	}
	w := walk{b}
	return w.structure(maxDepth)
}

// walk goes over values of Thrift's compact protocol, whatever they mean
// (Apache Thrift, thrift-compact-protocol.md). It holds what it has not seen yet.
type walk struct{ rest []byte }

// Types of the compact protocol.
const (
	stop = iota
	yes
	no
	int8s
	int16s
	int32s
	int64s
	float64s
	bytesOf
	list
	set
	pairs
	structure
)

// structure passes the fields of a structure.
func (w *walk) structure(depth int) error {
	for {
		b, err := w.byte()
		if err != nil || b == stop {
			return err
		}
		if b>>4 == 0 { // the number of the field follows
			if _, err := w.number(); err != nil {
				return err
			}
		}
		if t := b & 15; t != yes && t != no { // which are their own value
			if err := w.value(t, depth); err != nil {
				return err
			}
		}
	}
}

// value passes one value of a type.
func (w *walk) value(t byte, depth int) error {
	if depth == 0 {
		return fmt.Errorf("%w: structures within %d structures", errFooter, maxDepth)
	}
	switch t {
	case yes, no, int8s:
		return w.skip(1)
	case int16s, int32s, int64s:
		_, err := w.number()
		return err
	case float64s:
		return w.skip(8)
	case bytesOf:
		n, err := w.number()
		if err != nil {
			return err
		}
		return w.skip(n)
	case list, set:
		b, err := w.byte()
		if err != nil {
			return err
		}
		n := uint64(b >> 4)
		if n == 15 {
			if n, err = w.number(); err != nil {
				return err
			}
		}
		return w.values(n, depth, b&15)
	case pairs:
		n, err := w.number()
		if err != nil || n == 0 {
			return err
		}
		b, err := w.byte()
		if err != nil {
			return err
		}
		return w.values(n, depth, b>>4, b&15)
	case structure:
		return w.structure(depth - 1)
	}
	return fmt.Errorf("damaged: metadata of type %d", t)
}

// values passes n values of each type, in turns. Each takes a byte at least.
func (w *walk) values(n uint64, depth int, types ...byte) error {
	if n > uint64(len(w.rest)) {
		return fmt.Errorf("%w: a list of %d in %d bytes", errFooter, n, len(w.rest))
	}
	for range n {
		for _, t := range types {
			if err := w.value(t, depth-1); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *walk) byte() (byte, error) {
	if len(w.rest) == 0 {
		return 0, fmt.Errorf("%w: %w", errFooter, io.ErrUnexpectedEOF)
	}
	b := w.rest[0]
	w.rest = w.rest[1:]
	return b, nil
}

func (w *walk) number() (uint64, error) {
	v, n := binary.Uvarint(w.rest)
	if n <= 0 {
		return 0, fmt.Errorf("%w: %w", errFooter, io.ErrUnexpectedEOF)
	}
	w.rest = w.rest[n:]
	return v, nil
}

func (w *walk) skip(n uint64) error {
	if n > uint64(len(w.rest)) {
		return fmt.Errorf("%w: %d bytes of %d", errFooter, n, len(w.rest))
	}
	w.rest = w.rest[n:]
	return nil
}
