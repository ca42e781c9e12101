package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/quell-dev/quell/internal/format/wire"
)

// Message is a message of an agent.
type Message struct {
	Seq     uint64 // it increases by 1 from one message of a consumer to the next
	Subject string // NATS has checked that the sender may use it; Data is not checked
	Data    []byte
}

// Consumer receives what agents send, each agent's messages in the order in which it sent
// them, and answers an agent when its messages are stored. What it receives waits in memory of
// a bounded size. If that is full, agents are told so at once, and send again later. Fetch is
// for one goroutine, Ack for another.
type Consumer struct {
	nc    *nats.Conn
	sub   *nats.Subscription // nil: what is left is read first
	left  *leftover          // under mu; nil: nothing
	most  int64              // bytes that may wait
	named string             // the stream, in answers
	come  chan struct{}      // something has come

	mu      sync.Mutex
	queue   []*delivery // from head on: not fetched, in order
	head    int
	pending []*delivery      // fetched, not answered, in order
	bytes   int64            // of queue, and deliveryBytes of each of pending
	by      map[string]int64 // the same by subject
	seq     uint64           // of the last message fetched
	refused uint64
	closed  bool

	parts []Message // of the delivery that Fetch has begun
	part  int       // the next of them
}

// delivery is what an agent sent at once and waits for the answer to.
type delivery struct {
	message *nats.Msg
	at      time.Time
	last    uint64 // number of its last message, once it is fetched
}

func (d *delivery) size() int64 { return int64(len(d.message.Data)) + deliveryBytes }

// deliveryBytes is what a delivery takes besides its data.
const deliveryBytes = 512

// Consume begins to receive. Without a consumer agents keep what they have.
func (b *Bus) Consume(ctx context.Context, name Stream) (*Consumer, error) {
	c := &Consumer{nc: b.samples.nc, most: b.waiting, named: string(name), come: make(chan struct{}, 1), by: map[string]int64{}}
	if name == Records {
		c.most /= 4
	}
	var err error
	if c.left, err = b.leftover(ctx, name); err == nil && c.left == nil {
		err = c.subscribe()
	}
	if err != nil {
		return nil, fmt.Errorf("receive %s: %w", name, err)
	}
	return c, nil
}

// subscribe begins to receive from agents.
func (c *Consumer) subscribe() (err error) {
	subject := wire.AllSamples
	if c.named == string(Records) {
		subject = wire.AllRecords
	}
	if c.sub, err = c.nc.Subscribe(subject, c.receive); err != nil {
		return err
	}
	if err = c.nc.Flush(); err != nil { // after it agents reach this
		_ = c.sub.Unsubscribe()
	}
	return err
}

// share: one machine's messages may have 1/share of the memory that all others leave free, so
// several that send as much as they can do not fill it. (Choudhury and Hahne, Dynamic queue length
// thresholds for shared-memory packet switches, 1998.)
const share = 8

// fits reports whether there is room for a delivery: its machine's first one may take all of it.
func (c *Consumer) fits(d *delivery) bool {
	free, has := c.most-c.bytes, c.by[d.message.Subject]
	return d.size() <= free && (has == 0 || has+d.size() <= free/share)
}

// receive queues what has come, or says that there is no room. No agent sends headers: they would be
// memory that size does not count, as a long subject for the answer would.
func (c *Consumer) receive(m *nats.Msg) {
	d := &delivery{message: m, at: time.Now()}
	c.mu.Lock()
	full := c.closed || m.Size() > len(m.Data)+2*len(m.Subject)+deliveryBytes || !c.fits(d)
	if full {
		c.refused++
	} else {
		m.Header = nil
		c.queue = append(c.queue, d)
		c.hold(d, 1)
	}
	c.mu.Unlock()
	if full {
		c.answer(d, busy)
		return
	}
	nudge(c.come)
}

// answer is what an agent is told of its delivery. Its form is that of NATS's streams, which
// agents of earlier versions expect.
type answer struct {
	Stream string
	Error  *struct{ Description string }
	// Room is how many bytes the agent's next delivery may have if it has several messages. A
	// single message may always be sent.
	Room int64
}

// Answers to what is not stored.
const (
	busy   = `{"stream":"","error":{"code":429,"description":"the server has no room for more messages now"}}`
	leaves = `{"stream":"","error":{"code":503,"description":"the server stops; send it again"}}`
)

// answer answers a delivery. NATS checks no permission on the subject of an answer: only the
// inboxes of the machine that has sent the message are answered. If it cannot be sent, the agent
// asks again.
func (c *Consumer) answer(d *delivery, text string) {
	subject := d.message.Subject
	rest, ok := strings.CutPrefix(d.message.Reply, inboxes)
	if machine := subject[strings.LastIndexByte(subject, '.')+1:]; ok {
		_, ok = strings.CutPrefix(rest, machine+".")
	}
	if ok {
		_ = c.nc.Publish(d.message.Reply, []byte(text))
	}
}

// Fetch appends the next messages to all, at most n of them. It waits for the first until
// ctx ends, which is no error.
func (c *Consumer) Fetch(ctx context.Context, all []Message, n int) ([]Message, error) {
	if c.sub == nil {
		return c.fetchLeft(ctx, all, n)
	}
	for had := len(all); ; {
		for len(all)-had < n && c.next() {
			all = append(all, c.parts[c.part])
			c.part++
		}
		if len(all) > had || n == 0 {
			return all, nil
		}
		if !c.sub.IsValid() {
			return all, errors.New("receive messages: the connection to NATS is closed")
		}
		select {
		case <-c.come:
		case <-ctx.Done():
			return all, nil
		}
	}
}

// next reports whether there is a next message: c.parts[c.part].
func (c *Consumer) next() bool {
	if c.part < len(c.parts) {
		return true
	}
	clear(c.parts) // the memory of their data
	c.parts, c.part = c.parts[:0], 0
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.head == len(c.queue) {
		c.queue, c.head = c.queue[:0], 0
		return false
	}
	d := c.queue[c.head]
	c.queue[c.head] = nil
	if c.head++; c.head > 1024 && c.head > len(c.queue)/2 { // it may never be empty
		c.queue, c.head = slices.Delete(c.queue, 0, c.head), 0
	}
	for part := range wire.Unpack(d.message.Data) {
		c.seq++
		c.parts = append(c.parts, Message{c.seq, d.message.Subject, part})
	}
	c.hold(d, -1)
	d.last, d.message.Data = c.seq, nil
	c.hold(d, 1) // until it is answered: an agent that waits in vain sends it again and again
	c.pending = append(c.pending, d)
	return true
}

// hold counts what a delivery takes: +1 when it comes, −1 when it is gone.
func (c *Consumer) hold(d *delivery, sign int64) {
	c.bytes += sign * d.size()
	if c.by[d.message.Subject] += sign * d.size(); c.by[d.message.Subject] == 0 {
		delete(c.by, d.message.Subject)
	}
}

// A delivery of several messages may have so many bytes.
const (
	leastRoom = 16 << 10
	mostRoom  = 256 << 10
)

// Ack tells the senders of all messages up to and including that number that they are stored.
func (c *Consumer) Ack(seq uint64) {
	c.dropLeft(seq)
	c.mu.Lock()
	n := 0
	for ; n < len(c.pending) && c.pending[n].last <= seq; n++ {
		c.hold(c.pending[n], -1)
	}
	done := c.pending[:n]
	c.pending = c.pending[n:]
	// As many agents as are answered now will send together. Half of that is read before the rest comes: with
	// room for c.most only, all waited for the next commit, and the server for them (docs/scale.md).
	room := min(max(2*c.most/int64(max(1, n)), leastRoom), mostRoom)
	c.mu.Unlock()
	stored := fmt.Sprintf(`{"stream":%q,"seq":%d,"room":%d}`, c.named, seq, room)
	for _, d := range done {
		c.answer(d, stored)
	}
}

// Backlog is what agents wait for.
type Backlog struct {
	Bytes   int64         // that wait to be read
	Most    int64         // that may wait
	Refused uint64        // deliveries for which there was no room, since Consume
	Oldest  time.Duration // since the oldest delivery came that is not answered
}

// Backlog returns what waits now.
func (c *Consumer) Backlog() Backlog {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := Backlog{Bytes: c.bytes - int64(len(c.pending))*deliveryBytes, Most: c.most, Refused: c.refused}
	for _, all := range [][]*delivery{c.pending, c.queue[c.head:]} {
		if len(all) > 0 {
			b.Oldest = time.Since(all[0].at)
			break
		}
	}
	return b
}

// Close ends receiving. The senders of what is not stored are told to send it again. It is
// called once, when Fetch has returned and Ack is not called any more.
func (c *Consumer) Close() {
	if c.sub != nil {
		_ = c.sub.Unsubscribe() // of a closed connection: gone with it
	}
	c.mu.Lock()
	c.closed = true
	left := append(c.pending, c.queue[c.head:]...)
	c.pending, c.queue, c.head = nil, nil, 0
	c.mu.Unlock()
	for _, d := range left {
		c.answer(d, leaves)
	}
}
