package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"

	"github.com/quell-dev/quell/internal/agent"
	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/agent/daemon"
	"github.com/quell-dev/quell/internal/cluster/bus"
	"github.com/quell-dev/quell/internal/format/certificate"
)

// openUplink opens the connection to the server, if one is configured, and returns the
// function that closes it. The agent in to is told of new decisions.
func openUplink(c *config.Agent, p *agent.Parts, to *atomic.Pointer[agent.Agent]) (func() error, error) {
	if c.Server.URL == "" {
		return func() error { return nil }, nil
	}
	t, err := certificate.Open("server.tls", c.Server.TLS.CA, c.Server.TLS.Cert, c.Server.TLS.Key)
	if err != nil {
		return nil, daemon.Usage(err)
	}
	if c.Server.Credentials != "" {
		// It may be renewed later, but if it is missing now that is an error, unless it is to come later.
		if _, err := os.ReadFile(c.Server.Credentials); err != nil && !(c.Server.Later && errors.Is(err, fs.ErrNotExist)) {
			return nil, daemon.Usage(fmt.Errorf("read server.credentials: %w", err))
		}
	}
	u, err := bus.OpenUplink(bus.UplinkOptions{
		Options: bus.Options{URL: c.Server.URL, Name: c.MachineName(), Credentials: c.Server.Credentials, TLS: t.Client(), Roots: t.Roots(), Log: p.Log},
		Dir:     c.SpoolDir(), MaxBytes: int64(c.Server.Spool.MaxMB) << 20,
		Decided: func(ctx context.Context) {
			if a := to.Load(); a != nil { // else it reads them when it starts
				a.Decided(ctx)
			}
		},
	})
	if err != nil {
		return nil, daemon.Usage(err)
	}
	p.Uplink, p.Certificates = u, t
	ctx, stop := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() {
		t.Watch(ctx, func(err error) { p.Log.Warn("read certificates again", "reason", err) })
	})
	return func() error {
		stop()
		watching.Wait()
		return u.Close()
	}, nil
}
