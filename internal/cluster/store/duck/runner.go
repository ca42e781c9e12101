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

// Runner starts a process for each query. Its callers bound how many run at the same time.
type Runner struct {
	// Program and Args start the process that calls Child with the store's folder.
	Program string
	Args    []string
}

// NewRunner returns a Runner.
func NewRunner(program string, args ...string) *Runner {
	return &Runner{Program: program, Args: args}
}

// Sink receives an answer as it comes. Its error stops the query.
type Sink interface {
	// Columns is called once, before the rows.
	Columns([]dialect.Column) error
	Row(json.RawMessage) error
}

// Summary says how a query ended.
type Summary struct {
	Truncated bool          // there are more rows
	Fences    []string      // active around it
	Took      time.Duration // until the process ended
}

// Answer is a complete result of a query.
type Answer struct {
	dialect.Answer
	Fences []string      `json:"-"` // active around it
	Took   time.Duration `json:"-"`
}

// collector is a Sink that keeps everything.
type collector struct{ *Answer }

// Columns implements Sink.
func (c collector) Columns(all []dialect.Column) error {
	c.Answer.Columns = all
	return nil
}

// Row implements Sink.
func (c collector) Row(row json.RawMessage) error {
	c.Rows = append(c.Rows, row)
	return nil
}

// Query executes a job and collects its answer. An *Error says why there is none.
func (r *Runner) Query(ctx context.Context, job *Job) (*Answer, error) {
	a := &Answer{Answer: dialect.Answer{Rows: []json.RawMessage{}}}
	sum, err := r.Stream(ctx, job, collector{a})
	if err != nil {
		return nil, err
	}
	a.Truncated, a.Fences, a.Took = sum.Truncated, sum.Fences, sum.Took
	return a, nil
}

// grace is the time that a child may take to start and end, beyond the query's limit.
const grace = 2 * time.Second

// Stream executes a job and passes its answer on as it comes. After an error, which is an
// *Error or the sink's own, the rows so far are not the answer.
func (r *Runner) Stream(ctx context.Context, job *Job, to Sink) (sum Summary, err error) {
	text, err := json.Marshal(job)
	if err != nil {
		return sum, fmt.Errorf("encode query: %w", err)
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
		return sum, fmt.Errorf("start query: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return sum, fmt.Errorf("start query: %w", err)
	}
	ended, bad := sum.read(bufio.NewReaderSize(out, 1<<16), to)
	if !ended || bad != nil {
		cancel() // its further output is not needed
	}
	waited := cmd.Wait()
	sum.Took = time.Since(begun)
	switch {
	case bad != nil:
		return sum, bad
	case ended:
		return sum, nil
	case sum.Took >= job.Limits.Time:
		return sum, &Error{Exceeded, fmt.Sprintf("the query took longer than %s", job.Limits.Time)}
	}
	return sum, died(waited, errs.String())
}

// read reads the child's output. ended: the child finished by itself, with an answer or an
// error.
func (s *Summary) read(in *bufio.Reader, to Sink) (ended bool, bad error) {
	for {
		text, err := readLine(in)
		if err != nil {
			return false, err
		}
		if text == nil {
			return false, nil // it was stopped, or it stopped itself
		}
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			return false, nil // it was stopped within a line
		}
		switch {
		case l.Err != nil:
			return true, l.Err
		case l.End != nil:
			s.Truncated = *l.End
			return true, nil
		case l.Columns != nil:
			err = to.Columns(l.Columns)
		case l.Row != nil:
			err = to.Row(l.Row)
		case l.Fences != nil:
			s.Fences = l.Fences
		}
		if err != nil {
			return false, err
		}
	}
}

// maxLine is the largest line of a child that is read, and maxRow the largest row that a
// child sends: an answer in progress takes only a few times as much memory.
const (
	maxRow  = 4 << 20
	maxLine = maxRow + 1<<10
)

// readLine returns the next line, nil at the end.
func readLine(in *bufio.Reader) (text []byte, err error) {
	for {
		part, err := in.ReadSlice('\n')
		if len(text)+len(part) > maxLine {
			return nil, &Error{Broken, "the query's process sent a line that is too long"}
		}
		text = append(text, part...)
		switch {
		case err == nil:
			return text, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, nil
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
