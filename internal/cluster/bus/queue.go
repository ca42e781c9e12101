package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/quell-dev/quell/internal/cluster/bus/spool"
	"github.com/quell-dev/quell/internal/format/wire"
)

// keepFor is how long a message is kept after its acknowledgement: the stream's files are
// fsynced every second, and disks have caches.
const keepFor = 10 * time.Second

// maxWaiting bounds the messages that wait in memory for the disk. Beyond it messages are
// dropped and counted: the agent's loop never waits.
const maxWaiting = 64

// queue carries messages for one stream to the server through the disk.
type queue struct {
	subject string
	kind    wire.Type // of its messages
	spool   *spool.Spool
	link    *connection
	keep    time.Duration
	wait    time.Duration // for an acknowledgement

	incoming chan []byte
	arrived  chan struct{} // something was appended
	lost     atomic.Uint64 // not accepted: the disk was too slow or failed
	refused  atomic.Uint64 // larger than the server accepts
	sent     atomic.Uint64 // acknowledged, each delivery

	appending, sending problem // of the last message
}

func newQueue(o *UplinkOptions, subject string, kind wire.Type, folder string, maxBytes int64, l *connection) (*queue, error) {
	s, err := spool.Open(filepath.Join(o.Dir, folder), maxBytes)
	if err != nil {
		return nil, err
	}
	return &queue{subject: subject, kind: kind, spool: s, link: l, keep: cmp.Or(o.keep, keepFor), wait: cmp.Or(o.wait, ackWait),
		incoming: make(chan []byte, maxWaiting), arrived: make(chan struct{}, 1)}, nil
}

// put accepts a message or drops it. It does not block.
func (q *queue) put(message []byte) {
	select {
	case q.incoming <- message:
	default:
		q.lost.Add(1)
	}
}

// write writes messages to disk until ctx ends, and then those that still wait.
func (q *queue) write(ctx context.Context) {
	for {
		select {
		case m := <-q.incoming:
			q.append(m)
		case <-ctx.Done():
			for len(q.incoming) > 0 {
				q.append(<-q.incoming)
			}
			return
		}
	}
}

// append writes a message, and those that have arrived since, with one fsync.
func (q *queue) append(first []byte) {
	messages := [][]byte{first}
	for len(q.incoming) > 0 && len(messages) < maxWaiting {
		messages = append(messages, <-q.incoming)
	}
	err := q.spool.Append(messages...)
	if err != nil {
		q.lost.Add(uint64(len(messages)))
	}
	q.appending.set(err)
	nudge(q.arrived)
}

// nudge wakes a goroutine that waits, or will wait, for c, which has room for one.
func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// delivery is an acknowledged message that is still kept.
type delivery struct {
	next uint64 // number after it
	at   time.Time
}

// send sends messages from disk to the server until ctx ends. Each is resent until it is
// acknowledged; only then is the next one sent.
func (q *queue) send(ctx context.Context) {
	var (
		epoch   = ^uint64(0) // of the connection over which kept was sent
		next    uint64       // to be sent
		kept    []delivery
		backoff time.Duration
	)
	for ctx.Err() == nil {
		asked := time.Now() // before the answer, which can be delayed
		if now := q.link.epoch(); now != epoch {
			// It is unknown whether the server still has what it acknowledged.
			epoch, kept, next = now, nil, q.spool.Released()
		}
		number, message, err := q.spool.Read(next)
		switch {
		case err != nil:
		case message == nil:
			kept = q.idle(ctx, epoch, kept)
			continue
		case int64(len(message)) > q.link.maxPayload():
			q.refused.Add(1)
			next = number + 1
			continue
		default:
			err = q.publish(ctx, epoch, wire.Upgrade(message, q.kind))
		}
		q.sending.set(err)
		if err != nil {
			backoff = min(max(2*backoff, 100*time.Millisecond), 10*time.Second)
			q.link.wait(ctx, epoch, backoff/2+rand.N(backoff))
			continue
		}
		backoff, next = 0, number+1
		q.sent.Add(1)
		q.spool.Ack(next)
		if q.link.epoch() == epoch { // else the answer may come from another server
			kept = q.release(append(kept, delivery{next, time.Now()}), asked)
		}
	}
}

// release releases the messages that were acknowledged at least q.keep before the same
// connection answered.
func (q *queue) release(kept []delivery, answered time.Time) []delivery {
	n := 0
	for n < len(kept) && answered.Sub(kept[n].at) >= q.keep {
		n++
	}
	if n > 0 {
		q.spool.Release(kept[n-1].next)
	}
	return kept[n:]
}

// idle waits for a message, for another connection, or until a kept message may be
// released.
func (q *queue) idle(ctx context.Context, epoch uint64, kept []delivery) []delivery {
	after := time.Hour
	if len(kept) > 0 {
		after = max(q.keep-time.Since(kept[0].at), 10*time.Millisecond)
	}
	timer := time.NewTimer(after)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-q.arrived:
	case <-q.link.changed(epoch):
	case <-timer.C:
		asked := time.Now()
		if q.link.ask(ctx) == nil && q.link.epoch() == epoch {
			return q.release(kept, asked)
		}
	}
	return kept
}

// err returns what does not work now.
func (q *queue) err() error { return errors.Join(q.appending.get(), q.sending.get()) }

// ackWait is how long an acknowledgement may take.
const ackWait = 10 * time.Second

// errLost is why a message is sent again at once over the next connection.
var errLost = errors.New("the connection was lost before the answer")

// publish sends a message over the connection of an epoch and returns when the stream has
// it. Its answer comes over no other connection.
func (q *queue) publish(ctx context.Context, epoch uint64, message []byte) error {
	ctx, cancel := context.WithTimeout(ctx, q.wait)
	defer cancel()
	ctx, lose := context.WithCancelCause(ctx)
	go func() {
		for ctx.Err() == nil {
			select {
			case <-q.link.changed(epoch):
				if q.link.epoch() != epoch {
					lose(errLost)
				}
			case <-ctx.Done():
			}
		}
	}()
	err := q.link.publish(ctx, q.subject, message)
	if err != nil && errors.Is(context.Cause(ctx), errLost) {
		err = fmt.Errorf("send to %s: %w", q.subject, errLost)
	}
	return err
}
