package role

import (
	"bytes"
	"sync"
)

// LineWriter passes on each whole line that is written to it, without its end.
type LineWriter struct {
	Line func(line string)
	// Most, if not 0, is how long a line may be: a longer one is divided, so that a line
	// without an end does not fill the memory.
	Most int

	mu      sync.Mutex
	partial []byte
}

// Write implements io.Writer.
func (w *LineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.partial = append(w.partial, p...)
	for {
		line, rest, ok := bytes.Cut(w.partial, []byte("\n"))
		if !ok && w.Most > 0 && len(w.partial) > w.Most {
			line, rest, ok = w.partial, nil, true
		}
		if !ok {
			return len(p), nil
		}
		w.partial = rest
		w.Line(string(line))
	}
}
