package main

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestConnectionsAreLimited: there are never more connections than the limit. A closed
// one releases its place, and closing the listener ends a waiting Accept.
func TestConnectionsAreLimited(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := limit(inner.(*net.TCPListener), 2)
	taken, ended := make(chan net.Conn, 10), make(chan error, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				ended <- err
				return
			}
			taken <- c
		}
	}()
	for range 3 {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	first, second := <-taken, <-taken
	defer second.Close()
	quelltest.Until(t, "the third waits for room", func() bool { return len(l.room) == 2 && len(taken) == 0 })
	first.Close()
	first.Close() // releases its place once
	third := <-taken
	defer third.Close()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("it takes connections after its end")
	}
}

// TestARefusalCanBeRead: a client that sends more than is read can read the refusal
// before the connection is reset.
func TestARefusalCanBeRead(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Server{Handler: http.NotFoundHandler(), MaxHeaderBytes: 1 << 10}
	ended := make(chan error, 1)
	go func() { ended <- web.Serve(limit(inner.(*net.TCPListener), 2)) }()
	defer func() {
		web.Close()
		<-ended
	}()
	resp, err := http.Get("http://" + inner.Addr().String() + "/?" + strings.Repeat("a", 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge || len(text) == 0 {
		t.Errorf("%d %q, %v", resp.StatusCode, text, err)
	}
}
