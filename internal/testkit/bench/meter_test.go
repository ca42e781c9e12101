package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// result is one measurement of one contender.
type result struct {
	Contender string
	Cgroups   int
	Round     int
	Window    float64 // s
	CPU       float64 // s of CPU time in the window: the cgroup's usage_usec
	RSS       int64   // bytes at the window's end, all processes
	FDs       int
	Bytes     int64     // of a scrape; 0 if it has none
	Scrapes   []float64 // s, one per scrape
	Load      float64   // of the machine over the last minute, at the window's end
}

// share returns the share of one CPU.
func (r *result) share() float64 { return r.CPU / r.Window }

// scrapeEvery is a short scrape interval of Prometheus.
const scrapeEvery = 10 * time.Second

// measure waits for the warm-up and measures all started contenders in parallel.
func (r *run) measure(ctx context.Context, all []*started, n, round int, window time.Duration) ([]result, error) {
	if err := pause(ctx, r.warmUp); err != nil {
		return nil, err
	}
	results := make([]result, len(all))
	begin := time.Now()
	for i, s := range all {
		results[i] = result{Contender: s.name, Cgroups: n, Round: round}
		if err := r.take(s, &results[i], -1); err != nil {
			return nil, err
		}
	}
	// The first scrape is after half an interval, so that each is within the window.
	for next := scrapeEvery / 2; next < window; next += scrapeEvery {
		if err := pause(ctx, time.Until(begin.Add(next))); err != nil {
			return nil, err
		}
		for i, s := range all {
			if err := s.doScrape(ctx, &results[i]); err != nil {
				return nil, err
			}
		}
	}
	if err := pause(ctx, time.Until(begin.Add(window))); err != nil {
		return nil, err
	}
	for i, s := range all {
		results[i].Window = time.Since(begin).Seconds()
		if err := r.take(s, &results[i], 1); err != nil {
			return nil, err
		}
		if err := errors.Join(ctx.Err(), s.dead()); err != nil {
			return nil, err
		}
		results[i].Load = loadAverage()
	}
	return results, nil
}

// loadAverage returns the machine's load over the last minute, 0 if it is unknown.
func loadAverage() float64 {
	var info unix.Sysinfo_t
	_ = unix.Sysinfo(&info)
	return float64(info.Loads[0]) / (1 << 16) // sysinfo(2)
}

// pause waits, or fails when ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// take adds what a contender has used so far to into, or subtracts it with sign
// -1. Levels (memory, descriptors) are set instead.
func (r *run) take(s *started, into *result, sign float64) error {
	usage, err := r.tree.usage(s.meter)
	if err != nil {
		return err
	}
	into.CPU += sign * usage
	into.RSS, into.FDs = 0, 0
	for _, p := range s.procs {
		dir := filepath.Join("/proc", strconv.Itoa(p.PID))
		statm, err1 := os.ReadFile(filepath.Join(dir, "statm"))
		fds, err2 := os.ReadDir(filepath.Join(dir, "fd"))
		if err := errors.Join(err1, err2); err != nil {
			return fmt.Errorf("%s: %w: %s", s.name, err, s.tail())
		}
		var size, resident int64 // pages
		if _, err := fmt.Sscan(string(statm), &size, &resident); err != nil {
			return fmt.Errorf("read memory of %s: %w", s.name, err)
		}
		into.RSS += resident * int64(os.Getpagesize())
		into.FDs += len(fds)
	}
	return nil
}

// get reads what a contender answers at its address, as Prometheus does but without
// compression.
func (s *started) get(ctx context.Context) (body []byte, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", s.scrape, nil)
	if err != nil {
		return nil, 0, err
	}
	client := http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}}
	begin := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return nil, 0, fmt.Errorf("scrape %s: %w: %s", s.name, err, s.tail())
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	took = time.Since(begin)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("scrape %s: %w: %s", s.name, err, s.tail())
	}
	return body, took, nil
}

// doScrape scrapes a contender once.
func (s *started) doScrape(ctx context.Context, into *result) error {
	if s.scrape == "" {
		return nil
	}
	body, took, err := s.get(ctx)
	if err != nil {
		return err
	}
	if last := podName(into.Cgroups - 1); s.names && !bytes.Contains(body, []byte("/"+last+`"`)) {
		return fmt.Errorf("scrape %s: no metrics of %s", s.name, last)
	}
	into.Bytes = max(into.Bytes, int64(len(body)))
	into.Scrapes = append(into.Scrapes, took.Seconds())
	return nil
}
