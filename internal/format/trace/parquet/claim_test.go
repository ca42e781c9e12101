package parquet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

// pages returns headers of pages, each followed by its packed bytes as filler.
func pages(t *testing.T, headers ...format.PageHeader) []byte {
	t.Helper()
	var b bytes.Buffer
	for i := range headers {
		text, err := thrift.Marshal(new(thrift.CompactProtocol), &headers[i])
		if err != nil {
			t.Fatal(err)
		}
		b.Write(text)
		if n := int(headers[i].CompressedPageSize); n >= 0 && n < 1<<20 {
			b.WriteString(strings.Repeat("\xff", n)) // not a header
		}
	}
	return b.Bytes()
}

func data(values, unpacked, packed int32) format.PageHeader {
	return format.PageHeader{Type: format.DataPage, UncompressedPageSize: unpacked, CompressedPageSize: packed,
		DataPageHeader: thrift.New(format.DataPageHeader{NumValues: values})}
}

func dictionary(values, unpacked, packed int32) format.PageHeader {
	return format.PageHeader{Type: format.DictionaryPage, UncompressedPageSize: unpacked, CompressedPageSize: packed,
		DictionaryPageHeader: thrift.New(format.DictionaryPageHeader{NumValues: values})}
}

// Claims of pages are refused before memory is allocated for them.
func TestClaims(t *testing.T) {
	for name, c := range map[string]struct {
		pages  []format.PageHeader
		change func(*format.ColumnMetaData)
		rows   int64
		ok     bool
	}{
		"a dictionary and two pages":    {pages: []format.PageHeader{dictionary(3, 40, 30), data(60, 900, 700), data(40, 10, 10)}, rows: 100, ok: true},
		"no rows and no pages":          {ok: true},
		"a page of a gigabyte":          {pages: []format.PageHeader{data(100, 1<<30, 10)}, rows: 100},
		"a dictionary of a gigabyte":    {pages: []format.PageHeader{dictionary(3, 1<<30, 10), data(100, 10, 10)}, rows: 100},
		"more names than bytes":         {pages: []format.PageHeader{dictionary(1000, 10, 10), data(100, 10, 10)}, rows: 100},
		"more values than rows":         {pages: []format.PageHeader{data(1<<30, 10, 10)}, rows: 100},
		"more in both than rows":        {pages: []format.PageHeader{data(60, 10, 10), data(60, 10, 10)}, rows: 100},
		"packed beyond the column":      {pages: []format.PageHeader{data(100, 10, 1<<20)}, rows: 100},
		"less than nothing":             {pages: []format.PageHeader{data(100, -1, 10)}, rows: 100},
		"more rows than any page holds": {pages: []format.PageHeader{data(1<<25, 10, 10)}, rows: 1 << 25},
		"a column beyond the file":      {pages: []format.PageHeader{data(100, 10, 10)}, rows: 100, change: func(m *format.ColumnMetaData) { m.TotalCompressedSize++ }},
		"a column before the file":      {pages: []format.PageHeader{data(100, 10, 10)}, rows: 100, change: func(m *format.ColumnMetaData) { m.DataPageOffset = -1 }},
		"other rows than the others":    {pages: []format.PageHeader{data(100, 10, 10)}, rows: 100, change: func(m *format.ColumnMetaData) { m.NumValues-- }},
	} {
		file := pages(t, c.pages...)
		m := format.ColumnMetaData{NumValues: c.rows, TotalCompressedSize: int64(len(file))}
		if c.change != nil {
			c.change(&m)
		}
		if err := checkPages(bytes.NewReader(file), int64(len(file)), &m, c.rows); (err == nil) != c.ok || err != nil && !errors.Is(err, errPageSize) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Pages that end too early.
	file := pages(t, data(60, 10, 10))
	m := format.ColumnMetaData{NumValues: 100, TotalCompressedSize: int64(len(file))}
	if err := checkPages(bytes.NewReader(file), int64(len(file)), &m, 100); err == nil {
		t.Error("40 rows have no page")
	}
}

// A header with a list that claims to hold two thousand million numbers ends with the
// file, and soon: the time limit of the whole package's tests is far below the time to
// look for each number.
func TestALongListOfNothing(t *testing.T) {
	const unknownMap, doubles = 0xfb, 0x77 // of the compact protocol
	file := []byte{unknownMap, 0xff, 0xff, 0xff, 0xff, 0x07, doubles, 1, 2, 3}
	m := format.ColumnMetaData{NumValues: 100, TotalCompressedSize: int64(len(file))}
	if err := checkPages(bytes.NewReader(file), int64(len(file)), &m, 100); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	// The largest value of a page may be long, as long as the file holds it.
	long := data(100, 10, 10)
	long.DataPageHeader.V.Statistics.MaxValue = bytes.Repeat([]byte("z"), 4000)
	file = pages(t, long)
	m.TotalCompressedSize = int64(len(file))
	if err := checkPages(bytes.NewReader(file), int64(len(file)), &m, 100); err != nil {
		t.Error(err)
	}
}

// Metadata that claim more than they can hold are refused before memory is allocated for them.
func TestClaimsOfMetadata(t *testing.T) {
	const aList, aString, aStruct, many = "\x19", "\x18", "\x1c", "\xff\xff\xff\xff\x07" // as the first field
	for name, c := range map[string]struct {
		metadata string
		length   uint32 // what the file says; 0: the true one
		err      error
	}{
		"longer than the file":             {"", 1 << 30, errFooter},
		"longer by a byte":                 {"\x00", 2, errFooter},
		"a list of two thousand million":   {aList + "\xfc" + many + "\x00", 0, errFooter},
		"seven numbers in a few bytes":     {aList + "\x77" + "\x01\x02\x03", 0, errFooter},
		"a long text":                      {aString + many + "abc", 0, errFooter},
		"a map of two thousand million":    {"\x1b" + many + "\x88" + "abc", 0, errFooter},
		"a structure without an end":       {aStruct, 0, io.ErrUnexpectedEOF},
		"a thousand nested structures":     {strings.Repeat(aStruct, 1000), 0, errFooter},
		"a thousand nested lists":          {aList + strings.Repeat("\x19", 1000), 0, errFooter},
		"no metadata of Parquet, but sane": {"\x00", 0, nil},
	} {
		length := c.length
		if length == 0 {
			length = uint32(len(c.metadata))
		}
		file := append(binary.LittleEndian.AppendUint32([]byte("PAR1"+c.metadata), length), "PAR1"...)
		if err := checkFooter(bytes.NewReader(file), int64(len(file))); !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", name, err, c.err)
		}
		// Whatever it is, opening it takes little memory and gives an error.
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := Open(bytes.NewReader(file), int64(len(file))); err == nil {
			t.Errorf("%s was opened", name)
		}
		if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > 8<<20 {
			t.Errorf("%s took %d MB", name, (after.TotalAlloc-before.TotalAlloc)>>20)
		}
	}
	for _, file := range []string{"", "PAR1", "PAR1PAR1", "PAR1\xff\xff\xff\x7fPARE", "PAR1\x00\x00\x00\x00PARE"} {
		if _, err := Open(strings.NewReader(file), int64(len(file))); err == nil {
			t.Errorf("%q was opened", file)
		}
	}
}
