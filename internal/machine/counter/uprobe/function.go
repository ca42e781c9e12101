package uprobe

import (
	"bufio"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
)

// The bounds on the tables of a file in which a function is looked up. They are read piece by piece, and only what
// is asked for is kept: debug/elf and debug/gosym keep all names, and since names may overlap, a small table can
// have any number of any length.
const (
	maxSymbols = 128 << 20 // bytes of a symbol table, and of its names
	// maxPclntab is the limit for Go's table of functions: 0.7 MB for a small program,
	// 40 MB for the largest that are known.
	maxPclntab = 128 << 20
	// maxFunctions is the limit for the functions in it. A program of 40 MB has 200,000.
	maxFunctions = 2 << 20
	// maxPlaces is the limit for the places where a table of names has the one that is looked up.
	maxPlaces = 16 << 10
	piece     = 64 << 10
)

var errNoSymbol = errors.New("function not found; name one that `nm` or `go tool nm` lists, or give offset and build_id")

// function returns a function's address as the file has it.
func function(f *elf.File, name string) (uint64, error) {
	for _, find := range [...]func() (uint64, error){
		func() (uint64, error) { return inSymbols(f, name, elf.SHT_SYMTAB) },
		func() (uint64, error) { return inSymbols(f, name, elf.SHT_DYNSYM) },
		func() (uint64, error) { return inPclntab(f, name) },
	} {
		if addr, err := find(); !errors.Is(err, errNoSymbol) {
			return addr, err
		}
	}
	return 0, fmt.Errorf("find %s: %w", name, errNoSymbol)
}

// inSymbols looks in a symbol table (elf(5), Elf32_Sym and Elf64_Sym).
func inSymbols(f *elf.File, name string, kind elf.SectionType) (uint64, error) {
	table := f.SectionByType(kind)
	if table == nil {
		return 0, errNoSymbol
	}
	if table.Link == 0 || uint64(table.Link) >= uint64(len(f.Sections)) {
		return 0, fmt.Errorf("read %s: it has no table of names", kind)
	}
	names := f.Sections[table.Link]
	if table.Size > maxSymbols || names.Size > maxSymbols {
		return 0, fmt.Errorf("read %s: more than %d bytes", kind, maxSymbols)
	}
	places, err := placesOf(name, io.LimitReader(names.Open(), maxSymbols))
	if err != nil {
		return 0, fmt.Errorf("read names of %s: %w", kind, err)
	}
	wide := f.Class == elf.ELFCLASS64
	symbol, info, section := make([]byte, elf.Sym32Size), 12, 14
	if wide {
		symbol, info, section = make([]byte, elf.Sym64Size), 4, 6
	}
	in := bufio.NewReaderSize(io.LimitReader(table.Open(), maxSymbols), piece)
	for {
		if _, err := io.ReadFull(in, symbol); errors.Is(err, io.EOF) {
			return 0, errNoSymbol
		} else if err != nil {
			return 0, fmt.Errorf("read %s: %w", kind, err)
		}
		// A symbol without a section is defined in another file; an indirect one
		// (STT_GNU_IFUNC) is the function that chooses, not the one chosen.
		if !places[int64(f.ByteOrder.Uint32(symbol))] || elf.ST_TYPE(symbol[info]) != elf.STT_FUNC ||
			f.ByteOrder.Uint16(symbol[section:]) == uint16(elf.SHN_UNDEF) {
			continue
		}
		if wide {
			return f.ByteOrder.Uint64(symbol[8:]), nil
		}
		return uint64(f.ByteOrder.Uint32(symbol[4:])), nil
	}
}

// placesOf returns the offsets at which a table of names, each ended by a zero byte, has a name. A name may
// be the end of another.
func placesOf(name string, table io.Reader) (map[int64]bool, error) {
	places := map[int64]bool{}
	want := append([]byte(name), 0)
	text := make([]byte, 0, piece+len(want))
	for from := int64(0); ; {
		n, err := io.ReadFull(table, text[len(text):cap(text)])
		text = text[:len(text)+n]
		for at := 0; ; at++ {
			next := bytes.Index(text[at:], want)
			if next < 0 {
				break
			}
			if at += next; len(places) == maxPlaces {
				return nil, fmt.Errorf("more than %d with the end %q", maxPlaces, name)
			}
			places[from+int64(at)] = true
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return places, nil
		case err != nil:
			return nil, err
		}
		rest := len(text) - (len(want) - 1)
		from += int64(rest)
		text = append(text[:0], text[rest:]...)
	}
}

// inPclntab looks in .gopclntab, with which Go unwinds its stacks (cmd/link/internal/ld/pcln.go). Its first
// bytes tell its version, and have the size of a pointer in the eighth; words follow: the number of
// functions and, since Go 1.16, the offsets of its parts. Functions are pairs of an address and the offset of
// a record, whose second field is the offset of the name.
func inPclntab(f *elf.File, name string) (uint64, error) {
	table, text := f.Section(".gopclntab"), f.Section(".text")
	if table == nil {
		table = f.Section(".data.rel.ro.gopclntab") // -buildmode=pie
	}
	if table == nil || text == nil || table.ReaderAt == nil { // nil: compressed
		return 0, errNoSymbol
	}
	if table.Size > maxPclntab {
		return 0, fmt.Errorf("read %s: more than %d bytes", table.Name, maxPclntab)
	}
	var head [8 + 8*8]byte
	if n, _ := table.ReadAt(head[:], 0); n < 16 {
		return 0, errNoSymbol
	}
	pointer := int(head[7])
	if pointer != 4 && pointer != 8 {
		return 0, errNoSymbol
	}
	number := func(b []byte, size int) int64 {
		if size == 4 {
			return int64(f.ByteOrder.Uint32(b))
		}
		return int64(f.ByteOrder.Uint64(b))
	}
	word := func(n int) int64 { return number(head[8+n*pointer:], pointer) }
	count, size := word(0), int64(table.Size)
	var names, pairs, records int64   // the offsets of the parts; those of records count from the last
	field, base := pointer, uint64(0) // the size of a number in a pair, and what addresses count from
	switch f.ByteOrder.Uint32(head[:]) {
	case 0xfffffff1, 0xfffffff0: // Go 1.20, Go 1.18
		names, pairs, records, field, base = word(3), word(7), word(7), 4, text.Addr
	case 0xfffffffa: // Go 1.16
		names, pairs, records = word(2), word(6), word(6)
	case 0xfffffffb: // Go 1.2
		pairs = int64(8 + pointer)
	default:
		return 0, errNoSymbol
	}
	if count < 0 || count > maxFunctions {
		return 0, fmt.Errorf("read %s: more than %d functions", table.Name, maxFunctions)
	}
	places, err := placesOf(name, io.NewSectionReader(table, names, size))
	if err != nil {
		return 0, fmt.Errorf("read names of %s: %w", table.Name, err)
	}
	in := bufio.NewReaderSize(io.NewSectionReader(table, pairs, size), piece)
	pair, place := make([]byte, 2*field), make([]byte, 4)
	for range count {
		_, err := io.ReadFull(in, pair)
		if err == nil {
			_, err = table.ReadAt(place, records+number(pair[field:], field)+int64(field))
		}
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", table.Name, err)
		}
		if places[number(place, 4)] {
			return base + uint64(number(pair, field)), nil
		}
	}
	return 0, errNoSymbol
}
