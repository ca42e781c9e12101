package bus

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Message is one of a stream.
type Message struct {
	Seq     uint64 // its place in the stream: it grows from one message of a consumer to the next
	Subject string // NATS has checked that the sender may use it; of what Data says nothing is checked
	Data    []byte
	At      time.Time // when the stream took it in
}

// Consumer reads a stream in order, from what is not Done on. The server keeps
// no account of what it has read. (A consumer that acknowledges each message
// would get those that a dead reader had not acknowledged after newer ones, and
// their batches would be taken for old.)
//
// A Consumer is for one goroutine, but for Done, and for one connection: what has come over it
// may be gone from the stream, and its numbers others', when a server is there again
// after a power cut.
type Consumer struct {
	bus      *Bus
	epoch    uint64          // of the connection
	renewed  <-chan struct{} // closed when it is another
	stream   jetstream.Stream
	messages jetstream.MessagesContext
	ready    chan Message // those that have come; closed when no more will
	cancel   context.CancelFunc
	failed   error         // why ready is closed, then
	last     atomic.Uint64 // read
}

// Consume reads a stream from its beginning: all that no reader has Done. Some of
// that may have been stored before, by this reader or by one that was killed;
// batches' keys tell. A reader that asked to go on by number would go wrong where
// a power cut took the end of the stream and its numbers are given out again.
func (b *Bus) Consume(ctx context.Context, name Stream) (*Consumer, error) {
	epoch, renewed := b.epoch()
	stream, err := b.js.Stream(ctx, string(name))
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", name, err)
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy,
		// Once: its attempts take ten seconds each and hide why they fail. The
		// caller begins anew instead.
		MaxResetAttempts: 1})
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", name, err)
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessagesWithBytesLimit(pull, pullBytes), jetstream.PullExpiry(10*time.Second), jetstream.PullHeartbeat(time.Second))
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", name, err)
	}
	c := &Consumer{bus: b, epoch: epoch, renewed: renewed, stream: stream, messages: messages, ready: make(chan Message, pull/16)}
	ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go c.pump(ctx)
	return c, nil
}

// pump takes messages as they come. It waits without a bound: the server's
// silence, after the loss of the node that held the consumer say, is only found
// out by who waits longer than two heartbeats at a time.
func (c *Consumer) pump(ctx context.Context) {
	defer close(c.ready)
	// Here, where Next has returned: from elsewhere it could miss what Next is just
	// putting in the place of a consumer that was lost.
	defer c.messages.Stop()
	for {
		m, err := c.messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			c.failed = err
			return
		}
		meta, err := m.Metadata()
		if err != nil {
			c.failed = err
			return
		}
		select {
		case c.ready <- Message{meta.Sequence.Stream, m.Subject(), m.Data(), meta.Timestamp}:
		case <-ctx.Done():
			return
		}
	}
}

// pull is how many messages are asked for ahead, and pullBytes how much of that
// one request may give. A request and its answer pass through some ten goroutines,
// each of which waits its turn behind thousands of agents' where the processors are
// busy: what is on its way must last for a second of that. Two requests may be on their way, and
// NATS cuts a connection on which 64 MB wait.
const (
	pull      = 8192
	pullBytes = 24 << 20
)

// Fetch appends the next messages to all, at most n of them. It waits for the
// first until ctx ends, which is no error, and then gathers others for a moment.
// After an error the consumer is of no use: close it
// and consume anew.
func (c *Consumer) Fetch(ctx context.Context, all []Message, n int) ([]Message, error) {
	all, err := c.gather(ctx, all, min(n, 1))
	if err != nil || ctx.Err() != nil || n <= 1 {
		return all, err
	}
	soon, cancel := context.WithTimeout(ctx, gatherFor)
	defer cancel()
	return c.gather(soon, all, n-1)
}

// gatherFor is how long Fetch gathers messages once there is one.
const gatherFor = 100 * time.Millisecond

// gather appends n messages, fewer if ctx ends before they have come.
func (c *Consumer) gather(ctx context.Context, all []Message, n int) ([]Message, error) {
	for range n {
		select {
		case m, ok := <-c.ready:
			if !ok {
				return all, fmt.Errorf("read stream: %w", c.failed)
			}
			c.last.Store(m.Seq)
			all = append(all, m)
		case <-c.renewed:
			return all, errRenewed
		case <-ctx.Done():
			return all, nil
		}
	}
	return all, nil
}

// errRenewed ends a Consumer. NATS's own goes on by number over a new connection,
// and would pass over what has those numbers now.
var errRenewed = errors.New("read stream: the connection is another: its messages are read from the beginning")

// Done lets the stream forget all messages up to and with that number, which
// this consumer has read: they are stored. Numbers that another consumer has read
// say nothing, not even another of the same stream.
func (c *Consumer) Done(ctx context.Context, seq uint64) error {
	if now, _ := c.bus.epoch(); now != c.epoch {
		return errRenewed
	}
	if last := c.last.Load(); seq > last {
		return fmt.Errorf("forget what is stored: this consumer has read up to %d, not %d", last, seq)
	}
	if err := c.stream.Purge(ctx, jetstream.WithPurgeSequence(seq+1)); err != nil {
		return fmt.Errorf("forget what is stored: %w", err)
	}
	return nil
}

// State says how much of the stream is not forgotten yet.
func (c *Consumer) State(ctx context.Context) (messages, bytes uint64, err error) {
	info, err := c.stream.Info(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("ask for the stream's state: %w", err)
	}
	return info.State.Msgs, info.State.Bytes, nil
}

// Close ends reading. It is called once, when Fetch has returned.
func (c *Consumer) Close() {
	c.cancel()
	for range c.ready { // until pump has ended
	}
}
