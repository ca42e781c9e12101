package archtest

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
)

// room is a folder of internal. A package imports from its own room and from those above
// it in rooms; the table says which of them.
type room struct {
	name, what string
	most       int // lines of Go that are no tests and not generated
}

var rooms = []room{
	{"core", "the pure loop: samples in, findings and actions out", 12_150},
	{"format", "files, messages and drawings that several rooms share", 6_500},
	{"machine", "what is read from and written to a Linux machine", 16_850},
	{"agent", "the daemon of each machine", 8_700},
	{"cluster", "the bus, the store and the server", 19_300},
	{"lab", "interference measured under control", 33_000},
	{"eval", "how often the rules are right: recordings and a simulator", 8_800},
	{"people", "what people see and type", 14_750},
	{"testkit", "what tests share, and tests of this tree", 6_000},
}

// roomOf is the index of a package's room; len(rooms) for a program, −1 for neither.
func roomOf(name string) int {
	first, _, _ := strings.Cut(name, "/")
	if first == "cmd" {
		return len(rooms)
	}
	return slices.IndexFunc(rooms, func(r room) bool { return r.name == first })
}

// lines counts a package's lines that are no tests and not generated.
func (p *pkg) lines() (n int) {
	for _, f := range p.files {
		if !f.test && !f.generated {
			n += f.lines()
		}
	}
	return n
}

// checkRooms: a package is in a room, and imports from no room below its own.
func checkRooms(pkgs []*pkg, report func(string, ...any)) {
	for _, p := range pkgs {
		own := roomOf(p.name())
		if own < 0 {
			report("%s: is in none of the rooms of internal/testkit/archtest/rooms_test.go", p.dir)
			continue
		}
		for _, f := range p.files {
			for _, s := range f.ast.Imports {
				target, internal := strings.CutPrefix(strings.Trim(s.Path.Value, `"`), module+"/internal/")
				if to := roomOf(target); internal && !f.test && to > own {
					report("%s: %s is below %s", f.at(s), rooms[to].name, p.name())
				}
			}
		}
	}
}

// TestRoomsHaveRoom: no room is larger than it may be.
func TestRoomsHaveRoom(t *testing.T) {
	pkgs, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	size := make([]int, len(rooms)+1)
	for _, p := range pkgs {
		if i := roomOf(p.name()); i >= 0 {
			size[i] += p.lines()
		}
	}
	for i, r := range rooms {
		if size[i] > r.most || size[i] == 0 {
			t.Errorf("%s has %d lines, may have %d", r.name, size[i], r.most)
		}
	}
}

// picture is the tree as it is: rooms with their packages, from the programs down.
func picture(pkgs []*pkg) string {
	var lines []string
	total := 0
	for _, p := range pkgs {
		total += p.lines()
	}
	for i := len(rooms); i >= 0; i-- {
		var names []string
		size := 0
		for _, p := range pkgs {
			if roomOf(p.name()) == i {
				size += p.lines()
				names = append(names, p.name())
			}
		}
		// What tests are for, and what is part of another package's folder, is no first look.
		var first []string
		for _, n := range names {
			if short := strings.TrimPrefix(n, "cmd/"); i == len(rooms) || strings.Count(n, "/") < 2 {
				if i < len(rooms) {
					short = path.Base(n)
				}
				first = append(first, short)
			}
		}
		name, what := "cmd", "the programs: wiring"
		if i < len(rooms) {
			name, what = "internal/"+rooms[i].name, rooms[i].what
		}
		lines = append(lines, fmt.Sprintf("    %-17s %2d %%  %s\n                          %s", name, (100*size+total/2)/total, what, strings.Join(first, " · ")))
	}
	return strings.Join(lines, "\n") + "\n"
}

const (
	pictureBegins = "<!-- picture: go test ./internal/testkit/archtest -run Picture -update -->\n"
	pictureEnds   = "<!-- end of the picture -->\n"
)

// TestPicture: the page's picture is of the tree as it is.
func TestPicture(t *testing.T) {
	pkgs, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	const page = root + "/docs/ARCHITECTURE.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), pictureBegins)
	drawn, after, end := strings.Cut(rest, pictureEnds)
	if !ok || !end {
		t.Fatalf("%s has no picture", page)
	}
	want := "\n" + picture(pkgs) + "\n"
	if *update {
		if err := os.WriteFile(page, []byte(before+pictureBegins+want+pictureEnds+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if drawn != want {
		t.Errorf("the picture is\n%s\nwant\n%s", drawn, want)
	}
}
