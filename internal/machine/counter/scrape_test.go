package counter

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
	"golang.org/x/sys/unix"
)

// metricsServer is a task's HTTP server.
type metricsServer struct {
	port  int
	count atomic.Int64 // of requests_total
	asked atomic.Int64
	// handle, if set, answers instead; nth is the number of earlier requests.
	handle func(w http.ResponseWriter, r *http.Request, nth int64)
}

func serveMetrics(t *testing.T, l net.Listener) *metricsServer {
	t.Helper()
	s := &metricsServer{port: l.Addr().(*net.TCPAddr).Port}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		nth := s.asked.Add(1) - 1
		if s.handle != nil {
			s.handle(w, r, nth)
			return
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		fmt.Fprintf(w, "# TYPE requests_total counter\nrequests_total{code=\"200\"} %d\nrequests_total{code=\"500\"} 5\n", s.count.Load())
	})}
	done := make(chan struct{})
	go func() { srv.Serve(l); close(done) }()
	t.Cleanup(func() { srv.Close(); <-done })
	return s
}

func listen(t *testing.T, network, address string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (s *metricsServer) target(id uint64, pid int) Target {
	return Target{Key: key(id), Members: func() ([]int, error) { return []int{pid}, nil },
		Scrape: &Scrape{Port: s.port, Path: "/metrics", Metric: "requests_total", Labels: map[string]string{"code": "200"}}}
}

// scraping follows the targets.
func scraping(t *testing.T, targets ...Target) *stillCPT {
	t.Helper()
	c := still(t, "/proc", nil)
	c.reader.limit = time.Minute
	for _, target := range targets {
		if err := c.Add(target); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func TestScrape(t *testing.T) {
	s := serveMetrics(t, listen(t, "tcp", "127.0.0.1:0"))
	s.count.Store(1000)
	c := scraping(t, s.target(1, os.Getpid()))
	c.begin(t)
	s.count.Add(400)
	r := c.end(t, twoSeconds)[key(1)]
	tx, _ := r.Extras.Get(sample.Transactions)
	if r.Err != nil || r.Variant != "prometheus" || r.Coverage != 1 || tx != 400 {
		t.Fatalf("%+v: %v transactions", r, tx)
	}
	if !same(r.Cost, 2.0/400) {
		t.Errorf("cost %v of %v transactions", r.Cost, tx)
	}
	if n := s.asked.Load(); n != 2 {
		t.Errorf("asked %d times in a window", n)
	}
	c.begin(t)
	s.count.Store(7)
	if r := c.end(t, twoSeconds)[key(1)]; r.Flags != sample.Restarted || !math.IsNaN(r.Cost) || r.Err != nil {
		t.Errorf("set back: %+v", r)
	}
}

// A server that listens only on the IPv6 loopback is found too.
func TestScrapeIPv6(t *testing.T) {
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		quelltest.Skip(t, "ipv6", err)
	}
	s := serveMetrics(t, l)
	c := scraping(t, s.target(1, os.Getpid()))
	c.begin(t)
	if r := c.end(t, twoSeconds)[key(1)]; r.Err != nil {
		t.Error(r.Err)
	}
}

// A bad answer costs a task its own reading, with an error, and never another task's.
func TestScrapeRefusals(t *testing.T) {
	text := func(s string) func(http.ResponseWriter, *http.Request, int64) {
		return func(w http.ResponseWriter, _ *http.Request, _ int64) { io.WriteString(w, s) }
	}
	elsewhere := serveMetrics(t, listen(t, "tcp", "127.0.0.1:0"))
	raw := func(answer string) func(http.ResponseWriter, *http.Request, int64) {
		return func(w http.ResponseWriter, _ *http.Request, _ int64) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				io.WriteString(conn, answer)
				conn.Close()
			}
		}
	}
	long := strings.Repeat("x", 60_000)
	const late = "no answer in time"
	for _, c := range []struct {
		name   string
		handle func(w http.ResponseWriter, r *http.Request, nth int64)
		want   string
	}{
		{"redirect", func(w http.ResponseWriter, r *http.Request, _ int64) {
			http.Redirect(w, r, fmt.Sprintf("http://127.0.0.1:%d/metrics", elsewhere.port), http.StatusFound)
		}, "302"},
		{"error", func(w http.ResponseWriter, _ *http.Request, _ int64) { w.WriteHeader(500) }, "500"},
		{"OpenMetrics", func(w http.ResponseWriter, _ *http.Request, _ int64) {
			w.Header().Set("Content-Type", "application/openmetrics-text; version=1.0.0")
			io.WriteString(w, "requests_total{code=\"200\"} 1\n# EOF\n")
		}, "openmetrics"},
		{"another version", func(w http.ResponseWriter, _ *http.Request, _ int64) {
			w.Header().Set("Content-Type", "text/plain; version=1.0.0")
		}, "1.0.0"},
		{"no series", text("requests_total{code=\"404\"} 1\n"), `series not found: requests_total["code":"200"]`},
		{"a gauge", text("# TYPE requests_total gauge\nrequests_total{code=\"200\"} 1\n"), "gauge"},
		{"no metrics", text("<html>"), "format"},
		{"cut short", func(w http.ResponseWriter, _ *http.Request, _ int64) {
			w.Header().Set("Content-Length", "1000")
			io.WriteString(w, "requests_total{code=\"200\"} 1\n")
		}, "cut short"},
		{"a long status", raw("HTTP/1.1 500 " + long + "\r\n\r\n"), "answered 500"},
		{"a long answer that is none", raw(long + "\r\n\r\n"), "malformed HTTP response"},
		{"a long address", raw("HTTP/1.1 302 Found\r\nLocation: %" + long + "\r\n\r\n"), "Location"},
		{"a long number", text("requests_total{code=\"200\"} " + long + "\n"), "expected float"},
		{"endless", func(w http.ResponseWriter, r *http.Request, _ int64) {
			junk := []byte(strings.Repeat("x", 1<<16))
			for r.Context().Err() == nil {
				if _, err := w.Write(junk); err != nil {
					return
				}
			}
		}, "more than 16777216 bytes"},
		{"never", func(_ http.ResponseWriter, r *http.Request, nth int64) {
			<-r.Context().Done()
		}, late},
		{"not at the end", func(w http.ResponseWriter, r *http.Request, nth int64) {
			if nth > 0 {
				<-r.Context().Done()
			}
			io.WriteString(w, "requests_total{code=\"200\"} 1\n")
		}, late},
	} {
		t.Run(c.name, func(t *testing.T) {
			bad := serveMetrics(t, listen(t, "tcp", "127.0.0.1:0"))
			bad.handle = c.handle
			good := serveMetrics(t, listen(t, "tcp", "127.0.0.1:0"))
			cpt := scraping(t, bad.target(1, os.Getpid()), good.target(2, os.Getpid()))
			if c.want == late {
				cpt.reader.limit = 6 * time.Second
			}
			cpt.begin(t)
			good.count.Add(10)
			all := cpt.end(t, twoSeconds)
			if r := all[key(1)]; r.Err == nil || !strings.Contains(r.Err.Error(), c.want) || !math.IsNaN(r.Cost) || len(r.Err.Error()) > 2*maxErrorText {
				t.Errorf("%.1000s, want %q", fmt.Sprintf("%+v", r), c.want)
			}
			if r := all[key(2)]; r.Err != nil || math.IsNaN(r.Cost) {
				t.Errorf("the other task: %+v", r)
			}
		})
	}
	if elsewhere.asked.Load() != 0 {
		t.Error("the redirect was followed")
	}
}

// A task that does not answer is asked less and less often, and in every window once it
// answers again.
func TestScrapeRests(t *testing.T) {
	s := serveMetrics(t, listen(t, "tcp", "127.0.0.1:0"))
	works := false
	s.handle = func(w http.ResponseWriter, _ *http.Request, _ int64) {
		if !works {
			w.WriteHeader(503)
		}
		io.WriteString(w, "requests_total{code=\"200\"} 1\n")
	}
	c := scraping(t, s.target(1, os.Getpid()))
	c.reader.random = func() float64 { return 0.5 }
	c.reader.windowed(2 * time.Second)
	task := c.order[0].transactions.(*reported)
	pauses := func(n int) (all []time.Duration) {
		for range n {
			c.look()
			all = append(all, task.next.Sub(c.now())/time.Second)
		}
		return all
	}
	if got, want := pauses(7), []time.Duration{8, 16, 32, 64, 128, 192, 192}; !slices.Equal(got, want) {
		t.Errorf("pauses of %d s, want %d", got, want)
	}
	works = true
	if got, want := pauses(2), []time.Duration{1, 1}; !slices.Equal(got, want) {
		t.Errorf("pauses of %d s once it answers, want %d", got, want)
	}
	works = false // earlier failures are forgotten
	if got, want := pauses(2), []time.Duration{8, 16}; !slices.Equal(got, want) {
		t.Errorf("pauses of %d s, want %d", got, want)
	}
}

// A task in a network of its own is asked there, at the same port as another task on
// the host, and all threads of the agent are in their own network afterwards.
func TestScrapeInItsOwnNetwork(t *testing.T) {
	quelltest.Need(t, quelltest.Root)
	type made struct {
		l   net.Listener
		tid int
		err error
	}
	inside, leave := make(chan made), make(chan struct{})
	here := listen(t, "tcp4", "127.0.0.1:0")
	port := strconv.Itoa(here.Addr().(*net.TCPAddr).Port)
	host.OwnThread(func() {
		l, err := listenInNewNetwork("127.0.0.1:" + port)
		inside <- made{l, unix.Gettid(), err}
		<-leave
	})
	in := <-inside
	defer close(leave)
	if in.err != nil {
		quelltest.Skip(t, "namespaces", in.err)
	}
	outer, inner := serveMetrics(t, here), serveMetrics(t, in.l)
	outer.count.Store(100)
	c := scraping(t, outer.target(1, os.Getpid()), inner.target(2, in.tid))
	for range 5 {
		c.begin(t)
		outer.count.Add(10)
		inner.count.Add(3)
		all := c.end(t, twoSeconds)
		for id, want := range map[uint64]float64{1: 10, 2: 3} {
			r := all[key(id)]
			tx, _ := r.Extras.Get(sample.Transactions)
			if r.Err != nil || tx != want {
				t.Errorf("task %d: %+v: %v transactions", id, r, tx)
			}
		}
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	own, _ := os.Readlink("/proc/self/ns/net")
	for _, e := range threads {
		ns, err := os.Readlink("/proc/self/task/" + e.Name() + "/ns/net")
		if err == nil && ns != own && e.Name() != strconv.Itoa(in.tid) {
			t.Errorf("thread %s was left in %s", e.Name(), ns)
		}
	}
}

// listenInNewNetwork gives the calling thread a network of its own.
func listenInNewNetwork(address string) (net.Listener, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("unshare: %w", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return nil, err
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return nil, fmt.Errorf("bring lo up: %w", err)
	}
	return net.Listen("tcp4", address)
}

// A task whose processes are gone, and one that is removed in the window.
func TestScrapeOfTheGone(t *testing.T) {
	s := serveMetrics(t, listen(t, "tcp", "127.0.0.1:0"))
	none := s.target(1, 0)
	none.Members = func() ([]int, error) { return nil, nil }
	unknown := s.target(2, 0)
	unknown.Members = func() ([]int, error) { return nil, errors.New("too many") }
	c := scraping(t, none, unknown, s.target(3, os.Getpid()), s.target(4, 1<<30))
	c.begin(t)
	if r, ok := c.Remove(key(3), time.Second); ok && r.Err == nil {
		t.Errorf("%+v counted without a second answer", r)
	}
	all := c.end(t, twoSeconds)
	for id, want := range map[uint64]string{1: "process is gone", 2: "too many", 4: "process is gone"} {
		if r := all[key(id)]; r.Err == nil || !strings.Contains(r.Err.Error(), want) {
			t.Errorf("task %d: %+v, want %q", id, r, want)
		}
	}
	if _, ok := all[key(3)]; ok {
		t.Error("a reading of a task that was removed")
	}
}
