package env

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// message is one line between an agent and its host, as JSON. Times are ns of the
// sender's CLOCK_MONOTONIC.
//
//	host:  ping ID | start ID Argv Env Dir Waits | begin ID | stop ID
//	agent: hello | pong ID NS | started ID | out ID FD Text | exit ID Text
type message struct {
	Op    string   `json:"op"`
	ID    int      `json:"id,omitempty"`
	NS    int64    `json:"ns,omitempty"`
	Argv  []string `json:"argv,omitempty"`
	Env   []string `json:"env,omitempty"`
	Dir   string   `json:"dir,omitempty"`
	Waits bool     `json:"waits,omitempty"`
	FD    int      `json:"fd,omitempty"`
	Text  string   `json:"text,omitempty"`
	// Missing says that the program does not exist.
	Missing bool `json:"missing,omitempty"`
}

// mostLine is the maximum length of a line; a program's lines may be longer.
const mostLine = 64 << 10

// wire carries messages. A serial line may also carry noise, such as kernel messages:
// lines that are not messages are skipped.
type wire struct {
	lines *bufio.Scanner
	mu    sync.Mutex
	to    io.Writer
}

func newWire(rw io.ReadWriter) *wire {
	w := &wire{lines: bufio.NewScanner(rw), to: rw}
	w.lines.Buffer(nil, 4*mostLine)
	return w
}

// send writes one message, undivided.
func (w *wire) send(m message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("send %s: %w", m.Op, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.to.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("send %s: %w", m.Op, err)
	}
	return nil
}

// receive returns the next message, or io.EOF.
func (w *wire) receive() (message, error) {
	for w.lines.Scan() {
		var m message
		if json.Unmarshal(w.lines.Bytes(), &m) == nil && m.Op != "" {
			return m, nil
		}
	}
	if err := w.lines.Err(); err != nil {
		return message{}, fmt.Errorf("receive: %w", err)
	}
	return message{}, io.EOF
}
