//go:build inguest

package cpi

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/counter/bperf"
)

// byEBPF opens the source of the same events that reads the CPU's counters at switches.
func byEBPF(t *testing.T, p *counter.Perf, workers ...*worker) *bperf.Source {
	t.Helper()
	s, err := bperf.Open(p.Events(), p.Info(), sample.SetOf(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, w := range workers {
		none := func() ([]uint64, error) { return nil, nil }
		if err := s.Add(counter.Target{Key: inode(t, w.dir), Dir: w.dir, Below: none}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func inode(t *testing.T, dir string) sample.TaskKey {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	return sample.TaskKey{Inode: st.Ino, FirstSeen: 1}
}

// window is a window of a source, with the readings by key.
func window(t *testing.T, s counter.Source, during func()) map[sample.TaskKey]counter.Reading {
	t.Helper()
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	during()
	got := map[sample.TaskKey]counter.Reading{}
	if err := s.Stop(counter.WindowEnd{}, func(k sample.TaskKey, r counter.Reading) { got[k] = r }); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestByEBPF: counters of the CPU that are read at switches give the readings of cgroup mode,
// next to a busy neighbour and at many switches.
func TestByEBPF(t *testing.T) {
	ns := setting(t, "INSTRUCTION_NS")
	w, neighbour := work(t), work(t)
	p := follow(t, w, neighbour)
	b := byEBPF(t, p, w, neighbour)
	t.Logf("figure: overhead of a switch, as measured at start: %s in cgroup mode (two system calls included), %s by eBPF", p.Info().SwitchOverhead, b.Info().SwitchOverhead)
	neighbour.tell(endless)
	const turns, each = 40, 5_000_000
	spin := func() {
		for range turns {
			w.spin(each)
		}
	}
	inCgroupMode := window(t, p, spin)[key(0)]
	var took time.Duration
	got := window(t, b, func() {
		began := now()
		spin()
		took = time.Duration(now() - began)
	})
	r, beside := got[inode(t, w.dir)], got[inode(t, neighbour.dir)]
	one, two := extra(t, r, sample.Instructions), extra(t, inCgroupMode, sample.Instructions)
	t.Logf("figure: instructions by eBPF / in cgroup mode / executed: %.0f / %.0f / %d; CPI %.4f / %.4f / %v configured; the neighbour's %.4f",
		one, two, turns*each, r.Cost, inCgroupMode.Cost, ns, beside.Cost)
	if !within(one, two, 0.005) || one < turns*each {
		t.Errorf("%.0f instructions, %.0f in cgroup mode, the loops' are %d", one, two, turns*each)
	}
	if !within(r.Cost, ns, 0.01) || !within(beside.Cost, ns, 0.01) {
		t.Errorf("CPI %v and %v, want %v", r.Cost, beside.Cost, ns)
	}
	if r.Coverage != 1 || r.Reach != nil || r.Extras.Len() != inCgroupMode.Extras.Len() {
		t.Errorf("reading %+v", r)
	}
	executed := float64(took) / ns
	if both := one + extra(t, beside, sample.Instructions); both > 1.05*executed || both < 0.9*executed {
		t.Errorf("%.0f of both, while the CPU executed %.0f", both, executed)
	}
}

// TestByEBPFInstructions: it counts the instructions of a loop.
func TestByEBPFInstructions(t *testing.T) {
	w := work(t)
	p, kernel := follow(t, w), kernelPart(t, w)
	b := byEBPF(t, p, w)
	var used time.Duration
	r := window(t, b, func() { used = w.spin(loop) })[inode(t, w.dir)]
	counted := extra(t, r, sample.Instructions)
	user, executed := counted-kernel(), float64(used)/setting(t, "INSTRUCTION_NS")
	t.Logf("figure: by eBPF, instructions counted / executed: %.5f of the loop's %d, %.5f of all in its CPU time", user/loop, loop, counted/executed)
	if !within(user, loop, 0.001) || !within(counted, executed, 0.005) {
		t.Errorf("%.0f instructions outside the kernel of %d, %.0f of %.0f", user, loop, counted, executed)
	}
}

// TestByEBPFRunning: a thread that never leaves the CPU is charged at the window's end.
func TestByEBPFRunning(t *testing.T) {
	ns := setting(t, "INSTRUCTION_NS")
	w := work(t)
	p := follow(t, w)
	b := byEBPF(t, p, w)
	w.tell(endless)
	var took time.Duration
	r := window(t, b, func() {
		began := now()
		<-time.After(500 * time.Millisecond) // virtual time
		took = time.Duration(now() - began)
	})[inode(t, w.dir)]
	// Others may have some of the time (2.08 % once). Uncharged, it would have next to nothing.
	executed := float64(took) / ns
	if got := extra(t, r, sample.Instructions); got > 1.02*executed || got < 0.9*executed || !within(r.Cost, ns, 0.01) {
		t.Errorf("%.0f instructions of %.0f, CPI %v of %v", got, executed, r.Cost, ns)
	}
}

// TestByEBPFMultiplexed: with four pairs in cgroup mode the CPU's pair has no counters for some
// of the time, and is scaled.
func TestByEBPFMultiplexed(t *testing.T) {
	ns := setting(t, "INSTRUCTION_NS")
	w := work(t)
	p := follow(t, w)
	b := byEBPF(t, p, w)
	others := []*counter.Perf{p, follow(t, w), follow(t, w), follow(t, w)}
	for _, o := range others {
		start(t, o)
	}
	var used time.Duration
	r := window(t, b, func() { used = w.spin(loop) })[inode(t, w.dir)]
	for _, o := range others {
		stop(t, o)
	}
	executed := float64(used) / ns
	got := extra(t, r, sample.Instructions)
	t.Logf("figure: by eBPF, counted for %.2f of the time: instructions scaled / executed %.4f, CPI %.4f", r.Coverage, got/executed, r.Cost)
	if r.Coverage > 0.95 {
		t.Errorf("coverage %v: they did not take turns", r.Coverage)
	}
	if !within(got, executed, 0.02) || !within(r.Cost, ns, 0.01) {
		t.Errorf("%.0f instructions of %.0f, CPI %v of %v", got, executed, r.Cost, ns)
	}
}
