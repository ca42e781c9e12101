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
	room int
	mu   sync.Mutex
	all  map[chan event]*atomic.Uint64 // with the number of events that each missed
	over bool
	next uint64
}

type event struct {
	n    uint64
	name string
	data []byte
}

// behind is how many events a follower may lag before it misses some.
const behind = 256

func newHub(room int) *hub { return &hub{room: room, all: map[chan event]*atomic.Uint64{}} }

// publish sends an event to all followers and waits for none.
func (h *hub) publish(name string, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		return // cannot fail: rows and maps of plain values
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next++
	for c, missed := range h.all {
		select {
		case c <- event{h.next, name, data}:
		default:
			missed.Add(1)
		}
	}
}

func (h *hub) join() (chan event, *atomic.Uint64, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over || len(h.all) >= h.room {
		return nil, nil, false
	}
	c, missed := make(chan event, behind), new(atomic.Uint64)
	h.all[c] = missed
	return c, missed, true
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
	c, missed, ok := s.hub.join()
	if !ok {
		return &httpError{http.StatusServiceUnavailable, "too many event streams are open", "try again later"}
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
			if n := missed.Swap(0); n > 0 {
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
