package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/agent/daemon"
	"github.com/quell-dev/quell/internal/cluster/bus/embedded"
	"github.com/quell-dev/quell/internal/cluster/evict"
	"github.com/quell-dev/quell/internal/cluster/notify"
	"github.com/quell-dev/quell/internal/cluster/otlp"
	"github.com/quell-dev/quell/internal/cluster/server"
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/digest"
	"github.com/quell-dev/quell/internal/cluster/store/duck"
	"github.com/quell-dev/quell/internal/cluster/store/s3"
	"github.com/quell-dev/quell/internal/cluster/store/spark"
	"github.com/quell-dev/quell/internal/format/atomicfile"
	"github.com/quell-dev/quell/internal/format/certificate"
	"github.com/quell-dev/quell/internal/people/dashboard"
)

// openStore opens the store in the state directory, or the one in a bucket with copies in
// the state directory.
func openStore(ctx context.Context, c *config.Server) (*store.Store, error) {
	// The directory may have been made by others, and be readable; what is in it is not.
	err := atomicfile.OwnDir(c.StateDir)
	for _, name := range []string{"store", "bus", "digests"} {
		if err == nil {
			err = atomicfile.PrivateDir(filepath.Join(c.StateDir, name))
		}
	}
	if err != nil {
		return nil, daemon.Usage(fmt.Errorf("state_dir: %w", err))
	}
	o := store.Options{Keep: keeping(c)}
	if c.Store.S3.Bucket != "" {
		b, err := openBucket(ctx, &c.Store.S3)
		if err != nil {
			return nil, err
		}
		o.Bucket, o.Copies = b, int64(c.Store.S3.CopiesMB)<<20
	}
	st, err := store.Open(storeDir(c), o)
	if errors.Is(err, store.ErrLocked) {
		return nil, lockedError{err}
	}
	return st, err
}

func openBucket(ctx context.Context, c *config.ServerS3) (*s3.Bucket, error) {
	return s3.Open(ctx, s3.Options{Bucket: c.Bucket, Prefix: c.Prefix, Endpoint: c.Endpoint, Region: c.Region})
}

// keeping is how long the store keeps the rows of each table. Revocations stay: one without an end holds
// until it is lifted, and the machine that it is about may go on with what it did.
func keeping(c *config.Server) map[string]time.Duration {
	keep := map[string]time.Duration{}
	for _, t := range store.Tables() {
		switch t {
		case store.Samples:
			keep[t] = c.Store.KeepSamples
		case store.Revocations:
		default:
			keep[t] = c.Store.KeepRecords
		}
	}
	return keep
}

// lockedError adds a remedy to the error that another server uses the store.
type lockedError struct{ error }

func (e lockedError) Unwrap() error { return e.error }

// Remedy implements daemon.Remedier.
func (lockedError) Remedy() string {
	return "stop the quell-server that uses this state_dir, or set another"
}

// run runs the server until SIGTERM or SIGINT.
func run(ctx context.Context, c *config.Server) (err error) {
	ctx, stop := daemon.UntilStopped(ctx)
	defer stop()
	log := daemon.Log(c.LogLevel, c.LogFormat)
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(c.MemoryMB) << 20)
	}
	pages, err := dashboard.New()
	if err != nil {
		return err
	}
	p := server.Options{Config: c, Version: version, Log: log, Pages: pages}
	if c.TokensFile != "" {
		if p.Tokens, err = server.LoadTokens(c.TokensFile); err != nil {
			return daemon.Usage(err)
		}
	}
	own, err := certificate.Open("tls", "", c.TLS.Cert, c.TLS.Key)
	if err != nil {
		return daemon.Usage(err)
	}
	if p.Store, err = openStore(ctx, c); err != nil {
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
	asker := duck.NewRunner(self, childCommand, dir)
	defer asker.Close()
	p.Asker = asker
	if c.Specs.Engine == "" {
		p.Learner = &digest.Learner{Dir: filepath.Join(c.StateDir, "digests"), Threads: c.Query.Threads}
	} else {
		p.Learner = &spark.Learner{Address: c.Specs.Engine, Token: os.Getenv("QUELL_SPARK_TOKEN")}
	}
	var s atomic.Pointer[server.Server]
	link, err := connect(ctx, c, own, log, func(r embedded.Refusal) {
		if s := s.Load(); s != nil {
			s.Refused(refusal(r))
		}
	})
	if err != nil {
		return err
	}
	p.Certificates = []*certificate.Files{own}
	var keep *keeper
	if link != nil {
		defer link.close()
		p.Certificates = append(p.Certificates, link.roots)
		keep = newKeeper(link, c, log, time.Now())
		p.Credentials, p.Backlog = keep.credentials, link.backlog
		p.Feeds, p.Publisher, p.Decider, p.Check = link.feeds, link.bus, link.bus, link.err
		if c.Store.S3.Bucket != "" { // several servers may share it
			p.Holder = link.bus
		}
	}
	results := notify.NewResults()
	notifier, err := notify.New(notify.Options{Config: c.Notify, Results: results, Log: log})
	if err != nil {
		return daemon.Usage(err)
	}
	if notifier != nil {
		p.Watchers = append(p.Watchers, notifier)
	}
	exporter, err := otlp.New(otlp.Options{Config: c.OTLP, Version: version, Results: results, Log: log})
	if err != nil {
		return daemon.Usage(err)
	}
	if exporter != nil {
		p.Watchers = append(p.Watchers, exporter)
	}
	p.Collectors = append(p.Collectors, results)
	evictor, err := evict.New(evict.Options{Config: c.Evict, Log: log})
	if err != nil {
		return daemon.Usage(err)
	}
	if evictor != nil {
		p.Watchers, p.Collectors = append(p.Watchers, evictor), append(p.Collectors, evictor)
	}
	made, err := server.New(p)
	if err != nil {
		return err
	}
	s.Store(made)
	var obeying sync.WaitGroup
	if notifier != nil {
		obeying.Go(func() { notifier.Run(ctx) })
	}
	if exporter != nil {
		obeying.Go(func() { exporter.Run(ctx, made.Gatherer()) })
	}
	if evictor != nil {
		obeying.Go(func() { evictor.Run(ctx, made.Acted) })
	}
	if keep != nil {
		obeying.Go(func() { keep.run(ctx) })
		obeying.Go(func() { keep.serve(ctx) })
		obeying.Go(func() {
			if err := link.bus.ServeSpecs(ctx); err != nil {
				log.Error("agents' questions for specs are not answered", "reason", err)
			}
		})
	}
	defer obeying.Wait() // ctx has ended by then, or the deferred stop ends it first
	defer stop()
	return serve(ctx, c, log, made, own.Server())
}

// refusal converts a refusal of the bus for the audit log.
func refusal(r embedded.Refusal) store.Audit {
	role, _, _ := strings.Cut(r.Client, ".")
	return store.Audit{Who: r.Client, From: r.From, Scope: role, What: "bus: " + r.Operation, Target: r.Subject, Outcome: r.Reason}
}

// serve runs the server and its listener, and stops both.
func serve(ctx context.Context, c *config.Server, log *slog.Logger, s *server.Server, secure *tls.Config) error {
	l, err := daemon.Listen("listen", c.Listen)
	if err != nil {
		return err
	}
	address := l.Addr().String() // the configured port may be 0
	web := &http.Server{Handler: s, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	var all sync.WaitGroup
	all.Go(func() {
		if err := daemon.Serve(web, l, secure, daemon.Bounds{Connections: c.Limits.Connections}); !errors.Is(err, http.ErrServerClosed) {
			log.Error("serve", "address", address, "reason", err)
		}
	})
	log.Info("quell-server runs", "version", version, "address", address, "tls", secure != nil, "tokens", c.TokensFile != "", "state", c.StateDir)
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
