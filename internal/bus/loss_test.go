package bus

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/bus/authority"
	"github.com/quell-dev/quell/internal/bus/embedded"
	"github.com/quell-dev/quell/internal/quelltest"
	"github.com/quell-dev/quell/internal/wire"
)

// TestPowerCut puts the server's directory back to what it was some batches ago,
// as a power cut does with what was not fsynced: agents send again what they
// had kept, and a reader that drops what it has lacks nothing.
func TestPowerCut(t *testing.T) {
	a := newAuthority(t)
	s := startServer(t, a, embedded.Options{})
	openBus(t, a, s.url(), 1).Close()
	u := openUplink(t, a, s.url(), "m", nil)
	send := func(n int) {
		t.Helper()
		want := u.Stats().Sent + uint64(n)
		for range n {
			u.Samples(1, samples("m", 1))
		}
		quelltest.Until(t, 30*time.Second, "they are acknowledged", func() bool { return u.Stats().Sent == want })
	}
	send(5)
	s.kill()
	before := filepath.Join(t.TempDir(), "before")
	if err := os.CopyFS(before, os.DirFS(s.Options.Dir)); err != nil {
		t.Fatal(err)
	}
	s.start()
	quelltest.Until(t, 30*time.Second, "the five have come again", func() bool { return u.Stats().Sent == 10 })
	send(7)
	s.kill()
	if err := os.RemoveAll(s.Options.Dir); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(s.Options.Dir, os.DirFS(before)); err != nil {
		t.Fatal(err)
	}
	s.start()
	b := openBus(t, a, s.url(), 1)
	c, err := b.Consume(t.Context(), Samples)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var numbers []uint64
	for highest := uint64(0); highest < 12; {
		var got wire.Batch
		m := fetch(t, c, 1)[0]
		if err := m.Batch(&got); err != nil {
			t.Fatal(err)
		}
		if got.N > highest {
			highest = got.N
			numbers = append(numbers, got.N)
		}
	}
	if want := []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}; !slices.Equal(numbers, want) {
		t.Errorf("the reader has %d", numbers)
	}
}

// TestFullDisk fills the file system that the spool is on: what does not fit is
// counted and named, what was there before is sent, and what comes after there is
// room again goes its way.
func TestFullDisk(t *testing.T) {
	quelltest.Need(t, quelltest.Root)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		quelltest.Skip(t, quelltest.Root, err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	a := newAuthority(t)
	s := startServer(t, a, embedded.Options{})
	openBus(t, a, s.url(), 1).Close()
	s.kill()
	u, err := OpenUplink(UplinkOptions{Options: Options{URL: s.url(), Name: "m", Credentials: credentials(t, a, authority.Agent, "m", 0),
		pause: 20 * time.Millisecond}, Dir: dir, MaxBytes: MinSpool})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	u.Samples(1, samples("m", 1))
	quelltest.Until(t, 30*time.Second, "the first is on disk", func() bool { return u.Stats().Waiting == 1 })
	filler := filepath.Join(dir, "somebody else's")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); err == nil {
		t.Fatal("the file system is larger than it should be")
	}
	for range 20 { // more than the last page has room for
		u.Samples(1, samples("m", 100))
	}
	quelltest.Until(t, 30*time.Second, "the disk is found full", func() bool {
		err := u.Err()
		return u.Stats().Lost > 0 && err != nil && strings.Contains(err.Error(), "no space left")
	})
	quelltest.Until(t, 30*time.Second, "all were taken in or lost", func() bool {
		st := u.Stats()
		return st.Lost+st.Waiting == 21
	})
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	lost := u.Stats().Lost
	u.Samples(1, samples("m", 1))
	s.start()
	quelltest.Until(t, 30*time.Second, "all that was on disk is acknowledged", func() bool {
		st := u.Stats()
		return st.Waiting == 0 && st.Sent == 22-lost && u.Err() == nil
	})
}
