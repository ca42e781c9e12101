package udpload

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// output collects a part's output.
type output struct{ quelltest.Output }

// said parses a part's output: units of its slices, and its values.
func (o *output) said(t *testing.T) (units float64, values map[string]float64) {
	t.Helper()
	values = map[string]float64{}
	for line := range strings.Lines(o.String()) {
		f := strings.Fields(line)
		v, err := strconv.ParseFloat(f[len(f)-1], 64)
		switch {
		case err != nil:
			t.Fatalf("%q: %v", line, err)
		case strings.HasPrefix(line, role.IterationLine) && len(f) == 5:
			units += v
		case strings.HasPrefix(line, role.ValueLine) && len(f) == 4:
			values[f[2]] = v
		default:
			t.Fatalf("what is %q?", line)
		}
	}
	return units, values
}

// scripted is a session that does one unit each 10 ms of synctest time.
type scripted struct {
	mu      sync.Mutex
	began   time.Time
	said    int
	counted time.Time
	fail    error
	closed  bool
}

func (s *scripted) check() error           { return nil }
func (s *scripted) open() (session, error) { return s, nil }
func (s *scripted) run(ctx context.Context) error {
	s.mu.Lock()
	s.began = time.Now()
	s.mu.Unlock()
	if s.fail != nil {
		return s.fail
	}
	<-ctx.Done()
	return nil
}
func (s *scripted) units() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := int(time.Since(s.began) / (10 * time.Millisecond))
	defer func() { s.said = n }()
	return float64(n - s.said)
}
func (s *scripted) count() { s.counted = time.Now() }
func (s *scripted) values(lasted time.Duration) map[string]float64 {
	return map[string]float64{"from": s.counted.Sub(s.began).Seconds(), "lasted": lasted.Seconds()}
}
func (s *scripted) Close() error { s.closed = true; return nil }

// A part begins at the barrier, counts after its warm-up, reports its values when the
// counted time is over or when it ends, and continues in between.
func TestPlay(t *testing.T) {
	for _, c := range []struct {
		name   string
		ends   time.Duration // after the barrier
		units  float64
		lasted float64 // 0: it reports no values
	}{
		{"to the end and beyond", 5*time.Second + 50*time.Millisecond, 505, 2},
		{"ended within the counted time", 2*time.Second + 550*time.Millisecond, 255, 1.55},
		{"ended before half of it", 1*time.Second + 950*time.Millisecond, 195, 0},
		{"ended in the warm-up", 550 * time.Millisecond, 55, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			in, stdin := io.Pipe()
			var out output
			s := &scripted{}
			done := make(chan error, 1)
			go func() {
				done <- Play(t.Context(), s, Counted{Warmup: time.Second, Duration: 2 * time.Second}, in, &out)
			}()
			synctest.Wait()
			if n, v := out.said(t); n > 0 || len(v) > 0 || !s.began.IsZero() {
				t.Errorf("%s: before the barrier: %v, %v", c.name, n, v)
			}
			if _, err := stdin.Write([]byte("\n")); err != nil {
				t.Fatal(err)
			}
			<-time.After(c.ends)
			stdin.Close()
			if err := <-done; err != nil || !s.closed {
				t.Errorf("%s: %v, closed %v", c.name, err, s.closed)
			}
			n, v := out.said(t)
			if n != c.units {
				t.Errorf("%s: %v units, want %v", c.name, n, c.units)
			}
			if got := v["lasted"]; math.Abs(got-c.lasted) > 1e-9 || len(v) > 0 && v["from"] != 1 {
				t.Errorf("%s: %v, want values of %v s", c.name, v, c.lasted)
			}
		})
	}
}

func TestPlayFails(t *testing.T) {
	broken := errors.New("no buffer space")
	if err := Play(t.Context(), &scripted{fail: broken}, Counted{Duration: time.Minute}, strings.NewReader("\n"), io.Discard); !errors.Is(err, broken) {
		t.Errorf("%v", err) // also if its input ends first
	}
	s := &scripted{}
	if err := Play(t.Context(), s, Counted{}, strings.NewReader(""), io.Discard); err != nil || !s.began.IsZero() {
		t.Errorf("called off: %v, began %v", err, s.began)
	}
	for _, p := range []Part{Sender{To: "127.0.0.1:1", Flows: 0, Size: 1400}, Sender{To: "127.0.0.1:1", Flows: 1, Size: 3}, Sender{To: "127.0.0.1:1", Flows: 1, Size: 1400, Rate: -1},
		Pinger{To: "127.0.0.1:1", Size: 9000, Timeout: time.Second}, Pinger{To: "127.0.0.1:1", Size: 64}, Receiver{Listen: "127.0.0.1:no such port"}} {
		if err := Play(t.Context(), p, Counted{}, strings.NewReader("\n"), io.Discard); err == nil {
			t.Errorf("%+v is taken", p)
		}
	}
}

// playing starts a part that plays until the returned function is called.
func playing(t *testing.T, p Part, c Counted) (out *output, end func()) {
	t.Helper()
	in, stdin := io.Pipe()
	out = &output{}
	done := make(chan error, 1)
	go func() { done <- Play(t.Context(), p, c, in, out) }()
	if _, err := stdin.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	return out, func() {
		t.Helper()
		stdin.Close()
		if err := <-done; err != nil {
			t.Errorf("%T: %v", p, err)
		}
	}
}

func valuesOf(t *testing.T, out *output) map[string]float64 {
	t.Helper()
	var v map[string]float64
	quelltest.Until(t, "it has said its values", func() bool {
		_, v = out.said(t)
		return len(v) > 0
	})
	return v
}

// relay forwards datagrams to an address, and the answers back, except those that drop
// selects. It returns its own address and the number of bits that it has forwarded.
func relay(t *testing.T, to string, drop func(number uint64) bool) (address string, passed *atomic.Int64) {
	t.Helper()
	in, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	far, err := net.ResolveUDPAddr("udp4", to)
	if err != nil {
		t.Fatal(err)
	}
	passed = &atomic.Int64{}
	legs := map[string]*net.UDPConn{} // by address of the sender
	var back sync.WaitGroup
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 1<<16)
		for {
			n, from, err := in.ReadFromUDP(b)
			if err != nil {
				return
			}
			if number, _, _ := read(b[:n]); drop(number) {
				continue
			}
			leg := legs[from.String()]
			if leg == nil {
				if leg, err = net.DialUDP("udp4", nil, far); err != nil {
					return
				}
				legs[from.String()] = leg
				back.Go(func() { answer(leg, in, from) })
			}
			if _, err := leg.Write(b[:n]); err == nil {
				passed.Add(bits(n))
			}
		}
	}()
	t.Cleanup(func() {
		in.Close()
		<-done
		for _, leg := range legs {
			leg.Close()
		}
		back.Wait()
	})
	return in.LocalAddr().String(), passed
}

// answer forwards the answers.
func answer(leg, in *net.UDPConn, to *net.UDPAddr) {
	b := make([]byte, 1<<16)
	for {
		n, err := leg.Read(b)
		if err == nil {
			_, err = in.WriteToUDP(b[:n], to)
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// free is an unused port of the loopback interface.
func free(t *testing.T) string {
	t.Helper()
	p, err := listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	return p.conn.LocalAddr().String()
}

// A receiver and an echo take connections as soon as they listen, before the barrier, and
// none after they have ended.
func TestTheyAreThere(t *testing.T) {
	at := free(t)
	for _, p := range []Part{Receiver{Listen: at}, Echo{Listen: at}} {
		in, stdin := io.Pipe()
		done := make(chan error, 1)
		go func() { done <- Play(t.Context(), p, Counted{}, in, io.Discard) }()
		quelltest.Until(t, "it takes a connection", func() bool {
			c, err := net.Dial("tcp4", at)
			return err == nil && c.Close() == nil
		})
		stdin.Close()
		if err := <-done; err != nil {
			t.Errorf("%T: %v", p, err)
		}
		if c, err := net.Dial("tcp4", at); err == nil {
			c.Close()
			t.Errorf("%T is still there", p)
		}
	}
}

// Dropped datagrams are counted as lost, all others as received.
func TestFlows(t *testing.T) {
	for _, c := range []struct {
		name string
		vary bool
		drop func(number uint64) bool
		lost float64
	}{
		{"none is dropped", true, func(uint64) bool { return false }, 0},
		{"each fifth is dropped", false, func(n uint64) bool { return n%5 == 4 }, 0.2},
	} {
		at := free(t)
		counted := Counted{Warmup: 50 * time.Millisecond, Duration: 300 * time.Millisecond}
		in, stop := playing(t, Receiver{Listen: at}, counted)
		through, passed := relay(t, at, c.drop)
		out, end := playing(t, Sender{To: through, Flows: 2, Size: 400, Vary: c.vary, Rate: 4e6}, counted)
		got, sent := valuesOf(t, in), valuesOf(t, out)
		end()
		// Datagrams in transit still arrive; after that the count is complete.
		last := int64(-1)
		quelltest.Until(t, "all that was passed on has come", func() bool {
			units, _ := in.said(t)
			now := passed.Load()
			done := now == last && units == float64(now)
			last = now
			return done
		})
		stop()
		// Each flow sends 565 datagrams a second: 0.01 is about three of them.
		if math.Abs(got[result.UDPLost]-c.lost) > 0.01 || got[result.UDPReceived] <= 0 || got[result.UDPOverflow] != 0 || got[role.SaturatedValue] != 0 {
			t.Errorf("%s: received %v", c.name, got)
		}
		if sent[result.UDPSent] <= 0 || sent[role.UnreachableValue] != 0 {
			t.Errorf("%s: sent %v", c.name, sent)
		}
		// It has sent what was received; each flow may have sent one more while it ended.
		if units, _ := out.said(t); c.lost == 0 && (units > float64(last) || units < float64(last-2*bits(400))) {
			t.Errorf("%s: it says that it sent %.0f bits, %d have come", c.name, units, last)
		}
	}
}

// A sender reports that it sent less than it should, or that it found no receiver.
func TestSenderFallsBehind(t *testing.T) {
	for _, c := range []struct {
		sent int64
		want bool
	}{{10_000_000, false}, {9_950_000, false}, {9_000_001, false}, {8_800_000, true}} {
		s := &sender{Sender: Sender{Rate: 10e6}, due: func() int64 { return 0 }}
		s.count()
		s.due = func() int64 { return 10_000_000 }
		s.n.Store(c.sent)
		v := s.values(time.Second)
		if _, got := v[role.SaturatedValue]; got != c.want || v[result.UDPSent] != float64(c.sent) {
			t.Errorf("%d of 10,000,000 bits: %v", c.sent, v)
		}
	}
	out, end := playing(t, Sender{To: free(t), Flows: 1, Size: 100, Rate: 1e6}, Counted{Warmup: 20 * time.Millisecond, Duration: 200 * time.Millisecond})
	defer end()
	if v := valuesOf(t, out); v[role.UnreachableValue] == 0 {
		t.Errorf("without a receiver: %v", v)
	}
}

// Round trips of pings are measured, at a rate or one after the other, and dropped pings
// are lost.
func TestPing(t *testing.T) {
	for _, every := range []time.Duration{0, 2 * time.Millisecond} {
		at := free(t)
		_, stop := playing(t, Echo{Listen: at}, Counted{Duration: time.Hour})
		through, _ := relay(t, at, func(n uint64) bool { return n%4 == 3 })
		out, end := playing(t, Pinger{To: through, Size: 64, Every: every, Timeout: 100 * time.Millisecond}, Counted{Warmup: 50 * time.Millisecond, Duration: 600 * time.Millisecond})
		v := valuesOf(t, out)
		end()
		stop()
		// A busy machine may lose more to the timeout, but not fewer. At most three of
		// the counted pings belong to an incomplete group of four.
		n := v[result.PingCount]
		if least := (n/4 - 1) / n; n < 5 || v[result.PingLost] < least || v[result.PingLost] == 1 {
			t.Errorf("every %s: %v", every, v)
		}
		if !(v[result.PingMean] > 0 && v[result.PingP50] > 0 && v[result.PingP50] <= v[result.PingP90] && v[result.PingP90] <= v[result.PingP99] && v[result.PingP99] <= v[result.PingMax] && v[result.PingMax] <= 0.1) {
			t.Errorf("every %s: %v", every, v)
		}
	}
}
