// Package embedded is a NATS server with JetStream inside quell-server, for installations
// without their own. It is a separate package because the agent must never link it.
package embedded

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
)

// Options of a server. Dir is required.
type Options struct {
	Dir string // directory of the buckets
	// Listen is HOST:PORT for agents and tools; port 0: any; empty: only this
	// process can connect.
	Listen string
	// TLS is the configuration of the listeners; nil: plain text, for loopback.
	TLS *tls.Config
	// SyncAlways fsyncs each write to a bucket before it is acknowledged. Otherwise buckets are
	// fsynced every second.
	SyncAlways bool
	// Connections is the maximum number of connections, so that clients leave the process
	// its file descriptors; 0: NATS's default.
	Connections int
	// Pending is how many bytes may wait for one client before NATS closes its connection; at
	// least NATS's default, 64 MB. All that agents send waits for one client of this process.
	Pending int64
	Log     *slog.Logger
	// Refused is called with each operation that was refused to a client, in a separate
	// goroutine; nil: refusals are not reported.
	Refused func(Refusal)
}

// maxConnections bounds the clients: NATS's default of 65,536 for each of an agent's
// connections.
const maxConnections = 3 << 16

// Server is a NATS server in this process.
type Server struct {
	*server.Server
	trust   authority.Trust
	watcher *watcher // nil: refusals are not reported
	refused func(Refusal)
	most    int           // connections
	looked  atomic.Uint64 // connections that had been made when Shed looked at them
	ended   chan struct{} // closed by Close
	running sync.WaitGroup
}

// startWait is how long a server may take to be ready: it reads its buckets first.
const startWait = time.Minute

// Start starts a server that accepts clients with credentials of the authority, and
// returns when it accepts connections.
func Start(o Options, t authority.Trust) (*Server, error) {
	opts, err := o.server(t)
	if err != nil {
		return nil, err
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	e := &Server{Server: s, trust: t, refused: o.Refused, most: opts.MaxConn, ended: make(chan struct{})}
	if e.refused == nil {
		e.refused = func(Refusal) {}
	}
	if o.Refused != nil {
		e.watcher = watch(s, t, o.Refused)
	}
	s.SetLoggerV2(logger{cmp.Or(o.Log, slog.New(slog.DiscardHandler)), e.watcher}, false, false, false)
	s.Start()
	if !s.ReadyForConnections(startWait) {
		e.Close()
		return nil, errors.New("start NATS: it is not ready after a minute; its log says why")
	}
	e.running.Go(e.watchConnections)
	return e, nil
}

func (o *Options) server(t authority.Trust) (*server.Options, error) {
	operator, err := jwt.DecodeOperatorClaims(t.Operator)
	if err != nil {
		return nil, fmt.Errorf("start NATS: read the operator's JWT: %w", err)
	}
	resolver := &server.MemAccResolver{}
	for key, token := range t.JWTs {
		if err := resolver.Store(key, token); err != nil {
			return nil, fmt.Errorf("start NATS: %w", err)
		}
	}
	opts := &server.Options{
		JetStream: true, StoreDir: o.Dir, DontListen: o.Listen == "",
		SyncInterval: time.Second, SyncAlways: o.SyncAlways,
		TrustedOperators: []*jwt.OperatorClaims{operator}, SystemAccount: t.System, AccountResolver: resolver,
		NoSigs: true, TLSConfig: o.TLS, TLSTimeout: 5, MaxPayload: 1 << 20, MaxConn: cmp.Or(o.Connections, maxConnections),
		MaxPending: max(o.Pending, server.MAX_PENDING_SIZE),
		// In plain text a client has as long to prove who it is as with TLS, by NATS's default not
		// half of that: agents run on machines that are short of CPU.
		AuthTimeout: 6,
		// The cache maps subjects to subscribers. Each answer has its own subject, which would
		// evict the useful entries.
		NoSublistCache: true,
	}
	if o.Listen != "" {
		if opts.Host, opts.Port, err = split(o.Listen); err != nil {
			return nil, err
		}
	}
	return opts, nil
}

// split parses HOST:PORT for nats-server, in which port 0 means its default port and −1
// any port.
func split(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err == nil {
		port, err = strconv.Atoi(text)
	}
	if err != nil {
		return "", 0, fmt.Errorf("listen on %q: want HOST:PORT: %w", address, err)
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	return host, port, nil
}

// URL is where agents connect to.
func (s *Server) URL() string { return s.ClientURL() }

// Close stops the server. All that it acknowledged is on disk.
func (s *Server) Close() {
	close(s.ended)
	s.running.Wait()
	s.Shutdown()
	s.WaitForShutdown()
	if s.watcher != nil {
		s.watcher.close()
	}
}

// logger receives the log of NATS.
type logger struct {
	log     *slog.Logger
	watcher *watcher
}

func (l logger) Noticef(format string, v ...any) { l.log.Debug("nats: " + fmt.Sprintf(format, v...)) }
func (l logger) Warnf(format string, v ...any)   { l.log.Warn("nats: " + fmt.Sprintf(format, v...)) }
func (l logger) Fatalf(format string, v ...any)  { l.log.Error("nats: " + fmt.Sprintf(format, v...)) }
func (l logger) Errorf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	if l.watcher != nil && l.watcher.line(text) {
		l.log.Debug("nats: " + text) // no fault of the server; it tells of it, however often it happens
		return
	}
	l.log.Error("nats: " + text)
}
func (l logger) Debugf(string, ...any) {}
func (l logger) Tracef(string, ...any) {}
