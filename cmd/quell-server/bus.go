package main

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/agent/daemon"
	"github.com/quell-dev/quell/internal/cluster/bus"
	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/embedded"
	"github.com/quell-dev/quell/internal/cluster/server"
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/format/certificate"
	"github.com/quell-dev/quell/internal/format/wire"
)

// busConnection is the connection to the agents: a bus, and the embedded NATS server, if there is
// one.
type busConnection struct {
	nats  *embedded.Server
	bus   *bus.Bus
	feeds []server.Feed
	roots *certificate.Files // of an external NATS server
	own   string             // file of this server's credentials
	trust authority.Trust    // of the embedded server, at its start
}

// connectTime is how long the first connection may take.
const connectTime = time.Minute

// connect opens the bus, nil if none is configured. refused is called with each operation
// that the embedded NATS server refuses to a client, and with each message that is dropped.
func connect(ctx context.Context, c *config.Server, own *certificate.Files, log *slog.Logger, refused func(embedded.Refusal)) (*busConnection, error) {
	o := bus.Options{URL: c.Bus.URL, Name: "quell-server", Credentials: c.Bus.Credentials, Log: log}
	// Agents do not judge by a spec that is older than stale_after.
	settings := bus.Settings{Replicas: c.Bus.Replicas, Waiting: int64(c.Bus.WaitingMB) << 20, KeepSpecs: 2 * c.Specs.StaleAfter}
	l := busConnection{own: c.Bus.Credentials}
	var err error
	switch {
	case c.Bus.URL == "" && c.Bus.Listen == "":
		return nil, nil
	case c.Bus.URL == "":
		if err = l.embed(c, own, log, &o, refused); err != nil {
			return nil, err
		}
	default:
		if l.roots, err = certificate.Open("bus", c.Bus.CA, "", ""); err != nil {
			return nil, daemon.Usage(err)
		}
		o.TLS, o.Roots = l.roots.Client(), l.roots.Roots()
	}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	if l.bus, err = bus.Open(ctx, o, settings); err != nil {
		l.close()
		return nil, err
	}
	for _, name := range []bus.Stream{bus.Samples, bus.Records} {
		l.feeds = append(l.feeds, &feed{bus: l.bus, name: name, refused: refused})
	}
	return &l, nil
}

// embed starts a NATS server in this process.
func (l *busConnection) embed(c *config.Server, own *certificate.Files, log *slog.Logger, o *bus.Options, refused func(embedded.Refusal)) error {
	free, err := daemon.Listen("bus.listen", c.Bus.Listen) // NATS says only in its log that it cannot, and is not ready after a minute
	if err != nil {
		return err
	}
	_ = free.Close()
	a, err := authority.Load(keysDir(c))
	if err != nil {
		return err
	}
	if l.trust, err = a.Trust(); err != nil {
		return err
	}
	if o.Credentials, err = ownCredentials(c, a); err != nil {
		return err
	}
	l.own = o.Credentials
	// By default what 16,000 agents send together, if each sends the least that it is granted (16 KB).
	pending := 4 * int64(c.Bus.WaitingMB) << 20
	l.nats, err = embedded.Start(embedded.Options{Dir: filepath.Join(c.StateDir, "bus"), Listen: c.Bus.Listen, TLS: own.Server(),
		SyncAlways: c.Bus.SyncAlways, Connections: agentConnections(c, log), Pending: pending, Log: log, Refused: refused}, l.trust)
	if err != nil {
		return err
	}
	o.InProcess = l.nats.Server
	log.Info("agents may connect", "url", l.nats.URL(), "tls", own != nil)
	return nil
}

// reserved is how many descriptors the store, queries and the rest of the server need.
const reserved = 512

// agentConnections is how many connections to the embedded NATS server leave enough
// descriptors for the API and the store: a flood of connections must not stop them.
func agentConnections(c *config.Server, log *slog.Logger) int {
	const most = 3 * 65536 // an agent has three
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		log.Warn("read the limit of file descriptors", "reason", err)
		return most
	}
	n := int(min(l.Cur, 1<<30)) - c.Limits.Connections - reserved
	if n < 100 {
		log.Warn("few file descriptors: raise the limit (LimitNOFILE), or lower limits.connections", "limit", l.Cur)
	}
	return max(min(n, most), 100)
}

// err returns why the bus does not work now. If its disk is full, NATS stops its buckets
// permanently, until this process is restarted.
func (l *busConnection) err() error {
	if l.nats != nil && !l.nats.JetStreamEnabled() {
		return fmt.Errorf("NATS has stopped the buckets of specs and decisions, its disk may be full: free disk space and %w", server.ErrRestart)
	}
	return l.bus.Err()
}

// backlog is what agents wait for, of both streams.
func (l *busConnection) backlog() (sum server.Backlog) {
	for _, f := range l.feeds {
		if c := f.(*feed).consumer.Load(); c != nil {
			b := c.Backlog()
			sum = server.Backlog{Bytes: sum.Bytes + b.Bytes, Refused: sum.Refused + b.Refused, Oldest: max(sum.Oldest, b.Oldest)}
		}
	}
	return sum
}

func (l *busConnection) close() {
	for _, f := range l.feeds {
		f.Stop()
	}
	if l.bus != nil {
		l.bus.Close()
	}
	if l.nats != nil {
		l.nats.Close()
	}
}

// feed is a stream of the bus as a server.Feed.
type feed struct {
	bus      *bus.Bus
	name     bus.Stream
	refused  func(embedded.Refusal)
	messages []bus.Message
	decoded  []wire.Batch // reused
	batches  []store.Batch

	consumer atomic.Pointer[bus.Consumer] // Ack runs in parallel with Next
}

// maxFetch is how many messages one Next returns: the decoded data, 14 KB per message, is
// still in the processor's cache when it is stored.
const maxFetch = 64

// Next implements server.Feed.
func (f *feed) Next(ctx context.Context) ([]store.Batch, error) {
	c := f.consumer.Load()
	var err error
	if c == nil {
		if c, err = f.bus.Consume(ctx, f.name); err != nil {
			return nil, err
		}
		f.consumer.Store(c)
	}
	f.messages, err = c.Fetch(ctx, f.messages[:0], maxFetch)
	if err != nil {
		f.Stop()
	}
	f.batches = f.batches[:0]
	for len(f.decoded) < len(f.messages) {
		f.decoded = append(f.decoded, wire.Batch{})
	}
	for i := range f.messages {
		m := &f.messages[i]
		b, bad := f.batch(m, &f.decoded[i])
		if bad != nil {
			// It stays invalid. Its sequence number still counts as processed.
			sender := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
			f.refused(embedded.Refusal{Client: string(authority.Agent) + "." + sender, Operation: "publish", Subject: m.Subject, Reason: "the message was dropped: " + bad.Error()})
			b = store.Batch{Source: store.Source{Stream: string(f.name)}, Seq: m.Seq}
		} else {
			b.Bytes = len(m.Data)
		}
		f.batches = append(f.batches, b)
	}
	return f.batches, err
}

func (f *feed) batch(m *bus.Message, into *wire.Batch) (store.Batch, error) {
	if f.name == bus.Samples {
		if err := m.Batch(into); err != nil {
			return store.Batch{}, err
		}
		return server.BatchOf(into, m.Seq), nil
	}
	r, err := m.Record()
	if err != nil {
		return store.Batch{}, err
	}
	return server.RecordOf(r, m.Seq)
}

// Ack implements server.Feed.
func (f *feed) Ack(seq uint64) {
	if c := f.consumer.Load(); c != nil {
		c.Ack(seq)
	}
}

// Stop implements server.Feed.
func (f *feed) Stop() {
	if c := f.consumer.Swap(nil); c != nil {
		c.Close()
	}
}
