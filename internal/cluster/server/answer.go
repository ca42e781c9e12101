package server

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/cluster/store/dialect"
)

// watched is an answer being written. It records the status, and disconnects a client that
// does not read: each piece must be taken within patience, and the whole within patience plus
// the time at slowest.
type watched struct {
	http.ResponseWriter
	status   int
	begun    bool
	patience time.Duration
	spent    time.Duration // in writes
	written  int64
}

// patience is how long a client may let an answer wait.
const patience = 30 * time.Second

// slowest is the lowest speed of a client, bytes per second.
const slowest = 64 << 10

// piece is how much is written with one deadline.
const piece = 64 << 10

// WriteHeader implements http.ResponseWriter.
func (w *watched) WriteHeader(status int) {
	w.status, w.begun = status, true
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *watched) Write(p []byte) (n int, err error) {
	w.begun = true
	for {
		part := p[:min(len(p), piece)]
		w.expect(len(part))
		begun := time.Now()
		k, err := w.ResponseWriter.Write(part)
		w.spent += time.Since(begun)
		w.written += int64(k)
		n, p = n+k, p[k:]
		if err != nil || len(p) == 0 {
			return n, err
		}
	}
}

// expect sets the deadline for writing n more bytes.
func (w *watched) expect(n int) {
	whole := w.patience + time.Duration(float64(w.written+int64(n))/slowest*float64(time.Second))
	w.deadline(time.Now().Add(min(w.patience, whole-w.spent)))
}

func (w *watched) deadline(at time.Time) {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(at) // tests' answers have none
}

// Unwrap is used by http.ResponseController.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// answer is a large answer whose parts are sent while others are still being made. What its
// client has not read yet is held within the server's budget; without room there, its maker
// waits for the client. The beginning is held back, so that an error gets its own status.
type answer struct {
	w      http.ResponseWriter
	memory *memory
	caller string
	form   form
	headed bool
	rows   int
	making []byte // not handed over yet
	whole  int    // bytes handed over

	sending bool
	sent    sync.WaitGroup
	mu      sync.Mutex
	changed *sync.Cond
	queue   []part
	ended   bool
	err     error // why nothing more is sent
	late    error // why its maker waits for the client no longer
}

// part is a part of an answer that waits to be sent.
type part struct {
	text []byte
	held int64 // of the budget
}

// heldBack is the size up to which an answer is not sent before it is complete.
const heldBack = 1 << 20

// form is how an answer is written: its beginning, what is written of a row (nil: it is left
// out), and its end.
type form struct {
	head func(columns []dialect.Column) ([]byte, error)
	row  func(json.RawMessage) (json.RawMessage, error)
	tail func(truncated bool) string
	flag bool // tail does not say whether it was truncated
}

// listForm is a JSON list of the rows. That it was cut off is said in a trailer.
func listForm(row func(json.RawMessage) (json.RawMessage, error)) form {
	return form{
		head: func([]dialect.Column) ([]byte, error) { return []byte("["), nil },
		row:  row,
		tail: func(bool) string { return "]\n" },
		flag: true,
	}
}

// asIs is a form's row that is written as it is.
func asIs(row json.RawMessage) (json.RawMessage, error) { return row, nil }

// tableForm is the JSON of a dialect.Answer.
func tableForm() form {
	return form{
		head: func(columns []dialect.Column) ([]byte, error) {
			text, err := json.Marshal(columns)
			return fmt.Appendf(nil, `{"columns":%s,"rows":[`, text), err
		},
		row: asIs,
		tail: func(truncated bool) string {
			if truncated {
				return `],"truncated":true}` + "\n"
			}
			return "]}\n"
		},
	}
}

func (s *Server) answer(w http.ResponseWriter, r *request, f form) *answer {
	a := &answer{w: w, memory: s.memory, caller: r.caller.key, form: f}
	a.changed = sync.NewCond(&a.mu)
	w.Header().Set("Content-Type", "application/json")
	return a
}

// Columns implements duck.Sink.
func (a *answer) Columns(columns []dialect.Column) (err error) {
	a.headed = true
	a.making, err = a.form.head(columns)
	return err
}

// Row implements duck.Sink.
func (a *answer) Row(row json.RawMessage) error {
	row, err := a.form.row(row)
	if err != nil || row == nil {
		return err
	}
	if a.rows++; a.rows > 1 {
		a.making = append(a.making, ',')
	}
	if a.making = append(a.making, row...); len(a.making) < piece {
		return nil
	}
	return a.handOver()
}

// hurry lets the maker wait for the client no longer: if it has to, the answer ends with err.
func (a *answer) hurry(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.late = err
	a.changed.Broadcast()
}

// handOver lets send send what was made. Without room in the budget it waits until all that
// was handed over before is being sent.
func (a *answer) handOver() error {
	p := part{text: a.making, held: int64(cap(a.making))}
	a.whole += len(p.text)
	room := a.memory.take(a.caller, p.held)
	if !room {
		p.held = 0
	}
	if !a.sending && (!room || a.whole > heldBack) {
		a.sending = true
		a.sent.Go(a.send)
	}
	a.making = make([]byte, 0, piece+piece/4)
	a.mu.Lock()
	defer a.mu.Unlock()
	for !room && len(a.queue) > 0 && a.err == nil && a.late == nil {
		a.changed.Wait()
	}
	if !room && len(a.queue) > 0 {
		a.err = cmp.Or(a.err, a.late)
	}
	if a.err != nil {
		a.memory.give(a.caller, p.held)
		return a.err
	}
	a.queue = append(a.queue, p)
	a.changed.Broadcast()
	return nil
}

// send sends what is handed over until the answer ends or its client is gone.
func (a *answer) send() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for {
		for len(a.queue) == 0 && !a.ended && a.err == nil {
			a.changed.Wait()
		}
		if len(a.queue) == 0 || a.err != nil {
			return
		}
		p := a.queue[0]
		a.queue[0] = part{} // its text is not in the budget any more once it is sent
		a.queue = a.queue[1:]
		a.changed.Broadcast()
		a.mu.Unlock()
		_, err := a.w.Write(p.text)
		a.memory.give(a.caller, p.held)
		a.mu.Lock()
		if err != nil {
			a.err = err
			a.changed.Broadcast()
		}
	}
}

// finish sends the rest and releases everything. An error of the maker, or of the sending, is
// the answer if that has not begun; otherwise the caller must cut the connection, so that the
// client sees that the answer is not complete.
func (a *answer) finish(truncated bool, err error) error {
	if err == nil && !a.headed {
		err = a.Columns([]dialect.Column{})
	}
	a.mu.Lock()
	switch {
	case err != nil:
		a.err = err
	case a.err == nil:
		a.queue = append(a.queue, part{text: append(a.making, a.form.tail(truncated)...)})
		a.ended = true
	}
	a.changed.Broadcast()
	a.mu.Unlock()
	if a.sending {
		a.sent.Wait()
	}
	if truncated && a.form.flag { // of an answer without a beginning before that: net/http else sends it without trailers
		a.w.Header().Set(http.TrailerPrefix+cluster.TruncatedTrailer, "true")
	}
	if !a.sending {
		a.send()
	}
	for _, p := range a.queue {
		a.memory.give(a.caller, p.held)
	}
	return a.err
}

// replyList answers with a JSON list, element by element.
func replyList[T any](s *Server, w http.ResponseWriter, r *request, all iter.Seq[T], truncated bool) error {
	a := s.answer(w, r, listForm(asIs))
	err := a.Columns(nil)
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	for v := range all {
		text.Reset()
		if err == nil {
			err = e.Encode(v)
		}
		if err == nil {
			err = a.Row(bytes.TrimSpace(text.Bytes()))
		}
		if err != nil {
			break
		}
	}
	return a.finish(truncated, err)
}
