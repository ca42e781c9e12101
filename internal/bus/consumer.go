package bus

import (
	"context"
	"fmt"
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
// A Consumer is for one goroutine.
type Consumer struct {
	stream   jetstream.Stream
	messages jetstream.MessagesContext
	ready    chan Message  // those that have come; closed when no more will
	closed   chan struct{} // by Close
	failed   error         // why ready is closed, then
	last     uint64        // read
}

// Consume reads a stream from its beginning: all that no reader has Done. Some of
// that may have been stored before, by this reader or by one that was killed;
// batches' keys tell. A reader that asked to go on by number would go wrong where
// a power cut took the end of the stream and its numbers are given out again.
func (b *Bus) Consume(ctx context.Context, name Stream) (*Consumer, error) {
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
	messages, err := consumer.Messages(jetstream.PullMaxMessages(pull), jetstream.PullExpiry(10*time.Second), jetstream.PullHeartbeat(time.Second))
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", name, err)
	}
	c := &Consumer{stream: stream, messages: messages, ready: make(chan Message, 64), closed: make(chan struct{})}
	go c.pump()
	return c, nil
}

// pump takes messages as they come. It waits without a bound: the server's
// silence, after the loss of the node that held the consumer say, is only found
// out by who waits longer than two heartbeats at a time.
func (c *Consumer) pump() {
	defer close(c.ready)
	for {
		m, err := c.messages.Next()
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
		case <-c.closed:
			return
		}
	}
}

// pull is how many messages are asked for ahead.
const pull = 1024

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
			c.last = m.Seq
			all = append(all, m)
		case <-ctx.Done():
			return all, nil
		}
	}
	return all, nil
}

// Done lets the stream forget all messages up to and with that number, which
// this consumer has read: they are stored. Numbers that another consumer has read
// say nothing, not even another of the same stream.
func (c *Consumer) Done(ctx context.Context, seq uint64) error {
	if seq > c.last {
		return fmt.Errorf("forget what is stored: this consumer has read up to %d, not %d", c.last, seq)
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
	close(c.closed)
	c.messages.Stop()
	for range c.ready { // until pump has ended
	}
}
