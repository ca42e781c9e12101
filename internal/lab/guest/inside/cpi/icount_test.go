//go:build inguest

package cpi

import (
	"errors"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
)

// loop is long compared with what a worker does before and after it.
const loop = 400_000_000

// within reports whether got differs from want by at most the given part of want.
func within(got, want, part float64) bool { return math.Abs(got-want) <= part*want }

// TestInstructionsAndCPI: it counts all instructions executed in the CPU time, by QEMU's
// own clock, and the loop's instructions, by counting the kernel's separately.
func TestInstructionsAndCPI(t *testing.T) {
	ns := setting(t, "INSTRUCTION_NS")
	w := work(t)
	p, kernel := follow(t, w), kernelPart(t, w)
	start(t, p)
	used := w.spin(loop)
	r := stop(t, p)[0]
	counted := extra(t, r, sample.Instructions)
	user, executed := counted-kernel(), float64(used)/ns
	t.Logf("figure: CPI measured / configured: %.4f / %v; instructions counted / executed: %.5f of the loop's %d, %.5f of all in its CPU time",
		r.Cost, ns, user/loop, loop, counted/executed)
	if !within(user, loop, 0.001) {
		t.Errorf("%.0f instructions outside the kernel, executed were %d", user, loop)
	}
	if !within(counted, executed, 0.005) {
		t.Errorf("%.0f instructions, executed were %.0f", counted, executed)
	}
	if !within(r.Cost, ns, 0.01) || !within(extra(t, r, sample.Cycles), ns*counted, 0.01) {
		t.Errorf("CPI %v, want %v: %+v", r.Cost, ns, r)
	}
	if r.Coverage != 1 || r.Flags != 0 {
		t.Errorf("coverage %v, flags %v", r.Coverage, r.Flags)
	}
}

// TestNeighbourIsNotCounted: another cgroup keeps the same CPU busy.
func TestNeighbourIsNotCounted(t *testing.T) {
	w, neighbour := work(t), work(t)
	p, kernel := follow(t, w, neighbour), kernelPart(t, w)
	const loop = loop / 2
	neighbour.tell(endless)
	start(t, p)
	began := now()
	w.spin(loop)
	took := now() - began
	r := stop(t, p)
	user, beside := extra(t, r[0], sample.Instructions)-kernel(), extra(t, r[1], sample.Instructions)
	t.Logf("figure: with a busy neighbour instructions counted / executed: %.5f; the neighbour's %.2f of that", user/loop, beside/loop)
	if !within(user, loop, 0.001) {
		t.Errorf("%.0f instructions outside the kernel, executed were %d", user, loop)
	}
	executed := float64(took) / setting(t, "INSTRUCTION_NS")
	if both := user + kernel() + beside; beside < loop/2 || both > 1.05*executed {
		t.Errorf("%.0f of the neighbour and %.0f in all, while the CPU executed %.0f", beside, both, executed)
	}
}

// TestOneReadPerGroup: cycles and instructions of a task are read in one read(2), so they
// cover the same time.
func TestOneReadPerGroup(t *testing.T) {
	workers := []*worker{work(t), work(t), work(t)}
	p := follow(t, workers...)
	start(t, p)
	for _, w := range workers {
		w.spin(perTurn)
	}
	before := reads(t)
	got := stop(t, p)
	// The query itself also uses reads.
	n := reads(t) - before - looks(t)
	if len(got) != len(workers) || n != len(workers) {
		t.Errorf("%d reads for the groups of %d tasks, %d readings", n, len(workers), len(got))
	}
	for i, r := range got {
		if extra(t, r, sample.Cycles) <= 0 || extra(t, r, sample.Instructions) <= 0 {
			t.Errorf("task %d: %+v", i, r)
		}
	}
}

// looks is the number of reads that a call of reads itself makes.
func looks(t *testing.T) int {
	t.Helper()
	before := reads(t)
	return reads(t) - before
}

// reads is the number of read system calls of this process: syscr of /proc/self/io
// (Documentation/filesystems/proc.rst).
func reads(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "syscr: ")
	number, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.Atoi(number)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestMultiplexing: seven counters are enough for three pairs of cycles and instructions.
// More pairs are multiplexed, and each is scaled to the same number. Far more pairs are
// counted too seldom for that, and have no value.
func TestMultiplexing(t *testing.T) {
	ns := setting(t, "INSTRUCTION_NS")
	w := work(t)
	var sources []*counter.Perf
	window := func(groups int, instructions uint64) (executed float64, got []counter.Reading) {
		for len(sources) < groups {
			sources = append(sources, follow(t, w))
		}
		for _, p := range sources {
			start(t, p)
		}
		executed = float64(w.spin(instructions)) / ns
		for _, p := range sources {
			got = append(got, stop(t, p)[0])
		}
		return executed, got
	}

	executed, got := window(5, loop)
	least, most, coverage := math.Inf(1), 0.0, 0.0
	for i, r := range got {
		n := extra(t, r, sample.Instructions)
		least, most, coverage = min(least, n), max(most, n), coverage+r.Coverage/float64(len(got))
		if r.Coverage > 0.9 {
			t.Errorf("group %d was counted for %v of the time: they did not take turns", i, r.Coverage)
		}
		if !within(r.Cost, ns, 0.01) {
			t.Errorf("group %d: CPI %v", i, r.Cost)
		}
	}
	t.Logf("figure: %d groups on 7 counters, each counted for %.2f of the time: instructions scaled / executed %.4f to %.4f",
		len(got), coverage, least/executed, most/executed)
	if !within(least, executed, 0.01) || !within(most, executed, 0.01) {
		t.Errorf("scaled to %.0f to %.0f instructions, executed were %.0f", least, most, executed)
	}

	_, got = window(12, loop/2)
	for i, r := range got {
		if !math.IsNaN(r.Cost) || r.Extras.Len() > 0 || r.Coverage > 0.4 {
			t.Errorf("group %d of %d: %+v, want no cost", i, len(got), r)
		}
	}
}

// TestMissingEvents: this PMU has neither reference cycles nor an event for the
// last-level cache. Each is named and nothing else is lost.
func TestMissingEvents(t *testing.T) {
	w := work(t)
	p := follow(t, w)
	var missing []string
	for _, err := range p.Info().Missing {
		var e *counter.NotSupportedError
		if !errors.As(err, &e) || !strings.Contains(e.Reason, "ENOENT") {
			t.Fatalf("missing: %v, want a NotSupportedError with the kernel's answer", err)
		}
		missing = append(missing, e.What)
	}
	if got := strings.Join(missing, ", "); got != "event ref-cycles, event LLC-load-misses" {
		t.Errorf("missing: %s", got)
	}
	if p.Info().Variant != "core-cycles" {
		t.Errorf("variant %s", p.Info().Variant)
	}
	start(t, p)
	w.spin(loop / 8)
	r := stop(t, p)[0]
	if n, ok := r.Extras.Get(sample.LLCMisses); ok || r.Extras.Len() != 2 || math.IsNaN(r.Cost) {
		t.Errorf("%v misses, %v: %+v", n, ok, r)
	}
}
