package counter

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"golang.org/x/sys/unix"
)

// fakeCPS is a CPS source over a fake with two CPUs and a clock that advances 5 s per
// reading.
func fakeCPS(t *testing.T) (*fake, *Perf) {
	t.Helper()
	f := newFake(t)
	p, err := openCPS(f, sample.SetOf(0, 1), t.TempDir(), event{"enter", unix.PERF_TYPE_TRACEPOINT, 1})
	if err != nil {
		t.Fatal(err)
	}
	clock := time.Unix(0, 0)
	p.groups.now = func() time.Time { clock = clock.Add(5 * time.Second); return clock }
	t.Cleanup(func() { p.Close() })
	return f, p
}

func TestCPSWindows(t *testing.T) {
	f, p := fakeCPS(t)
	dir := t.TempDir()
	if err := p.Add(Target{Key: key(1), PerfDir: dir}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		cpu0, cpu1  tick
		cost, calls float64
	}{
		{tick{1e9, 1e9, [3]uint64{1e9, 100}}, tick{5e8, 5e8, [3]uint64{5e8, 400}}, 1.5 / 500, 500},
		{tick{1e9, 1e9, [3]uint64{1e9, 20}}, tick{}, 0.05, 20},
		{tick{1e9, 1e9, [3]uint64{1e9, 0}}, tick{}, math.NaN(), 0},
	} {
		if len(f.events) > 0 {
			t.Fatalf("%d events are open between windows: they slow down everybody's system calls", len(f.events))
		}
		start(t, p)
		f.run(inodeOf(t, dir), 0, tc.cpu0)
		f.run(inodeOf(t, dir), 1, tc.cpu1)
		r := stopped(t, p, nil)[key(1)]
		calls, ok := r.Extras.Get(sample.Syscalls)
		if !ok || calls != tc.calls || !same(r.Cost, tc.cost) {
			t.Errorf("cost %v, %v calls, want %v, %v", r.Cost, calls, tc.cost, tc.calls)
		}
	}
}

func TestCPSRemoved(t *testing.T) {
	f, p := fakeCPS(t)
	dir := t.TempDir()
	if err := p.Add(Target{Key: key(1), PerfDir: dir}); err != nil {
		t.Fatal(err)
	}
	start(t, p)
	f.run(inodeOf(t, dir), 1, tick{1e9, 1e9, [3]uint64{1e9, 10}})
	if r, ok := p.Remove(key(1), 0); !ok || r.Cost != 0.1 || len(f.events) > 0 {
		t.Errorf("reading %+v %v with %d events left open", r, ok, len(f.events))
	}
	stopped(t, p, nil)
	if err := p.Add(Target{Key: key(2), PerfDir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	// Its cgroup is removed before the window.
	f.refuse = func(*unix.PerfEventAttr, int, int) error { return unix.ENOENT }
	start(t, p)
	if r, ok := stopped(t, p, nil)[key(2)]; !ok || !math.IsNaN(r.Cost) || r.Coverage != 0 {
		t.Errorf("reading %+v %v, want one that was not counted", r, ok)
	}
}

// TestCPSFDLimit adds tasks until a window with all of them would exceed the limit.
func TestCPSFDLimit(t *testing.T) {
	_, p := fakeCPS(t)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	least := limit
	least.Cur = 64
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &least); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	dir := t.TempDir()
	for n := range 64 {
		err := p.Add(Target{Key: key(uint64(n)), PerfDir: dir})
		if err == nil {
			continue
		}
		var e *FDLimitError
		if !errors.As(err, &e) || e.Need != 5 || e.Held != 60 || e.Limit != 64 || n != 15 {
			t.Errorf("task %d: %v, want one more than 15 tasks of 4 refused", n, err)
		}
		return
	}
	t.Error("64 tasks of 4 descriptors within 64")
}
