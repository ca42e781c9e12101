//go:build inguest

package cpi

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
)

// TestBareCgroups: before the first write to cgroup.subtree_control of the root, perf
// returns ENOENT for every event of a cgroup below it, as if the event did not exist. The
// guest starts in that state.
func TestBareCgroups(t *testing.T) {
	if text, err := os.ReadFile(root + "/cgroup.subtree_control"); err != nil || len(strings.TrimSpace(string(text))) > 0 {
		t.Fatalf("cgroup.subtree_control of the root: %q, %v: want it bare", text, err)
	}
	p, err := counter.OpenCPI(sample.SetOf(0), root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	w := work(t)
	target := counter.Target{Key: key(0), PerfDir: w.dir}
	var e *counter.NotSupportedError
	if err := p.Add(target); !errors.As(err, &e) || !strings.Contains(e.Reason, "task-clock") || !strings.Contains(e.Remedy, "cgroup.subtree_control") {
		t.Errorf("added before: %v, want a NotSupportedError that tells it from a missing event", err)
	}
	// The remedy.
	if err := os.WriteFile(root+"/cgroup.subtree_control", []byte("+cpu"), 0); err != nil {
		t.Fatal(err)
	}
	if err := p.Add(target); err != nil {
		t.Fatalf("added afterwards: %v", err)
	}
	start(t, p)
	w.spin(loop / 8)
	if got := extra(t, stop(t, p)[0], sample.Instructions); got < loop/8 {
		t.Errorf("%v instructions of %d", got, loop/8)
	}
}
