package counter

import (
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// The times of the reader.
const (
	// lookLimit is how long a look may take. A task whose look takes longer is quarantined.
	lookLimit = 3 * time.Second
	// leastQuarantine is how long at least, and until the look has returned; it doubles with
	// each look that hangs, and is halved by each that does not: a look may take long because
	// the agent gets no CPU.
	leastQuarantine, mostQuarantine = time.Minute, 24 * time.Hour
	// firstEvery is the mean pause between looks before the length of a window is known.
	firstEvery, leastEvery, mostEvery = time.Second, 20 * time.Millisecond, 15 * time.Second
	// Pauses of a task that reports nothing or does not answer, in mean pauses: they double.
	firstRest, mostRest = 8, 192
	// A look that takes more than a part of its limit is followed by a pause of so many times as long, if
	// another task waits as long as that: tasks that answer just in time must not keep all looks busy.
	slowShare, slowRest = 10, 16
	// A task that sleeps is looked at after so many mean pauses, about an hour, or soon once it uses
	// a part of a CPU.
	sleepRest, busyShare = 8 * mostRest, 100
)

const (
	// looksAtOnce bounds the looks that run together.
	looksAtOnce = 8
	// maxHung bounds the looks that have not returned, each of which has a thread. From
	// half of it on only tasks are looked at that were looked at with success before.
	maxHung = 64
)

// QuarantineError says that a task is not looked at for some time, because a look hung.
type QuarantineError struct {
	For time.Duration
}

func (e *QuarantineError) Error() string {
	return fmt.Sprintf("%v within %s: the task is quarantined for %s", errHangs, lookLimit, e.For)
}

func (e *QuarantineError) Unwrap() error { return errHangs }

// reader looks at tasks, in goroutines of its own: neither the agent's loop nor a look at
// another task waits for a look. The pauses between looks at a task are random and depend
// only on the length of windows.
type reader struct {
	now    func() time.Time
	random func() float64 // in [0, 1)
	limit  time.Duration  // of a look
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{}
	looks  sync.WaitGroup // and run

	mu      sync.Mutex
	waiting dueFirst // tasks at which no look is in progress
	active  map[*reported]bool
	window  time.Duration // the length of a window; 0: not known
	running int
	hung    int
}

func newReader(now func() time.Time) *reader {
	ctx, cancel := context.WithCancel(context.Background())
	return &reader{now: now, limit: lookLimit, random: rand.Float64, ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1), active: map[*reported]bool{}}
}

// start begins to look at tasks.
func (r *reader) start() { r.looks.Go(r.run) }

// close ends all looks. It does not wait for those that hang.
func (r *reader) close() {
	r.cancel()
	r.looks.Wait()
}

func (r *reader) add(t *reported) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.active[t] = true
	t.next = r.now().Add(r.upTo(r.every(t)))
	r.await(t)
}

// await lets a task wait for its next look.
func (r *reader) await(t *reported) {
	heap.Push(&r.waiting, t)
	if t.index == 0 {
		r.nudge()
	}
}

func (r *reader) remove(t *reported) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.active, t)
	if t.index >= 0 {
		heap.Remove(&r.waiting, t.index)
	}
}

// windowed gives the reader the length of the newest window.
func (r *reader) windowed(length time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	shorter := length < r.window || r.window == 0
	r.window = length
	if !shorter {
		return
	}
	for _, t := range r.waiting {
		if soon := r.now().Add(r.upTo(r.every(t))); t.pause == 0 && t.hangs == 0 && soon.Before(t.next) {
			t.next = soon
		}
	}
	heap.Init(&r.waiting)
	r.nudge()
}

// used gives the reader the CPU time that a task used in the newest window. One that slept and is busy
// now is looked at as if it had not slept.
func (r *reader) used(t *reported, used, length time.Duration) {
	if used < length/busyShare {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !t.asleep || t.index < 0 {
		return
	}
	t.asleep = false
	if soon := r.now().Add(r.upTo(max(t.pause, r.every(t)))); soon.Before(t.next) {
		t.next = soon
		heap.Fix(&r.waiting, t.index)
		r.nudge()
	}
}

// every is the mean pause between two looks.
func (r *reader) every(t *reported) time.Duration {
	if r.window == 0 {
		return firstEvery
	}
	return min(max(r.window/time.Duration(t.share), leastEvery), mostEvery)
}

// upTo is a random time up to d, around one from half of d to one and a half.
func (r *reader) upTo(d time.Duration) time.Duration { return time.Duration(r.random() * float64(d)) }

func (r *reader) around(d time.Duration) time.Duration { return d/2 + r.upTo(d) }

func (r *reader) nudge() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *reader) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-timer.C:
		case <-r.wake:
		}
		if wait, any := r.dispatch(); any {
			timer.Reset(wait)
		}
	}
}

// dispatch starts the looks that are due. It returns the time until the next is due. If too
// many are in progress, the end of one wakes the reader.
func (r *reader) dispatch() (wait time.Duration, any bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for now := r.now(); len(r.waiting) > 0 && r.running < looksAtOnce; {
		t := r.waiting[0]
		if t.next.After(now) {
			return t.next.Sub(now), true
		}
		heap.Pop(&r.waiting)
		r.running++
		r.looks.Go(func() { r.look(t) })
	}
	return 0, false
}

// look looks at a task once.
func (r *reader) look(t *reported) {
	r.mu.Lock()
	crowded := r.hung >= maxHung || r.hung >= maxHung/2 && !t.proven
	r.mu.Unlock()
	var l look
	began, returned, late := r.now(), true, make(chan struct{})
	if crowded {
		l = look{at: r.now(), err: fmt.Errorf("not looked at: %d looks at tasks hang", maxHung/2)}
	} else {
		ctx, cancel := context.WithTimeout(r.ctx, r.limit)
		defer cancel()
		l, returned = within(ctx, func() look { return t.looker.look(ctx) }, func(look) { close(late) })
	}
	if r.ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running--; r.running == looksAtOnce-1 {
		r.nudge()
	}
	if !returned {
		r.quarantine(t, late)
		return
	}
	if !crowded {
		t.hangs = max(0, t.hangs-1)
	}
	every := r.every(t)
	if t.asleep = l.asleep; t.asleep {
		t.next = r.now().Add(r.around(sleepRest * every))
		t.keep(&l)
		if r.active[t] {
			r.await(t)
		}
		return
	}
	switch _, scraped := t.looker.(*scrape); {
	case l.err != nil && (scraped || crowded), l.err == nil && len(l.values) == 0 && t.target.Progress == "":
		t.pause = min(max(2*t.pause, firstRest*every), mostRest*every)
	default:
		t.pause, t.proven = 0, t.proven || l.err == nil && len(l.values) > 0
	}
	pause, now, slow := max(t.pause, every), r.now(), r.limit/slowShare
	if took := now.Sub(began); took > slow && len(r.waiting) > 0 && now.Sub(r.waiting[0].next) > slow {
		pause = max(pause, slowRest*took)
	}
	t.next = now.Add(r.around(pause))
	t.keep(&l)
	if r.active[t] {
		r.await(t)
	}
}

// quarantine leaves a task alone whose look hangs, for some time and until late is closed.
func (r *reader) quarantine(t *reported, late <-chan struct{}) {
	r.hung++
	away := min(leastQuarantine<<min(t.hangs, 10), mostQuarantine)
	t.hangs++
	t.next = r.now().Add(r.around(away))
	t.hang(r.now(), &QuarantineError{away})
	go func() {
		<-late // for as long as the kernel waits
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.hung--; r.active[t] {
			r.await(t)
		}
	}()
}

// dueFirst is a heap of tasks, of which the first is due first.
type dueFirst []*reported

func (h dueFirst) Len() int           { return len(h) }
func (h dueFirst) Less(i, j int) bool { return h[i].next.Before(h[j].next) }

func (h dueFirst) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *dueFirst) Push(x any) {
	t := x.(*reported)
	t.index = len(*h)
	*h = append(*h, t)
}

func (h *dueFirst) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	t.index = -1
	return t
}
