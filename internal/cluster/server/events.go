package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// hub distributes events to its followers.
type hub struct {
	room, perCaller int

	mu   sync.Mutex
	all  map[chan event]*follower
	over bool
	next uint64
}

// follower is what follows the events.
type follower struct {
	caller string
	missed atomic.Uint64 // events
}

type event struct {
	n    uint64
	name string
	data []byte
}

// behind is how many events a follower may lag before it misses some, and maxEvent the size
// of an event in bytes, beyond which all miss it: an agent writes parts of events.
const (
	behind   = 256
	maxEvent = 64 << 10
)

func newHub(room, perCaller int) *hub {
	return &hub{room: room, perCaller: perCaller, all: map[chan event]*follower{}}
}

// publish sends an event to all followers and waits for none.
func (h *hub) publish(name string, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		return // cannot fail: rows and maps of plain values
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next++
	for c, f := range h.all {
		if len(data) > maxEvent {
			f.missed.Add(1)
			continue
		}
		select {
		case c <- event{h.next, name, data}:
		default:
			f.missed.Add(1)
		}
	}
}

// join adds a follower; why says that there is no room for it.
func (h *hub) join(caller string) (c chan event, f *follower, why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over || len(h.all) >= h.room {
		return nil, nil, &httpError{http.StatusServiceUnavailable, "too many event streams are open", "try again later"}
	}
	own := 0
	for _, f := range h.all {
		if f.caller == caller {
			own++
		}
	}
	if own >= h.perCaller {
		return nil, nil, &httpError{http.StatusTooManyRequests, fmt.Sprintf("%d event streams of this caller are open", own), "close one"}
	}
	c, f = make(chan event, behind), &follower{caller: caller}
	h.all[c] = f
	return c, f, nil
}

func (h *hub) leave(c chan event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.all, c)
}

func (h *hub) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.all)
}

// close ends all streams.
func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	for c := range h.all {
		close(c)
		delete(h.all, c)
	}
}

// heartbeat keeps intermediaries from closing a silent stream.
const heartbeat = 15 * time.Second

// events serves the stream (WHATWG HTML, section 9.2, server-sent events). The event
// "missed" states how many events the follower was too slow for. The answer to a HEAD
// ends with the header: the client sends its next request on the same connection, and
// would otherwise wait until the stream ends.
func (s *Server) events(w http.ResponseWriter, r *request) error {
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Type", "text/event-stream")
		return nil
	}
	c, follower, err := s.hub.join(r.caller.key)
	if err != nil {
		return err
	}
	defer s.hub.leave(c)
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	if _, err := fmt.Fprint(w, ": quell\n\n"); err != nil {
		return nil
	}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		if err := out.Flush(); err != nil {
			return nil // the follower has disconnected
		}
		var err error
		select {
		case <-r.Context().Done():
			return nil
		case e, open := <-c:
			if !open {
				return nil
			}
			if n := follower.missed.Swap(0); n > 0 {
				_, err = fmt.Fprintf(w, "event: missed\ndata: {\"events\":%d}\n\n", n)
			}
			if err == nil {
				_, err = fmt.Fprintf(w, "id: %d\nevent: %s\ndata: %s\n\n", e.n, e.name, e.data)
			}
		case <-beat.C:
			if !s.stillKnown(r) {
				return nil // the token was revoked or has expired
			}
			_, err = fmt.Fprint(w, ": still here\n\n")
		}
		if err != nil {
			return nil
		}
	}
}

// stillKnown reports whether the caller would still be authorised.
func (s *Server) stillKnown(r *request) bool {
	if r.caller.sum == (sum{}) {
		return true // it came without a token
	}
	_, why := s.Tokens.find(r.caller.sum, s.Now())
	return why == ""
}
