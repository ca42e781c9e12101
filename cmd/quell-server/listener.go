package main

import (
	"net"
	"sync"
)

// limited is a listener with a maximum number of connections. Further clients wait in the
// kernel's queue.
type limited struct {
	net.Listener
	room  chan struct{}
	ended chan struct{}
	once  sync.Once
}

func limit(l net.Listener, connections int) *limited {
	return &limited{Listener: l, room: make(chan struct{}, connections), ended: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.room <- struct{}{}:
	case <-l.ended:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.room
		return nil, err
	}
	return &counted{Conn: c, leave: sync.OnceFunc(func() { <-l.room })}, nil
}

// Close implements net.Listener.
func (l *limited) Close() error {
	l.once.Do(func() { close(l.ended) })
	return l.Listener.Close()
}

// counted is a connection that releases its place when it is closed.
type counted struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// CloseWrite shuts down the sending direction. net/http does so before it closes a
// connection with unread data, so that its answer is read before the reset.
func (c *counted) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}
