package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
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
	bus     *Bus
	epoch   uint64          // of the connection
	renewed <-chan struct{} // closed when there is a new connection
	stream  jetstream.Stream
	pull    string         // subject of requests for messages
	inbox   string         // where they come
	arrived chan *nats.Msg // as they come
	ready   chan Message   // messages that have come; closed when no more will
	cancel  context.CancelFunc
	failed  error         // why ready is closed, once it is
	last    atomic.Uint64 // highest number read
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
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy, AckPolicy: jetstream.AckNonePolicy,
		MemoryStorage: true, Replicas: 1, InactiveThreshold: forgotten, MaxWaiting: 16})
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", name, err)
	}
	c := &Consumer{bus: b, epoch: epoch, renewed: renewed, stream: stream, inbox: b.nc.NewInbox(),
		pull:    "$JS.API.CONSUMER.MSG.NEXT." + string(name) + "." + consumer.CachedInfo().Name,
		arrived: make(chan *nats.Msg, 2*prefetch), ready: make(chan Message, prefetch/16)}
	sub, err := b.nc.ChanSubscribe(c.inbox, c.arrived)
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", name, err)
	}
	ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go c.pump(ctx, sub)
	return c, nil
}

const (
	// forgotten is how long NATS keeps a consumer without requests.
	forgotten = time.Minute
	// A request is answered for so long, with a sign of life at least every heartbeat.
	pullExpiry = 10 * time.Second
	heartbeat  = time.Second
)

var errSilent = errors.New("the server is silent")

// pump receives messages as they come. The NATS client has readers of streams, but they
// take a message without data for one of NATS itself if its sender has given it a header
// Status: any agent could stop them. NATS's own have no number in the stream.
func (c *Consumer) pump(ctx context.Context, sub *nats.Subscription) {
	defer close(c.ready)
	defer func() { _ = sub.Unsubscribe() }() // of a lost connection: gone with it
	life := time.NewTimer(2 * heartbeat)
	defer life.Stop()
	asked := 0            // messages that were requested and have not come
	position := uint64(1) // of the next message among those of this consumer
	for {
		if asked < prefetch/2 {
			if c.failed = c.request(prefetch); c.failed != nil {
				return
			}
			asked += prefetch
		}
		var m *nats.Msg
		select {
		case m = <-c.arrived:
			life.Reset(2 * heartbeat)
		case <-life.C:
			if len(c.arrived) > 0 { // this goroutine was late
				life.Reset(2 * heartbeat)
				continue
			}
			// For example after the loss of the node that held the consumer.
			c.failed = errSilent
			return
		case <-ctx.Done():
			return
		}
		if !strings.HasPrefix(m.Reply, "$JS.ACK.") {
			switch status := m.Header.Get("Status"); status {
			case "100": // a sign of life
			case "404", "408", "409": // a request has ended
				rest, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages"))
				if err != nil {
					c.failed = fmt.Errorf("NATS said %s %s", status, m.Header.Get("Description"))
					return
				}
				asked -= rest
			default:
				c.failed = fmt.Errorf("NATS said %s %s", status, m.Header.Get("Description"))
				return
			}
			continue
		}
		meta, err := m.Metadata()
		if err == nil && meta.Sequence.Consumer != position {
			err = fmt.Errorf("message %d came instead of message %d", meta.Sequence.Consumer, position)
		}
		if err != nil {
			c.failed = err
			return
		}
		asked--
		position++
		select {
		case c.ready <- Message{meta.Sequence.Stream, m.Subject, m.Data}:
		case <-ctx.Done():
			return
		}
		life.Reset(2 * heartbeat) // it may have waited for the reader
	}
}

// request asks for the next n messages.
func (c *Consumer) request(n int) error {
	ask, err := json.Marshal(map[string]int64{"batch": int64(n), "max_bytes": pullBytes, "expires": int64(pullExpiry), "idle_heartbeat": int64(heartbeat)})
	if err != nil {
		return err
	}
	return c.bus.nc.PublishRequest(c.pull, c.inbox, ask)
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
