package bus

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// flood publishes messages of a machine until the bus refuses one, and returns how many it
// has accepted, and why not more.
func flood(t *testing.T, a *authority.Authority, url, machine string, size int) (n int, refusal string) {
	t.Helper()
	g := connect(t, url, credentials(t, a, authority.Agent, machine, time.Hour), credential.Samples)
	for {
		ack, err := g.Request(wire.SampleSubject(machine), make([]byte, size), 4*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if text := string(ack.Data); strings.Contains(text, `"error"`) {
			return n, text
		}
		n++
	}
}

// TestAttackFillingTheStream: a machine sends as much as the bus accepts while no reader reads. It
// gets a quarter of the stream at most, and others' batches are stored at once.
func TestAttackFillingTheStream(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b, err := Open(t.Context(), Options{URL: url, Name: "server", Credentials: credentials(t, a, authority.Server, "server", 0), Log: testLog(t)},
		StreamOptions{MaxBytes: 32 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for i, size := range []int{maxMessage - 1024, 10} {
		n, why := flood(t, a, url, fmt.Sprint("m", i), size)
		if n != 8 || !strings.Contains(why, "per subject") {
			t.Errorf("messages of %d bytes: %d were accepted, then %s; want 8 of 32 MB", size, n, why)
		}
	}
	others := []*Uplink{openUplink(t, a, url, "m2", nil), openUplink(t, a, url, "m3", nil)}
	const batches = 5
	for range batches {
		for _, u := range others {
			u.Samples(1, samples(u.machine, 100))
			u.Record(1, wire.Record_KIND_AUDIT, "i", []byte(`{}`))
		}
	}
	for _, u := range others {
		quelltest.Until(t, u.machine+"'s batches and its first records are acknowledged", func() bool { return u.Stats().Sent >= batches+2 })
	}
	c, err := b.Consume(t.Context(), Samples)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got := map[string]int{}
	for _, m := range fetch(t, c, 2*8+2*batches) {
		got[m.Subject]++
	}
	for _, u := range others {
		if n := got[wire.SampleSubject(u.machine)]; n != batches {
			t.Errorf("%d of %d batches of %s are in the stream", n, batches, u.machine)
		}
		if err := u.samples.err(); err != nil {
			t.Errorf("%s is disturbed: %v", u.machine, err)
		}
	}
	// When its messages are read, a machine may send again.
	if err := c.Ack(t.Context(), c.last.Load()); err != nil {
		t.Fatal(err)
	}
	if n, why := flood(t, a, url, "m0", 10); n != 8 {
		t.Errorf("after the reader has read: %d were accepted, then %s", n, why)
	}
}

// TestShareLosesNothing: a stream that holds more of a machine than its share, of an
// earlier version or with a larger bound, keeps it. The share is lowered when it has been read.
func TestShareLosesNothing(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	o := Options{URL: url, Name: "server", Credentials: credentials(t, a, authority.Server, "server", 0), Log: testLog(t)}
	open := func(maxBytes int64) *Bus {
		t.Helper()
		b, err := Open(t.Context(), o, StreamOptions{MaxBytes: maxBytes})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		return b
	}
	state := func(b *Bus) (messages uint64, share int64) {
		t.Helper()
		s, err := b.js.Stream(t.Context(), string(Samples))
		if err != nil {
			t.Fatal(err)
		}
		return s.CachedInfo().State.Msgs, s.CachedInfo().Config.MaxMsgsPerSubject
	}
	b := open(64 << 20)
	// As an earlier version made it.
	if _, err := b.js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: string(Samples), Subjects: []string{wire.AllSamples}, MaxBytes: 64 << 20,
		Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew}); err != nil {
		t.Fatal(err)
	}
	u := openUplink(t, a, url, "m", nil)
	for range 40 {
		u.Samples(1, samples("m", 1))
	}
	quelltest.Until(t, "all are acknowledged", func() bool { return u.Stats().Sent == 40 })
	for _, size := range []int64{64 << 20, 32 << 20} {
		if n, share := state(open(size)); n != 40 || share != 80 {
			t.Errorf("with %d MB: %d messages, a share of %d; want 40, 80", size>>20, n, share)
		}
	}
	c, err := b.Consume(t.Context(), Samples)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	all := fetch(t, c, 40)
	if err := c.Ack(t.Context(), all[39].Seq); err != nil {
		t.Fatal(err)
	}
	if n, share := state(open(32 << 20)); n != 0 || share != 8 {
		t.Errorf("after they were read: %d messages, a share of %d; want 8", n, share)
	}
}
