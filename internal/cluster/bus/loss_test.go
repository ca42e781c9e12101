package bus

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/cluster/bus/embedded"
	"github.com/quell-dev/quell/internal/cluster/bus/spool"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestManySmallMessages: an agent that was away has thousands of small messages, more than a bundle may have
// for which the server has room. The server reads each.
func TestManySmallMessages(t *testing.T) {
	q, err := newQueue(&UplinkOptions{Dir: t.TempDir()}, wire.RecordSubject("m"), wire.Type_TYPE_RECORD, "records", spool.MinBytes, newLink(credential.Samples))
	if err != nil {
		t.Fatal(err)
	}
	defer q.spool.Close()
	const n = 10_000
	all := make([][]byte, n)
	for i := range all {
		all[i] = fmt.Appendf(nil, "message %d", i)
	}
	if err := q.spool.Append(all...); err != nil {
		t.Fatal(err)
	}
	got := 0
	for {
		messages, next, err := q.read(mostRoom)
		if err != nil {
			t.Fatal(err)
		}
		if len(messages) == 0 {
			break
		}
		for m := range wire.Unpack(wire.Pack(messages...)) {
			if !bytes.Equal(m, all[got]) {
				t.Fatalf("%d of %d messages came, then %.20q", got, n, m)
			}
			got++
		}
		q.spool.Release(next)
	}
	if got != n {
		t.Errorf("%d of %d messages came", got, n)
	}
}

// stuck is a NATS server to which each connection fails, at once or when the test says so.
type stuck struct {
	stands      atomic.Bool
	begun, goOn chan struct{}
}

func (s *stuck) InProcessConn() (net.Conn, error) {
	if s.stands.Load() {
		nudge(s.begun)
		<-s.goOn
	}
	return nil, errors.New("the server does not answer")
}

// TestTheLoopWaitsForNoConnection: packets to the server are lost, or no resolver answers, so that each attempt to connect
// takes seconds. The agent's loop, which also ends caps in time, asks at each tick what does not work, and is told at once.
func TestTheLoopWaitsForNoConnection(t *testing.T) {
	s := &stuck{begun: make(chan struct{}, 3), goOn: make(chan struct{})}
	u, err := OpenUplink(UplinkOptions{Options: Options{URL: "nats://127.0.0.1:1", Name: "m", InProcess: s, pause: time.Millisecond}, Dir: t.TempDir(), MaxBytes: MinSpool})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	defer close(s.goOn)
	s.stands.Store(true)
	for range u.links() {
		<-s.begun // with the lock of its client
	}
	told := make(chan error, 1)
	go func() {
		u.Backlog()
		told <- u.Err()
	}()
	select {
	case err := <-told:
		if err == nil || u.Stats().Connected {
			t.Errorf("without a connection: %v", err)
		}
	case <-time.After(4 * time.Minute):
		t.Error("it waits for an attempt to connect")
	}
	if o := &u.link.nc.Opts; !o.SkipHostLookup || o.Timeout <= 5*time.Second {
		t.Errorf("while no resolver answers an attempt to connect has no end, or after %s it has asked only the first", o.Timeout)
	}
}

// TestAnAgentsStartWaitsForOneAttempt: an agent whose server does not answer samples after one attempt to connect, not
// after one of each connection.
func TestAnAgentsStartWaitsForOneAttempt(t *testing.T) {
	s := &stuck{begun: make(chan struct{}, 3), goOn: make(chan struct{})}
	s.stands.Store(true)
	opened, dir := make(chan error, 1), t.TempDir()
	go func() {
		u, err := OpenUplink(UplinkOptions{Options: Options{URL: "nats://127.0.0.1:1", Name: "m", InProcess: s, pause: time.Millisecond}, Dir: dir, MaxBytes: MinSpool})
		if err == nil {
			err = u.Close()
		}
		opened <- err
	}()
	for n := range 3 {
		select {
		case <-s.begun:
		case <-time.After(4 * time.Minute):
			t.Fatalf("%d attempts have begun, want 3", n)
		}
	}
	close(s.goOn)
	if err := <-opened; err != nil {
		t.Error(err)
	}
}

// TestManyRecordsAtOnce: the ends of hundreds of incidents are accepted while the disk is busy.
func TestManyRecordsAtOnce(t *testing.T) {
	q, err := newQueue(&UplinkOptions{Dir: t.TempDir()}, wire.RecordSubject("m"), wire.Type_TYPE_RECORD, "records", spool.MinBytes, newLink(credential.Samples))
	if err != nil {
		t.Fatal(err)
	}
	defer q.spool.Close()
	for range 500 {
		q.put([]byte("x"))
	}
	if n := q.lost.Load(); n != 0 {
		t.Errorf("%d were lost", n)
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
	keep(t, openBus(t, a, s.url(), 1))
	quelltest.Until(t, "all that was on disk is acknowledged", func() bool {
		st := u.Stats()
		return st.Waiting == 0 && st.Sent == 22-lost && u.Err() == nil
	})
}
