package bus

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// connection is the connection as queues see it. An epoch is the time between two reconnects.
type connection struct {
	nc *nats.Conn

	mu     sync.Mutex
	made   chan struct{} // closed when a new connection is made
	reason error         // why there is no connection, or the server's last error
}

func newLink() *connection { return &connection{made: make(chan struct{})} }

// reconnected wakes the goroutines that wait for a connection.
func (l *connection) reconnected() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.made)
	l.made, l.reason = make(chan struct{}), nil
}

func (l *connection) setErr(err error) {
	if err == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reason = err
}

// err returns why there is no connection, nil if there is one.
func (l *connection) err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.nc.IsConnected():
		return nil
	case l.reason != nil:
		return l.reason
	}
	return ErrNotConnected
}

func (l *connection) conn() *nats.Conn { return l.nc }

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

// maxPayload is the server's message size limit; unlimited before the first connection.
func (l *connection) maxPayload() int64 {
	if n := l.nc.MaxPayload(); n > 0 {
		return n
	}
	return 1 << 62
}
