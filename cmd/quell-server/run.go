package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/quell-dev/quell/internal/config"
	"github.com/quell-dev/quell/internal/server"
	"github.com/quell-dev/quell/internal/store"
	"github.com/quell-dev/quell/internal/store/duck"
)

func logger(c *config.Server) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		level = slog.LevelInfo // Validate has ruled that out
	}
	o := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, o))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, o))
}

func openStore(c *config.Server) (*store.Store, error) {
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		return nil, usageError{fmt.Errorf("make state directory: %w", err)}
	}
	keep := map[string]time.Duration{store.Samples: c.Store.KeepSamples}
	for _, t := range store.Tables() {
		if t != store.Samples {
			keep[t] = c.Store.KeepRecords
		}
	}
	return store.Open(storeDir(c), store.Options{Keep: keep})
}

// run is the server, until SIGTERM or SIGINT.
func run(ctx context.Context, c *config.Server) (err error) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	log := logger(c)
	p := server.Parts{Config: c, Version: version, Log: log}
	if c.TokensFile != "" {
		if p.Tokens, err = server.LoadTokens(c.TokensFile); err != nil {
			return usageError{err}
		}
	}
	certificate, err := loadCertificate(c)
	if err != nil {
		return usageError{err}
	}
	if p.Store, err = openStore(c); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Store.Close()) }()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(storeDir(c))
	if err != nil {
		return err
	}
	p.Asker = duck.NewRunner(c.Query.AtOnce, self, childCommand, dir)
	link, err := connect(ctx, c, log)
	if err != nil {
		return err
	}
	if link != nil {
		defer link.close()
		p.Feeds, p.Publisher, p.Commander = link.feeds, link.bus, link.bus
	}
	s, err := server.New(p)
	if err != nil {
		return err
	}
	return serve(ctx, c, log, s, certificate)
}

func loadCertificate(c *config.Server) (*tls.Config, error) {
	if c.TLS.Cert == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(c.TLS.Cert, c.TLS.Key)
	if err != nil {
		return nil, fmt.Errorf("load certificate: %w", err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, nil
}

// serve runs the server with its listener, and ends both.
func serve(ctx context.Context, c *config.Server, log *slog.Logger, s *server.Server, certificate *tls.Config) error {
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return usageError{fmt.Errorf("listen: %w", err)}
	}
	address := l.Addr().String() // the port asked for may be 0
	if certificate != nil {
		l = tls.NewListener(l, certificate)
	}
	web := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	var all sync.WaitGroup
	all.Go(func() {
		if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("serve", "address", address, "reason", err)
		}
	})
	log.Info("quell-server runs", "version", version, "address", address, "tls", certificate != nil, "tokens", c.TokensFile != "", "state", c.StateDir)
	err = s.Run(ctx)
	shut, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if web.Shutdown(shut) != nil {
		web.Close()
	}
	all.Wait()
	log.Info("quell-server stops")
	return err
}
