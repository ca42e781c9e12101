package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Message is one of a stream.
type Message struct {
	Seq     uint64 // its place in the stream: it only grows, with gaps where some are gone
	Subject string // NATS has checked that the sender may use it; of what Data says nothing is checked
	Data    []byte
	At      time.Time // when the stream took it in
}

// Consumer reads a stream in order. What it has read is not remembered by the
// server: the reader knows what it has stored, and says from where to go on. (A
// consumer that acknowledges each message would get those that a dead reader had
// not acknowledged after newer ones, and their batches would be taken for old.)
type Consumer struct {
	stream   jetstream.Stream
	messages jetstream.MessagesContext
}

// Consume reads a stream from that sequence number on; from 0, all there is. A
// number past the end of a stream that lost its end in a power cut means the end.
func (b *Bus) Consume(ctx context.Context, name Stream, from uint64) (*Consumer, error) {
	stream, err := b.js.Stream(ctx, string(name))
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", name, err)
	}
	cfg := jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy,
		OptStartSeq: max(1, min(from, stream.CachedInfo().State.LastSeq+1))}
	consumer, err := stream.OrderedConsumer(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", name, err)
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(pull))
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", name, err)
	}
	return &Consumer{stream, messages}, nil
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
		m, err := c.messages.Next(jetstream.NextContext(ctx))
		if err != nil && ctx.Err() != nil {
			return all, nil
		}
		if err != nil {
			return all, fmt.Errorf("read stream: %w", err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return all, fmt.Errorf("read stream: %w", err)
		}
		all = append(all, Message{meta.Sequence.Stream, m.Subject(), m.Data(), meta.Timestamp})
	}
	return all, nil
}

// Done lets the stream forget all messages up to and with that number: they are
// stored.
func (c *Consumer) Done(ctx context.Context, seq uint64) error {
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

// Close ends reading.
func (c *Consumer) Close() { c.messages.Stop() }
