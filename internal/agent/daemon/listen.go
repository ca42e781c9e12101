package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// Listen opens a TCP address. The error names the setting that it comes from and is a *ListenError.
func Listen(setting, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, Usage(&ListenError{setting, address, err})
	}
	return l, nil
}

// ListenError is an address that cannot be listened at.
type ListenError struct {
	Setting, Address string
	Err              error
}

func (e *ListenError) Error() string { return fmt.Sprintf("%s %s: %v", e.Setting, e.Address, e.Err) }

func (e *ListenError) Unwrap() error { return e.Err }

// Remedy implements Remedier.
func (e *ListenError) Remedy() string {
	_, port, _ := net.SplitHostPort(e.Address)
	switch {
	case errors.Is(e.Err, syscall.EADDRINUSE):
		return fmt.Sprintf("another program listens there (`ss -ltnp 'sport = :%s'` names it): end it, or set %s to another port; 0 is any free one", port, e.Setting)
	case errors.Is(e.Err, syscall.EADDRNOTAVAIL):
		return "no interface of this machine has that address; `ip address` lists those it has"
	case errors.Is(e.Err, syscall.EACCES):
		return "a port below 1024 needs root or CAP_NET_BIND_SERVICE; set " + e.Setting + " to a higher one"
	}
	return "set " + e.Setting + " to an address such as 127.0.0.1:9782"
}

// Bounds limit what the clients of a listener can occupy.
type Bounds struct {
	// Connections is the maximum number of connections. For a further one, the connection
	// that has been without a request in progress for the longest time is closed. If all have
	// one, or are so new that it may be on its way, further clients wait.
	Connections int
	// Answer is the time to write an answer, from the end of its request's header; 0: handlers
	// set the deadlines themselves.
	Answer time.Duration
}

// Serve is s.Serve with bounds, and with limits on the time to read a request and between two
// requests. With a configuration of TLS it speaks only that.
func Serve(s *http.Server, l net.Listener, t *tls.Config, b Bounds) error {
	room := &room{Listener: l, most: b.Connections, all: map[*bounded]bool{}}
	room.changed = sync.NewCond(&room.mu)
	s.ReadHeaderTimeout, s.ReadTimeout, s.IdleTimeout, s.WriteTimeout = 10*time.Second, time.Minute, 2*time.Minute, b.Answer
	s.MaxHeaderBytes = 64 << 10
	next, before := s.Handler, s.ConnContext
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		own := boundedOf(c)
		if before != nil {
			ctx = before(ctx, own.Conn)
		}
		return context.WithValue(ctx, boundedKey{}, own)
	}
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := func() { room.begin(r.Context().Value(boundedKey{}).(*bounded)) }
		if r.Body == http.NoBody {
			begin()
		} else {
			r.Body = &incoming{r.Body, begin}
		}
		next.ServeHTTP(w, r)
	})
	// Much of what a handler writes is sent after its end.
	s.ConnState = func(c net.Conn, state http.ConnState) {
		if state == http.StateIdle {
			room.end(boundedOf(c))
		}
	}
	var out net.Listener = room
	if t != nil {
		out = tls.NewListener(out, t)
	}
	return s.Serve(out)
}

// incoming is the body of a request, which is in progress from the body's end on: a client that announces one and
// does not send it has nothing to lose. net/http waits for it also where the handler does not read it.
type incoming struct {
	io.ReadCloser
	ended func()
}

// Read implements io.Reader.
func (b *incoming) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.ended()
	}
	return n, err
}

type boundedKey struct{}

// boundedOf is the connection of a room that net/http sees as c.
func boundedOf(c net.Conn) *bounded {
	if over, ok := c.(*tls.Conn); ok {
		c = over.NetConn()
	}
	return c.(*bounded)
}

// room is a listener with a maximum number of connections.
type room struct {
	net.Listener
	most int

	mu      sync.Mutex
	changed *sync.Cond
	all     map[*bounded]bool
	closed  bool
}

// firstRequest is the time that a new connection has to send a request before it may be closed for another one.
const firstRequest = 250 * time.Millisecond

// bounded is a connection of a room. It has CloseWrite, by which net/http lets its answer be
// read before it closes a connection with unread data.
type bounded struct {
	net.Conn
	room *room
	// Under room.mu:
	busy  bool      // a request is in progress
	since time.Time // from when on it counts as idle
}

// Accept implements net.Listener.
func (r *room) Accept() (net.Conn, error) {
	inner, err := r.Listener.Accept()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.all) >= r.most && !r.closed {
		idle := r.longestIdle()
		if idle == nil {
			r.changed.Wait()
			continue
		}
		if left := time.Until(idle.since); left > 0 {
			later := time.AfterFunc(left, r.changed.Broadcast)
			r.changed.Wait()
			later.Stop()
			continue
		}
		delete(r.all, idle)
		_ = idle.Conn.Close() // its client has nothing to lose
	}
	if r.closed {
		_ = inner.Close()
		return nil, net.ErrClosed
	}
	c := &bounded{Conn: inner, room: r, since: time.Now().Add(firstRequest)}
	r.all[c] = true
	return c, nil
}

// longestIdle returns the connection that has been without a request for the longest time; nil if all have one.
func (r *room) longestIdle() (idle *bounded) {
	for c := range r.all {
		if !c.busy && (idle == nil || c.since.Before(idle.since)) {
			idle = c
		}
	}
	return idle
}

func (r *room) begin(c *bounded) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.busy = true
}

func (r *room) end(c *bounded) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.busy, c.since = false, time.Now()
	r.changed.Signal()
}

// Close implements net.Listener.
func (r *room) Close() error {
	r.mu.Lock()
	r.closed = true
	r.changed.Broadcast()
	r.mu.Unlock()
	return r.Listener.Close()
}

// Close implements net.Conn.
func (c *bounded) Close() error {
	c.room.mu.Lock()
	delete(c.room.all, c)
	c.room.changed.Signal()
	c.room.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite closes the connection's sending side.
func (c *bounded) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
