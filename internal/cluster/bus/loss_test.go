package bus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/embedded"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// snapshot copies a directory and returns a function that restores it.
func snapshot(t *testing.T, dir string) (putBack func()) {
	t.Helper()
	kept := filepath.Join(t.TempDir(), "kept")
	if err := os.CopyFS(kept, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(dir, os.DirFS(kept)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPowerCutUnderAReader: a reader that stays connected gets the messages sent after a
// power cut of the server, although it has read messages with those numbers before. It
// cannot remove the new ones unread.
func TestPowerCutUnderAReader(t *testing.T) {
	a := newAuthority(t)
	s := startServer(t, a, embedded.Options{})
	b := openBus(t, a, s.url(), 1)
	s.kill()
	putBack := snapshot(t, s.Options.Dir) // streams without a message
	s.start()
	quelltest.Until(t, "the reader is connected again", func() bool { return b.Err() == nil })
	u := openUplink(t, a, s.url(), "lost", nil)
	for range 5 {
		u.Samples(1, samples("lost", 1))
	}
	quelltest.Until(t, "they are acknowledged", func() bool { return u.Stats().Sent == 5 })
	c, err := b.Consume(t.Context(), Samples)
	if err != nil {
		t.Fatal(err)
	}
	read := fetch(t, c, 5)
	if err := u.Close(); err != nil { // and its machine is off: it sends nothing again
		t.Fatal(err)
	}
	s.kill()
	putBack()
	s.start()
	u = openUplink(t, a, s.url(), "m", nil)
	for range 3 {
		u.Samples(1, samples("m", 1))
	}
	quelltest.Until(t, "the others are acknowledged", func() bool { return u.Stats().Sent == 3 })
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var got []string
	for len(got) < 3 && ctx.Err() == nil {
		all, err := c.Fetch(ctx, nil, 1)
		if err != nil { // from the lost connection
			if err := c.Ack(ctx, read[4].Seq); err == nil {
				t.Error("messages that were not read are removed")
			}
			c.Close()
			if c, err = b.Consume(ctx, Samples); err != nil {
				t.Fatal(err)
			}
		}
		for _, m := range all {
			got = append(got, fmt.Sprint(m.Seq, " ", m.Subject))
		}
	}
	c.Close()
	if want := []string{"1 up.sample.m", "2 up.sample.m", "3 up.sample.m"}; !slices.Equal(got, want) {
		t.Errorf("the reader has %q, want %q", got, want)
	}
}

// TestPowerCut restores the server's directory to an earlier state, as a power cut does
// with data that was not fsynced. Agents send again what they kept, and a reader that
// drops duplicates misses nothing.
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
		quelltest.Until(t, "they are acknowledged", func() bool { return u.Stats().Sent == want })
	}
	send(5)
	s.kill()
	putBack := snapshot(t, s.Options.Dir)
	s.start()
	quelltest.Until(t, "the five have come again", func() bool { return u.Stats().Sent == 10 })
	send(7)
	s.kill()
	putBack()
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

// TestFullDisk fills the spool's file system. What does not fit is counted and reported,
// what was there before is sent, and messages after there is room again are sent as
// usual.
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
	quelltest.Until(t, "the first is on disk", func() bool { return u.Stats().Waiting == 1 })
	filler := filepath.Join(dir, "somebody else's")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); err == nil {
		t.Fatal("the file system is larger than it should be")
	}
	for range 20 { // more than fits into the last page
		u.Samples(1, samples("m", 100))
	}
	quelltest.Until(t, "the disk is found full", func() bool {
		err := u.Err()
		return u.Stats().Lost > 0 && err != nil && strings.Contains(err.Error(), "no space left")
	})
	quelltest.Until(t, "all were accepted or lost", func() bool {
		st := u.Stats()
		return st.Lost+st.Waiting == 21
	})
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	lost := u.Stats().Lost
	u.Samples(1, samples("m", 1))
	s.start()
	quelltest.Until(t, "all that was on disk is acknowledged", func() bool {
		st := u.Stats()
		return st.Waiting == 0 && st.Sent == 22-lost && u.Err() == nil
	})
}

// TestFullServerDisk fills the file system of the streams. Once there is room again, all
// messages acknowledged before are there in order, and the others come from the agent's
// spool.
func TestFullServerDisk(t *testing.T) {
	quelltest.Need(t, quelltest.Root)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"); err != nil {
		quelltest.Skip(t, quelltest.Root, err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	a := newAuthority(t)
	s := startServer(t, a, embedded.Options{Dir: filepath.Join(dir, "bus")})
	open := func() *Bus {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
		defer cancel()
		b, err := Open(ctx, Options{URL: s.url(), Name: "server", Credentials: credentials(t, a, authority.Server, "server", 0), Log: testLog(t),
			pause: 20 * time.Millisecond}, StreamOptions{MaxBytes: 16 << 20, share: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	open().Close()
	u, err := OpenUplink(UplinkOptions{Options: Options{URL: s.url(), Name: "m", Credentials: credentials(t, a, authority.Agent, "m", 0), pause: 20 * time.Millisecond},
		Dir: t.TempDir(), MaxBytes: MinSpool, wait: time.Second}) // a server whose disk is full does not answer
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	u.Samples(1, samples("m", 100))
	quelltest.Until(t, "the first is acknowledged", func() bool { return u.Stats().Sent == 1 })
	filler := filepath.Join(dir, "somebody else's")
	if err := os.WriteFile(filler, make([]byte, 64<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the file system is larger than it should be: %v", err)
	}
	if err := os.Truncate(filler, 63<<20); err != nil { // some more are to be acknowledged
		t.Fatal(err)
	}
	given := uint64(1)
	var sent uint64
	quelltest.Until(t, "the server takes no more", func() bool {
		st := u.Stats()
		for range 20 { // no more than the agent's disk keeps up with and its spool holds
			if st.Waiting < 200 && len(u.samples.incoming) < maxWaiting/2 {
				u.Samples(1, samples("m", 100))
				given++
			}
		}
		stuck := st.Sent == sent && st.Waiting > 50 && u.Err() != nil
		sent = st.Sent
		return stuck
	})
	s.kill()
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	s.start()
	b := open()
	defer b.Close()
	c, err := b.Consume(t.Context(), Samples)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var highest uint64
	for highest < given {
		for _, m := range fetch(t, c, int(given-highest)) { // some come again
			var got wire.Batch
			if err := m.Batch(&got); err != nil {
				t.Fatal(err)
			}
			if got.N > highest+1 {
				t.Fatalf("after batch %d comes %d", highest, got.N)
			}
			highest = max(highest, got.N)
		}
	}
	if st := u.Stats(); st.Lost+st.Dropped > 0 {
		t.Errorf("the agent has lost some: %+v", st)
	}
}
