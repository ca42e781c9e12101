package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// flood sends n messages of a machine without waiting for answers, and returns how many found no
// room. The others are never answered: no reader reads.
func flood(t *testing.T, a *authority.Authority, url, machine string, size, n int) (refused int) {
	t.Helper()
	g := connect(t, url, credentials(t, a, authority.Agent, machine, time.Hour), credential.Samples)
	answers := make(chan *nats.Msg, n)
	if _, err := g.ChanSubscribe(inboxPrefix(machine)+".*", answers); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := g.PublishRequest(wire.SampleSubject(machine), fmt.Sprintf("%s.%d", inboxPrefix(machine), i), make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	// The last one finds no room: the server has seen all before.
	for last := fmt.Sprintf("%s.%d", inboxPrefix(machine), n-1); ; {
		select {
		case m := <-answers:
			if !strings.Contains(string(m.Data), "no room") {
				t.Fatalf("the answer is %s", m.Data)
			}
			if refused++; m.Subject == last {
				return refused
			}
		case <-time.After(4 * time.Minute):
			t.Fatalf("%d of %d messages were refused, the last one not", refused, n)
		}
	}
}

// TestAttackFillingTheServer: eight machines send as much as they can while no reader reads, in large
// and in small messages. Each fills a ninth of what is left, so others' batches are received at once.
func TestAttackFillingTheServer(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := openBus(t, a, url, 1)
	c, err := b.Consume(patient(t), Samples)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for n := range 8 {
		before := c.Backlog().Bytes
		size, count := maxMessage-1024, 20
		if n == 7 {
			size, count = 10, 10_000
		}
		refused := flood(t, a, url, fmt.Sprint("m", n), size, count)
		got, most := c.Backlog().Bytes-before, (MinWaiting-before)/(share+1)+int64(size+deliveryBytes)
		if got > most || got != int64(count-refused)*int64(size+deliveryBytes) {
			t.Errorf("m%d, %d messages of %d bytes, %d refused: it fills %d bytes, %d at most", n, count, size, refused, got, most)
		}
	}
	if left := MinWaiting - c.Backlog().Bytes; left < MinWaiting/3 {
		t.Errorf("%d bytes are left of %d", left, MinWaiting)
	}
	others := []*Uplink{openUplink(t, a, url, "m8", nil), openUplink(t, a, url, "m9", nil)}
	for _, u := range others {
		u.Samples(1, samples(u.machine, 100))
	}
	ctx, stop := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	reading.Go(func() {
		for ctx.Err() == nil {
			all, err := c.Fetch(ctx, nil, 100)
			if err != nil {
				t.Error(err)
				return
			}
			if len(all) > 0 {
				c.Ack(all[len(all)-1].Seq)
			}
		}
	})
	defer reading.Wait()
	defer stop()
	for _, u := range others {
		quelltest.Until(t, u.machine+" is acknowledged", func() bool { return u.Stats().Sent == 1 })
		if err := u.samples.err(); err != nil {
			t.Errorf("%s is disturbed: %v", u.machine, err)
		}
	}
	stop()
	reading.Wait()
	if n := flood(t, a, url, "m0", maxMessage-1024, 20); n != 17 {
		t.Errorf("after the reader has read: %d of 20 were refused, want 17", n)
	}
}

// TestAttackResends: while nothing can be stored, as on a full disk, a machine that sends again and again takes a
// bounded part of the memory, also with what was read.
func TestAttackResends(t *testing.T) {
	c := &Consumer{most: MinWaiting, by: map[string]int64{}, come: make(chan struct{}, 1)}
	for range MinWaiting / deliveryBytes {
		c.receive(&nats.Msg{Subject: "up.sample.m", Data: []byte("x")})
		for c.next() {
			c.part++
		}
	}
	if n := len(c.pending); n == 0 || n > MinWaiting/(share+1)/deliveryBytes+1 || c.Backlog().Bytes != 0 {
		t.Errorf("%d deliveries wait for their answer; %+v", n, c.Backlog())
	}
	c.Ack(c.seq)
	if len(c.pending) > 0 || c.bytes != 0 || len(c.by) > 0 {
		t.Errorf("%d deliveries wait when all is stored, %d bytes, %v", len(c.pending), c.bytes, c.by)
	}
}

// TestQueueThatIsNeverEmpty takes no more memory than what is in it.
func TestQueueThatIsNeverEmpty(t *testing.T) {
	c := &Consumer{most: 1 << 30, by: map[string]int64{}, come: make(chan struct{}, 1)}
	receive := func(n int) {
		c.receive(&nats.Msg{Subject: "up.sample.m", Data: fmt.Appendf(nil, "message %d", n)})
	}
	receive(0)
	for n := range 20_000 {
		receive(n + 1)
		if !c.next() || string(c.parts[c.part].Data) != fmt.Sprintf("message %d", n) || c.parts[c.part].Seq != uint64(n+1) {
			t.Fatalf("message %d: %+v", n, c.parts)
		}
		c.part++
	}
	if left := c.Backlog(); cap(c.queue) > 10_000 || left.Bytes != deliveryBytes+int64(len("message 20000")) {
		t.Errorf("room for %d deliveries; %+v", cap(c.queue), left)
	}
}

// TestAnswersThatAreLate: a server whose commits take longer than an agent waits at first receives what the agent has.
func TestAnswersThatAreLate(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	nc := openBus(t, a, url, 1).samples.nc
	if _, err := nc.Subscribe(wire.AllSamples, func(m *nats.Msg) {
		time.AfterFunc(500*time.Millisecond, func() { _ = nc.Publish(m.Reply, []byte(`{"stream":"samples"}`)) }) // the test may be over
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	u, err := OpenUplink(UplinkOptions{Options: Options{URL: url, Name: "m", Credentials: credentials(t, a, authority.Agent, "m", 0)},
		Dir: t.TempDir(), MaxBytes: MinSpool, wait: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	for n := range 2 {
		u.Samples(1, samples("m", n+1))
	}
	quelltest.Until(t, "both are acknowledged", func() bool { return u.Stats().Sent == 2 })
}

// TestRoom: the more agents are answered together, the less each may send next.
func TestRoom(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := openBus(t, a, url, 1)
	c, err := b.Consume(patient(t), Samples)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var got []int
	for _, senders := range []int{1, 300} {
		g := connect(t, url, credentials(t, a, authority.Agent, "m", time.Hour), credential.Samples)
		answers := make(chan *nats.Msg, senders)
		if _, err := g.ChanSubscribe(inboxPrefix("m")+".x", answers); err != nil {
			t.Fatal(err)
		}
		for range senders {
			if err := g.PublishRequest(wire.SampleSubject("m"), inboxPrefix("m")+".x", []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		all := fetch(t, c, senders)
		c.Ack(all[senders-1].Seq)
		for range senders {
			m := <-answers
			var told answer
			if err := json.Unmarshal(m.Data, &told); err != nil || told.Stream != "samples" {
				t.Fatalf("the answer is %s", m.Data)
			}
			got = append(got, int(told.Room))
		}
	}
	if got = slices.Compact(got); !slices.Equal(got, []int{mostRoom, 2 * MinWaiting / 300}) {
		t.Errorf("the answers give room for %d", got)
	}
}
