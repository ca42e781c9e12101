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
	"sync"
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
	// scrapeFirst is the limit for the answer at a window's start; the agent does not
	// wait for it.
	scrapeFirst = 2 * time.Second
	// scrapeLast is how long the agent waits at a window's end, for all tasks together.
	// A task that has not answered by then is not counted.
	scrapeLast = 500 * time.Millisecond
	// scrapesAtOnce bounds the connections.
	scrapesAtOnce = 16
	// maxScrapeBackoff is the largest number of windows in which a task that does not
	// answer is not asked.
	maxScrapeBackoff = 32
	// maxScrapePIDs is the number of processes of a task that are tried. All processes
	// of a container have the same network, but some may just have ended.
	maxScrapePIDs = 8
)

var (
	errNoAnswer = errors.New("no answer in time")
	errEnded    = errors.New("the task ended before the second scrape")
)

// scraper asks tasks for their counters.
type scraper struct {
	proc  string
	now   func() time.Time
	slots chan struct{}
	wg    sync.WaitGroup
}

func newScraper(proc string) *scraper {
	return &scraper{proc: proc, now: time.Now, slots: make(chan struct{}, scrapesAtOnce)}
}

// scraped is one answer.
type scraped struct {
	value float64
	at    time.Time // midway between the request and the answer
	err   error
}

// ask sends the request in a goroutine of its own. If the answer does not come before
// the context ends, it is an error.
func (s *scraper) ask(ctx context.Context, target *Target) <-chan scraped {
	answer := make(chan scraped, 1)
	pids, err := target.Members()
	if err != nil {
		answer <- scraped{err: fmt.Errorf("list members: %w", err)}
		return answer
	}
	rule := target.Scrape
	s.wg.Go(func() {
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		case <-ctx.Done():
			answer <- scraped{err: errNoAnswer}
			return
		}
		a := s.scrape(ctx, pids, rule)
		if a.err != nil && ctx.Err() != nil {
			a.err = errNoAnswer
		}
		answer <- a
	})
	return answer
}

func (s *scraper) scrape(ctx context.Context, pids []int, rule *Scrape) (a scraped) {
	a.err = errNoNetwork
	for _, pid := range pids[:min(len(pids), maxScrapePIDs)] {
		if a = s.get(ctx, pid, rule); !errors.Is(a.err, errNoNetwork) {
			break
		}
	}
	if a.err != nil {
		a.err = fmt.Errorf("scrape port %d: %w", rule.Port, a.err)
	}
	return a
}

func (s *scraper) get(ctx context.Context, pid int, rule *Scrape) (a scraped) {
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

// scrapeTask counts one task from its answers at the two ends of a window.
type scrapeTask struct {
	target      *Target
	scraper     *scraper
	cancel      context.CancelFunc
	first, last <-chan scraped // nil: not asked in this window
	begin       scraped
	err         error // why it was not asked, or not again
	failed      int   // consecutive windows
	backoff     int   // windows in which it is not asked
}

func (t *scrapeTask) variant() string { return variantScrape }

func (t *scrapeTask) start() {
	t.first, t.last = nil, nil
	if t.backoff > 0 {
		t.backoff--
		return // err stays as it was
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeFirst)
	t.err, t.cancel = nil, cancel
	t.first = t.scraper.ask(ctx, t.target)
}

func (t *scrapeTask) ending(ctx context.Context) {
	if t.first == nil {
		return
	}
	select {
	case t.begin = <-t.first:
		t.err = t.begin.err
	default:
		t.err = errNoAnswer
	}
	if t.err == nil {
		t.last = t.scraper.ask(ctx, t.target)
	}
}

func (t *scrapeTask) stop() (counted, error) {
	defer t.abort()
	var end scraped
	switch {
	case t.last != nil:
		end = <-t.last
		t.err = end.err
	case t.err == nil:
		return counted{}, errEnded
	}
	if t.err != nil {
		if t.first != nil {
			t.backoff = min(1<<min(t.failed, 10), maxScrapeBackoff) - 1
			t.failed++
		}
		return counted{}, t.err
	}
	t.failed = 0
	return counted{done: end.value - t.begin.value, span: end.at.Sub(t.begin.at), restarted: end.value < t.begin.value}, nil
}

// abort cancels the requests of the window.
func (t *scrapeTask) abort() {
	if t.cancel != nil {
		t.cancel()
		t.cancel = nil
	}
	t.first, t.last = nil, nil
}
