package uprobe

import (
	"bytes"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/quell-dev/quell/internal/machine/counter"
)

// The bounds on what a file, which belongs to the task, can make the agent read.
const (
	maxHeaders = 64 << 10 // bytes of the headers, with the names of sections: 3 KB are usual
	maxNotes   = 64 << 10
)

// headers bounds what is read of a file while debug/elf reads its headers, which keeps all of it, and the
// name of each section.
type headers struct {
	io.ReaderAt
	left int
}

func (h *headers) ReadAt(b []byte, at int64) (int, error) {
	if h.left -= len(b); h.left < 0 {
		return 0, fmt.Errorf("more than %d bytes of headers", maxHeaders)
	}
	return h.ReaderAt.ReadAt(b, at)
}

func readHeaders(file io.ReaderAt) (*elf.File, error) {
	h := &headers{file, maxHeaders}
	f, err := elf.NewFile(h)
	h.left = math.MaxInt // what reads further has limits of its own
	return f, err
}

// Find returns the place's offset from the beginning of the ELF file, as the kernel
// expects it; for position-independent programs too. Functions are looked up in
// .symtab, .dynsym and Go's own table, which strip does not remove.
func (Prober) Find(file io.ReaderAt, p *counter.Uprobe) (offset uint64, err error) {
	// debug/elf guards against most of what a file can hold.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("read program: damaged: %v", r)
		}
	}()
	f, err := readHeaders(file)
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
		if holds(s, s.Vaddr, addr) && addr-s.Vaddr+s.Off > 0 {
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
		if holds(s, s.Off, p.Offset) && p.Offset > 0 {
			return nil
		}
	}
	return fmt.Errorf("offset %#x is in no executable segment of the file", p.Offset)
}

// holds reports whether a segment, which begins at from, has the instruction at.
func holds(s *elf.Prog, from, at uint64) bool {
	return s.Type == elf.PT_LOAD && s.Flags&elf.PF_X != 0 && at >= from && at-from < s.Filesz
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
