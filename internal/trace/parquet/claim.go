package parquet

import (
	"errors"
	"fmt"
	"io"

	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

const (
	// maxPage bounds a page as it is in memory, in bytes; writers make pages of
	// 1 MB or less.
	maxPage = 1 << 26
	// maxPageRows bounds its rows: writers begin another page long before.
	maxPageRows = 1 << 24
)

// errClaim means that a page says to hold more than it can.
var errClaim = errors.New("damaged: a page says to hold more than it can")

// claims looks at what the pages of a column of a row group say of themselves,
// since memory is taken by that before they are read: a few damaged bytes must
// not take gigabytes. Values within a page are not looked at.
func claims(r io.ReaderAt, size int64, m *format.ColumnMetaData, rows int64) error {
	at := m.DataPageOffset
	if d := m.DictionaryPageOffset; d > 0 && d < at {
		at = d
	}
	if at < 0 || m.TotalCompressedSize < 0 || at > size || m.TotalCompressedSize > size-at || m.NumValues != rows {
		return fmt.Errorf("%w: %d values of %d rows in bytes %d and %d more, of %d", errClaim, m.NumValues, rows, at, m.TotalCompressedSize, size)
	}
	w := window{r: r, at: at, end: at + m.TotalCompressedSize}
	var protocol thrift.CompactProtocol
	d := thrift.NewDecoder(protocol.NewReader(&w))
	for left := rows; left > 0; {
		var h format.PageHeader
		if err := d.Decode(&h); err != nil {
			return fmt.Errorf("read page header: %w", err)
		}
		values := int32(0)
		switch {
		case h.DataPageHeader.Valid:
			values = h.DataPageHeader.V.NumValues
			left -= int64(values)
		case h.DataPageHeaderV2.Valid:
			values = h.DataPageHeaderV2.V.NumValues
			left -= int64(values)
		case h.DictionaryPageHeader.Valid:
			if values = h.DictionaryPageHeader.V.NumValues; values > h.UncompressedPageSize {
				return fmt.Errorf("%w: %d values in %d bytes", errClaim, values, h.UncompressedPageSize)
			}
		}
		if h.UncompressedPageSize < 0 || h.UncompressedPageSize > maxPage || values < 0 || values > maxPageRows || left < 0 ||
			h.CompressedPageSize < 0 || int64(h.CompressedPageSize) > w.end-w.at {
			return fmt.Errorf("%w: %d values in %d bytes, packed %d", errClaim, values, h.UncompressedPageSize, h.CompressedPageSize)
		}
		w.skip(int64(h.CompressedPageSize))
	}
	return nil
}

// window reads a stretch of a file in small pieces and knows where it is.
type window struct {
	r       io.ReaderAt
	at, end int64
	have    []byte // read ahead
	buffer  [512]byte
}

func (w *window) Read(p []byte) (int, error) {
	if len(w.have) == 0 {
		n, err := w.r.ReadAt(w.buffer[:min(int64(len(w.buffer)), w.end-w.at)], w.at)
		if n == 0 {
			if err == nil {
				err = io.EOF
			}
			return 0, err
		}
		w.have = w.buffer[:n]
	}
	n := copy(p, w.have)
	w.have = w.have[n:]
	w.at += int64(n)
	return n, nil
}

// ReadByte implements io.ByteReader.
func (w *window) ReadByte() (byte, error) {
	var b [1]byte
	_, err := w.Read(b[:])
	return b[0], err
}

func (w *window) skip(n int64) {
	w.at += n
	w.have = w.have[min(n, int64(len(w.have))):]
}
