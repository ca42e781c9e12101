package bus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/quell-dev/quell/internal/cluster/bus/credential"
)

// problem is why something does not work now; nil if it works.
type problem struct {
	mu  sync.Mutex
	err error
}

func (p *problem) set(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

func (p *problem) get() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// connection is a connection to an account of NATS. An epoch is the time between two
// reconnects.
type connection struct {
	account credential.Account

	nc *nats.Conn
	js jetstream.JetStream

	reason problem     // why there is no connection, or the server's last error
	up     atomic.Bool // there is one. NATS's client does not say so while it makes one: it holds its lock then

	mu   sync.Mutex
	made chan struct{} // closed when a new connection is made
}

func newLink(account credential.Account) *connection {
	return &connection{account: account, made: make(chan struct{})}
}

// connect starts to connect.
func (l *connection) connect(o *Options, handlers ...nats.Option) (err error) {
	// A connection can be made before it is stored in l.
	stored := make(chan struct{})
	defer close(stored)
	made := func(*nats.Conn) { <-stored; l.reconnected() }
	down := func(n *nats.Options) error {
		then := n.DisconnectedErrCB // of handlers
		n.DisconnectedErrCB = func(nc *nats.Conn, err error) {
			l.up.Store(false)
			if err != nil {
				l.reason.set(err)
			}
			if then != nil {
				then(nc, err)
			}
		}
		return nil
	}
	again := func(int) time.Duration {
		<-stored
		if err := l.nc.LastError(); err != nil { // of TLS or the login, of which no handler is told
			l.reason.set(err)
		}
		return o.delay()
	}
	if l.nc, err = o.connect(l.account, append(handlers, nats.ConnectHandler(made), nats.ReconnectHandler(made), nats.CustomReconnectDelay(again), down)...); err != nil {
		return err
	}
	if l.js, err = jetstream.New(l.nc); err != nil {
		l.nc.Close()
		return fmt.Errorf("open JetStream: %w", err)
	}
	return nil
}

// attemptTime is how long the look-up of the name and TCP may take in an attempt, and then TLS and login: as long
// as the server waits for a client. Of two resolvers Go asks the second one after 5 s.
const attemptTime = 6 * time.Second

// dial connects, and returns when there is a connection or ctx has ended.
func dial(ctx context.Context, o *Options, account credential.Account, handlers ...nats.Option) (*connection, error) {
	l := newLink(account)
	first := l.made
	if err := l.connect(o, handlers...); err != nil {
		return nil, err
	}
	select {
	case <-first:
		return l, nil
	case <-ctx.Done():
		l.nc.Close()
		return nil, fmt.Errorf("connect to %s as %s for %s: %w", o.URL, o.Name, account, errors.Join(ctx.Err(), l.nc.LastError()))
	}
}

// reconnected wakes the goroutines that wait for a connection.
func (l *connection) reconnected() {
	l.up.Store(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.made)
	l.made = make(chan struct{})
	l.reason.set(nil)
}

// err returns why there is no connection, nil if there is one. It waits for nothing.
func (l *connection) err() error {
	if l.up.Load() {
		return nil
	}
	return cmp.Or(l.reason.get(), ErrNotConnected)
}

// epoch returns the connection's own count of reconnects, which changes before any
// message can come over a new connection. Handlers are called some time after that.
func (l *connection) epoch() uint64 { return l.nc.Stats().Reconnects }

// changed returns a channel that is closed when the epoch changes or when this epoch's
// connection is made.
func (l *connection) changed(epoch uint64) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoch() != epoch {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	return l.made
}

// wait waits for d, or until the epoch changes.
func (l *connection) wait(ctx context.Context, epoch uint64, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-l.changed(epoch):
	}
}

// ask returns when the server has answered.
func (l *connection) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ackWait)
	defer cancel()
	return l.nc.FlushWithContext(ctx)
}

// deliver sends a message and returns when the server has stored it, with the number of bytes that
// the next delivery of several messages may have; 0: one message only.
func (l *connection) deliver(ctx context.Context, subject string, message []byte) (room int, err error) {
	if !l.nc.IsConnected() {
		return 0, ErrNotConnected
	}
	got, err := l.nc.RequestWithContext(ctx, subject, message)
	if errors.Is(err, nats.ErrNoResponders) {
		err = errors.New("no quell-server receives messages now")
	}
	var a answer
	if err == nil {
		err = json.Unmarshal(got.Data, &a)
	}
	switch {
	case err != nil:
	case a.Error != nil:
		err = errors.New(a.Error.Description)
	case a.Stream == "":
		err = errors.New("the answer is not quell-server's")
	}
	if err != nil {
		return 0, fmt.Errorf("send to %s: %w", subject, err)
	}
	return int(min(max(a.Room, 0), mostRoom)), nil
}

// maxPayload is the server's message size limit; unlimited before the first connection.
func (l *connection) maxPayload() int64 {
	if n := l.nc.MaxPayload(); n > 0 {
		return n
	}
	return 1 << 62
}
