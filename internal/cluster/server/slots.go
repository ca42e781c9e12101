package server

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

// slots bound the queries of one purpose that run at the same time, and in them those of
// each caller. Each purpose has its own, so that none waits for another. Of the waiting
// callers, the one is next that has waited longest since its previous query began.
type slots struct {
	perCaller int           // queries of a caller that run
	wait      time.Duration // how long a query waits for its turn

	mu      sync.Mutex
	free    int
	begun   uint64 // queries
	by      map[string]*usage
	waiting []*waiter // in the order of arrival
}

// usage is what a caller has of slots.
type usage struct {
	running, waiting int
	last             uint64 // number of its newest query
}

type waiter struct {
	caller string
	turn   chan struct{}
}

// maxWaiting bounds the queries of one caller that wait.
const maxWaiting = 8

func newSlots(n, perCaller int, wait time.Duration) *slots {
	return &slots{free: n, perCaller: perCaller, wait: wait, by: map[string]*usage{}}
}

// take waits for a slot, which the caller must release.
func (s *slots) take(ctx context.Context, caller string) (release func(), err error) {
	s.mu.Lock()
	u := s.by[caller]
	if u == nil {
		u = &usage{}
		s.by[caller] = u
	}
	if u.waiting >= maxWaiting {
		s.mu.Unlock()
		return nil, &httpError{http.StatusTooManyRequests, fmt.Sprintf("%d queries of this caller wait already", maxWaiting), "send queries one after the other"}
	}
	w := &waiter{caller, make(chan struct{})}
	u.waiting++
	s.waiting = append(s.waiting, w)
	s.next()
	s.mu.Unlock()
	release = sync.OnceFunc(func() { s.release(caller) })
	timer := time.NewTimer(s.wait)
	defer timer.Stop()
	select {
	case <-w.turn:
		return release, nil
	case <-ctx.Done():
	case <-timer.C:
	}
	if !s.giveUp(w) { // its turn has come meanwhile
		if ctx.Err() == nil {
			return release, nil
		}
		release()
	}
	return nil, &httpError{http.StatusServiceUnavailable, fmt.Sprintf("too many queries run, and none ended within %s", s.wait), "try again later"}
}

// giveUp removes a waiter; false: it no longer waits.
func (s *slots) giveUp(w *waiter) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.waiting, w)
	if i < 0 {
		return false
	}
	s.waiting = slices.Delete(s.waiting, i, i+1)
	s.by[w.caller].waiting--
	s.forget(w.caller)
	return true
}

func (s *slots) release(caller string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free++
	s.by[caller].running--
	s.next()
	s.forget(caller)
}

// forget removes a caller without queries.
func (s *slots) forget(caller string) {
	if u := s.by[caller]; u.running+u.waiting == 0 {
		delete(s.by, caller)
	}
}

// next gives free slots to those that wait.
func (s *slots) next() {
	for s.free > 0 {
		best := -1
		for i, w := range s.waiting {
			u := s.by[w.caller]
			if u.running < s.perCaller && (best < 0 || u.last < s.by[s.waiting[best].caller].last) {
				best = i
			}
		}
		if best < 0 {
			return
		}
		w := s.waiting[best]
		s.waiting = slices.Delete(s.waiting, best, best+1)
		s.free--
		s.begun++
		u := s.by[w.caller]
		u.running, u.waiting, u.last = u.running+1, u.waiting-1, s.begun
		close(w.turn)
	}
}
