package helper

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"
)

// buffer is a wire whose messages come back to the sender.
type buffer struct{ bytes.Buffer }

// Every message that is sent is received; noise in between is skipped.
func FuzzWire(f *testing.F) {
	f.Add("[    0.000000] Linux version\r\n", "a line \"of\" output", 7, int64(1))
	f.Add("{}", "", 0, int64(-1))
	f.Add("{\"op\":\"answer\"", "\xff\n", 1, int64(0))
	f.Fuzz(func(t *testing.T, noise, text string, id int, ns int64) {
		b := &buffer{}
		w := newWire(b, b)
		want := frame{Op: "out", ID: id, NS: ns, Text: strings.ToValidUTF8(text, "�"), Job: &job{Argv: []string{"a b"}}}
		if len(noise) > mostText || len(text) > mostText {
			return
		}
		// Noise may contain messages.
		for line := range strings.Lines(noise) {
			if m := (frame{}); json.Unmarshal([]byte(line), &m) == nil && m.Op != "" {
				return
			}
		}
		b.WriteString(noise + "\n")
		if err := w.send(want); err != nil {
			t.Fatal(err)
		}
		got, err := w.receive()
		if err != nil || got.Op != want.Op || got.ID != want.ID || got.NS != want.NS || got.Text != want.Text || !slices.Equal(got.Job.Argv, want.Job.Argv) {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
		if _, err := w.receive(); err != io.EOF {
			t.Errorf("at the end: %v", err)
		}
	})
}

// A program's output arrives as lines, in whatever pieces it was written, and a line
// without an end does not fill the memory.
func TestOutlet(t *testing.T) {
	b := &buffer{}
	w := newWire(b, b)
	o := (&helper{wire: w}).outlet(3, 2)
	for _, p := range []string{"on", "e\ntwo\nth", "ree\n", strings.Repeat("x", mostText+1), "lost"} {
		if n, err := o.Write([]byte(p)); n != len(p) || err != nil {
			t.Fatal(n, err)
		}
	}
	var got []string
	for {
		m, err := w.receive()
		if err != nil {
			break
		}
		if m.Proc != 3 || m.FD != 2 || m.Op != "out" {
			t.Errorf("%+v", m)
		}
		got = append(got, m.Text)
	}
	if want := []string{"one", "two", "three", strings.Repeat("x", mostText+1)}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
