package httpload

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// pipes is a listener whose connections are pipes, so that server and load are in one
// bubble of time.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }
func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case p.conns <- b:
		return a, nil
	case <-p.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// serve runs a server in the bubble; the options connect to it.
func serve(t *testing.T, h http.HandlerFunc) Options {
	p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	s := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(p) }()
	t.Cleanup(func() {
		_ = s.Shutdown(context.Background()) // waits for requests in progress
		<-done
	})
	return Options{URL: "http://server/", Connections: 4, Duration: 10 * time.Second, Dial: p.dial}
}

// serving takes time d, in the bubble's own time.
func serving(d time.Duration) { <-time.After(d) }

// worker serves one request at a time, each in the given time; from begin to end it
// stands still.
func worker(each time.Duration, begin, end time.Duration) http.HandlerFunc {
	seat := make(chan struct{}, 1) // no mutex: a bubble's time stops while a goroutine waits for one
	start := time.Now()
	return func(w http.ResponseWriter, _ *http.Request) {
		seat <- struct{}{}
		defer func() { <-seat }()
		if at := time.Since(start); at >= begin && at < end {
			serving(end - at)
		}
		serving(each)
		io.WriteString(w, "0123456789")
	}
}

func near(t *testing.T, what string, got, want, off float64) {
	t.Helper()
	if math.IsNaN(got) || math.Abs(got-want) > off {
		t.Errorf("%s: %v, want %v ± %v", what, got, want, off)
	}
}

// at is an open loop at a rate.
func at(o Options, rate float64) Options {
	o.Rate = rate
	return o
}

// For a server that keeps up, the achieved rate is the offered rate.
func TestOpenLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := serve(t, worker(time.Millisecond, 0, 0))
		o.Warmup = 2 * time.Second
		r, err := Run(t.Context(), at(o, 500))
		if err != nil {
			t.Fatal(err)
		}
		if r.Sent != 5000 || r.Done != 5000 || r.Errors.Sum() != 0 || r.Dropped != 0 || r.Bytes != 50000 || r.Saturated != "" {
			t.Errorf("%+v", r)
		}
		near(t, "rate", r.Rate, 500, 0.5)
		near(t, "latency", r.Latency.Max, 0.001, 1e-9)
	})
}

// A stall of a second is measured by every request of that second, not only by the few
// that a closed loop has in flight.
func TestStallIsNotOmitted(t *testing.T) {
	stalled := func(t *testing.T) Options {
		return serve(t, worker(time.Millisecond, 4*time.Second, 5*time.Second))
	}
	synctest.Test(t, func(t *testing.T) {
		r, err := Run(t.Context(), at(stalled(t), 500))
		if err != nil {
			t.Fatal(err)
		}
		// 500 requests in the stall, and as many again until the queue is empty at
		// twice the rate: a fifth of all have a considerable delay.
		if r.Done != 5000 {
			t.Errorf("%d of 5000 done", r.Done)
		}
		near(t, "longest", r.Latency.Max, 1.001, 0.002)
		near(t, "the 90th percentile", r.Latency.P90, 0.5, 0.01)
		near(t, "the median", r.Latency.P50, 0.001, 1e-6)
		// The server's own service times do not show it: that is coordinated omission.
		near(t, "the 99th percentile of service times", r.Service.P99, 0.004, 0.001)
	})
	synctest.Test(t, func(t *testing.T) {
		r, err := Run(t.Context(), stalled(t))
		if err != nil {
			t.Fatal(err)
		}
		near(t, "rate", r.Rate, 900, 2)
		near(t, "the 99th percentile of a closed loop", r.Latency.P99, 0.004, 0.001)
	})
}

// A server with a maximum of 1000 per second is offered 2000: it serves 1000, latencies
// grow, and requests that waited too long are dropped. The generator is not saturated.
func TestServerIsSaturated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := serve(t, worker(time.Millisecond, 0, 0))
		o.Timeout = time.Second
		r, err := Run(t.Context(), at(o, 2000))
		if err != nil {
			t.Fatal(err)
		}
		near(t, "rate", r.Rate, 1000, 10)
		if r.Saturated != "" {
			t.Errorf("saturated: %s", r.Saturated)
		}
		if r.Sent+r.Dropped != 20000 || r.Dropped < 8000 || r.Errors.Sum() != 0 {
			t.Errorf("%d sent, %d dropped, %+v", r.Sent, r.Dropped, r.Errors)
		}
		if r.Latency.P99 < 0.9 || r.Latency.Max > 1.01 {
			t.Errorf("latency %+v", r.Latency)
		}
	})
}

func TestErrorsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		var mu sync.Mutex
		o := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			mu.Lock()
			n++
			i := n
			mu.Unlock()
			switch i % 4 {
			case 0:
				w.WriteHeader(http.StatusServiceUnavailable)
			case 1:
				serving(2 * time.Second) // longer than the timeout
			case 2:
				panic(http.ErrAbortHandler)
			}
		})
		o.Timeout, o.Connections = time.Second, 1
		r, err := Run(t.Context(), at(o, 0.4)) // one after the other
		if err != nil {
			t.Fatal(err)
		}
		if want := (Errors{Timeout: 1, Other: 1, Status: 1}); r.Errors != want || r.Done != 1 || r.FirstError == "" {
			t.Errorf("%+v, %d done, %q; want %+v and 1", r.Errors, r.Done, r.FirstError, want)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		o := serve(t, worker(0, 0, 0))
		dead := &pipes{closed: make(chan struct{}), conns: make(chan net.Conn)}
		dead.Close()
		o.Dial = dead.dial
		r, err := Run(t.Context(), o)
		if err != nil || r.Done != 0 || r.Errors.Connect != r.Sent || r.Sent == 0 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// A generator that does not get its CPU time reports that.
func TestGeneratorIsSaturated(t *testing.T) {
	for _, c := range []struct {
		own   time.Duration
		given int
		want  string
	}{
		{20 * time.Millisecond, 1000, "late: p99 20.0 ms"},
		{time.Millisecond, 500, "the generator sent only 500 of 1000 requests"},
		{time.Millisecond, 995, ""},
	} {
		r := &Result{Own: quantiles([]time.Duration{0, c.own})}
		if got := r.saturation(c.given, 1000); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func TestInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := serve(t, worker(time.Millisecond, 0, 0))
		for name, run := range map[string]func(context.Context) error{
			"open":   func(ctx context.Context) error { _, err := Run(ctx, at(o, 100)); return err },
			"closed": func(ctx context.Context) error { _, err := Run(ctx, o); return err },
		} {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			began := time.Now()
			if err := run(ctx); !errors.Is(err, context.Canceled) || time.Since(began) > 2*time.Second {
				t.Errorf("%s: %v after %s", name, err, time.Since(began))
			}
		}
	})
}

func TestOptions(t *testing.T) {
	good := Options{URL: "http://localhost/", Connections: 1, Duration: time.Second}
	for want, change := range map[string]func(*Options){
		"connections: 0": func(o *Options) { o.Connections = 0 },
		"duration: 0s":   func(o *Options) { o.Duration = 0 },
		"warmup: -1s":    func(o *Options) { o.Warmup = -time.Second },
		"url: ":          func(o *Options) { o.URL = "http://\x00" },
	} {
		o := good
		change(&o)
		_, a := Run(t.Context(), at(o, 1))
		_, b := Run(t.Context(), o)
		for _, err := range []error{a, b} {
			if err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
		}
	}
	if _, err := Run(t.Context(), at(good, -1)); err == nil || !strings.HasPrefix(err.Error(), "rate: -1") {
		t.Error(err)
	}
}

// Over real sockets: every request that is due is sent and answered.
func TestRealServer(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }))
	defer s.Close()
	r, err := Run(t.Context(), Options{URL: s.URL, Rate: 200, Connections: 8, Duration: time.Second})
	if err != nil || r.Sent != 200 || r.Done != 200 || r.Bytes == 0 || r.Latency.N != 200 || r.Latency.P50 <= 0 || r.Latency.Max < r.Latency.P99 {
		t.Errorf("%+v, %v", r, err)
	}
}

// BenchmarkAgainstFloor measures the overhead of the generator over the bare client.
func BenchmarkAgainstFloor(b *testing.B) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }))
	defer s.Close()
	o := Options{URL: s.URL, Connections: 1, Duration: time.Second}
	client := o.client()
	defer client.CloseIdleConnections()
	floor, ours := math.Inf(1), math.Inf(1)
	for range b.N {
		began := time.Now()
		n := 0
		for time.Since(began) < time.Second {
			resp, err := client.Get(s.URL)
			if err != nil {
				b.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			n++
		}
		floor = min(floor, time.Since(began).Seconds()/float64(n))
		r, err := Run(context.Background(), o)
		if err != nil {
			b.Fatal(err)
		}
		ours = min(ours, 1/r.Rate)
	}
	b.ReportMetric(floor*1e9, "floor-ns/request")
	b.ReportMetric(ours/floor, "ours/floor")
}
