package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/format/wire"
)

// Stream is the name of a stream.
type Stream string

// The streams hold what agents publish until a server has stored it.
const (
	Samples Stream = "samples"
	Records Stream = "records"
)

// StreamOptions are the bounds of the streams.
type StreamOptions struct {
	// Replicas of each stream and of the bucket: 1, or 3 in a cluster.
	Replicas int
	// MaxBytes bounds the stream of samples; a quarter of it bounds that of records. A
	// full stream accepts no more messages, and the agents spool. The same holds for one
	// machine's share of a stream, a quarter of it at most.
	MaxBytes int64
	// KeepSpecs is how long the bucket keeps specs that do not change; 0: for ever. Each
	// new sample changes them, so only specs of jobs that no longer run expire.
	KeepSpecs time.Duration

	share int64 // messages of one machine in a stream; 0: those that fill a quarter of it
}

// Bus is the server's side of the bus.
type Bus struct {
	*connection // to the account of the streams
	commands    *decider
	kv          jetstream.KeyValue
	log         *slog.Logger

	replicas  int
	leaseTime time.Duration // 0: the constant
}

// Open connects, and creates the streams and the bucket or updates them to the options.
// ctx bounds how long that may take.
func Open(ctx context.Context, o Options, s StreamOptions) (*Bus, error) {
	b := &Bus{log: o.Log, replicas: max(1, s.Replicas)}
	failed := nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { b.log.Warn("bus", "reason", err) })
	store, err := dial(ctx, &o, credential.Store, failed)
	if err != nil {
		return nil, err
	}
	commands, err := dial(ctx, &o, credential.Commands, failed)
	if err != nil {
		store.nc.Close()
		return nil, err
	}
	b.connection, b.commands = store, &decider{link: commands, credentials: o.Credentials, log: o.Log, current: map[string]*document{}, renewed: map[string]time.Time{}}
	if err := b.prepare(ctx, s); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

func (b *Bus) prepare(ctx context.Context, s StreamOptions) (err error) {
	for _, c := range []jetstream.StreamConfig{
		{Name: string(Samples), Subjects: []string{wire.AllSamples}, MaxBytes: s.MaxBytes,
			Description: "batches of samples, until they are stored"},
		{Name: string(Records), Subjects: []string{wire.AllRecords}, MaxBytes: s.MaxBytes / 4,
			Description: "incidents and audit entries, until they are stored"},
	} {
		c.Storage, c.Replicas = jetstream.FileStorage, b.replicas
		// New messages never displace acknowledged ones.
		c.Retention, c.Discard, c.DiscardNewPerSubject = jetstream.LimitsPolicy, jetstream.DiscardNew, true
		if err := retry(ctx, func(ctx context.Context) (err error) {
			if c.MaxMsgsPerSubject, err = b.share(ctx, c.Name, cmp.Or(s.share, c.MaxBytes/4/maxMessage, 1)); err == nil {
				_, err = b.js.CreateOrUpdateStream(ctx, c)
			}
			return err
		}); err != nil {
			return fmt.Errorf("make stream %s: %w", c.Name, err)
		}
	}
	b.kv, err = b.makeBucket(ctx, jetstream.KeyValueConfig{Bucket: bucket, TTL: s.KeepSpecs, Description: "specs, by job and platform"})
	if err == nil {
		b.commands.kv, err = b.makeBucket(ctx, jetstream.KeyValueConfig{Bucket: decisionBucket, Description: "operators' decisions, for all machines and by machine"})
	}
	return err
}

// maxMessage is the largest message that an agent may send, bytes: see package authority.
const maxMessage = 1 << 20

// share returns how many messages of one machine a stream may hold, so that no machine fills it:
// want, but never fewer than it holds now, because NATS would remove the others.
func (b *Bus) share(ctx context.Context, stream string, want int64) (int64, error) {
	s, err := b.js.Stream(ctx, stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return want, nil
	}
	if err != nil {
		return 0, err
	}
	if now := s.CachedInfo().Config.MaxMsgsPerSubject; now > 0 && now <= want {
		return want, nil
	}
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		return 0, err
	}
	for _, n := range info.State.Subjects {
		want = max(want, 2*int64(n)) // more may come before the stream is updated
	}
	return want, nil
}

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
	b.nc.Close()
	b.commands.link.nc.Close()
}

// Err returns why a connection is missing now, nil if there are both.
func (b *Bus) Err() error {
	for _, l := range []*connection{b.connection, b.commands.link} {
		if !l.nc.IsConnected() {
			return errors.Join(ErrNotConnected, l.nc.LastError())
		}
	}
	return nil
}

// PutSpecs stores a job's specs on a platform and announces them to the agents that run
// the job. m.Revision must be higher than before.
func (b *Bus) PutSpecs(ctx context.Context, m *wire.Specs) error {
	data, err := wire.Marshal(m)
	if err != nil {
		return err
	}
	if _, err := b.kv.Put(ctx, wire.SpecKey(m.Job, m.Platform), data); err != nil {
		return fmt.Errorf("store specs of %s: %w", m.Job, err)
	}
	if err := b.nc.Publish(wire.SpecSubject(m.Job, m.Platform), data); err != nil {
		return fmt.Errorf("announce specs of %s: %w", m.Job, err)
	}
	return nil
}
