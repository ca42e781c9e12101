package sample

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// Names of any bytes are printed safely, and survive being written down.
func TestNamesOfAnyBytes(t *testing.T) {
	for _, c := range []struct{ name, text, printed string }{
		{"/a/b", "/a/b", "/a/b"},
		{`/machine.slice/machine-qemu\x2d7\x2dweb.scope`, `/machine.slice/machine-qemu\x2d7\x2dweb.scope`, `/machine.slice/machine-qemu\x2d7\x2dweb.scope`},
		{"/Zürich büro", "/Zürich büro", "/Zürich büro"},
		{"/a\xffb", `"/a\xffb"`, `"/a\xffb"`},
		{"/a\x1b[2Jb", "/a\x1b[2Jb", `"/a\x1b[2Jb"`},
		{"/a\u202eb", "/a\u202eb", `"/a\u202eb"`},
		{`"quoted"`, `"\"quoted\""`, `"\"quoted\""`},
		{"", "", ""},
	} {
		n := TaskName(c.name)
		if n.Text() != c.text || n.String() != c.printed || fmt.Sprintf("%s %v", n, JobName(n)) != c.printed+" "+c.printed {
			t.Errorf("%q: text %s, printed %s", c.name, n.Text(), n)
		}
		document, err := json.Marshal(map[string]TaskName{"task": n})
		if err != nil {
			t.Fatal(err)
		}
		var back map[string]TaskName
		if err := json.Unmarshal(document, &back); err != nil || back["task"] != n {
			t.Errorf("%q: %s is read as %q, %v", c.name, document, string(back["task"]), err)
		}
		if again, err := ParseName(n.String()); err != nil || again != c.name {
			t.Errorf("%q: %s is read as %q, %v", c.name, n, again, err)
		}
	}
	for _, bad := range []string{`"`, `"/a`, `"/a"b`, `"\q"`} {
		if got, err := ParseName(bad); err == nil || !strings.Contains(err.Error(), "quoted as in Go") {
			t.Errorf("%s: read as %q, %v", bad, got, err)
		}
	}
}

// FuzzParseName: every name has a text form that is UTF-8 and is read back, and no text makes it
// panic.
func FuzzParseName(f *testing.F) {
	for _, s := range []string{"/a", "/a\xff", `"/a"`, `"`, "\x1b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, text := range []string{TaskName(s).Text(), TaskName(s).String()} {
			if back, err := ParseName(text); err != nil || back != s || !utf8.ValidString(text) {
				t.Errorf("%q: %q is read as %q, %v", s, text, back, err)
			}
		}
		if name, err := ParseName(s); err == nil && s != "" && s[0] != '"' && name != s {
			t.Errorf("%q is read as %q", s, name)
		}
	})
}
