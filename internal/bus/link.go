package bus

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// link is the connection as queues see it. What came over one connection, made
// once, is an epoch.
type link struct {
	nc *nats.Conn

	mu     sync.Mutex
	made   chan struct{} // closed when it is made anew
	reason error         // why it is not there, or what the server last complained of
}

func newLink() *link { return &link{made: make(chan struct{})} }

// renewed wakes those that wait for a connection.
func (l *link) renewed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.made)
	l.made, l.reason = make(chan struct{}), nil
}

func (l *link) complain(err error) {
	if err == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reason = err
}

// err is why there is no connection, nil if there is one.
func (l *link) err() error {
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

func (l *link) conn() *nats.Conn { return l.nc }

// epoch is the connection's own count, which is another before any message can
// come over a new one: handlers are called some time after that.
func (l *link) epoch() uint64 { return l.nc.Stats().Reconnects }

// changed returns what is closed once the epoch is another, or the connection
// of this one is made.
func (l *link) changed(epoch uint64) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoch() != epoch {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	return l.made
}

// wait waits so long, or until the epoch is another.
func (l *link) wait(ctx context.Context, epoch uint64, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-l.changed(epoch):
	}
}

// ask returns when the server has answered.
func (l *link) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ackWait)
	defer cancel()
	return l.nc.FlushWithContext(ctx)
}

// maxPayload is what the server takes; before the first connection, anything.
func (l *link) maxPayload() int64 {
	if n := l.nc.MaxPayload(); n > 0 {
		return n
	}
	return 1 << 62
}
