package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/quell-dev/quell/internal/agent"
	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/agent/daemon"
	"github.com/quell-dev/quell/internal/cluster/bus"
	"github.com/quell-dev/quell/internal/format/wire"
)

// openUplink opens the connection to the server, if one is configured, and returns the
// function that closes it. Commands go to the agent in to.
func openUplink(c *config.Agent, p *agent.Parts, to *atomic.Pointer[agent.Agent]) (func() error, error) {
	if c.Server.URL == "" {
		return func() error { return nil }, nil
	}
	t, err := uplinkTLS(&c.Server.TLS)
	if err != nil {
		return nil, daemon.Usage(err)
	}
	if c.Server.Credentials != "" {
		// It may be renewed later, but if it is missing now that is an error.
		if _, err := os.ReadFile(c.Server.Credentials); err != nil {
			return nil, daemon.Usage(fmt.Errorf("read server.credentials: %w", err))
		}
	}
	u, err := bus.OpenUplink(bus.UplinkOptions{
		Options: bus.Options{URL: c.Server.URL, Name: c.MachineName(), Credentials: c.Server.Credentials, TLS: t, Log: p.Log},
		Dir:     c.SpoolDir(), MaxBytes: int64(c.Server.Spool.MaxMB) << 20,
		Command: func(ctx context.Context, cmd *wire.Command) *wire.Reply {
			if a := to.Load(); a != nil {
				return a.Command(ctx, cmd)
			}
			return &wire.Reply{Message: "the agent is starting"}
		},
	})
	if err != nil {
		return nil, daemon.Usage(err)
	}
	p.Uplink = u
	return u.Close, nil
}

// uplinkTLS is nil if nothing is set: the system's roots.
func uplinkTLS(c *config.UplinkTLS) (*tls.Config, error) {
	if c.CA == "" && c.Cert == "" {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		text, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("read server.tls.ca: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("read server.tls.ca: %s holds no certificate", c.CA)
		}
	}
	if c.Cert != "" {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("read server.tls.cert and key: %w", err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}
