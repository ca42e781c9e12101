package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// leftover is what waits in a stream of an earlier version. It is acknowledged, so it is read
// before agents are, and the stream is removed when it is stored.
type leftover struct {
	js         jetstream.JetStream
	stream     jetstream.Stream
	next, last uint64 // numbers in the stream: to be read
	end        uint64 // of its last message as the Consumer gave it; 0: not all are read
}

// leftover returns what an earlier version has left, nil if there is nothing.
func (b *Bus) leftover(ctx context.Context, name Stream) (*leftover, error) {
	s, err := b.js.Stream(ctx, string(name))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err == nil && s.CachedInfo().State.Msgs == 0 {
		return nil, b.js.DeleteStream(ctx, string(name))
	}
	if err != nil {
		return nil, err
	}
	state := s.CachedInfo().State
	return &leftover{js: b.js, stream: s, next: state.FirstSeq, last: state.LastSeq}, nil
}

// fetchLeft appends at most n messages of what is left. After the last one agents are received.
func (c *Consumer) fetchLeft(ctx context.Context, all []Message, n int) ([]Message, error) {
	l := c.left
	for ; n > 0 && l.next <= l.last && ctx.Err() == nil; l.next++ {
		m, err := l.stream.GetMsg(ctx, l.next)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			return all, fmt.Errorf("read stream %s of an earlier version: %w", c.named, err)
		}
		c.seq++
		all, n = append(all, Message{c.seq, m.Subject, m.Data}), n-1
	}
	if l.next <= l.last {
		return all, nil
	}
	c.mu.Lock()
	l.end = c.seq
	c.mu.Unlock()
	return all, c.subscribe()
}

// dropLeft removes what was left if seq, up to which all is stored, is past it. If that fails, the
// next consumer reads it again, and its batches are dropped.
func (c *Consumer) dropLeft(seq uint64) {
	c.mu.Lock()
	l := c.left
	stored := l != nil && l.end > 0 && seq >= l.end
	if stored {
		c.left = nil
	}
	c.mu.Unlock()
	if stored {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = l.js.DeleteStream(ctx, c.named)
	}
}
