package bus

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/wire"
)

// UplinkOptions say how to reach an agent's server and where to keep messages that it has
// not accepted.
type UplinkOptions struct {
	Options // Name is the machine's
	Dir     string
	// MaxBytes bounds the spool on disk; an eighth of it is for records.
	MaxBytes int64
	// Decided is called when the decisions that Decisions returns have changed; nil: the
	// server's decisions are not followed. It is called in a goroutine of its own, one call at
	// a time.
	Decided func(context.Context)

	wait time.Duration // for an acknowledgement; 0: ackWait
	read time.Duration // of credentials, how often; 0: readEvery
	ask  time.Duration // for credentials that are not due, how often; 0: askEvery
}

// MinSpool is the minimum of UplinkOptions.MaxBytes, bytes.
const MinSpool = 8 << 20

// Uplink is an agent's connection to its server. No method except Close waits for the
// disk or the network.
type Uplink struct {
	machine, boot        string
	options              UplinkOptions
	batches, records     atomic.Uint64 // numbers assigned
	samples, recordQueue *queue
	link                 *connection // the account of samples
	specs                *specs
	commands             *connection
	gate                 *gate // nil: decisions are not followed
	state                atomic.Pointer[wire.State]
	reports              chan struct{} // the state is to be sent
	forged               atomic.Uint64
	credentials          atomic.Pointer[credential.File] // as last read; nil: none
	unreadable, renewing problem                         // of the file of credentials
	asks                 newKey                          // for which credentials were asked and not received; of watchCredentials
	cancel               context.CancelFunc
	running              sync.WaitGroup
	unencodable          atomic.Uint64
}

// OpenUplink opens the spool and starts to connect. An unreachable server is no error.
func OpenUplink(o UplinkOptions) (*Uplink, error) {
	if o.MaxBytes < MinSpool {
		return nil, fmt.Errorf("open uplink: %d bytes for the spool, want at least %d", o.MaxBytes, MinSpool)
	}
	boot := strconv.FormatInt(time.Now().UnixMilli(), 36) + "-" + strings.ToLower(rand.Text()[:6])
	u := &Uplink{machine: o.Name, boot: boot, options: o, link: newLink(credential.Samples), reports: make(chan struct{}, 1)}
	var err error
	if u.samples, err = newQueue(&o, wire.SampleSubject(o.Name), wire.Type_TYPE_BATCH, "samples", o.MaxBytes/8*7, u.link); err != nil {
		return nil, err
	}
	if u.recordQueue, err = newQueue(&o, wire.RecordSubject(o.Name), wire.Type_TYPE_RECORD, "records", o.MaxBytes/8, u.link); err != nil {
		return nil, errors.Join(err, u.samples.spool.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	u.cancel = cancel
	u.commands = newLink(credential.Commands)
	u.specs = newSpecs(u.machine, newLink(credential.Specs), u.commands)
	if err = u.connect(ctx); err != nil {
		cancel()
		u.disconnect()
		u.running.Wait()
		return nil, errors.Join(err, u.samples.spool.Close(), u.recordQueue.spool.Close())
	}
	for _, q := range []*queue{u.samples, u.recordQueue} {
		u.running.Go(func() { q.write(ctx) })
		u.running.Go(func() { q.send(ctx) })
	}
	u.running.Go(func() { u.specs.run(ctx) })
	if o.Credentials != "" {
		u.readCredentials()
		u.running.Go(func() { u.watchCredentials(ctx) })
	}
	return u, nil
}

// links are the connections.
func (u *Uplink) links() []*connection { return []*connection{u.link, u.specs.link, u.commands} }

func (u *Uplink) disconnect() {
	for _, l := range u.links() {
		if l.nc != nil {
			l.nc.Close()
		}
	}
}

func (u *Uplink) connect(ctx context.Context) error {
	errs := make([]error, len(u.links()))
	var all sync.WaitGroup
	for i, l := range u.links() { // at once: each may take an attempt's time
		failed := func(_ *nats.Conn, err error) {
			if err != nil {
				l.reason.set(err)
			}
		}
		all.Go(func() {
			errs[i] = l.connect(&u.options.Options, nats.ReconnectErrHandler(failed),
				nats.ErrorHandler(func(nc *nats.Conn, _ *nats.Subscription, err error) {
					failed(nc, err)
					if errors.Is(err, nats.ErrSlowConsumer) && l == u.specs.link {
						u.specs.missed()
					}
				}))
		})
	}
	all.Wait()
	if err := cmp.Or(errs...); err != nil {
		return err
	}
	if _, err := u.commands.nc.Subscribe(wire.RenewedSubject(u.machine), u.specs.answered); err != nil {
		return fmt.Errorf("listen for specs: %w", err)
	}
	if u.options.Decided == nil {
		return nil
	}
	u.gate = openGate(u.machine, u.options.Dir, u.options.Credentials)
	messages := make(chan *nats.Msg, maxDecided)
	for _, subject := range []string{wire.CommandSubject(u.machine), wire.CommandAll} {
		if _, err := u.commands.nc.ChanSubscribe(subject, messages); err != nil {
			return fmt.Errorf("listen for decisions: %w", err)
		}
	}
	u.running.Go(func() {
		for {
			select {
			case m := <-messages:
				u.decided(ctx, m.Data)
			case <-ctx.Done():
				return
			}
		}
	})
	u.running.Go(func() { u.report(ctx) })
	return nil
}

// maxDecided is how many messages with decisions may wait; further ones are dropped, and come
// again when the agent has said what it has.
const maxDecided = 256

// Bounds of a batch, so that its message stays well below NATS's 1 MB.
const (
	batchSamples = 2000
	batchBytes   = 512 << 10
)

// Samples accepts one tick's samples. It does not retain the slice; the samples are of
// the uplink's machine. Like Record, it is called by one goroutine: a batch that overtook
// another would make that one old.
func (u *Uplink) Samples(at sample.Millis, samples []sample.Sample) {
	for len(samples) > 0 {
		n, size := 0, 0
		for n < min(len(samples), batchSamples) && (n == 0 || size < batchBytes) {
			s := &samples[n]
			size += len(s.Task) + len(s.Job) + 64
			n++
		}
		b := wire.Batch{Key: wire.Key{Machine: u.machine, Boot: u.boot, N: u.batches.Add(1)}, At: at, Samples: samples[:n]}
		if data, err := b.Encode(); err == nil {
			u.samples.put(data)
		} else {
			u.unencodable.Add(1)
		}
		samples = samples[n:]
	}
}

// Record accepts an incident or audit entry, as the JSON of the agent's log.
func (u *Uplink) Record(at sample.Millis, kind wire.Record_Kind, id string, document []byte) {
	data, err := wire.Marshal(&wire.Record{Machine: u.machine, Boot: u.boot, N: u.records.Add(1), At: int64(at),
		Kind: kind, Id: id, Json: document})
	if err != nil {
		u.unencodable.Add(1)
		return
	}
	u.recordQueue.put(data)
}

// WatchSpecs sets the jobs whose specs on the platform are wanted from now on.
func (u *Uplink) WatchSpecs(platform sample.Platform, jobs []sample.JobName) {
	u.specs.want(platform, jobs)
}

// Specs returns the specs that have arrived since the last call.
func (u *Uplink) Specs() []spec.Spec { return u.specs.drain() }

func (u *Uplink) warn(message string, args ...any) {
	if u.options.Log != nil {
		u.options.Log.Warn(message, args...)
	}
}

// Err returns what does not work on the way to the server now, nil if all works.
func (u *Uplink) Err() error {
	for _, l := range u.links() {
		if err := l.err(); err != nil {
			return errors.Join(err, u.samples.appending.get(), u.recordQueue.appending.get())
		}
	}
	var keeping error
	if u.gate != nil {
		keeping = u.gate.keeping.get()
	}
	return errors.Join(u.samples.err(), u.recordQueue.err(), u.specs.failed.get(), keeping)
}

// UplinkStats counts the messages since OpenUplink by outcome.
type UplinkStats struct {
	Connected bool
	Sent      uint64 // messages acknowledged, each time they were sent
	Waiting   uint64 // on disk, not acknowledged
	Bytes     int64  // on disk
	Lost      uint64 // the disk was too slow or failed
	Dropped   uint64 // the spool was full: the oldest
	Damaged   uint64 // cannot be read back from disk
	Refused   uint64 // larger than the server accepts
	Forged    uint64 // messages to this agent that were no decisions of its server
}

// Stats counts batches and records together.
func (u *Uplink) Stats() UplinkStats {
	s := UplinkStats{Connected: u.link.up.Load(), Lost: u.unencodable.Load(), Forged: u.forged.Load()}
	for _, q := range []*queue{u.samples, u.recordQueue} {
		on := q.spool.Stats()
		s.Sent += q.sent.Load()
		s.Waiting += on.Messages
		s.Bytes += on.Bytes
		s.Lost += q.lost.Load()
		s.Dropped += on.Dropped
		s.Damaged += on.Damaged
		s.Refused += q.refused.Load()
	}
	return s
}

// Backlog is how many messages wait for the server, and how many will never
// reach it.
func (u *Uplink) Backlog() (waiting, lost uint64) {
	s := u.Stats()
	return s.Waiting, s.Lost + s.Dropped + s.Damaged + s.Refused
}

// Close writes what still waits in memory to disk and closes the connections. The next
// Uplink of the directory sends what was not acknowledged.
func (u *Uplink) Close() error {
	u.cancel()
	u.disconnect()
	u.running.Wait()
	return errors.Join(u.samples.spool.Close(), u.recordQueue.spool.Close())
}
