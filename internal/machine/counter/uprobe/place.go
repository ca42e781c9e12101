package uprobe

import (
	"bytes"
	"debug/elf"
	"debug/gosym"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/quell-dev/quell/internal/machine/counter"
)

// The bounds on what a file, which belongs to the task, can make the agent read.
const (
	maxSymbols = 128 << 20 // bytes of a symbol table, and of its names
	maxNotes   = 64 << 10
	// maxPclntab is the limit for Go's table of functions: 0.7 MB for a small program,
	// 40 MB for the largest that are known.
	maxPclntab = 128 << 20
)

// Find returns the place's offset from the beginning of the ELF file, as the kernel
// expects it; for position-independent programs too. Functions are looked up in
// .symtab, .dynsym and Go's own table, which strip does not remove.
func (Prober) Find(file io.ReaderAt, p *counter.Uprobe) (offset uint64, err error) {
	// debug/elf and debug/gosym guard against most of what a file can hold.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("read program: damaged: %v", r)
		}
	}()
	f, err := elf.NewFile(file)
	if err != nil {
		return 0, fmt.Errorf("read program: %w", err)
	}
	if p.Symbol == "" {
		return p.Offset, checkOffset(f, p)
	}
	addr, err := function(f, p.Symbol)
	if err != nil {
		return 0, err
	}
	for _, s := range f.Progs {
		if s.Type == elf.PT_LOAD && s.Flags&elf.PF_X != 0 && addr >= s.Vaddr && addr-s.Vaddr < s.Filesz {
			return addr - s.Vaddr + s.Off, nil
		}
	}
	return 0, fmt.Errorf("find %s: its address %#x is in no executable segment of the file", p.Symbol, addr)
}

func checkOffset(f *elf.File, p *counter.Uprobe) error {
	id, err := buildID(f)
	if err != nil {
		return err
	}
	if id != strings.ToLower(p.BuildID) {
		return fmt.Errorf("offset %#x is for build %s, this file is build %s", p.Offset, p.BuildID, id)
	}
	for _, s := range f.Progs {
		if s.Type == elf.PT_LOAD && s.Flags&elf.PF_X != 0 && p.Offset >= s.Off && p.Offset-s.Off < s.Filesz {
			return nil
		}
	}
	return fmt.Errorf("offset %#x is in no executable segment of the file", p.Offset)
}

// function returns a function's address as the file has it.
func function(f *elf.File, name string) (uint64, error) {
	addr, err := lookup(f, name, elf.SHT_SYMTAB, f.Symbols)
	if err == nil || !errors.Is(err, errNoSymbol) {
		return addr, err
	}
	addr, err = lookup(f, name, elf.SHT_DYNSYM, f.DynamicSymbols)
	if err == nil || !errors.Is(err, errNoSymbol) {
		return addr, err
	}
	return goFunction(f, name)
}

var errNoSymbol = errors.New("function not found; name one that `nm` or `go tool nm` lists, or give offset and build_id")

func lookup(f *elf.File, name string, table elf.SectionType, read func() ([]elf.Symbol, error)) (uint64, error) {
	s := f.SectionByType(table)
	if s == nil {
		return 0, errNoSymbol
	}
	if s.Size > maxSymbols || s.Link < uint32(len(f.Sections)) && f.Sections[s.Link].Size > maxSymbols {
		return 0, fmt.Errorf("read %s: more than %d bytes", s.Name, maxSymbols)
	}
	symbols, err := read()
	if errors.Is(err, elf.ErrNoSymbols) {
		return 0, errNoSymbol
	}
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", s.Name, err)
	}
	for _, s := range symbols {
		// A symbol without a section is defined in another file; an indirect one
		// (STT_GNU_IFUNC) is the function that chooses, not the one chosen.
		if s.Name == name && elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Section != elf.SHN_UNDEF {
			return s.Value, nil
		}
	}
	return 0, errNoSymbol
}

// goFunction looks in .gopclntab, with which Go unwinds its stacks.
func goFunction(f *elf.File, name string) (uint64, error) {
	table, text := f.Section(".gopclntab"), f.Section(".text")
	if table == nil {
		table = f.Section(".data.rel.ro.gopclntab") // -buildmode=pie
	}
	if table == nil || text == nil {
		return 0, fmt.Errorf("find %s: %w", name, errNoSymbol)
	}
	if table.Size > maxPclntab {
		return 0, fmt.Errorf("read %s: more than %d bytes", table.Name, maxPclntab)
	}
	data, err := table.Data()
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", table.Name, err)
	}
	t, err := gosym.NewTable(nil, gosym.NewLineTable(data, text.Addr))
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", table.Name, err)
	}
	fn := t.LookupFunc(name)
	if fn == nil {
		return 0, fmt.Errorf("find %s: %w", name, errNoSymbol)
	}
	return fn.Entry, nil
}

// buildID reads the GNU note (elf(5), NT_GNU_BUILD_ID = 3): three words, the
// name "GNU\0", then the id, each padded to 4 bytes.
func buildID(f *elf.File) (string, error) {
	for _, s := range f.Progs {
		if s.Type != elf.PT_NOTE || s.Filesz > maxNotes {
			continue
		}
		notes, err := io.ReadAll(s.Open())
		if err != nil {
			return "", fmt.Errorf("read notes: %w", err)
		}
		pad := uint64(4)
		if s.Align == 8 { // as .note.gnu.property has it
			pad = 8
		}
		for len(notes) >= 12 {
			nameSize, size, kind := f.ByteOrder.Uint32(notes), f.ByteOrder.Uint32(notes[4:]), f.ByteOrder.Uint32(notes[8:])
			name, rest, ok := take(notes[12:], nameSize, 4)
			id, next, ok2 := take(rest, size, pad)
			if !ok || !ok2 {
				break
			}
			if kind == 3 && bytes.Equal(name, []byte("GNU\x00")) {
				return hex.EncodeToString(id), nil
			}
			notes = next
		}
	}
	return "", errors.New("the file has no build id; an offset cannot be trusted, name a symbol")
}

// take cuts n bytes and their padding to a multiple of pad off b.
func take(b []byte, n uint32, pad uint64) (head, rest []byte, ok bool) {
	if uint64(n) > uint64(len(b)) {
		return nil, nil, false
	}
	return b[:n], b[min(uint64(len(b)), (uint64(n)+pad-1)&^(pad-1)):], true
}
