package counter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// reported is a task that reports its work itself: in progress files, or with a counter for
// Prometheus. The reader looks at it at times that have nothing to do with windows, since the
// task may notice a look. A window's result comes from the looks in it.
type reported struct {
	target *Target
	way    string // the variant
	looker looker
	share  int // looks in the length of a window

	// Of the reader:
	next   time.Time     // the next look
	index  int           // in reader.waiting, -1 if it is not there
	pause  time.Duration // the newest, if it grows
	proven bool          // a look has succeeded
	hangs  int           // looks that did not return in time
	asleep bool          // the newest look said so

	mu     sync.Mutex
	open   bool // in a window
	values map[fileID]count
	points []point // in order of time; outside windows only the newest
	hung   error   // why it is not looked at; nil if it is
}

// looker looks at a task once. Everything in it may hang, since the task controls what it
// reads. look is not called again before it has returned.
type looker interface {
	look(context.Context) look
}

// look is what a task reports at one time.
type look struct {
	at       time.Time
	values   map[fileID]count // none: it reports nothing
	cpu      time.Duration    // its CPU time then
	cpuKnown bool
	err      error // why it is not known what it reports
	asleep   bool  // it reports nothing, and has not run since the last look
}

// count is the value of one counter; short: it has none yet.
type count struct {
	n     float64
	short bool
}

// point is the sum of a task's counters at one look.
type point struct {
	at       time.Time
	cpu      time.Duration
	cpuKnown bool
	done     float64 // since the first look
	restarts int     // times that a counter was smaller than before
	span     int     // times that a counter has gone, so that the sum does not continue
	none     bool
	err      error
}

// maxPoints bounds what is kept of one window.
const maxPoints = 256

var (
	errNotRead = errors.New("not read often enough in the window")
	errHangs   = errors.New("reading what the task reports did not return")
)

// keep adds a look.
func (t *reported) keep(l *look) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hung = nil
	p := point{}
	if n := len(t.points); n > 0 {
		p = t.points[n-1]
	}
	p.at, p.cpu, p.cpuKnown, p.err, p.none = l.at, l.cpu, l.cpuKnown, l.err, l.err == nil && len(l.values) == 0
	if l.err == nil {
		written := len(l.values) == 0
		for id, now := range l.values {
			written = written || !now.short
			was, there := t.values[id]
			switch {
			case !there || was.short && now.short:
			case was.short || now.short:
				p.err = fmt.Errorf("read progress file: %w", errShort)
			case now.n < was.n:
				p.restarts++
				p.done += now.n
			default:
				p.done += now.n - was.n
			}
		}
		for id, was := range t.values {
			if _, there := l.values[id]; !there && !was.short {
				p.span++
				break
			}
		}
		if !written {
			p.err = fmt.Errorf("read progress file: %w", errShort)
		}
		t.values = l.values
	}
	t.add(p)
}

func (t *reported) add(p point) {
	if !t.open {
		t.points = t.points[:0]
	}
	if len(t.points) < maxPoints {
		t.points = append(t.points, p)
	}
}

// hang records that a look did not return.
func (t *reported) hang(at time.Time, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hung = err
	p := point{at: at, err: err}
	t.values = nil
	t.add(p)
}

func (t *reported) variant() string { return t.way }

func (t *reported) start(time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open = true
	t.points = t.points[max(0, len(t.points)-1):]
}

func (t *reported) abort() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open = false
}

func (t *reported) stop(from, to time.Time) (counted, error) {
	defer t.abort()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.hung != nil {
		return counted{}, t.hung
	}
	return countedIn(t.points, from, to)
}

// countedIn returns what was counted in the longest stretch of points of a window. It begins at
// the newest point before the window, if that is close to it, and ends with the last in it,
// so it is of the window's length and at most a pause earlier.
func countedIn(points []point, from, to time.Time) (counted, error) {
	for len(points) > 0 && points[len(points)-1].at.After(to) {
		points = points[:len(points)-1]
	}
	for len(points) > 0 && (points[0].at.Before(from.Add(-to.Sub(from)/2)) || len(points) > 1 && !points[1].at.After(from)) {
		points = points[1:]
	}
	if len(points) == 0 || points[0].none {
		return counted{}, errNoProgress
	}
	var first, last point
	for begin := 0; begin < len(points); {
		end := begin
		for end+1 < len(points) && points[end+1].span == points[begin].span {
			end++
		}
		for _, p := range points[begin : end+1] {
			if p.err != nil {
				return counted{}, p.err
			}
		}
		if begin == 0 || points[end].at.Sub(points[begin].at) > last.at.Sub(first.at) {
			first, last = points[begin], points[end]
		}
		begin = end + 1
	}
	c := counted{done: last.done - first.done, span: last.at.Sub(first.at), restarted: last.restarts != first.restarts}
	if c.span <= 0 {
		return counted{}, errNotRead
	}
	if first.cpuKnown && last.cpuKnown && last.cpu >= first.cpu {
		c.cpu, c.cpuKnown = last.cpu-first.cpu, true
	}
	return c, nil
}
