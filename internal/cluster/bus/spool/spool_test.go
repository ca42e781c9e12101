package spool

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

func open(t *testing.T, dir string, max int64) *Spool {
	t.Helper()
	s, err := Open(dir, max)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// all reads all messages from number from on.
func all(t *testing.T, s *Spool, from uint64) (numbers []uint64, messages []string) {
	t.Helper()
	for {
		n, m, err := s.Read(from)
		if err != nil {
			t.Fatal(err)
		}
		if m == nil {
			return numbers, messages
		}
		numbers, messages = append(numbers, n), append(messages, string(m))
		from = n + 1
	}
}

func put(t *testing.T, s *Spool, messages ...string) {
	t.Helper()
	var raw [][]byte
	for _, m := range messages {
		raw = append(raw, []byte(m))
	}
	if err := s.Append(raw...); err != nil {
		t.Fatal(err)
	}
}

func TestComesBackInOrder(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, MinBytes)
	put(t, s, "a", "b")
	put(t, s, "c")
	if _, err := Open(dir, MinBytes); err == nil {
		t.Error("two have it open")
	}
	s.Close()
	s = open(t, dir, MinBytes)
	put(t, s, "d")
	numbers, messages := all(t, s, 0)
	if !slices.Equal(numbers, []uint64{1, 2, 3, 4}) || !slices.Equal(messages, []string{"a", "b", "c", "d"}) {
		t.Errorf("%d: %q", numbers, messages)
	}
	s.Release(3)
	if st := s.Stats(); st.Messages != 2 || st.Dropped != 0 || st.Damaged != 0 || st.Appended != 1 {
		t.Errorf("%+v", st)
	}
	s.Close()
	s = open(t, dir, MinBytes)
	if got := s.Released(); got != 3 {
		t.Errorf("released up to %d, want 3", got)
	}
	if st := s.Stats(); st.Messages != 2 {
		t.Errorf("%+v", st)
	}
}

// A message whose sync failed is removed and its number reused. No reader may have been
// given it before that, or the reader would skip the next message of that number.
func TestNobodyReadsWhatIsNotOnDisk(t *testing.T) {
	s := open(t, t.TempDir(), MinBytes)
	put(t, s, "a")
	works := s.sync
	broken := errors.New("input/output error")
	s.sync = func(*os.File) error {
		if _, messages := all(t, s, 0); !slices.Equal(messages, []string{"a"}) {
			t.Errorf("read %q while the second was not on disk", messages)
		}
		if st := s.Stats(); st.Messages != 1 || st.Appended != 1 {
			t.Errorf("counted while the second was not on disk: %+v", st)
		}
		return broken
	}
	if err := s.Append([]byte("b")); !errors.Is(err, broken) {
		t.Fatalf("append: %v", err)
	}
	s.sync = works
	put(t, s, "c")
	if numbers, messages := all(t, s, 0); !slices.Equal(numbers, []uint64{1, 2}) || !slices.Equal(messages, []string{"a", "c"}) {
		t.Errorf("%d: %q", numbers, messages)
	}
	if st := s.Stats(); st.Messages != 2 || st.Appended != 2 || st.Damaged != 0 {
		t.Errorf("%+v", st)
	}
}

func TestRefusesWhatItCannotKeep(t *testing.T) {
	s := open(t, t.TempDir(), MinBytes)
	for _, m := range [][]byte{nil, {}, make([]byte, MaxMessage+1)} {
		if err := s.Append([]byte("x"), m); err == nil {
			t.Errorf("a message of %d bytes was taken", len(m))
		}
	}
	if numbers, _ := all(t, s, 0); len(numbers) != 0 {
		t.Errorf("%d are there", numbers)
	}
	if _, err := Open(t.TempDir(), MinBytes-1); err == nil {
		t.Error("a bound too small was taken")
	}
}

// model is the specification of a spool, as a map.
type model struct {
	messages map[uint64]string
	next     uint64
	released uint64
}

// TestModel runs random operations on a spool. What was appended and not dropped is
// there, in order and unchanged. A reopened spool has at least what was not released. The
// bound is exceeded by at most one message.
func TestModel(t *testing.T) {
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 0))
		dir := t.TempDir()
		s := open(t, dir, MinBytes)
		m := model{messages: map[uint64]string{}, next: 1, released: 1}
		var dropped uint64
		for step := range 150 {
			switch k := rng.IntN(10); {
			case k < 6:
				var batch []string
				for range 1 + rng.IntN(3) {
					text := fmt.Sprintf("%d:%s", m.next, bytes.Repeat([]byte{'x'}, rng.IntN(20_000)))
					batch = append(batch, text)
					m.messages[m.next] = text
					m.next++
				}
				put(t, s, batch...)
			case k < 8 && seed%2 == 1 && m.next > m.released: // else no message is taken, and it fills up
				m.released += rng.Uint64N(m.next - m.released + 1)
				s.Release(m.released)
			case k == 8:
				dropped += s.Stats().Dropped
				s.Close()
				s = open(t, dir, MinBytes)
			}
			numbers, messages := all(t, s, 0)
			for i, n := range numbers {
				if messages[i] != m.messages[n] || i > 0 && n != numbers[i-1]+1 {
					t.Fatalf("seed %d, step %d: number %d after %d is another message", seed, step, n, numbers[max(i-1, 0)])
				}
			}
			first := m.next
			if len(numbers) > 0 {
				first = numbers[0]
				if last := numbers[len(numbers)-1]; last != m.next-1 {
					t.Fatalf("seed %d, step %d: the last is %d, want %d", seed, step, last, m.next-1)
				}
			}
			// Messages that are missing and were not released were counted as dropped.
			lost := dropped + s.Stats().Dropped
			if first > m.released && first-m.released > lost {
				t.Fatalf("seed %d, step %d: the first is %d, released up to %d, %d dropped", seed, step, first, m.released, lost)
			}
			var size int64
			files, _ := filepath.Glob(dir + "/*.seg")
			for _, f := range files {
				info, err := os.Stat(f)
				if err != nil {
					t.Fatal(err)
				}
				size += info.Size()
			}
			if size != s.Stats().Bytes || size > MinBytes+100_000 {
				t.Fatalf("seed %d, step %d: %d bytes on disk, it says %d", seed, step, size, s.Stats().Bytes)
			}
		}
		if lost := dropped + s.Stats().Dropped; (lost > 0) != (seed%2 == 0) {
			t.Errorf("seed %d: %d were dropped", seed, lost)
		}
		s.Close()
	}
}

// TestDamage: truncation at any point, or a change of any byte, loses at most what
// follows that point, nothing before it, and never yields a wrong message.
func TestDamage(t *testing.T) {
	texts := []string{"first", "second message", "third"}
	make_ := func(t *testing.T) (dir, file string) {
		dir = t.TempDir()
		s := open(t, dir, MinBytes)
		put(t, s, texts...)
		s.Close()
		return dir, filepath.Join(dir, segmentName(1))
	}
	_, file := make_(t)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	ends := []int{len(magic)}
	for _, m := range texts {
		ends = append(ends, ends[len(ends)-1]+frameHeader+len(m))
	}
	check := func(t *testing.T, damaged []byte, safe int) {
		dir, file := make_(t)
		if err := os.WriteFile(file, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		s := open(t, dir, MinBytes)
		put(t, s, "after")
		_, got := all(t, s, 0)
		if len(got) == 0 || got[len(got)-1] != "after" {
			t.Fatalf("what came after is not there: %q", got)
		}
		got = got[:len(got)-1]
		if len(got) < safe || len(got) > len(texts) || !slices.Equal(got, texts[:len(got)]) {
			t.Fatalf("got %q, want at least the first %d of %q", got, safe, texts)
		}
		if len(got) < len(texts) && len(damaged) > 0 && len(damaged) != ends[len(got)] && s.Stats().Damaged == 0 {
			t.Fatalf("%q are left and no damage is counted", got)
		}
	}
	for i := range whole {
		safe := 0
		for safe < len(texts) && ends[safe+1] <= i {
			safe++
		}
		check(t, whole[:i], safe)
		changed := bytes.Clone(whole)
		changed[i] ^= 0x41
		check(t, changed, safe)
		check(t, append(bytes.Clone(whole[:i]), make([]byte, 100)...), safe)
	}
}

// Damage in an old segment loses the rest of that segment and nothing of the others.
func TestDamageInTheMiddle(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, MinBytes)
	big := string(bytes.Repeat([]byte{'b'}, MinBytes/8))
	put(t, s, "a", "b")
	put(t, s, big)
	put(t, s, "d")
	s.Close()
	name := filepath.Join(dir, segmentName(1))
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)-1] ^= 1
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, MinBytes)
	numbers, messages := all(t, s, 0)
	if !slices.Equal(numbers, []uint64{1, 3, 4}) || messages[0] != "a" || messages[2] != "d" {
		t.Errorf("numbers %d", numbers)
	}
	if st := s.Stats(); st.Damaged != 1 {
		t.Errorf("%+v", st)
	}
}

// TestFullDisk: a full disk loses the message that did not fit and none before it, and
// the spool continues when there is room again.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, MinBytes)
	put(t, s, "before")
	// A descriptor that cannot be written to simulates the full disk.
	good := s.w
	bad, err := os.Open(s.last().path)
	if err != nil {
		t.Fatal(err)
	}
	s.w = bad
	if err := s.Append([]byte("lost")); err == nil {
		t.Fatal("it was taken")
	}
	if err := good.Close(); err != nil {
		t.Fatal(err)
	}
	put(t, s, "after")
	for range 2 {
		if _, messages := all(t, s, 0); !slices.Equal(messages, []string{"before", "after"}) {
			t.Fatalf("%q", messages)
		}
		s.Close()
		s = open(t, dir, MinBytes)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, m, err := s.Read(s.Released()); m != nil || err != nil || s.Stats().Damaged != 2 {
			t.Errorf("read from a directory that is gone: %q, %v, %+v", m, err, s.Stats())
		}
	}
	if err := s.Append([]byte("lost")); err == nil {
		t.Error("a message was taken to a directory that is gone")
	}
}

// TestFilesAreRemoved: an operator who removes the files of a running agent, to free the disk, loses what they
// held, which is counted once, and nothing later.
func TestFilesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, MinBytes)
	put(t, s, "a", "b")
	put(t, s, string(bytes.Repeat([]byte{'c'}, MinBytes/8)))
	files, err := filepath.Glob(dir + "/*.seg")
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the sender's first attempts
		if _, m, err := s.Read(s.Released()); m != nil || err != nil || s.Stats().Damaged != 3 {
			t.Fatalf("%.20q, %v, %+v", m, err, s.Stats())
		}
	}
	put(t, s, "d")
	if numbers, messages := all(t, s, 0); !slices.Equal(numbers, []uint64{4}) || messages[0] != "d" {
		t.Errorf("numbers %d: %.20q", numbers, messages)
	}
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte(magic))
	f.Add(appendFrame(appendFrame([]byte(magic), []byte("one")), []byte("two")))
	f.Add(append([]byte(magic), make([]byte, 64)...))
	f.Fuzz(func(t *testing.T, text []byte) {
		offsets, good, err := frames(bytes.NewReader(text))
		if err != nil || good > int64(len(text)) {
			t.Fatalf("%d of %d bytes, %v", good, len(text), err)
		}
		if good == 0 {
			return
		}
		again := []byte(magic)
		for i, at := range offsets {
			end := good
			if i+1 < len(offsets) {
				end = offsets[i+1]
			}
			again = appendFrame(again, text[at+frameHeader:end])
		}
		if !bytes.Equal(again, text[:good]) {
			t.Error("what was taken for frames is not")
		}
	})
}
