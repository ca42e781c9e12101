package udpload

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Sender sends datagrams to a Receiver.
type Sender struct {
	To    string // host and port
	Flows int    // sockets, each with a goroutine
	Size  int    // of a datagram, bytes of payload
	// Vary draws each datagram's size between half of Size and Size. Datagrams of equal
	// size from equal senders synchronise with the queue that drops them, which then
	// always drops those of the same senders (Floyd and Jacobson, "On traffic phase
	// effects in packet-switched gateways", 1992).
	Vary bool
	// Rate is the total of all flows, bits/s of whole frames; 0: as much as the sockets
	// accept, which wait for space in the queue of the interface.
	Rate float64
}

// roomToSend is the requested send buffer. The kernel doubles it: about 350 datagrams,
// 0.1 s at 40 Mbit/s. Those of two flows fit into the usual 1000 packets of an
// interface's queue.
const roomToSend = 384 << 10

type sender struct {
	Sender
	flows []*net.UDPConn

	done                 // bits sent
	refused atomic.Int64 // datagrams refused because no socket listens

	mu           sync.Mutex
	due          func() int64 // bits that should have been sent by now
	sent0, due0  int64        // when counting began
	refusedFirst int64
}

func (s Sender) check() error {
	least := leastSize
	if s.Vary {
		least *= 2
	}
	if s.Flows < 1 || s.Size < least || s.Size > mostSize || !(s.Rate >= 0) || s.Rate > 1e12 {
		return fmt.Errorf("send datagrams: %d flows of %d bytes at %g bits/s: want at least one of %d to %d bytes, at most 1e12 bits/s", s.Flows, s.Size, s.Rate, least, mostSize)
	}
	return nil
}

func (s Sender) open() (session, error) {
	o := &sender{Sender: s, due: func() int64 { return 0 }}
	for range s.Flows {
		c, err := net.Dial("udp4", s.To)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("send datagrams: %w", err), o.Close())
		}
		flow := c.(*net.UDPConn)
		o.flows = append(o.flows, flow)
		// A sender that gets no CPU for some time still has data to send. As root it
		// exceeds the machine's limit, otherwise it gets up to the limit.
		if err := room(flow, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, roomToSend); err != nil {
			return nil, errors.Join(fmt.Errorf("send datagrams: %w", err), o.Close())
		}
	}
	return o, nil
}

func (s *sender) run(ctx context.Context) error {
	began := time.Now()
	if s.Rate > 0 {
		s.mu.Lock()
		s.due = func() int64 { return int64(s.Rate * time.Since(began).Seconds()) }
		s.mu.Unlock()
	}
	errs := make([]error, len(s.flows))
	var wg sync.WaitGroup
	for i, c := range s.flows {
		wg.Go(func() {
			// The flows send alternately.
			gap := s.mean() / s.Rate * float64(len(s.flows)) // s; Inf without a rate
			errs[i] = s.send(ctx, c, began, gap, float64(i)/float64(len(s.flows)))
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// mean is the mean number of bits of a datagram.
func (s Sender) mean() float64 {
	if s.Vary {
		return (float64(bits(s.Size/2)) + float64(bits(s.Size/2*2))) / 2
	}
	return float64(bits(s.Size))
}

// send is a flow: datagram k is due at (k + phase) gaps after the beginning.
func (s *sender) send(ctx context.Context, c *net.UDPConn, began time.Time, gap, phase float64) error {
	defer unblocked(ctx, c)()
	b := make([]byte, s.Size)
	wait := time.NewTimer(0)
	defer wait.Stop()
	for k := uint64(0); ctx.Err() == nil; k++ {
		if !math.IsInf(gap, 0) {
			due := began.Add(time.Duration((float64(k) + phase) * gap * 1e9))
			if left := time.Until(due); left > 0 {
				wait.Reset(left)
				select {
				case <-wait.C:
				case <-ctx.Done():
					return nil
				}
			}
		}
		putHeader(b, k, host.Monotonic())
		size := s.Size
		if s.Vary {
			size = s.Size/2 + rand.IntN(s.Size/2+1)
		}
		switch _, err := c.Write(b[:size]); {
		case err == nil, errors.Is(err, unix.ENOBUFS): // a full queue dropped it, which the receiver counts as lost
			s.n.Add(bits(size))
		case errors.Is(err, unix.ECONNREFUSED): // for an earlier datagram; this one is not sent
			s.refused.Add(1)
		case ctx.Err() == nil:
			return fmt.Errorf("send datagrams: %w", err)
		}
	}
	return nil
}

func (s *sender) count() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent0, s.due0, s.refusedFirst = s.n.Load(), s.due(), s.refused.Load()
}

// shortfall is the share of its due data that a sender may fail to send.
const shortfall = 0.01

func (s *sender) values(lasted time.Duration) map[string]float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent := float64(s.n.Load() - s.sent0)
	v := map[string]float64{result.UDPSent: sent / lasted.Seconds()}
	// Up to one slice of data may still be about to be sent.
	if due := float64(s.due() - s.due0); sent < due*(1-shortfall)-s.Rate*role.Slice.Seconds() {
		v[role.SaturatedValue] = due - sent
	}
	if n := s.refused.Load() - s.refusedFirst; n > 0 {
		v[role.UnreachableValue] = float64(n)
	}
	return v
}

func (s *sender) Close() error {
	var errs []error
	for _, c := range s.flows {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// room sets a socket's buffer size: beyond the machine's limit if permitted, otherwise up
// to the limit.
func room(c *net.UDPConn, force, ask, bytes int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, force, bytes) != nil {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, ask, bytes)
		}
	})
}

// unblocked unblocks waits on a socket when the context ends, until the returned function
// is called.
func unblocked(ctx context.Context, c *net.UDPConn) (stop func()) {
	undo := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	return func() { undo() }
}
