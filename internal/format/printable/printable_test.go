package printable

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// hostile are texts that change a terminal or what its reader believes, and how they are printed.
var hostile = []struct{ text, line string }{
	{"/a/b", "/a/b"},
	{"Zürich — größer ≥ 1", "Zürich — größer ≥ 1"},
	{"\x1b[2J\x1b[31mred", `\x1b[2J\x1b[31mred`},
	{"\x1b]0;title\a", `\x1b]0;title\a`},
	{"a\u009b2Jb", `a\u009b2Jb`}, // CSI as one character
	{"m1: done\nm2: done", `m1: done\nm2: done`},
	{"overwritten\rby this", `overwritten\rby this`},
	{"a\tb", `a\tb`},
	{"gpj.\u202etxt", `gpj.\u202etxt`},
	{"a\u200bb\u2028c", `a\u200bb\u2028c`},
	{"\xff\xfe\x9b2J", `\xff\xfe\x9b2J`},
	{"\U000e0041", `\udb40\udc41`},
	{"\x7f\x00", `\u007f\x00`},
	{"\uFFFD", `\ufffd`},
}

func TestText(t *testing.T) {
	for _, c := range hostile {
		if got := Text(c.text); got != c.line {
			t.Errorf("%q: %s, want %s", c.text, got, c.line)
		}
		want := strings.NewReplacer(`\n`, "\n", `\t`, "\t").Replace(c.line)
		if got := Lines(c.text); got != want {
			t.Errorf("%q: lines %q, want %q", c.text, got, want)
		}
		var b bytes.Buffer
		if n, err := io.WriteString(NewWriter(&b), strings.ReplaceAll(c.text, "\x1b[31m", "")); n == 0 || err != nil {
			t.Error(n, err)
		}
		if got := b.String(); got != strings.ReplaceAll(want, `\x1b[31m`, "") {
			t.Errorf("%q: written as %q", c.text, got)
		}
	}
	if got := ASCII("größer\x1b"); got != `gr\u00f6\u00dfer\x1b` {
		t.Error(got)
	}
}

func TestCell(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "web": "web", "-1.5": "-1.5", "+3e9": "+3e9", "1-2": "1-2", "a,b\nc": "a,b\nc",
		`=HYPERLINK("http://evil","x")`: `'=HYPERLINK("http://evil","x")`,
		"@SUM(1)":                       "'@SUM(1)", "+cmd|' /C calc'!A0": "'+cmd|' /C calc'!A0", "-2+3": "'-2+3", "\t=1": "'\t=1",
		"\r=1": `\r=1`, "-": "'-", "=\x1b": `'=\x1b`,
	} {
		if got := Cell(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// A Writer lets quell's own styles through and nothing else, however the text is divided.
func TestWriter(t *testing.T) {
	const text = "\x1b[1mhead\x1b[0m\tgrün \x1b[31mbad\x1b[0m\n\x1b[8mhidden\x1b[0;1m \xe2\x28 \xf0\x9f\x98\x80 end"
	const want = "\x1b[1mhead\x1b[0m\tgrün \x1b[31mbad\x1b[0m\n" + `\x1b[8mhidden\x1b[0;1m \xe2( 😀 end`
	var whole bytes.Buffer
	if n, err := io.WriteString(NewWriter(&whole), text); n != len(text) || err != nil || whole.String() != want {
		t.Errorf("%d %v %q, want %q", n, err, whole.String(), want)
	}
	var b bytes.Buffer
	w := NewWriter(&b)
	for i := 0; i < len("grün 😀"); i++ { // a character's bytes one at a time
		if n, err := w.Write([]byte("grün 😀")[i : i+1]); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if b.String() != "grün 😀" {
		t.Errorf("in parts: %q", b.String())
	}
	if Raw(w) != io.Writer(&b) || Raw(&b) != io.Writer(&b) {
		t.Error("the writer below is another one")
	}
}

// FuzzText: nothing that is not printable gets through any of the printers, and a JSON document
// stays the same document.
func FuzzText(f *testing.F) {
	for _, c := range hostile {
		f.Add([]byte(c.text), 3)
	}
	f.Fuzz(func(t *testing.T, text []byte, cut int) {
		one, several, cell := Text(string(text)), Lines(string(text)), Cell(string(text))
		if i := strings.IndexFunc(one, func(r rune) bool { return !unicode.IsGraphic(r) || r == utf8.RuneError }); i >= 0 {
			t.Errorf("%q: %q", text, one)
		}
		for _, s := range []string{several, cell} {
			if i := strings.IndexFunc(s, oddInLines); i >= 0 || !utf8.ValidString(s) {
				t.Errorf("%q: %q", text, s)
			}
		}
		if len(cell) > 0 && strings.ContainsRune("=@", rune(cell[0])) {
			t.Errorf("%q: the cell is a formula", cell)
		}
		if several == string(text) && one != Text(one) {
			t.Errorf("%q: printed twice it changes", text)
		}
		var b bytes.Buffer
		w := NewWriter(&b)
		cut = min(max(cut, 0), len(text))
		if _, err := w.Write(text[:cut]); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(text[cut:]); err != nil {
			t.Fatal(err)
		}
		left := b.String()
		for _, style := range styles {
			left = strings.ReplaceAll(left, style, "")
		}
		if strings.IndexFunc(left, oddInLines) >= 0 {
			t.Errorf("%q: written as %q", text, b.String())
		}
		document, err := json.Marshal(string(text))
		if err != nil {
			t.Fatal(err)
		}
		var had, got string
		if err := json.Unmarshal(document, &had); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(Lines(string(document))), &got); err != nil || got != had {
			t.Errorf("%s: printed %s, %v", document, Lines(string(document)), err)
		}
	})
}
