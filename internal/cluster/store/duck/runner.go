package duck

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/quell-dev/quell/internal/cluster/store/dialect"
)

// Runner executes each query in a process of its own. Its callers bound how many run at
// the same time. With each query it starts one more process, which opens DuckDB and waits:
// the next of a dashboard's queries finds it ready.
type Runner struct {
	program string
	args    []string
	waits   time.Duration // how long a process waits for a query before it is ended
	starts  sync.WaitGroup

	mu     sync.Mutex
	ready  *process // nil: none waits
	closed bool
}

// NewRunner returns a Runner. The program, with these arguments, calls Child with the
// store's folder. Close ends the process that waits.
func NewRunner(program string, args ...string) *Runner {
	return &Runner{program: program, args: args, waits: time.Minute}
}

// Close ends the process that waits for a query. Queries then find none ready.
func (r *Runner) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.starts.Wait()
	if p := r.take(); p != nil {
		p.end()
	}
}

// process is a child that reads one query.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	errs  tail
	kill  context.CancelFunc
	timer *time.Timer // ends it if no query comes
}

// end ends the process.
func (p *process) end() {
	p.kill()
	_ = p.cmd.Wait() // that it was killed
}

func (r *Runner) start() (*process, error) {
	ctx, kill := context.WithCancel(context.Background())
	p := &process{cmd: exec.CommandContext(ctx, r.program, r.args...), kill: kill}
	p.cmd.Env = []string{} // without the server's secrets
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.cmd.Stderr = &p.errs
	in, err1 := p.cmd.StdinPipe()
	out, err2 := p.cmd.StdoutPipe()
	if err := cmp.Or(err1, err2); err != nil {
		kill()
		return nil, fmt.Errorf("start query: %w", err)
	}
	if err := p.cmd.Start(); err != nil {
		kill()
		return nil, fmt.Errorf("start query: %w", err)
	}
	p.in, p.out = in, bufio.NewReaderSize(out, 1<<16)
	return p, nil
}

// take returns the process that waits, nil if none does, and has the next one started.
func (r *Runner) take() *process {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.starts.Go(r.renew)
	}
	p := r.ready
	if r.ready = nil; p != nil {
		p.timer.Stop()
	}
	return p
}

// renew starts the process that waits for the next query. Without one, that query starts
// its own and reports why it cannot.
func (r *Runner) renew() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ready != nil || r.closed {
		return
	}
	p, err := r.start()
	if err != nil {
		return
	}
	p.timer = time.AfterFunc(r.waits, func() {
		r.mu.Lock()
		mine := r.ready == p
		if mine {
			r.ready = nil
		}
		r.mu.Unlock()
		if mine {
			p.end()
		}
	})
	r.ready = p
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
	p := r.take()
	if p != nil {
		sum, err = p.ask(ctx, job, text, to)
		sum.Took = time.Since(begun)
		if sum.Fences != nil || ctx.Err() != nil {
			return sum, err
		}
		// It had ended while it waited, e.g. for want of memory.
	}
	if p, err = r.start(); err != nil {
		return sum, err
	}
	sum, err = p.ask(ctx, job, text, to)
	sum.Took = time.Since(begun)
	return sum, err
}

// ask sends the process a query, as JSON too, and reads its answer until it has ended.
// Fences are set if it read the query.
func (p *process) ask(ctx context.Context, job *Job, text []byte, to Sink) (sum Summary, err error) {
	begun := time.Now()
	defer p.kill()
	defer context.AfterFunc(ctx, p.kill)()
	_, _ = p.in.Write(text) // an error: it has ended, as Wait says
	_ = p.in.Close()
	ended, err := sum.read(p.out, to)
	if !ended || err != nil {
		p.kill() // its further output is not needed
	}
	waited := p.cmd.Wait()
	switch {
	case ended || err != nil:
		return sum, err
	case time.Since(begun) >= job.Limits.Time:
		return sum, &Error{Exceeded, fmt.Sprintf("the query took longer than %s", job.Limits.Time)}
	}
	return sum, died(waited, p.errs.String())
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
