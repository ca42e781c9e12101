package udpload

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/role"
)

// Receiver counts the datagrams that Senders send to it.
type Receiver struct {
	Listen string // host and port; ":5201"
}

type receiver struct {
	*listener
	port uint16

	done // bits received

	mu      sync.Mutex
	tally   tally
	dropped uint64
}

// roomForBursts is the requested receive buffer. The kernel doubles it and counts about
// 2.3 KB for a datagram of 1400 bytes: 3,600 of them, which is 0.4 s at 100 Mbit/s. A
// wait for a CPU then loses nothing.
const roomForBursts = 4 << 20

// listener is a listening socket for datagrams. Its port also takes TCP connections, which
// are never accepted: a successful connection means that the port is ready.
type listener struct {
	conn  *net.UDPConn
	there net.Listener
}

func listen(address string) (*listener, error) {
	there, err := net.Listen("tcp4", address)
	if err != nil {
		return nil, fmt.Errorf("receive datagrams: %w", err)
	}
	at := there.Addr().(*net.TCPAddr)
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: at.IP, Port: at.Port})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("receive datagrams: %w", err), there.Close())
	}
	p := &listener{c, there}
	// Losses because of a smaller buffer are counted.
	if err := room(c, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, roomForBursts); err != nil {
		return nil, errors.Join(fmt.Errorf("receive datagrams: %w", err), p.Close())
	}
	return p, nil
}

func (p *listener) Close() error { return errors.Join(p.conn.Close(), p.there.Close()) }

func (r Receiver) check() error { return nil }

func (r Receiver) open() (session, error) {
	p, err := listen(r.Listen)
	if err != nil {
		return nil, err
	}
	return &receiver{listener: p, port: uint16(p.there.Addr().(*net.TCPAddr).Port)}, nil
}

func (r *receiver) run(ctx context.Context) error {
	return each(ctx, r.conn, func(b []byte, from netip.AddrPort) {
		n, _, ok := read(b)
		if !ok {
			return
		}
		r.mu.Lock()
		r.tally.add(from, n, len(b))
		r.mu.Unlock()
		r.n.Add(bits(len(b)))
	})
}

// each reads datagrams until the context ends.
func each(ctx context.Context, c *net.UDPConn, take func(b []byte, from netip.AddrPort)) error {
	defer unblocked(ctx, c)()
	b := make([]byte, 1<<16)
	for {
		n, from, err := c.ReadFromUDPAddrPort(b)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("receive datagrams: %w", err)
		}
		take(b[:n], from)
	}
}

func (r *receiver) count() {
	dropped, _ := drops(r.port) // if not known: 0
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropped = dropped
	r.tally.begin()
}

// overflow is the largest share of the received datagrams that may be lost in the
// receiver's own socket before its figures are invalid.
const overflow = 0.001

func (r *receiver) values(lasted time.Duration) map[string]float64 {
	dropped, known := drops(r.port)
	r.mu.Lock()
	defer r.mu.Unlock()
	came, lost := r.tally.counts()
	v := map[string]float64{result.UDPReceived: float64(r.tally.bits) / lasted.Seconds()}
	if came+lost > 0 {
		v[result.UDPLost] = float64(lost) / float64(came+lost)
	}
	if known {
		n := float64(dropped - r.dropped)
		v[result.UDPOverflow] = n
		if n > overflow*float64(came) {
			v[role.SaturatedValue] = n
		}
	}
	return v
}

// drops is the number of datagrams that a port's sockets have lost because their buffer
// was full.
func drops(port uint16) (n uint64, ok bool) {
	f, err := os.Open("/proc/thread-self/net/udp") // of the thread's own network namespace
	if err != nil {
		return 0, false
	}
	defer f.Close()
	return dropsIn(f, port)
}

// dropsIn reads /proc/net/udp (udp4_format_sock in net/ipv4/udp.c): the second column is
// the local address, in hexadecimal, the last one drops. It returns false where no socket
// has the port.
func dropsIn(table io.Reader, port uint16) (n uint64, ok bool) {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 13 {
			continue
		}
		_, number, _ := strings.Cut(f[1], ":")
		if p, err := strconv.ParseUint(number, 16, 16); err != nil || uint16(p) != port {
			continue
		}
		if d, err := strconv.ParseUint(f[len(f)-1], 10, 64); err == nil {
			n, ok = n+d, true
		}
	}
	return n, ok
}
