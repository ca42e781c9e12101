package duck

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"github.com/quell-dev/quell/internal/cluster/store/dialect"
)

// Runner starts a process for each query.
type Runner struct {
	// Program and Args start the process that calls Child with the store's folder.
	Program string
	Args    []string
	Slots   chan struct{} // bounds the number of concurrent queries
}

// NewRunner returns a Runner for atOnce concurrent queries.
func NewRunner(atOnce int, program string, args ...string) *Runner {
	return &Runner{Program: program, Args: args, Slots: make(chan struct{}, atOnce)}
}

// Answer is the result of a query.
type Answer struct {
	dialect.Answer
	Fences []string      `json:"-"` // active around it
	Took   time.Duration `json:"-"`
}

// grace is the time that a child may take to start and end, beyond the query's limit.
const grace = 2 * time.Second

// Query executes a job. An *Error says why there is no answer.
func (r *Runner) Query(ctx context.Context, job *Job) (*Answer, error) {
	select {
	case r.Slots <- struct{}{}:
		defer func() { <-r.Slots }()
	case <-ctx.Done():
		return nil, &Error{Exceeded, "too many queries are running, and none ended in time"}
	}
	text, err := json.Marshal(job)
	if err != nil {
		return nil, fmt.Errorf("encode query: %w", err)
	}
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, job.Limits.Time+grace)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.Program, r.Args...)
	cmd.Env = []string{} // without the server's secrets
	cmd.Stdin = bytes.NewReader(text)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var errs tail
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start query: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start query: %w", err)
	}
	a := &Answer{Answer: dialect.Answer{Rows: []json.RawMessage{}}}
	ended, bad := a.read(bufio.NewReaderSize(out, 1<<16))
	if !ended || bad != nil {
		cancel() // its further output is not needed
	}
	waited := cmd.Wait()
	a.Took = time.Since(begun)
	switch {
	case bad != nil:
		return nil, bad
	case ended:
		return a, nil
	case a.Took >= job.Limits.Time:
		return nil, &Error{Exceeded, fmt.Sprintf("the query took longer than %s", job.Limits.Time)}
	}
	return nil, died(waited, errs.String())
}

// read reads the child's output. ended: the child finished by itself, with an answer or an
// error.
func (a *Answer) read(in *bufio.Reader) (ended bool, bad error) {
	dec := json.NewDecoder(in)
	for {
		var l line
		if err := dec.Decode(&l); err != nil {
			return false, nil // it was stopped, or it stopped itself
		}
		switch {
		case l.Err != nil:
			return true, l.Err
		case l.End != nil:
			a.Truncated = *l.End
			return true, nil
		case l.Columns != nil:
			a.Columns = l.Columns
		case l.Row != nil:
			a.Rows = append(a.Rows, l.Row)
		case l.Fences != nil:
			a.Fences = l.Fences
		}
	}
}

// died returns why a child ended without an answer.
func died(waited error, said string) error {
	if exit, ok := errors.AsType[*exec.ExitError](waited); ok {
		if s, ok := exit.Sys().(syscall.WaitStatus); ok && (s.Signaled() || s.ExitStatus() == 2) {
			// A signal, or the exit of Go's runtime without memory: the limits.
			return &Error{Exceeded, "the query exceeded its limit of memory or processor time"}
		}
	}
	return &Error{Broken, fmt.Sprintf("the query's process ended: %v: %s", waited, said)}
}

// tail keeps the end of its input.
type tail struct{ text []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p...)
	if over := len(t.text) - 4096; over > 0 {
		t.text = t.text[over:]
	}
	return len(p), nil
}

func (t *tail) String() string { return string(bytes.TrimSpace(t.text)) }
