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
	// maxPageRows bounds its rows: writers begin another page much earlier.
	maxPageRows = 1 << 24
)

// errPageSize means that a page claims to hold more than it can.
var errPageSize = errors.New("damaged: page size or row count exceeds the file")

// checkPages checks what the pages of a column of a row group claim, since memory is
// allocated by that before they are read: a few malformed bytes must not take
// gigabytes. Values within a page are not checked.
func checkPages(r io.ReaderAt, size int64, m *format.ColumnMetaData, rows int64) error {
	at := m.DataPageOffset
	if d := m.DictionaryPageOffset; d > 0 && d < at {
		at = d
	}
	if at < 0 || m.TotalCompressedSize < 0 || at > size || m.TotalCompressedSize > size-at || m.NumValues != rows {
		return fmt.Errorf("%w: %d values for %d rows at byte %d, length %d, in a file of %d bytes", errPageSize, m.NumValues, rows, at, m.TotalCompressedSize, size)
	}
	end := at + m.TotalCompressedSize
	for left := rows; left > 0; {
		h, n, err := header(r, at, end)
		if err != nil {
			return fmt.Errorf("read page header: %w", err)
		}
		at += int64(n)
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
				return fmt.Errorf("%w: %d values in %d bytes", errPageSize, values, h.UncompressedPageSize)
			}
		}
		if h.UncompressedPageSize < 0 || h.UncompressedPageSize > maxPage || values < 0 || values > maxPageRows || left < 0 ||
			h.CompressedPageSize < 0 || int64(h.CompressedPageSize) > end-at {
			return fmt.Errorf("%w: %d values in %d bytes, compressed %d", errPageSize, values, h.UncompressedPageSize, h.CompressedPageSize)
		}
		at += int64(h.CompressedPageSize)
	}
	return nil
}

// header decodes the page header at a position of a file, and returns its length. It is
// decoded from memory, where the end is noticed: the decoder of streams continues after
// the end for as many numbers as a malformed list claims to hold.
func header(r io.ReaderAt, at, end int64) (h format.PageHeader, n int, err error) {
	for size := int64(512); ; size = maxHeader {
		b := make([]byte, min(size, end-at))
		if _, err := r.ReadAt(b, at); err != nil && err != io.EOF {
			return h, 0, err
		}
		var protocol thrift.CompactProtocol
		in := protocol.NewReaderFromBytes(b)
		h = format.PageHeader{}
		err = thrift.NewDecoder(in).Decode(&h)
		if err == nil || size == maxHeader || int64(len(b)) < size {
			return h, in.BytesRead(), err
		}
	}
}

// maxHeader is more than the header of a page needs, which includes the smallest and
// the largest value of the page.
const maxHeader = 64 << 10
