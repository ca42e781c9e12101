package httpload

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"
)

// Options configure a run.
type Options struct {
	URL string
	// Rate is the requests per second of an open loop: they are due evenly spaced, whatever
	// the answers. A request that finds every connection busy waits for one, and its
	// latency includes that wait; one that has waited for the timeout is dropped. 0: a
	// closed loop, in which each connection sends the next request as soon as it has its
	// answer.
	Rate float64
	// Connections is the number of requests in flight at once, each on its own
	// connection, which is kept unless Fresh.
	Connections int
	// Warmup comes before Duration; its requests are not counted.
	Warmup, Duration time.Duration
	// Timeout limits a request, from its sending, and before that an open loop's wait
	// for a free connection; 0: 10 s.
	Timeout time.Duration
	// Fresh uses a new connection for each request, like httperf's default.
	Fresh bool
	// Insecure accepts any certificate of an https URL.
	Insecure bool
	// Answered, if not nil, is called for every good answer when it arrives, from
	// several goroutines.
	Answered func(bytes int64)
	// Dial connects; nil: net.Dialer. For tests, or for another network namespace.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

func (o *Options) check() error {
	switch {
	case !(o.Rate >= 0) || o.Rate > 1e6:
		return fmt.Errorf("rate: %g: want 0 to 1,000,000 a second", o.Rate)
	case o.Connections < 1:
		return fmt.Errorf("connections: %d: want at least 1", o.Connections)
	case o.Duration <= 0:
		return fmt.Errorf("duration: %s: want more than 0", o.Duration)
	case o.Warmup < 0:
		return fmt.Errorf("warmup: %s: want at least 0", o.Warmup)
	}
	if _, err := http.NewRequest(http.MethodGet, o.URL, nil); err != nil {
		return fmt.Errorf("url: %w", err)
	}
	return nil
}

func (o *Options) timeout() time.Duration {
	if o.Timeout > 0 {
		return o.Timeout
	}
	return 10 * time.Second
}

// client returns a client that has room for all connections and makes no others.
func (o *Options) client() *http.Client {
	dial := o.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	return &http.Client{Transport: &http.Transport{
		DialContext: dial, MaxIdleConns: o.Connections, MaxIdleConnsPerHost: o.Connections, MaxConnsPerHost: o.Connections,
		DisableCompression: true, IdleConnTimeout: time.Minute, DisableKeepAlives: o.Fresh,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: o.Insecure},
	}}
}

// Errors counts failed requests by cause.
type Errors struct {
	Connect int // no connection
	Timeout int // no whole answer in time
	Status  int // an answer that is not 2xx
	Other   int // the connection broke, or the answer was malformed
}

// Sum is the number of all failed requests.
func (e Errors) Sum() int { return e.Connect + e.Timeout + e.Status + e.Other }

// answer is the outcome of one request.
type answer struct {
	intended, sent, end time.Time
	bytes               int64
	err                 error
}

// errStatus says that an answer is not 2xx.
var errStatus = errors.New("status")

// errConnect says that there was no connection.
var errConnect = errors.New("connect")

// ask sends one request.
func ask(ctx context.Context, c *http.Client, url string, intended time.Time, timeout time.Duration) answer {
	a := answer{intended: intended, sent: time.Now()}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	connected := false
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodGet, url, nil)
	if err != nil {
		a.err, a.end = err, time.Now()
		return a
	}
	resp, err := c.Do(req)
	if err == nil {
		a.bytes, err = io.Copy(io.Discard, resp.Body)
		err = errors.Join(err, resp.Body.Close())
		if err == nil && resp.StatusCode/100 != 2 {
			err = fmt.Errorf("%w %d", errStatus, resp.StatusCode)
		}
	} else if !connected {
		err = fmt.Errorf("%w: %w", errConnect, err)
	}
	a.err, a.end = err, time.Now()
	return a
}

func (e *Errors) count(err error) {
	switch {
	case errors.Is(err, errStatus):
		e.Status++
	case errors.Is(err, context.DeadlineExceeded):
		e.Timeout++
	case errors.Is(err, errConnect):
		e.Connect++
	default:
		e.Other++
	}
}

// tally collects the workers' answers between two times.
type tally struct {
	each     func(bytes int64)
	from, to time.Time
	mu       sync.Mutex
	r        Result
	latency  []time.Duration // from the intended start
	service  []time.Duration // from the sending
	first    error
}

// add counts an answer if its request's intended start is in the counted time.
func (t *tally) add(a answer) {
	if a.err == nil && t.each != nil {
		t.each(a.bytes)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !a.end.Before(t.from) && a.end.Before(t.to) && a.err == nil {
		t.r.finished++
		t.r.Bytes += a.bytes
	}
	if a.intended.Before(t.from) || !a.intended.Before(t.to) {
		return
	}
	t.r.Sent++
	if a.err != nil {
		t.r.Errors.count(a.err)
		if t.first == nil {
			t.first = a.err
		}
		return
	}
	t.r.Done++
	t.latency = append(t.latency, a.end.Sub(a.intended))
	t.service = append(t.service, a.end.Sub(a.sent))
}

// result computes the final figures.
func (t *tally) result() *Result {
	r := &t.r
	seconds := t.to.Sub(t.from).Seconds()
	r.Rate, r.Throughput = float64(r.finished)/seconds, float64(r.Bytes)/seconds
	r.Latency, r.Service = quantiles(t.latency), quantiles(t.service)
	if t.first != nil {
		r.FirstError = t.first.Error()
	}
	return r
}
