package main

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
	"strings"
	"time"
)

// result is one measurement of one contender.
type result struct {
	Contender string
	Cgroups   int
	Round     int
	Window    float64 // s
	CPU       float64 // s of CPU time in the window: the cgroup's usage_usec
	Stat      float64 // the same according to /proc/PID/stat, in ticks of 10 ms
	Schedstat float64 // the same according to schedstat of the living threads
	RSS       int64   // bytes at the window's end, all processes
	PeakRSS   int64
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

func loadAverage() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	v, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0
	}
	return v
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
	into.RSS, into.PeakRSS, into.FDs = 0, 0, 0
	for _, p := range s.procs {
		dir := filepath.Join("/proc", strconv.Itoa(p.Process.Pid))
		used, err := readProcess(dir)
		if err != nil {
			return fmt.Errorf("%s: %w: %s", s.name, err, s.tail())
		}
		into.Stat += sign * used.stat
		into.Schedstat += sign * used.schedstat
		into.RSS += used.rss
		into.PeakRSS += used.peak
		into.FDs += used.fds
	}
	return nil
}

// process holds the figures that /proc/PID gives for a process.
type process struct {
	stat, schedstat float64 // s
	rss, peak       int64   // bytes
	fds             int
}

func readProcess(dir string) (p process, err error) {
	read := func(name string) []byte {
		text, e := os.ReadFile(filepath.Join(dir, name))
		err = errors.Join(err, e)
		return text
	}
	if p.stat, err = parseStat(read("stat")); err != nil {
		return p, err
	}
	p.rss, p.peak = parseStatus(read("status"))
	threads, e := filepath.Glob(filepath.Join(dir, "task/*/schedstat"))
	err = errors.Join(err, e)
	for _, file := range threads {
		text, e := os.ReadFile(file)
		if e != nil {
			continue // the thread has ended
		}
		ns, _, _ := strings.Cut(string(text), " ")
		n, e := strconv.ParseUint(ns, 10, 64)
		err = errors.Join(err, e)
		p.schedstat += float64(n) / 1e9
	}
	fds, e := os.ReadDir(filepath.Join(dir, "fd"))
	p.fds = len(fds)
	return p, errors.Join(err, e)
}

// ticksPerSecond is USER_HZ, which is 100 wherever Linux runs Go.
const ticksPerSecond = 100

// parseStat returns utime + stime of /proc/PID/stat (proc(5), fields 14 and
// 15), in s. The command, field 2, may contain any character.
func parseStat(text []byte) (float64, error) {
	f := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(f) < 13 {
		return 0, fmt.Errorf("parse stat: %d fields after the command", len(f))
	}
	user, err1 := strconv.ParseUint(string(f[11]), 10, 64)
	system, err2 := strconv.ParseUint(string(f[12]), 10, 64)
	return float64(user+system) / ticksPerSecond, errors.Join(err1, err2)
}

// parseStatus returns VmRSS and VmHWM of /proc/PID/status, in bytes.
func parseStatus(text []byte) (rss, peak int64) {
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "kB" {
			continue
		}
		n, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			continue
		}
		switch f[0] {
		case "VmRSS:":
			rss = n << 10
		case "VmHWM:":
			peak = n << 10
		}
	}
	return rss, peak
}

// doScrape reads a contender's metrics once, as Prometheus does but without
// compression.
func (s *started) doScrape(ctx context.Context, into *result) error {
	if s.scrape == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", s.scrape, nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}}
	begin := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("scrape %s: %w: %s", s.name, err, s.tail())
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	took := time.Since(begin)
	if err != nil {
		return fmt.Errorf("scrape %s: %w", s.name, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("scrape %s: %s: %s", s.name, resp.Status, s.tail())
	}
	if last := podName(into.Cgroups - 1); s.names && !bytes.Contains(body, []byte("/"+last+`"`)) {
		return fmt.Errorf("scrape %s: no metrics of %s", s.name, last)
	}
	into.Bytes = max(into.Bytes, int64(len(body)))
	into.Scrapes = append(into.Scrapes, took.Seconds())
	return nil
}
