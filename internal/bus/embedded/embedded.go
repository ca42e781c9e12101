// Package embedded is a NATS server with JetStream inside quell-server, for
// those who run none. It is a package of its own because the agent must never
// link it.
package embedded

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/quell-dev/quell/internal/bus/authority"
)

// Options of a server. Dir is required.
type Options struct {
	Dir string // streams and bucket live here
	// Listen is HOST:PORT for agents and tools; port 0: any; empty: only this
	// process can connect.
	Listen string
	// TLS is what listeners speak; nil: plain text, for loopback.
	TLS *tls.Config
	// Name must differ in a cluster; empty: made up.
	Name    string
	Cluster *Cluster // nil: alone
	// SyncEvery is how often streams are fsynced; 0: every second. Agents keep
	// what was acknowledged for ten.
	SyncEvery time.Duration
	// SyncAlways fsyncs before each acknowledgement instead.
	SyncAlways bool
	MaxBytes   int64 // of all streams on disk; 0: most of what is free
	Log        *slog.Logger
	// Refused is told of what clients were not let do, in a goroutine of its
	// own; nil: nobody is.
	Refused func(Refusal)
}

// Cluster is a server's part of several that hold the same streams.
type Cluster struct {
	Name   string
	Listen string   // HOST:PORT for the other servers
	Peers  []string // theirs
	// Secret is what they know each other by; all have the same.
	Secret string
	TLS    *tls.Config
}

// Server is a NATS server in this process.
type Server struct {
	*server.Server
	trust   authority.Trust
	watcher *watcher // nil: nobody is told of refusals
}

// startWait is how long a server may take to be ready: it reads its streams.
const startWait = time.Minute

// Start starts a server that lets in whom the authority has given credentials,
// and returns when it takes connections.
func Start(o Options, t authority.Trust) (*Server, error) {
	opts, err := o.server(t)
	if err != nil {
		return nil, err
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	e := &Server{Server: s, trust: t}
	if o.Refused != nil {
		e.watcher = watch(s, t, o.Refused)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s.SetLoggerV2(logger{o.Log, e.watcher}, false, false, false)
	s.Start()
	if !s.ReadyForConnections(startWait) {
		e.Close()
		return nil, errors.New("start NATS: it is not ready after a minute; its log says why")
	}
	return e, nil
}

func (o *Options) server(t authority.Trust) (*server.Options, error) {
	operator, err := jwt.DecodeOperatorClaims(t.Operator)
	if err != nil {
		return nil, fmt.Errorf("start NATS: read the operator's JWT: %w", err)
	}
	resolver := &server.MemAccResolver{}
	for key, token := range map[string]string{t.Account: t.AccountJWT, t.System: t.SystemJWT} {
		if err := resolver.Store(key, token); err != nil {
			return nil, fmt.Errorf("start NATS: %w", err)
		}
	}
	opts := &server.Options{
		ServerName: o.Name, JetStream: true, StoreDir: o.Dir, DontListen: o.Listen == "",
		SyncInterval: time.Second, SyncAlways: o.SyncAlways, JetStreamMaxStore: o.MaxBytes,
		TrustedOperators: []*jwt.OperatorClaims{operator}, SystemAccount: t.System, AccountResolver: resolver,
		NoSigs: true, TLSConfig: o.TLS, TLSTimeout: 5, MaxPayload: 1 << 20,
		// Of who listens to a subject. Each acknowledgement has a subject of its own,
		// which would push out what another left there.
		NoSublistCache: true,
	}
	if o.SyncEvery != 0 {
		opts.SyncInterval = o.SyncEvery
	}
	if o.Listen != "" {
		if opts.Host, opts.Port, err = split(o.Listen); err != nil {
			return nil, err
		}
	}
	if c := o.Cluster; c != nil {
		opts.Cluster = server.ClusterOpts{Name: c.Name, Username: "quell", Password: c.Secret, TLSConfig: c.TLS, TLSTimeout: 5}
		if opts.Cluster.Host, opts.Cluster.Port, err = split(c.Listen); err != nil {
			return nil, err
		}
		for _, peer := range c.Peers {
			opts.Routes = append(opts.Routes, &url.URL{Scheme: "nats-route", User: url.UserPassword("quell", c.Secret), Host: peer})
		}
	}
	return opts, nil
}

// split reads HOST:PORT as nats-server wants it, where a port of 0 means its
// default one and −1 any.
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

// Close stops the server; what it acknowledged is on disk.
func (s *Server) Close() {
	s.Shutdown()
	s.WaitForShutdown()
	if s.watcher != nil {
		s.watcher.close()
	}
}

// logger takes what NATS has to say.
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
		l.log.Warn("nats: " + text) // no fault of the server's
		return
	}
	l.log.Error("nats: " + text)
}
func (l logger) Debugf(string, ...any) {}
func (l logger) Tracef(string, ...any) {}
