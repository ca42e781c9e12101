package uprobe

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// Find agrees with nm and readelf, for a program whose addresses are not its offsets.
func TestFindAgreesWithNM(t *testing.T) {
	quelltest.Need(t, "nm", "readelf")
	binary := buildC(t, "-no-pie")
	f := open(t, binary)
	got, err := Prober{}.Find(f, &counter.Uprobe{Symbol: "hit"})
	if err != nil {
		t.Fatal(err)
	}
	nm := output(t, "nm", binary)
	m := regexp.MustCompile(`(?m)^([0-9a-f]+) T hit$`).FindStringSubmatch(nm)
	if m == nil {
		t.Fatalf("nm says\n%s", nm)
	}
	addr, err := strconv.ParseUint(m[1], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	// The linker puts such programs at 0x400000, and every page after that at its
	// position in the file.
	if addr == got || addr != got+0x400000 {
		t.Errorf("offset %#x, address %#x", got, addr)
	}
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	text, err := exec.Command(name, args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// An offset is valid only for the build that it was found in.
func TestOffsetNeedsItsBuild(t *testing.T) {
	quelltest.Need(t, "readelf")
	binary := buildC(t)
	f := open(t, binary)
	offset, err := Prober{}.Find(f, &counter.Uprobe{Symbol: "hit"})
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`Build ID: ([0-9a-f]+)`).FindStringSubmatch(output(t, "readelf", "-n", binary))
	if m == nil {
		t.Fatal("readelf finds no build id")
	}
	none := open(t, buildC(t, "-Wl,--build-id=none"))
	for _, c := range []struct {
		name string
		file *os.File
		at   counter.Uprobe
		want string // in the error; "" for none
	}{
		{"right", f, counter.Uprobe{Offset: offset, BuildID: m[1]}, ""},
		{"in capitals", f, counter.Uprobe{Offset: offset, BuildID: strings.ToUpper(m[1])}, ""},
		{"another build", f, counter.Uprobe{Offset: offset, BuildID: "00" + m[1][2:]}, "this file is build " + m[1]},
		{"no build", f, counter.Uprobe{Offset: offset}, "this file is build " + m[1]},
		{"the file's head", f, counter.Uprobe{Offset: 16, BuildID: m[1]}, "no executable segment of the file"},
		{"past the end", f, counter.Uprobe{Offset: 1 << 40, BuildID: m[1]}, "no executable segment of the file"},
		{"a file that has none", none, counter.Uprobe{Offset: offset, BuildID: m[1]}, "no build id"},
	} {
		got, err := Prober{}.Find(c.file, &c.at)
		switch {
		case c.want == "" && (err != nil || got != offset):
			t.Errorf("%s: %#x, %v; want %#x", c.name, got, err, offset)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %#x, %v; want %q", c.name, got, err, c.want)
		}
	}
}

func TestWhatCannotBeFound(t *testing.T) {
	plain, stripped := open(t, buildC(t)), open(t, buildC(t, "-s"))
	script := strings.NewReader("#!/bin/sh\n")
	for _, c := range []struct {
		name   string
		symbol string
		file   interface {
			ReadAt([]byte, int64) (int, error)
		}
		want string
	}{
		{"unknown function", "hits", plain, "function not found"},
		{"only data", "_IO_stdin_used", plain, "function not found"},
		{"defined in another file", "fork", plain, "function not found"},
		{"stripped", "hit", stripped, "give offset and build_id"},
		{"no program", "hit", script, "read program"},
	} {
		if got, err := (Prober{}).Find(c.file, &counter.Uprobe{Symbol: c.symbol}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %#x, %v; want %q", c.name, got, err, c.want)
		}
	}
}

// FuzzFind tries any file, since a task may have any file where a rule names a program.
func FuzzFind(f *testing.F) {
	for _, file := range []string{"/bin/true", os.Args[0]} {
		// The head of a real program; the tables are at the end, so most of
		// it is cut off.
		if text, err := os.ReadFile(file); err == nil {
			f.Add(text[:min(len(text), 16<<10)], "main", uint64(0x1000), "")
		}
	}
	if quelltest.Probe(quelltest.Compiler) == nil {
		if text, err := os.ReadFile(buildC(f, "-s")); err == nil {
			f.Add(text, "hit", uint64(0x1100), "ab")
		}
		if text, err := os.ReadFile(buildC(f)); err == nil {
			f.Add(text, "hit", uint64(0), "")
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, symbol string, offset uint64, id string) {
		for _, at := range []counter.Uprobe{{Symbol: symbol}, {Offset: offset, BuildID: id}} {
			got, err := Prober{}.Find(bytes.NewReader(text), &at)
			if err == nil && !isRun(t, text, got) {
				t.Errorf("offset %#x is in no executable segment", got)
			}
		}
	})
}

func isRun(t *testing.T, text []byte, offset uint64) bool {
	f, err := elf.NewFile(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range f.Progs {
		if s.Type == elf.PT_LOAD && s.Flags&elf.PF_X != 0 && offset >= s.Off && offset-s.Off < s.Filesz {
			return true
		}
	}
	return false
}
