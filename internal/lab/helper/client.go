package helper

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/machine/host"
)

// ClientOptions say how a client uses its connection. Lost is required.
type ClientOptions struct {
	// Prefix is the beginning of the helper's errors: "host h1: ".
	Prefix string
	// Self are placeholders in commands for the helper's own program.
	Self []string
	// Lost returns the error of all that waits for the helper when its connection ends with
	// err, after a silence.
	Lost func(err error, silent time.Duration) error
	// Close, if not nil, ends the connection.
	Close func()
}

// Client is the lab's side of a connection to a helper. It is safe for use by several
// goroutines.
type Client struct {
	opt    ClientOptions
	wire   *wire
	heard  atomic.Int64
	base   time.Time // reference for converting CLOCK_MONOTONIC to time.Time
	baseNS int64
	hello  chan struct{}
	gone   chan struct{}
	once   sync.Once

	mu      sync.Mutex
	why     error // set before gone is closed
	next    int   // request or process
	waiting map[int]chan frame
	procs   map[int]*Process
	machine string    // where the helper is
	watcher *observer // of the present run
	offset  int64     // this machine's clock minus the helper's, ns
	unsure  time.Duration
}

// Connect listens to a helper until the connection ends.
func Connect(from io.Reader, to io.Writer, o ClientOptions) *Client {
	c := &Client{opt: o, wire: newWire(from, to), hello: make(chan struct{}), gone: make(chan struct{}),
		waiting: map[int]chan frame{}, procs: map[int]*Process{}}
	c.base, c.baseNS = role.Instant()
	c.heard.Store(host.Monotonic())
	go c.listen()
	return c
}

// Hello is closed when the helper is up.
func (c *Client) Hello() <-chan struct{} { return c.hello }

// Machine tells the machine of a helper that is up from others, "" if nothing does.
func (c *Client) Machine() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine
}

// Gone is closed when the connection has ended.
func (c *Client) Gone() <-chan struct{} { return c.gone }

// Reason is why the connection has ended, nil before that.
func (c *Client) Reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.why
}

// Silent is the time since the last message of the helper.
func (c *Client) Silent() time.Duration { return time.Duration(host.Monotonic() - c.heard.Load()) }

// Disconnect ends the connection; the first reason counts.
func (c *Client) Disconnect(err error) {
	c.once.Do(func() {
		c.mu.Lock()
		c.why = err
		procs := c.procs
		c.procs = nil
		c.mu.Unlock()
		close(c.gone)
		for _, p := range procs {
			p.ended(err)
		}
		if c.opt.Close != nil {
			c.opt.Close()
		}
	})
}

// Beat sends a heartbeat, which the helper answers. It blocks on a broken connection as
// soon as that connection's buffers are full.
func (c *Client) Beat() error { return c.wire.send(frame{Op: "beat"}) }

// Bye asks the helper to end.
func (c *Client) Bye() error { return c.wire.send(frame{Op: "bye"}) }

func (c *Client) listen() {
	up := sync.OnceFunc(func() { close(c.hello) })
	for {
		f, err := c.wire.receive()
		if err != nil {
			c.Disconnect(c.opt.Lost(err, c.Silent()))
			return
		}
		c.heard.Store(host.Monotonic())
		c.mu.Lock()
		reply, p, w := c.waiting[f.ID], c.procs[f.Proc], c.watcher
		delete(c.waiting, f.ID)
		c.mu.Unlock()
		switch {
		case f.Op == "hello":
			c.mu.Lock()
			c.machine = f.Text
			c.mu.Unlock()
			up()
		case f.Op == "answer" && reply != nil:
			reply <- f
		case f.Op == "out" && p != nil:
			p.wrote(f.FD, f.Text)
		case f.Op == "exit" && p != nil:
			p.ended(f.Failed.with(c.opt.Prefix))
		case f.Op == "second" && w != nil && f.ID == 0 && f.NS == w.start:
			w.mu.Lock()
			w.seconds = append(w.seconds, f)
			w.mu.Unlock()
		}
	}
}

// call sends a request and waits for the answer.
func (c *Client) call(ctx context.Context, f frame) (frame, error) {
	reply := make(chan frame, 1)
	c.mu.Lock()
	if c.why != nil {
		c.mu.Unlock()
		return frame{}, c.Reason()
	}
	c.next++
	f.ID = c.next
	c.waiting[f.ID] = reply
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiting, f.ID)
		c.mu.Unlock()
	}()
	go func() { _ = c.wire.send(f) }() // a broken connection blocks it; listen detects that
	select {
	case a := <-reply:
		return a, a.Failed.with(c.opt.Prefix)
	case <-c.gone:
		return frame{}, c.Reason()
	case <-ctx.Done():
		return frame{}, fmt.Errorf("%s%s: %w", c.opt.Prefix, f.Op, ctx.Err())
	}
}

// Answers waits until a program at the helper listens on a port.
func (c *Client) Answers(ctx context.Context, port int) error {
	_, err := c.call(ctx, frame{Op: "listens", Port: port})
	return err
}

// pings is the number of round trips from which the best clock offset is taken.
const pings = 20

// MeasureClock measures the helper's clock. Half the round trip is the largest error of
// the offset.
func (c *Client) MeasureClock(ctx context.Context) error {
	best, least := int64(0), time.Duration(1<<62)
	for range pings {
		from := host.Monotonic()
		a, err := c.call(ctx, frame{Op: "ping"})
		to := host.Monotonic()
		if err != nil {
			return fmt.Errorf("compare clocks: %w", err)
		}
		if unsure := time.Duration(to-from+1) / 2; unsure < least {
			best, least = from+(to-from)/2-a.NS, unsure
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offset, c.unsure = best, least
	return nil
}

// Clock is how far the helper's CLOCK_MONOTONIC is behind this machine's, and the largest
// error of that.
func (c *Client) Clock() (offset, unsure time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.offset), c.unsure
}

// here converts an instant of the helper's clock.
func (c *Client) here(ns int64) time.Time {
	offset, _ := c.Clock()
	return c.base.Add(time.Duration(ns-c.baseNS) + offset)
}

// there converts an instant to the helper's clock.
func (c *Client) there(t time.Time) int64 {
	offset, _ := c.Clock()
	return c.baseNS + int64(t.Sub(c.base)-offset)
}
