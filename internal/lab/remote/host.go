package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
)

// Options say how hosts are used. Helper and Words are required.
type Options struct {
	// Helper is the static program that is pushed. Words are the arguments that make it
	// call Serve; the lease is appended to them.
	Helper string
	Words  []string
	// Self are placeholders in commands for that program.
	Self []string
	// Lease is how long what runs on a host outlives the lab; 0: 10 s.
	Lease time.Duration
}

// LostError is a host that no longer answers. What runs there ends within its lease.
type LostError struct {
	Host   string
	Silent time.Duration // the silence at the time of detection
	Lease  time.Duration
	Err    error // what ended the connection, may be nil
}

func (e *LostError) Error() string {
	text := fmt.Sprintf("host %s is lost: no message for %s; its processes are stopped within the lease of %s", e.Host, e.Silent.Round(10*time.Millisecond), e.Lease)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *LostError) Unwrap() error { return e.Err }

// LostHost returns the name of the host, for the lab's engine.
func (e *LostError) LostHost() string { return e.Host }

// Host is a host with a helper on it. It is safe for use by several goroutines.
type Host struct {
	Name  string
	Facts Facts

	opt     Options
	closers []func() error
	wire    *wire
	stderr  tail
	heard   atomic.Int64
	base    time.Time // reference for converting CLOCK_MONOTONIC to time.Time
	baseNS  int64
	hello   chan struct{}
	gone    chan struct{} // closed when the host is lost or closed
	once    sync.Once
	closing atomic.Bool

	mu      sync.Mutex
	why     error // set before gone is closed
	next    int
	waiting map[int]chan frame
	procs   map[int]*Process
	early   map[int][]frame // of processes whose start is not yet answered
	offset  int64           // this machine's clock minus the host's, ns
	unsure  time.Duration
}

// Dial connects to a host of the inventory, pushes the helper and starts it.
// Errors: *KeyError.
func Dial(ctx context.Context, inv *Inventory, name string, o Options) (_ *Host, err error) {
	s := inv.Lookup(name)
	if s == nil {
		return nil, fmt.Errorf("unknown host %q: not in the inventory", name)
	}
	o.Lease = cmp.Or(o.Lease, 10*time.Second)
	if o.Lease < LeastLease {
		return nil, fmt.Errorf("host %s: lease %s: want %s or more", name, o.Lease, LeastLease)
	}
	client, closers, err := connect(ctx, inv, s)
	if err != nil {
		return nil, err
	}
	h := &Host{Name: name, opt: o, closers: append(closers, client.Close), hello: make(chan struct{}), gone: make(chan struct{}),
		base: time.Now(), baseNS: monotonic(), waiting: map[int]chan frame{}, procs: map[int]*Process{}, early: map[int][]frame{}}
	defer func() {
		if err != nil {
			h.disconnect(err)
		}
	}()
	stop := context.AfterFunc(ctx, func() { h.disconnect(ctx.Err()) })
	defer stop()
	path, facts, err := push(client, name, o.Helper)
	if err != nil {
		return nil, err
	}
	h.Facts = facts
	if err := h.serve(client, s, path); err != nil {
		return nil, err
	}
	select {
	case <-h.hello:
	case <-h.gone:
		return nil, fmt.Errorf("start the helper on host %s: %w: its stderr: %q", name, h.reason(), h.stderr.String())
	}
	return h, h.measureClock(ctx)
}

// serve starts the helper and the goroutines that read from it and send beats.
func (h *Host) serve(client *ssh.Client, s *HostConfig, path string) error {
	session, err := client.NewSession()
	if err != nil {
		return fmt.Errorf("start the helper on host %s: %w", h.Name, err)
	}
	in, err := session.StdinPipe()
	if err != nil {
		return err
	}
	out, err := session.StdoutPipe()
	if err != nil {
		return err
	}
	session.Stderr = &h.stderr
	words := []string{quote(path)}
	if s.Sudo {
		words = []string{"sudo", "-n", quote(path)}
	}
	for _, w := range append(slices.Clone(h.opt.Words), h.opt.Lease.String()) {
		words = append(words, quote(w))
	}
	if err := session.Start("exec " + strings.Join(words, " ")); err != nil {
		return fmt.Errorf("start the helper on host %s: %w", h.Name, err)
	}
	h.wire = newWire(out, in)
	h.heard.Store(monotonic())
	go h.listen()
	go h.beat()
	return nil
}

// tail keeps the last bytes written.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-4096):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}

// disconnect ends the connection; the first reason counts.
func (h *Host) disconnect(err error) {
	h.once.Do(func() {
		h.mu.Lock()
		h.why = err
		procs := h.procs
		h.procs = nil
		h.mu.Unlock()
		close(h.gone)
		for _, p := range procs {
			p.Ended(err)
		}
		for _, c := range slices.Backward(h.closers) {
			_ = c() // the connection is lost, an error does not matter
		}
	})
}

func (h *Host) reason() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.why
}

// Err is a *LostError, or nil while the host is connected or after Close.
func (h *Host) Err() error {
	if err := h.reason(); !errors.Is(err, errClosed) {
		return err
	}
	return nil
}

var errClosed = errors.New("the host was closed")

// beat sends heartbeats and checks for the host's.
func (h *Host) beat() {
	sending := make(chan struct{}, 1)
	tick := time.NewTicker(h.opt.Lease / 10)
	defer tick.Stop()
	for {
		select {
		case <-h.gone:
			return
		case <-tick.C:
		}
		limit := h.opt.Lease / 2
		select {
		case <-h.hello:
		default:
			limit = max(limit, patience) // the helper is still starting
		}
		if silent := time.Duration(monotonic() - h.heard.Load()); silent > limit {
			h.disconnect(&LostError{Host: h.Name, Silent: silent, Lease: h.opt.Lease})
			return
		}
		// A broken connection accepts what its buffers hold and then blocks.
		select {
		case sending <- struct{}{}:
			go func() {
				_ = h.wire.send(frame{Op: "beat"}) // listen detects errors
				<-sending
			}()
		default:
		}
	}
}

func (h *Host) listen() {
	up := sync.OnceFunc(func() { close(h.hello) })
	for {
		f, err := h.wire.receive()
		if err != nil {
			if h.closing.Load() {
				h.disconnect(errClosed)
			}
			h.disconnect(&LostError{Host: h.Name, Silent: time.Duration(monotonic() - h.heard.Load()), Lease: h.opt.Lease, Err: unexpected(err)})
			return
		}
		h.heard.Store(monotonic())
		switch f.Op {
		case "hello":
			up()
		case "answer":
			h.mu.Lock()
			reply := h.waiting[f.ID]
			delete(h.waiting, f.ID)
			h.mu.Unlock()
			if reply != nil {
				reply <- f
			}
		case "out", "exit":
			h.mu.Lock()
			p := h.procs[f.Proc]
			if p == nil {
				h.early[f.Proc] = append(h.early[f.Proc], f)
			}
			h.mu.Unlock()
			if p != nil {
				p.said(f)
			}
		}
	}
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the helper exited")
	}
	return err
}

// call sends a request and waits for the answer.
func (h *Host) call(ctx context.Context, f frame) (frame, error) {
	reply := make(chan frame, 1)
	h.mu.Lock()
	if h.why != nil {
		h.mu.Unlock()
		return frame{}, h.reason()
	}
	h.next++
	f.ID = h.next
	h.waiting[f.ID] = reply
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.waiting, f.ID)
		h.mu.Unlock()
	}()
	go func() { _ = h.wire.send(f) }() // a broken connection blocks it; listen and beat detect that
	select {
	case a := <-reply:
		return a, a.Failed.on(h.Name)
	case <-h.gone:
		return frame{}, h.reason()
	case <-ctx.Done():
		return frame{}, fmt.Errorf("host %s: %s: %w", h.Name, f.Op, ctx.Err())
	}
}

// pings is the number of round trips from which the best clock offset is taken.
const pings = 20

// measureClock measures the host's clock. Half the round trip is the largest error of the
// offset.
func (h *Host) measureClock(ctx context.Context) error {
	best, least := int64(0), time.Duration(1<<62)
	for range pings {
		from := monotonic()
		a, err := h.call(ctx, frame{Op: "ping"})
		to := monotonic()
		if err != nil {
			return fmt.Errorf("compare clocks: %w", err)
		}
		if unsure := time.Duration(to-from+1) / 2; unsure < least {
			best, least = from+(to-from)/2-a.NS, unsure
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.offset, h.unsure = best, least
	return nil
}

// Clock is how far the host's CLOCK_MONOTONIC is behind this machine's, and the largest
// error of that.
func (h *Host) Clock() (offset, unsure time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Duration(h.offset), h.unsure
}

// here converts an instant of the host's clock.
func (h *Host) here(ns int64) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.base.Add(time.Duration(ns + h.offset - h.baseNS))
}

// there converts an instant to the host's clock.
func (h *Host) there(t time.Time) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.baseNS + int64(t.Sub(h.base)) - h.offset
}

// Close ends and removes everything on the host and disconnects. It does nothing if the
// host was lost.
func (h *Host) Close() error {
	select {
	case <-h.gone:
		return nil
	default:
	}
	h.closing.Store(true)
	go func() { _ = h.wire.send(frame{Op: "bye"}) }() // see call
	// The helper has ended when its output ends.
	t := time.NewTimer(h.opt.Lease)
	defer t.Stop()
	select {
	case <-h.gone:
		return h.Err()
	case <-t.C:
		h.disconnect(&LostError{Host: h.Name, Silent: time.Duration(monotonic() - h.heard.Load()), Lease: h.opt.Lease, Err: errors.New("the helper does not exit")})
		return h.reason()
	}
}
