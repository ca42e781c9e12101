package counter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Scrape is a counter that a task offers to Prometheus: all series of Metric
// that have the Labels add up.
type Scrape struct {
	Port   int    // of the loopback device in the task's network
	Path   string // "/metrics"
	Metric string
	Labels map[string]string
}

const (
	// scrapeShare is the part of a look's time limit in which the answer must be there: a
	// server that is slow does not hang.
	scrapeShare = 2. / 3
	// maxScrapePIDs is the number of processes of a task that are tried. All processes
	// of a container have the same network, but some may just have ended.
	maxScrapePIDs = 8
)

var errNoAnswer = errors.New("no answer in time")

// scrapeError is why a task's counter is not known. Errors of net/http and of the parser repeat what
// the task answered. The text, which is kept and shown, has the beginning of that only.
type scrapeError struct {
	port int
	err  error
}

// maxErrorText is the most that is shown of an answer, in bytes.
const maxErrorText = 500

func (e *scrapeError) Error() string {
	text := e.err.Error()
	if len(text) > maxErrorText {
		text = strings.ToValidUTF8(text[:maxErrorText], "") + "…"
	}
	return fmt.Sprintf("scrape port %d: %s", e.port, text)
}

func (e *scrapeError) Unwrap() error { return e.err }

// scrape asks a task for its counter.
type scrape struct {
	proc   string
	target *Target
	now    func() time.Time
}

func (s *scrape) look(ctx context.Context) look {
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(scrapeShare*float64(time.Until(end))))
		defer cancel()
	}
	pids, err := s.target.Members()
	if err != nil {
		return look{at: s.now(), err: fmt.Errorf("list members: %w", err)}
	}
	before, knownBefore := s.target.cpuTime()
	a := scraped{err: errNoNetwork}
	for _, pid := range pids[:min(len(pids), maxScrapePIDs)] {
		if a = s.get(ctx, pid, s.target.Scrape); !errors.Is(a.err, errNoNetwork) {
			break
		}
	}
	if a.err != nil && ctx.Err() != nil {
		a.err = errNoAnswer
	}
	if a.err != nil {
		return look{at: s.now(), err: &scrapeError{s.target.Scrape.Port, a.err}}
	}
	l := look{at: a.at, values: map[fileID]count{{}: {n: a.value}}}
	if after, known := s.target.cpuTime(); known && knownBefore {
		l.cpu, l.cpuKnown = before+(after-before)/2, true
	}
	return l
}

// scraped is one answer.
type scraped struct {
	value float64
	at    time.Time // midway between the request and the answer
	err   error
}

func (s *scrape) get(ctx context.Context, pid int, rule *Scrape) (a scraped) {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialLoopback(ctx, s.proc, pid, rule.Port)
		},
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
	}
	client := http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost:"+strconv.Itoa(rule.Port)+rule.Path, nil)
	if err != nil {
		return scraped{err: err}
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4")
	req.Header.Set("User-Agent", "quell-agent")
	asked := s.now()
	resp, err := client.Do(req)
	if err != nil {
		return scraped{err: err}
	}
	defer resp.Body.Close()
	a.at = asked.Add(s.now().Sub(asked) / 2)
	if resp.StatusCode != http.StatusOK {
		return scraped{err: fmt.Errorf("answered %s", resp.Status)}
	}
	if err := textFormat(resp.Header.Get("Content-Type")); err != nil {
		return scraped{err: err}
	}
	a.value, a.err = sumSeries(resp.Body, rule.Metric, rule.Labels)
	if errors.Is(a.err, errNoSeries) {
		a.err = fmt.Errorf("%w: %s%s", errNoSeries, rule.Metric, labelText(rule.Labels))
	}
	if errors.Is(a.err, io.ErrUnexpectedEOF) {
		a.err = fmt.Errorf("the answer was cut short: %w", a.err)
	}
	return a
}

// textFormat returns an error for an answer in another format than requested.
func textFormat(contentType string) error {
	if contentType == "" {
		return nil
	}
	kind, params, err := mime.ParseMediaType(contentType)
	if err == nil && kind == "text/plain" && (params["version"] == "" || params["version"] == "0.0.4") {
		return nil
	}
	return fmt.Errorf("answered in the format %.80q, want Prometheus's text format 0.0.4", contentType)
}

func labelText(labels map[string]string) string {
	if len(labels) == 0 {
		return ""
	}
	return strings.TrimPrefix(fmt.Sprintf("%q", labels), "map")
}
