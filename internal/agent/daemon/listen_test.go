package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// served is a server with bounds until the test ends.
func served(t *testing.T, h http.Handler, b Bounds) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	ended := make(chan error, 1)
	go func() { ended <- Serve(s, l, nil, b) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func ask(t *testing.T, address string) (int, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+address+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Close = true
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// TestIdleConnectionsTakeNoDescriptors: 700 connections that send nothing, or only part of a
// header, occupy no more descriptors than the bound, and every other client is answered.
func TestIdleConnectionsTakeNoDescriptors(t *testing.T) {
	const most = 64
	address := served(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), Bounds{Connections: most})
	for i := range 700 {
		c := dial(t, address)
		if i%2 == 0 {
			fmt.Fprint(c, "GET / HTTP/1.1\r\nX-Slow: ")
		}
		if i%100 == 99 {
			if status, err := ask(t, address); err != nil || status != http.StatusOK {
				t.Fatalf("after %d: %d, %v", i, status, err)
			}
		}
	}
	// The kernel's table is not of one moment: connections that come and go meanwhile are both in it.
	quelltest.Until(t, "the server has no more connections than it may", func() bool { return serverSide(t, address) <= most+1 })
}

// serverSide counts the established connections of a local address that a process still has
// open (proc_net_tcp.rst: state 01; an orphan's inode is 0).
func serverSide(t *testing.T, address string) (n int) {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	var number int
	fmt.Sscan(port, &number)
	text, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) > 9 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", number)) && f[3] == "01" && f[9] != "0" {
			n++
		}
	}
	return n
}

// TestBusyConnectionsStay: a connection with a request in progress is not closed for another
// one; that one waits.
func TestBusyConnectionsStay(t *testing.T) {
	begun, goOn := make(chan struct{}, 10), make(chan struct{})
	address := served(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		select {
		case <-goOn:
		case <-r.Context().Done():
		}
	}), Bounds{Connections: 2})
	answers := make(chan error, 3)
	one := func() {
		status, err := ask(t, address)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d", status)
		}
		answers <- err
	}
	go one()
	go one()
	<-begun // before the third comes: a connection whose request is not there yet may be closed for it
	<-begun
	go one()
	quelltest.Until(t, "the server has accepted the third", func() bool { return serverSide(t, address) == 3 })
	if len(begun) != 0 {
		t.Error("more requests are in progress than connections are allowed")
	}
	close(goOn)
	for range 3 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
}

// TestBodiesThatDoNotCome: clients that announce a body and do not send it occupy no connection for the minute in
// which net/http waits for it, and one whose body has come is answered.
func TestBodiesThatDoNotCome(t *testing.T) {
	const most = 8
	address := served(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			_, _ = io.Copy(io.Discard, r.Body)
		}
	}), Bounds{Connections: most})
	for i := range 4 * most {
		fmt.Fprintf(dial(t, address), "%s / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n", []string{"GET", "POST"}[i%2])
	}
	client := &http.Client{Timeout: 30 * time.Second}
	for _, body := range []string{"", "0123456789"} {
		r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+address+"/", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatalf("%d bytes: %v", len(body), err)
		}
		resp.Body.Close()
	}
	client.CloseIdleConnections()
}

// TestStalledReaderIsDisconnected: the deadline of an answer ends a handler whose client does
// not read.
func TestStalledReaderIsDisconnected(t *testing.T) {
	ended := make(chan error, 1)
	address := served(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		block := make([]byte, 1<<20)
		for {
			if _, err := w.Write(block); err != nil {
				ended <- err
				return
			}
		}
	}), Bounds{Connections: 2, Answer: 1})
	fmt.Fprint(dial(t, address), "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("it ended with %v", err)
	}
}

// TestClosingEndsAWaitingAccept: a client that waits for room does not keep the listener.
func TestClosingEndsAWaitingAccept(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	begun := make(chan struct{})
	ctx, release := context.WithCancel(t.Context())
	s := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(begun)
		<-ctx.Done()
	})}
	ended := make(chan error, 1)
	go func() { ended <- Serve(s, l, nil, Bounds{Connections: 1}) }()
	fmt.Fprint(dial(t, l.Addr().String()), "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	<-begun
	dial(t, l.Addr().String())
	s.Close()
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
	release()
}

// TestARefusalCanBeRead: a client that sends more than is read can read the refusal
// before the connection is reset.
func TestARefusalCanBeRead(t *testing.T) {
	address := served(t, http.NotFoundHandler(), Bounds{Connections: 2})
	resp, err := http.Get("http://" + address + "/?" + strings.Repeat("a", 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge || len(text) == 0 {
		t.Errorf("%d %q, %v", resp.StatusCode, text, err)
	}
}

// TestSocketPeers: the server's own ConnContext sees the connection itself.
func TestSocketPeers(t *testing.T) {
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan bool, 1)
	s := &http.Server{Handler: http.NotFoundHandler(), ConnContext: func(ctx context.Context, c net.Conn) context.Context {
		_, ok := c.(*net.UnixConn)
		seen <- ok
		return ctx
	}}
	ended := make(chan error, 1)
	go func() { ended <- Serve(s, l, nil, Bounds{Connections: 1}) }()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if !<-seen {
		t.Error("it is wrapped")
	}
	s.Close()
	<-ended
}
