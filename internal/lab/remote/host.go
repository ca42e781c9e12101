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

	"github.com/quell-dev/quell/internal/lab/helper"
)

// Options say how hosts are used. Helper and Words are required.
type Options struct {
	// Helper is the static program that is pushed. Words are the arguments that make it
	// call helper.Serve; the lease is appended to them.
	Helper string
	Words  []string
	// Self are placeholders in commands for that program.
	Self []string
	// Lease is how long what runs on a host outlives the lab; 0: 10 s.
	Lease time.Duration
	// Lost, if not nil, makes the error of a host that is lost, in place of a *LostError.
	Lost func(err error, silent time.Duration) error
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
	*helper.Client
	Name    string
	Facts   Facts
	Program string // path of the helper there

	opt     Options
	hangUp  func() // ends the connection
	stderr  tail
	closing atomic.Bool
}

// Dial connects to a host of the inventory, pushes the helper and starts it.
// Errors: *KeyError.
func Dial(ctx context.Context, inv *Inventory, name string, o Options) (_ *Host, err error) {
	s := inv.Lookup(name)
	if s == nil {
		return nil, fmt.Errorf("unknown host %q: not in the inventory", name)
	}
	o.Lease = cmp.Or(o.Lease, 10*time.Second)
	if o.Lease < helper.LeastLease {
		return nil, fmt.Errorf("host %s: lease %s: want %s or more", name, o.Lease, helper.LeastLease)
	}
	client, closers, err := connect(ctx, inv, s)
	if err != nil {
		return nil, err
	}
	closers = append(closers, client.Close)
	h := &Host{Name: name, opt: o, hangUp: sync.OnceFunc(func() {
		for _, c := range slices.Backward(closers) {
			_ = c() // the connection is lost, an error does not matter
		}
	})}
	defer func() {
		if err != nil {
			h.hangUp()
		}
	}()
	stop := context.AfterFunc(ctx, h.hangUp)
	defer stop()
	path, facts, err := push(client, name, o.Helper)
	if err != nil {
		return nil, err
	}
	h.Facts, h.Program = facts, path
	if err := h.serve(client, s, path); err != nil {
		return nil, err
	}
	select {
	case <-h.Hello():
	case <-h.Gone():
		return nil, fmt.Errorf("start the helper on host %s: %w: its stderr: %q", name, cmp.Or(ctx.Err(), h.Reason()), h.stderr.String())
	}
	return h, h.MeasureClock(ctx)
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
	h.Client = helper.Connect(out, in, helper.ClientOptions{Prefix: "host " + h.Name + ": ", Self: h.opt.Self, Lost: h.lost, Close: h.hangUp})
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

// lost is why the host is lost if its connection ended with err.
func (h *Host) lost(err error, silent time.Duration) error {
	if h.closing.Load() {
		return errClosed
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("the helper exited")
	}
	if h.opt.Lost != nil {
		return h.opt.Lost(err, silent)
	}
	return &LostError{Host: h.Name, Silent: silent, Lease: h.opt.Lease, Err: err}
}

// Err is a *LostError, or nil while the host is connected or after Close.
func (h *Host) Err() error {
	if err := h.Reason(); !errors.Is(err, errClosed) {
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
		case <-h.Gone():
			return
		case <-tick.C:
		}
		limit := h.opt.Lease / 2
		select {
		case <-h.Hello():
		default:
			limit = max(limit, patience) // the helper is still starting
		}
		if silent := h.Silent(); silent > limit {
			h.Disconnect(h.lost(nil, silent))
			return
		}
		// A broken connection accepts what its buffers hold and then blocks.
		select {
		case sending <- struct{}{}:
			go func() {
				_ = h.Beat() // the client detects errors
				<-sending
			}()
		default:
		}
	}
}

// Drop disconnects without a word to the helper, whose machine is about to end.
func (h *Host) Drop() {
	h.closing.Store(true)
	h.Disconnect(errClosed)
}

// Close ends and removes everything on the host and disconnects. It does nothing if the
// host was lost.
func (h *Host) Close() error {
	select {
	case <-h.Gone():
		return nil
	default:
	}
	h.closing.Store(true)
	go func() { _ = h.Bye() }() // a broken connection blocks it
	// The helper has ended when its output ends.
	select {
	case <-h.Gone():
		return h.Err()
	case <-time.After(h.opt.Lease):
		h.Disconnect(&LostError{Host: h.Name, Silent: h.Silent(), Lease: h.opt.Lease, Err: errors.New("the helper does not exit")})
		return h.Reason()
	}
}
