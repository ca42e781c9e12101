package lab

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// site is an environment and its process; both record the calls they get.
type site struct {
	Environment
	name     string
	done     chan struct{}
	log      *[]string
	port     int
	answers  func(ctx context.Context) error
	beginErr error
}

func (h *site) Begin() (time.Time, time.Duration, error) {
	*h.log = append(*h.log, "begin "+h.name)
	return time.Now(), 0, h.beginErr
}
func (h *site) Done() <-chan struct{}    { return h.done }
func (h *site) Err() error               { return nil }
func (h *site) Stop() error              { return nil }
func (h *site) Clock(ns int64) time.Time { return time.Unix(0, ns) }
func (h *site) Answers(ctx context.Context, port int) error {
	*h.log = append(*h.log, "answers "+h.name)
	if port != h.port {
		return errors.New("another port")
	}
	return h.answers(ctx)
}

// portOfNoOther returns an address of this process whose port no other program has on any
// address: it is above those of quelltest.FreeAddress and below those that the kernel chooses.
func portOfNoOther(t *testing.T) netip.AddrPort {
	t.Helper()
	a, err := netip.ParseAddrPort(quelltest.FreeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(a.Addr(), a.Port()+15_000)
}

// A port is listened on by TCP or UDP, and not where only a connection has it.
func TestListens(t *testing.T) {
	tcp, err := net.Listen("tcp", portOfNoOther(t).String())
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", portOfNoOther(t).String())
	if err != nil {
		t.Fatal(err)
	}
	client, err := (&net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(portOfNoOther(t))}).Dial("tcp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		of   net.Addr
		want bool
	}{{tcp.Addr(), true}, {udp.LocalAddr(), true}, {client.LocalAddr(), false}} {
		_, text, _ := net.SplitHostPort(c.of.String())
		port, _ := strconv.Atoi(text)
		if err := Listens(over, port); (err == nil) != c.want {
			t.Errorf("%s: %v", c.of, err)
		}
	}
	port := udp.LocalAddr().(*net.UDPAddr).Port
	if err := udp.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Listens(over, port); err == nil {
		t.Error("a closed socket listens")
	}
}

// Servers begin before the barrier, answer before any other part begins, and begin once.
func TestServersFirst(t *testing.T) {
	var log []string
	s := &execution{run: &result.Run{}}
	add := func(name string, w study.Workload) *site {
		h := &site{name: name, done: make(chan struct{}), log: &log, port: portOf(&w), answers: func(context.Context) error { return nil }}
		s.actors = append(s.actors, &partRun{part: &study.Part{Role: name, Workload: w}, env: h, process: h})
		return h
	}
	add("load", study.Workload{Builtin: study.HTTPClient})
	web := add("web", study.Workload{Builtin: study.HTTPServer})
	add("iperf3", study.Workload{Command: []string{"iperf3", "-s"}, Serves: 5201})
	if err := errors.Join(s.serve(t.Context()), s.begin()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"begin web", "begin iperf3", "answers web", "answers iperf3", "begin load"}; !slices.Equal(log, want) {
		t.Errorf("%q, want %q", log, want)
	}
	// serve does not wait for a server that has ended.
	web.answers = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	close(web.done)
	// That is no stop of the study.
	if err := s.serve(t.Context()); err == nil || errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "wait until web serves: it ended before it had port 80") {
		t.Error(err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if err := s.serve(stopped); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
