package main

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/quell-dev/quell/internal/atomicfile"
	"github.com/quell-dev/quell/internal/bus"
	"github.com/quell-dev/quell/internal/bus/authority"
	"github.com/quell-dev/quell/internal/bus/embedded"
	"github.com/quell-dev/quell/internal/config"
	"github.com/quell-dev/quell/internal/server"
	"github.com/quell-dev/quell/internal/store"
	"github.com/quell-dev/quell/internal/wire"
)

// link is the way to agents: a bus, and the NATS server that it runs in this
// process, if it does.
type link struct {
	nats  *embedded.Server
	bus   *bus.Bus
	feeds []server.Feed
}

// connectTime is how long the first connection may take.
const connectTime = time.Minute

// connect opens the bus, nil if none is configured.
func connect(ctx context.Context, c *config.Server, log *slog.Logger) (*link, error) {
	o := bus.Options{URL: c.Bus.URL, Name: "quell-server", Credentials: c.Bus.Credentials, Log: log}
	var l link
	switch {
	case c.Bus.URL == "" && c.Bus.Listen == "":
		return nil, nil
	case c.Bus.URL == "":
		a, err := authority.Load(keysDir(c))
		if err != nil {
			return nil, err
		}
		trust, err := a.Trust()
		if err != nil {
			return nil, err
		}
		if o.Credentials, err = ownCredentials(c, a); err != nil {
			return nil, err
		}
		tls, err := loadCertificate(c)
		if err != nil {
			return nil, usageError{err}
		}
		if l.nats, err = embedded.Start(embedded.Options{Dir: filepath.Join(c.StateDir, "bus"), Listen: c.Bus.Listen, TLS: tls, Log: log}, trust); err != nil {
			return nil, err
		}
		o.InProcess = l.nats.Server
		log.Info("agents may connect", "url", l.nats.URL())
	}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	var err error
	if l.bus, err = bus.Open(ctx, o, bus.StreamOptions{Replicas: c.Bus.Replicas, MaxBytes: int64(c.Bus.MaxMB) << 20}); err != nil {
		l.close()
		return nil, err
	}
	for _, name := range []bus.Stream{bus.Samples, bus.Records} {
		l.feeds = append(l.feeds, &feed{bus: l.bus, name: name, log: log})
	}
	return &l, nil
}

// ownCredentials makes the server's own, anew at each start.
func ownCredentials(c *config.Server, a *authority.Authority) (string, error) {
	text, err := a.Issue(authority.Server, "quell-server", 0)
	if err != nil {
		return "", err
	}
	path := filepath.Join(keysDir(c), "server.creds")
	return path, atomicfile.Write(path, text, 0o600)
}

func (l *link) close() {
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

// feed is a stream of the bus as the server takes it.
type feed struct {
	bus      *bus.Bus
	name     bus.Stream
	log      *slog.Logger
	consumer *bus.Consumer
	messages []bus.Message
	decoded  []wire.Batch // used again and again
	batches  []store.Batch
}

// maxFetch is how many messages one Next gives.
const maxFetch = 512

// Next implements server.Feed.
func (f *feed) Next(ctx context.Context) ([]store.Batch, error) {
	if f.consumer == nil {
		c, err := f.bus.Consume(ctx, f.name)
		if err != nil {
			return nil, err
		}
		f.consumer = c
	}
	var err error
	f.messages, err = f.consumer.Fetch(ctx, f.messages[:0], maxFetch)
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
			// It will make no more sense later. Its place in the stream is taken all the same.
			f.log.Error("a message was dropped", "stream", f.name, "seq", m.Seq, "subject", m.Subject, "reason", bad)
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

// Done implements server.Feed.
func (f *feed) Done(ctx context.Context, seq uint64) error {
	if f.consumer == nil {
		return errors.New("not connected")
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return f.consumer.Done(ctx, seq)
}

func (f *feed) close() {
	if f.consumer != nil {
		f.consumer.Close()
		f.consumer = nil
	}
}
