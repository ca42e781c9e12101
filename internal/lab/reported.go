package lab

import (
	"io"
	"sync"
)

// ReportedProcess holds the reports about a process that runs elsewhere, in a guest or on another
// host: its output, and how it ended. It is the part of a Process that does not depend
// on the place.
type ReportedProcess struct {
	job  Job
	done chan struct{}

	mu      sync.Mutex
	err     error
	over    bool
	stopped bool
}

// NewReportedProcess returns a ReportedProcess about which nothing is reported yet.
func NewReportedProcess(j Job) *ReportedProcess {
	return &ReportedProcess{job: j, done: make(chan struct{})}
}

// Wrote passes on a line of the process's output; fd is 1 or 2.
func (p *ReportedProcess) Wrote(fd int, line string) {
	w := p.job.Stdout
	if fd == 2 {
		w = p.job.Stderr
	}
	if w != nil {
		_, _ = io.WriteString(w, line+"\n") // the reader handles its errors
	}
}

// Ended records how the process ended. Only the first call counts.
func (p *ReportedProcess) Ended(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	p.over, p.err = true, err
	close(p.done)
}

// Done implements Process.
func (p *ReportedProcess) Done() <-chan struct{} { return p.done }

// Stopping records that the process is told to end, and reports whether it still runs.
func (p *ReportedProcess) Stopping() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return false
	}
	p.stopped = true
	return true
}

// Outcome returns how it ended, nil before that, and whether it was told to end.
func (p *ReportedProcess) Outcome() (stopped bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopped, p.err
}
