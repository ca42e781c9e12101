package bus

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/format/wire"
)

// Stream is a kind of messages that agents send, each with numbers of its own.
type Stream string

// The streams.
const (
	Samples Stream = "samples"
	Records Stream = "records"
)

// Settings are the bounds of the server's side.
type Settings struct {
	// Replicas of each bucket: 1, or 3 in a cluster.
	Replicas int
	// Waiting bounds the memory of the samples that have come and are not read yet, bytes, at
	// least MinWaiting; that of records is a quarter of it. If it is full, agents keep theirs.
	Waiting int64
	// KeepSpecs is how long the bucket keeps specs that do not change; 0: for ever. Each
	// new sample changes them, so only specs of jobs that no longer run expire.
	KeepSpecs time.Duration
}

// MinWaiting is the least that may wait: a machine's part of that of records has room for its
// largest message.
const MinWaiting = 4 * share * (maxMessage + deliveryBytes)

// Bus is the server's side of the bus.
type Bus struct {
	*connection             // to the account of the buckets
	samples     *connection // to the account in which agents send
	commands    *decider
	kv          jetstream.KeyValue
	log         *slog.Logger

	waiting   int64
	replicas  int
	leaseTime time.Duration // 0: the constant
}

// Open connects, and creates the buckets or updates them to the settings. ctx bounds how long
// that may take.
func Open(ctx context.Context, o Options, s Settings) (*Bus, error) {
	if s.Waiting < MinWaiting {
		return nil, fmt.Errorf("open the bus: %d bytes may wait, want at least %d", s.Waiting, int64(MinWaiting))
	}
	b := &Bus{log: o.Log, replicas: max(1, s.Replicas), waiting: s.Waiting}
	failed := nats.ErrorHandler(warner(o.Log))
	lost := nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
		if err != nil { // else it was closed here
			b.log.Warn("bus: the connection is lost; agents send again what was under way", "reason", err)
		}
	})
	var all []*connection
	for _, account := range []credential.Account{credential.Store, credential.Samples, credential.Commands} {
		c, err := dial(ctx, &o, account, failed, lost)
		if err != nil {
			for _, c := range all {
				c.nc.Close()
			}
			return nil, err
		}
		all = append(all, c)
	}
	b.connection, b.samples = all[0], all[1]
	b.commands = &decider{link: all[2], credentials: o.Credentials, log: o.Log, current: map[string]*document{}, renewed: map[string]time.Time{}}
	if err := b.prepare(ctx, s); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// warner logs what NATS reports, at most once a second: an agent's malformed headers are reported each.
func warner(log *slog.Logger) nats.ErrHandler {
	var said atomic.Int64
	return func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if now := time.Now().Unix(); said.Swap(now) != now {
			log.Warn("bus", "reason", err)
		}
	}
}

func (b *Bus) prepare(ctx context.Context, s Settings) (err error) {
	b.kv, err = b.makeBucket(ctx, jetstream.KeyValueConfig{Bucket: bucket, TTL: s.KeepSpecs, Description: "specs, by job and platform"})
	if err == nil {
		b.commands.kv, err = b.makeBucket(ctx, jetstream.KeyValueConfig{Bucket: decisionBucket, Description: "operators' decisions, for all machines and by machine"})
	}
	return err
}

// maxMessage is the largest message that an agent may send, bytes: see package authority.
const maxMessage = 1 << 20

// makeBucket creates a bucket or updates it.
func (b *Bus) makeBucket(ctx context.Context, c jetstream.KeyValueConfig) (kv jetstream.KeyValue, err error) {
	c.Storage, c.Replicas, c.History = jetstream.FileStorage, b.replicas, 1
	err = retry(ctx, func(ctx context.Context) (err error) { kv, err = b.js.CreateOrUpdateKeyValue(ctx, c); return err })
	if err != nil {
		return nil, fmt.Errorf("make bucket %s: %w", c.Bucket, err)
	}
	return kv, nil
}

// retry retries until it succeeds or ctx ends: a cluster that has just started has no
// leader yet, and no server answers then.
func retry(ctx context.Context, try func(context.Context) error) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, 3*time.Second)
		err := try(attempt)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Close ends the connections.
func (b *Bus) Close() {
	for _, c := range b.connections() {
		c.nc.Close()
	}
}

func (b *Bus) connections() []*connection {
	return []*connection{b.connection, b.samples, b.commands.link}
}

// Err returns why a connection is missing now, nil if there are all.
func (b *Bus) Err() error {
	for _, l := range b.connections() {
		if err := l.err(); err != nil {
			return fmt.Errorf("the connection for %s: %w", l.account, err)
		}
	}
	return nil
}

// PutSpecs stores a job's specs on a platform and announces them to the agents that run
// the job, unless no agent has a job with so long a name. m.Revision must be higher than before.
func (b *Bus) PutSpecs(ctx context.Context, m *wire.Specs) error {
	key := wire.SpecKey(m.Job, m.Platform)
	if len(key) > maxKey {
		return nil
	}
	data, err := wire.Marshal(m)
	if err != nil {
		return err
	}
	if _, err := b.kv.Put(ctx, key, data); err != nil {
		return fmt.Errorf("store specs of %s: %w", m.Job, err)
	}
	if err := b.nc.Publish(wire.SpecSubject(m.Job, m.Platform), data); err != nil {
		return fmt.Errorf("announce specs of %s: %w", m.Job, err)
	}
	return nil
}
