package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
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
	streams := bus.StreamOptions{Replicas: c.Bus.Replicas, MaxBytes: int64(c.Bus.MaxMB) << 20, KeepSpecs: 2 * c.Specs.StaleAfter}
	l := busConnection{own: c.Bus.Credentials}
	var err error
	switch {
	case c.Bus.URL == "" && c.Bus.Listen == "":
		return nil, nil
	case c.Bus.URL == "":
		if streams.MaxBytes, err = l.embed(c, own, log, &o, refused); err != nil {
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
	if l.bus, err = bus.Open(ctx, o, streams); err != nil {
		l.close()
		return nil, err
	}
	for _, name := range []bus.Stream{bus.Samples, bus.Records} {
		l.feeds = append(l.feeds, &feed{bus: l.bus, name: name, refused: refused})
	}
	return &l, nil
}

// embed starts a NATS server in this process, and returns how many bytes the stream of samples may
// have.
func (l *busConnection) embed(c *config.Server, own *certificate.Files, log *slog.Logger, o *bus.Options, refused func(embedded.Refusal)) (stream int64, err error) {
	a, err := authority.Load(keysDir(c))
	if err != nil {
		return 0, err
	}
	if l.trust, err = a.Trust(); err != nil {
		return 0, err
	}
	if o.Credentials, err = ownCredentials(c, a); err != nil {
		return 0, err
	}
	l.own = o.Credentials
	dir := filepath.Join(c.StateDir, "bus")
	free, used, err := space(dir)
	if err != nil {
		return 0, fmt.Errorf("start NATS: %w", err)
	}
	stream, all := fit(int64(c.Bus.MaxMB)<<20, free, used)
	switch {
	case stream < leastStream:
		return 0, daemon.Usage(fmt.Errorf("the disk of %s has %d MB free, and agents' messages need %d MB: free some space, or set state_dir", dir, free>>20, leastStream*2>>20))
	case stream < int64(c.Bus.MaxMB)<<20:
		log.Warn("agents' messages get less space than bus.max_mb, because the disk has no more", "mb", stream>>20, "max_mb", c.Bus.MaxMB, "free_mb", free>>20, "directory", dir)
	}
	l.nats, err = embedded.Start(embedded.Options{Dir: dir, Listen: c.Bus.Listen, TLS: own.Server(), MaxStore: all,
		SyncAlways: c.Bus.SyncAlways, Connections: agentConnections(c, log), Log: log, Refused: refused}, l.trust)
	if err != nil {
		return 0, err
	}
	o.InProcess = l.nats.Server
	log.Info("agents may connect", "url", l.nats.URL(), "tls", own != nil)
	return stream, nil
}

// leastStream is the minimum of bus.max_mb, in bytes.
const leastStream = 16 << 20

// fit returns how large the stream of samples may be, want at most, and all streams and buckets
// together, on a disk with this many bytes free and used by them, bytes each. NATS refuses a stream
// that is not within three quarters of what is free, and what it has already counts as used. A
// stream never becomes smaller than what it may hold now: NATS would remove messages.
func fit(want, free, used int64) (stream, all int64) {
	all = max((free+used)/4*3, used)
	// A quarter of the stream's size is for records, and as much for buckets at least.
	return min(want, max(all/3*2, used)), max(all, used/4*6)
}

// space returns how many bytes are free on a directory's disk for this process, and how many the
// directory's files have. It makes the directory.
func space(dir string) (free, used int64, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, 0, err
	}
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dir, &disk); err != nil {
		return 0, 0, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			used += info.Size()
		}
		return err
	})
	return int64(disk.Bavail) * disk.Bsize, used, err
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

// err returns why agents' messages cannot come now. If its disk is full, NATS stops its
// streams permanently: agents spool until this process is restarted.
func (l *busConnection) err() error {
	if l.nats != nil && !l.nats.JetStreamEnabled() {
		return errors.New("NATS has stopped its streams, its disk may be full: free disk space and restart quell-server; agents spool their messages meanwhile")
	}
	return l.bus.Err()
}

func (l *busConnection) close() {
	for _, f := range l.feeds {
		f.(*feed).close()
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
		f.close()
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
func (f *feed) Ack(ctx context.Context, seq uint64) error {
	c := f.consumer.Load()
	if c == nil {
		return errors.New("not connected")
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return c.Ack(ctx, seq)
}

func (f *feed) close() {
	if c := f.consumer.Swap(nil); c != nil {
		c.Close()
	}
}
