package bus

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Message is a message of a stream.
type Message struct {
	Seq     uint64 // sequence number in the stream: it increases from one message of a consumer to the next
	Subject string // NATS has checked that the sender may use it; Data is not checked
	Data    []byte
}

// Consumer reads a stream in order, from the first message that is not Done. The server
// does not record what it has read. (With per-message acknowledgements, the messages that
// a dead reader left unacknowledged would come after newer ones, and their batches would
// be treated as old.)
//
// A Consumer is for one goroutine, except Done, and for one connection: after a power cut
// of the server, messages read over it may be gone from the stream, and their numbers may
// belong to other messages.
type Consumer struct {
	bus      *Bus
	epoch    uint64          // of the connection
	renewed  <-chan struct{} // closed when there is a new connection
	stream   jetstream.Stream
	messages jetstream.MessagesContext
	ready    chan Message // messages that have come; closed when no more will
	cancel   context.CancelFunc
	failed   error         // why ready is closed, once it is
	last     atomic.Uint64 // highest number read
}

// Consume reads a stream from its beginning: all messages that no reader has Done. Some
// may have been stored before, by this reader or by a killed one; the batches' keys show
// that. Continuing by number would be wrong after a power cut that removed the end of the
// stream, because its numbers are assigned again.
func (b *Bus) Consume(ctx context.Context, name Stream) (*Consumer, error) {
	epoch := b.epoch()
	renewed := b.changed(epoch)
	stream, err := b.js.Stream(ctx, string(name))
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", name, err)
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy,
		// Once: each attempt takes ten seconds and hides why it failed. The caller
		// consumes again instead.
		MaxResetAttempts: 1})
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", name, err)
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessagesWithBytesLimit(prefetch, pullBytes), jetstream.PullExpiry(10*time.Second), jetstream.PullHeartbeat(time.Second))
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", name, err)
	}
	c := &Consumer{bus: b, epoch: epoch, renewed: renewed, stream: stream, messages: messages, ready: make(chan Message, prefetch/16)}
	ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go c.pump(ctx)
	return c, nil
}

// pump receives messages as they come. It waits without a timeout: only a wait longer
// than two heartbeats detects a silent server, for example after the loss of the node
// that held the consumer.
func (c *Consumer) pump(ctx context.Context) {
	defer close(c.ready)
	// Stop is called here, after Next has returned: called from elsewhere it could miss
	// the consumer with which Next is replacing a lost one.
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
		case c.ready <- Message{meta.Sequence.Stream, m.Subject(), m.Data()}:
		case <-ctx.Done():
			return
		}
	}
}

// prefetch is how many messages are requested ahead, and pullBytes bounds the bytes of one
// request. A request and its answer pass through some ten goroutines, each of which waits
// behind those of thousands of agents on busy processors: the messages in flight must
// last for a second of that. Two requests may be in flight, and NATS closes a connection
// on which 64 MB wait.
const (
	prefetch  = 8192
	pullBytes = 24 << 20
)

// Fetch appends the next messages to all, at most n of them. It waits for the first until
// ctx ends, which is no error, and then gathers more for gatherFor. After an error the
// consumer is unusable: close it and consume again.
func (c *Consumer) Fetch(ctx context.Context, all []Message, n int) ([]Message, error) {
	all, err := c.gather(ctx, all, min(n, 1))
	if err != nil || ctx.Err() != nil || n <= 1 {
		return all, err
	}
	soon, cancel := context.WithTimeout(ctx, gatherFor)
	defer cancel()
	return c.gather(soon, all, n-1)
}

// gatherFor is how long Fetch gathers messages after the first.
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

// errRenewed ends a Consumer. The NATS client would continue by number over a new
// connection and skip the messages that have those numbers now.
var errRenewed = errors.New("read stream: the connection was renewed: its messages are read from the beginning")

// Ack removes from the stream all messages up to and including that number, which this
// consumer has read and the caller has stored. Numbers read by another consumer are not
// valid here, even if it reads the same stream.
func (c *Consumer) Ack(ctx context.Context, seq uint64) error {
	if c.bus.epoch() != c.epoch {
		return errRenewed
	}
	if last := c.last.Load(); seq > last {
		return fmt.Errorf("remove stored messages: this consumer has read up to %d, not %d", last, seq)
	}
	if err := c.stream.Purge(ctx, jetstream.WithPurgeSequence(seq+1)); err != nil {
		return fmt.Errorf("remove stored messages: %w", err)
	}
	return nil
}

// Close ends reading. It is called once, when Fetch has returned.
func (c *Consumer) Close() {
	c.cancel()
	for range c.ready { // until pump has ended
	}
}
