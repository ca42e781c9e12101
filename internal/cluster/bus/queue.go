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

// maxWaiting bounds the messages that wait in memory for the disk. Beyond it messages are
// dropped and counted: the agent's loop never waits.
const maxWaiting = 64

// maxRecords is maxWaiting for records. An agent that was killed ends all incidents that were open at once when
// it starts again, and one whose end is lost is open on the server for ever.
const maxRecords = 1024

// queue carries messages for one stream to the server through the disk.
type queue struct {
	subject string
	kind    wire.Type // of its messages
	spool   *spool.Spool
	link    *connection
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
	waiting := maxWaiting
	if kind == wire.Type_TYPE_RECORD {
		waiting = maxRecords
	}
	return &queue{subject: subject, kind: kind, spool: s, link: l, wait: cmp.Or(o.wait, ackWait),
		incoming: make(chan []byte, waiting), arrived: make(chan struct{}, 1)}, nil
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

// send delivers messages from disk to the server until ctx ends. A delivery is sent again until
// it is acknowledged; only then is the next one sent. It has as many messages as wait and the
// server has room for.
func (q *queue) send(ctx context.Context) {
	var (
		room    int
		backoff time.Duration
		wait    = q.wait
	)
	for ctx.Err() == nil {
		epoch := q.link.epoch()
		messages, next, err := q.read(min(room, int(q.link.maxPayload())))
		switch {
		case err != nil:
		case len(messages) == 0:
			select {
			case <-ctx.Done():
			case <-q.arrived:
			}
			continue
		case int64(len(messages[0])) > q.link.maxPayload():
			q.refused.Add(1)
			q.spool.Release(next)
			continue
		default:
			room, err = q.publish(ctx, epoch, wait, wire.Pack(messages...))
		}
		q.sending.set(err)
		if err != nil {
			room = 0
			if errors.Is(err, context.DeadlineExceeded) { // else a server whose commits take longer answers too late each time
				wait = min(2*wait, 8*q.wait)
			}
			backoff = min(max(2*backoff, 100*time.Millisecond), 10*time.Second)
			q.link.wait(ctx, epoch, backoff/2+rand.N(backoff))
			continue
		}
		backoff, wait = 0, q.wait
		q.sent.Add(uint64(len(messages)))
		q.spool.Release(next)
	}
}

// read returns the oldest messages on disk, and the number after theirs: as many as room has
// bytes for and a bundle may have, at least one if there is any.
func (q *queue) read(room int) (messages [][]byte, next uint64, err error) {
	for size := 0; ; {
		number, m, err := q.spool.Read(max(next, q.spool.Released()))
		if err != nil && len(messages) == 0 {
			return nil, 0, err
		}
		if err != nil || m == nil {
			return messages, next, nil
		}
		m = wire.Upgrade(m, q.kind)
		if size += wire.PackedSize(m); len(messages) == wire.MaxPacked || len(messages) > 0 && size > room {
			return messages, next, nil
		}
		messages, next = append(messages, m), number+1
	}
}

// err returns what does not work now.
func (q *queue) err() error { return errors.Join(q.appending.get(), q.sending.get()) }

// ackWait is how long an acknowledgement may take at first. A server that works answers sooner, also
// if it has no room; a lost connection is noticed sooner.
const ackWait = 30 * time.Second

// errLost is why a message is sent again at once over the next connection.
var errLost = errors.New("the connection was lost before the answer")

// publish sends a message over the connection of an epoch and returns when the server has stored
// it, with the room for the next. Its answer comes over no other connection.
func (q *queue) publish(ctx context.Context, epoch uint64, wait time.Duration, message []byte) (room int, err error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
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
	room, err = q.link.deliver(ctx, q.subject, message)
	if err != nil && errors.Is(context.Cause(ctx), errLost) {
		err = fmt.Errorf("send to %s: %w", q.subject, errLost)
	}
	return room, err
}
