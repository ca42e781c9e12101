package uprobe

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/machine/counter"
)

// madeUp is an ELF file that a task has made up. Its sections are a null one, .shstrtab, and
// what the test adds; what is not written is zero, and takes no room on the disk.
type madeUp struct {
	t        *testing.T
	file     *os.File
	header   elf.Header64
	sections []elf.Section64
	end      int64 // of the file
}

const (
	sectionsAt = 1 << 12
	dataAt     = 1 << 24
)

func newMadeUp(t *testing.T) *madeUp {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "program"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	p := &madeUp{t: t, file: file, end: dataAt}
	p.header = elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: 1, Ehsize: 64,
		Phoff: 64, Phentsize: 56, Phnum: 1, Shoff: sectionsAt, Shentsize: 64, Shstrndx: 1}
	copy(p.header.Ident[:], "\x7fELF\x02\x01\x01")
	p.write(64, elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_X), Off: 0, Vaddr: 0x400000, Filesz: 1 << 40})
	p.sections = []elf.Section64{{}}
	return p
}

func (p *madeUp) write(at int64, v any) {
	p.t.Helper()
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.file.WriteAt(b.Bytes(), at); err != nil {
		p.t.Fatal(err)
	}
}

// add adds a section; its content begins with text.
func (p *madeUp) add(s elf.Section64, text []byte) {
	s.Off, s.Size = uint64(p.end), max(s.Size, uint64(len(text)))
	p.write(p.end, text)
	p.end += int64(s.Size)
	p.sections = append(p.sections, s)
}

// done writes the headers.
func (p *madeUp) done() *os.File {
	p.t.Helper()
	if p.header.Shnum == 0 && p.sections[0].Size == 0 {
		p.header.Shnum = uint16(len(p.sections))
	}
	p.write(0, p.header)
	p.write(sectionsAt, p.sections)
	if err := p.file.Truncate(1 << 40); err != nil {
		p.t.Fatal(err)
	}
	return p.file
}

// longName is a name of a mebibyte.
var longName = append(bytes.Repeat([]byte("x"), 1<<20), 0)

// symbolTable has functions with one name each, at the address.
func symbolTable(n int, addr uint64) []byte {
	var b bytes.Buffer
	for range n + 1 {
		binary.Write(&b, binary.LittleEndian, elf.Sym64{Name: 1, Info: uint8(elf.STT_FUNC), Shndx: 1, Value: addr})
	}
	return b.Bytes()
}

// goTable is a .gopclntab of Go 1.20 whose functions all have names that end where the first does.
func goTable(n int) []byte {
	b := []byte{0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8}
	const header = 8 + 8*8
	functions := uint64(header + len(longName))
	for _, word := range []uint64{uint64(n), 0, 0, header, header, header, header, functions} {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	b = append(b, longName...)
	table := uint32(8*n + 4)
	for i := range uint32(n) {
		b = binary.LittleEndian.AppendUint32(b, i)
		b = binary.LittleEndian.AppendUint32(b, table+64*i)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(n))
	for i := range uint32(n) {
		f := make([]byte, 64)
		binary.LittleEndian.PutUint32(f[4:], i)
		b = append(b, f...)
	}
	return b
}

// A program of a few kilobytes on the disk does not take the agent's memory, whatever its headers and tables say.
func TestAttackAProgramThatTakesMemory(t *testing.T) {
	const most = 16 << 20 // debug/elf allocates up to 10 MB before it reads
	names := []byte("\x00.text\x00.gopclntab\x00")
	strtab := elf.Section64{Type: uint32(elf.SHT_STRTAB)}
	for _, c := range []struct {
		name string
		make func(p *madeUp)
		want string // in the error
	}{
		{"large program headers", func(p *madeUp) {
			p.header.Shstrndx, p.header.Phnum, p.header.Phentsize = 0, 1<<14, 1<<15
		}, "more than"},
		{"many sections", func(p *madeUp) {
			p.header.Shstrndx, p.sections[0].Size = 0, 1<<21
		}, "more than"},
		{"many sections of any size", func(p *madeUp) {
			p.header.Shstrndx, p.header.Shnum, p.header.Shentsize = 0, 1<<14, 1<<15
		}, "more than"},
		{"long names of sections", func(p *madeUp) {
			p.add(elf.Section64{Type: uint32(elf.SHT_STRTAB), Size: 512 << 20}, nil)
		}, "more than"},
		{"many sections of one name", func(p *madeUp) {
			p.add(strtab, longName)
			for range 500 {
				p.sections = append(p.sections, elf.Section64{})
			}
		}, "more than"},
		{"many functions of one name", func(p *madeUp) {
			p.add(strtab, names)
			p.add(strtab, append([]byte{0}, longName...))
			p.add(elf.Section64{Type: uint32(elf.SHT_SYMTAB), Link: 2}, symbolTable(500, 0x400100))
		}, "function not found"},
		{"large tables of symbols", func(p *madeUp) {
			p.add(strtab, names)
			p.add(elf.Section64{Type: uint32(elf.SHT_STRTAB), Size: 100 << 20}, nil)
			p.add(elf.Section64{Type: uint32(elf.SHT_SYMTAB), Link: 2, Size: 24 << 22}, nil)
		}, "function not found"},
		{"many places of a name", func(p *madeUp) {
			p.add(strtab, names)
			p.add(strtab, bytes.Repeat([]byte("hit\x00"), 8<<20))
			p.add(elf.Section64{Type: uint32(elf.SHT_SYMTAB), Link: 2}, symbolTable(500, 0x400100))
		}, "more than"},
		{"many functions in Go's table", func(p *madeUp) {
			p.add(strtab, names)
			p.add(elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Addr: 0x400000}, nil)
			p.add(elf.Section64{Name: 7, Type: uint32(elf.SHT_PROGBITS)}, goTable(500))
		}, "function not found"},
		// link.Uprobe reads all symbols of a file if it is given the offset 0.
		{"a function at the file's beginning", func(p *madeUp) {
			p.add(strtab, names)
			p.add(strtab, []byte("\x00hit\x00"))
			p.add(elf.Section64{Type: uint32(elf.SHT_SYMTAB), Link: 2}, symbolTable(1, 0x400000))
		}, "no executable segment"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newMadeUp(t)
			c.make(p)
			file := p.done()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			at, err := Prober{}.Find(file, &counter.Uprobe{Symbol: "hit"})
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; took > most {
				t.Errorf("took %d MB", took>>20)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%#x, %v; want %q", at, err, c.want)
			}
		})
	}
}
