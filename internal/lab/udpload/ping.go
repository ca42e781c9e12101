package udpload

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Pinger sends datagrams to an Echo and measures the time until they return.
type Pinger struct {
	To   string
	Size int // of a datagram, bytes of payload
	// Every is the interval between pings; 0: each waits for the answer to the one
	// before.
	Every time.Duration
	// Timeout is the time after which a ping counts as lost.
	Timeout time.Duration
}

type pinger struct {
	Pinger
	conn  *net.UDPConn
	pong  chan uint64  // numbers of returned pings, if send waits for them
	done               // answers
	fails atomic.Int64 // pings that found no receiver

	mu      sync.Mutex
	counts  bool
	sent    []int64 // send time of each ping that counts
	first   uint64  // the number of the first of them
	trips   []int64 // ns, -1 until it returns
	failed0 int64
}

func (p Pinger) check() error {
	if p.Size < leastSize || p.Size > mostSize || p.Every < 0 || p.Timeout <= 0 {
		return fmt.Errorf("ping: %d bytes every %s, lost after %s: want %d to %d bytes and a timeout", p.Size, p.Every, p.Timeout, leastSize, mostSize)
	}
	return nil
}

func (p Pinger) open() (session, error) {
	c, err := net.Dial("udp4", p.To)
	if err != nil {
		return nil, fmt.Errorf("ping: %w", err)
	}
	return &pinger{Pinger: p, conn: c.(*net.UDPConn), pong: make(chan uint64, 1)}, nil
}

func (p *pinger) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	heard := make(chan error, 1)
	go func() {
		defer cancel()
		heard <- p.listen(ctx)
	}()
	err := p.send(ctx)
	cancel()
	return errors.Join(err, <-heard)
}

// send sends one ping after the other.
func (p *pinger) send(ctx context.Context) error {
	b := make([]byte, p.Size)
	wait := time.NewTimer(0)
	defer wait.Stop()
	began := time.Now()
	for k := uint64(0); ctx.Err() == nil; k++ {
		at := host.Monotonic()
		putHeader(b, k, at)
		p.mu.Lock()
		if p.counts {
			if len(p.sent) == 0 {
				p.first = k
			}
			p.sent, p.trips = append(p.sent, at), append(p.trips, -1)
		}
		p.mu.Unlock()
		switch _, err := p.conn.Write(b); {
		case err == nil, errors.Is(err, unix.ENOBUFS):
		case errors.Is(err, unix.ECONNREFUSED):
			p.fails.Add(1)
		case ctx.Err() == nil:
			return fmt.Errorf("ping: %w", err)
		}
		left := p.Timeout
		if p.Every > 0 {
			left = time.Until(began.Add(time.Duration(k+1) * p.Every))
		}
		wait.Reset(max(0, left))
		for waiting := true; waiting; {
			select {
			case n := <-p.pong:
				waiting = p.Every > 0 || n != k
			case <-wait.C:
				waiting = false
			case <-ctx.Done():
				return nil
			}
		}
	}
	return nil
}

// listen records when pings return.
func (p *pinger) listen(ctx context.Context) error {
	for {
		err := each(ctx, p.conn, func(b []byte, _ netip.AddrPort) {
			n, at, ok := read(b)
			if !ok {
				return
			}
			trip := host.Monotonic() - at
			p.n.Add(1)
			p.mu.Lock()
			if i := n - p.first; n >= p.first && i < uint64(len(p.sent)) && p.sent[i] == at {
				p.trips[i] = trip
			}
			p.mu.Unlock()
			select {
			case p.pong <- n:
			default:
			}
		})
		if err == nil || !errors.Is(err, unix.ECONNREFUSED) {
			return err
		}
		p.fails.Add(1)
	}
}

func (p *pinger) count() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts, p.failed0 = true, p.fails.Load()
}

func (p *pinger) values(time.Duration) map[string]float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts = false
	// The most recent pings cannot be lost yet.
	v := pingValues(p.sent, p.trips, host.Monotonic()-p.Timeout.Nanoseconds(), p.Timeout.Nanoseconds())
	if n := p.fails.Load() - p.failed0; n > 0 {
		v[role.UnreachableValue] = float64(n)
	}
	return v
}

// pingValues are the values of pings that were sent before an instant. Pings that took
// longer than the timeout, or have not returned (-1), are lost.
func pingValues(sent, trips []int64, before, timeout int64) map[string]float64 {
	var back []float64
	n, sum := 0, 0.0
	for i, at := range sent {
		if at > before {
			break
		}
		n++
		if t := trips[i]; t >= 0 && t <= timeout {
			back = append(back, float64(t)/1e9)
			sum += float64(t) / 1e9
		}
	}
	v := map[string]float64{result.PingCount: float64(n)}
	if n > 0 {
		v[result.PingLost] = 1 - float64(len(back))/float64(n)
	}
	if len(back) == 0 {
		return v
	}
	slices.Sort(back)
	// The smallest value that the share q of all values does not exceed.
	at := func(q float64) float64 { return back[max(0, int(math.Ceil(q*float64(len(back))))-1)] }
	v[result.PingMean], v[result.PingMax] = sum/float64(len(back)), back[len(back)-1]
	v[result.PingP50], v[result.PingP90], v[result.PingP99] = at(0.5), at(0.9), at(0.99)
	return v
}

func (p *pinger) Close() error { return p.conn.Close() }

// Echo returns datagrams to their senders.
type Echo struct {
	Listen string
}

type echo struct {
	*listener
	done // answers
}

func (e Echo) check() error { return nil }

func (e Echo) open() (session, error) {
	p, err := listen(e.Listen)
	if err != nil {
		return nil, err
	}
	return &echo{listener: p}, nil
}

func (e *echo) run(ctx context.Context) error {
	return each(ctx, e.conn, func(b []byte, from netip.AddrPort) {
		if _, _, ok := read(b); !ok {
			return
		}
		// If it cannot be returned, the sender counts it as lost.
		if _, err := e.conn.WriteToUDPAddrPort(b, from); err == nil {
			e.n.Add(1)
		}
	})
}

func (e *echo) count() {}

func (e *echo) values(time.Duration) map[string]float64 { return map[string]float64{} }
