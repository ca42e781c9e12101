package main

import (
	"net"
	"sync"
)

// limited is a listener with a maximum number of connections. Further clients wait in the
// kernel's queue.
type limited struct {
	*net.TCPListener
	room  chan struct{}
	ended chan struct{}
	once  sync.Once
}

func limit(l *net.TCPListener, connections int) *limited {
	return &limited{TCPListener: l, room: make(chan struct{}, connections), ended: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.room <- struct{}{}:
	case <-l.ended:
		return nil, net.ErrClosed
	}
	c, err := l.AcceptTCP()
	if err != nil {
		<-l.room
		return nil, err
	}
	return &counted{TCPConn: c, leave: sync.OnceFunc(func() { <-l.room })}, nil
}

// Close implements net.Listener.
func (l *limited) Close() error {
	l.once.Do(func() { close(l.ended) })
	return l.TCPListener.Close()
}

// counted is a connection that releases its place when it is closed. It has CloseWrite, by
// which net/http lets its answer be read before it closes a connection with unread data.
type counted struct {
	*net.TCPConn
	leave func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.leave()
	return c.TCPConn.Close()
}
