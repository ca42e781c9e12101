package lab

import (
	"io"
	"sync"
)

// Told is what is told of a process that runs elsewhere, in a guest or on another
// host: what it writes, and how it ended. It is the part of a Process that does not
// depend on where that is.
type Told struct {
	job  Job
	done chan struct{}

	mu      sync.Mutex
	err     error
	over    bool
	stopped bool
}

// NewTold is of a process of which nothing was told yet.
func NewTold(j Job) *Told { return &Told{job: j, done: make(chan struct{})} }

// Wrote passes a line of its output on; fd is 1 or 2.
func (p *Told) Wrote(fd int, line string) {
	w := p.job.Stdout
	if fd == 2 {
		w = p.job.Stderr
	}
	if w != nil {
		_, _ = io.WriteString(w, line+"\n") // who reads it sees to its errors
	}
}

// Ended says how it ended. Only the first time counts.
func (p *Told) Ended(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	p.over, p.err = true, err
	close(p.done)
}

// Done is Process's.
func (p *Told) Done() <-chan struct{} { return p.done }

// Stopping says that it is told to end, and reports whether it has still to.
func (p *Told) Stopping() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return false
	}
	p.stopped = true
	return true
}

// Outcome is how it ended, nil as long as it has not, and whether it was told to.
func (p *Told) Outcome() (stopped bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopped, p.err
}
