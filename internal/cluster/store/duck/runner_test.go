package duck

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// waiting returns the process that waits for the next query, nil if none does.
func (r *Runner) waiting() *os.Process {
	r.starts.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ready == nil {
		return nil
	}
	return r.ready.cmd.Process
}

// TestAProcessWaitsForTheNextQuery checks that a query is executed by the process that
// waits, that one that ended meanwhile fails no query, and that none waits for ever.
func TestAProcessWaitsForTheNextQuery(t *testing.T) {
	b := newBench(t, store.Options{Now: clock})
	b.add(t, &store.Batch{Samples: []sample.Sample{one(0, "m1", "/a", 1, 2)}})
	gone := func(p *os.Process) bool { return errors.Is(p.Signal(unix.Signal(0)), os.ErrProcessDone) }
	ask := func() {
		t.Helper()
		if got := rows(b.ask(t, "SELECT cost FROM samples")); got != "[2]" {
			t.Fatal(got)
		}
	}
	ask()
	first := b.runner.waiting()
	ask()
	if second := b.runner.waiting(); first == nil || second == nil || second.Pid == first.Pid || !gone(first) {
		t.Errorf("%v waited, then %v: the second query was not the first one's", first, second)
	}
	if err := b.runner.waiting().Kill(); err != nil {
		t.Fatal(err)
	}
	ask()
	idle := b.runner.waiting()
	b.runner.waits = time.Millisecond // of the one after it
	ask()                             // takes the one that waits for a minute
	b.runner.starts.Wait()
	quelltest.Until(t, "no process waits", func() bool { return b.runner.waiting() == nil })
	if !gone(idle) {
		t.Error("the process of a query is still there")
	}
	b.runner.waits = time.Minute
	ask()
	last := b.runner.waiting()
	b.runner.Close()
	if last == nil || !gone(last) {
		t.Errorf("after Close, %v is still there", last)
	}
	ask()
	if p := b.runner.waiting(); p != nil {
		t.Errorf("after Close, %v waits", p)
	}
}
