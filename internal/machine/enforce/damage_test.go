package enforce

import (
	"maps"
	"strings"
	"testing"
)

// Any damage to one line, and any cut of up to one line's length, leaves no cap
// behind. If more is lost, still nothing wrong is written.
func TestDamageToTheJournal(t *testing.T) {
	life := scriptWorld()
	original := maps.Clone(life.values)
	e := mustStart(t, life)
	must(t, e.Apply(2000, life.change("A", "/cg/a", "x", "y", "z")))
	must(t, e.Apply(2000, life.change("B", "/cg/bb", "x", "y")))
	_, err := e.Undo(3000, "A", "lease over")
	must(t, err)
	must(t, e.Apply(4000, life.change("C", "/cg/a", "y")))
	text := life.names[journalName].data
	capped := maps.Clone(life.values)

	restore := func(where string, data []byte) map[string]string {
		w := life.clone()
		w.names[journalName].data = data
		w.log = nil
		e := mustStart(t, w)
		if _, err := e.RestoreAll(5000, "start"); err != nil {
			t.Errorf("%s: %v", where, err)
		}
		for _, l := range w.log {
			if file, v, _ := strings.Cut(l, "="); v != original[file] || capped[file] == v {
				t.Errorf("%s: wrote %s, where %s was", where, l, capped[file])
			}
		}
		return w.values
	}
	for i := range text {
		for bit := range 8 {
			if text[i] != '\n' && i%8 != bit { // between two newlines one bit of each byte, in turn
				continue
			}
			data := append([]byte(nil), text...)
			data[i] ^= 1 << bit
			if got := restore("flipped", data); !maps.Equal(got, original) {
				t.Fatalf("bit %d of byte %d flipped, of\n%s\nleft %v", bit, i, text, got)
			}
		}
	}
	lines := strings.Count(string(text), "\n")
	lost := 0
	for n := range text {
		got := restore("cut", append([]byte(nil), text[:n]...))
		if kept := strings.Count(string(text[:n]), "\n"); kept >= lines-3 && !maps.Equal(got, original) { // lost: applied, an intend, the empty line
			t.Fatalf("cut to %d of %d bytes: left %v", n, len(text), got)
		}
		if !maps.Equal(got, original) {
			lost++
		}
	}
	if lost == 0 {
		t.Error("nothing is lost even without a journal: the test shows nothing")
	}
}
