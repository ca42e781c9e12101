// Package bpftest holds what tests of signals over counter/bpf share: tasks in cgroups
// of their own, windows over them, a kernel that counts what a test says, and the cost
// of a window.
package bpftest

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// helpers are functions that programs on tracepoints may call from the named minor version of
// Linux 5 on.
var helpers = map[asm.BuiltinFunc]int{asm.FnGetCurrentTaskBtf: 11}

// laterOnARM is what must be said where programs have atomic operations that give the former value: arm64's
// kernels execute them from then on.
const laterOnARM = "5.18 on arm64"

// RunOn checks that a kernel, as in "Linux 5.11 or newer", has the helpers that programs call, and their
// atomic operations.
func RunOn(t testing.TB, spec *ebpf.CollectionSpec, kernel string) {
	t.Helper()
	var minor int
	if _, err := fmt.Sscanf(kernel, "Linux 5.%d", &minor); err != nil {
		t.Fatalf("kernel %q: %v", kernel, err)
	}
	for name, p := range spec.Programs {
		for i := range p.Instructions {
			ins := &p.Instructions[i]
			if since := helpers[asm.BuiltinFunc(ins.Constant)]; ins.IsBuiltinCall() && since > minor {
				t.Errorf("program %s calls %v, which came with Linux 5.%d, and needs %q", name, asm.BuiltinFunc(ins.Constant), since, kernel)
			}
			if op := ins.OpCode.AtomicOp(); op != asm.InvalidAtomic && op != asm.AddAtomic && !strings.Contains(kernel, laterOnARM) {
				t.Errorf("program %s has %v, and needs %q without %q", name, op, kernel, laterOnARM)
			}
		}
	}
}

// Task makes a cgroup. It is removed at the test's end; its processes must have ended
// by then.
func Task(t testing.TB, h *host.Host, hier sample.Hierarchy, name string) counter.Target {
	t.Helper()
	root := h.Layout().Unified
	if hier == sample.V1CPU {
		root = h.Layout().V1["cpu"]
	}
	path := fmt.Sprintf("/quell-test-bpf-%d-%s", os.Getpid(), name)
	dir := quelltest.MakeCgroup(t, filepath.Join(root, path))
	cg, err := h.OpenCgroup(hier, path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cg.Close() })
	return counter.Target{Key: sample.TaskKey{Hierarchy: hier, Inode: cg.Inode(), FirstSeen: 1}, Dir: dir, Members: cg.Members, Below: cg.Below}
}

// EachHierarchy runs a test with tasks of v2 and, where the kernel has it, of v1.
func EachHierarchy(t *testing.T, test func(t *testing.T, hier sample.Hierarchy)) {
	t.Helper()
	for _, hier := range []sample.Hierarchy{sample.Unified, sample.V1CPU} {
		t.Run(hier.String(), func(t *testing.T) {
			if hier == sample.V1CPU {
				quelltest.Need(t, quelltest.CgroupV1)
			}
			test(t, hier)
		})
	}
}

// Moved makes a cgroup below a directory, and moves processes there until the test's end.
func Moved(t testing.TB, dir, name string, processes ...*quelltest.Child) string {
	t.Helper()
	made := quelltest.MakeCgroup(t, filepath.Join(dir, name))
	move := func(to string, p *quelltest.Child) error {
		return os.WriteFile(filepath.Join(to, "cgroup.procs"), []byte(strconv.Itoa(p.PID)), 0)
	}
	for _, p := range processes {
		t.Cleanup(func() { _ = move(dir, p) }) // it may have ended
		if err := move(made, p); err != nil {
			t.Fatal(err)
		}
	}
	return made
}

// Follow adds the tasks to a source, which is closed at the test's end.
func Follow(t testing.TB, s counter.Source, tasks ...counter.Target) {
	t.Helper()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, task := range tasks {
		if err := s.Add(task); err != nil {
			t.Fatal(err)
		}
	}
}

// Start opens a window.
func Start(t testing.TB, s counter.Source) {
	t.Helper()
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
}

// Stop closes the window and returns its readings.
func Stop(t testing.TB, s counter.Source) map[sample.TaskKey]counter.Reading {
	t.Helper()
	all := map[sample.TaskKey]counter.Reading{}
	if err := s.Stop(counter.WindowEnd{}, func(k sample.TaskKey, r counter.Reading) { all[k] = r }); err != nil {
		t.Fatal(err)
	}
	return all
}

// Count returns one of a reading's extras, 0 if it has none.
func Count(r counter.Reading, e sample.Extra) float64 {
	n, _ := r.Extras.Get(e)
	return n
}

// Cost runs pass, which returns how many ns each unit of its work took, without a
// window and in one, in alternation. It reports the best of each and their ratio, then
// what each run of the programs takes, as the kernel measures it.
func Cost(b *testing.B, s counter.Source, unit string, programs []*ebpf.Program, pass func() float64) {
	b.Helper()
	pass()
	closed, opened := math.Inf(1), math.Inf(1)
	for range b.N {
		closed = min(closed, pass())
		Start(b, s)
		opened = min(opened, pass())
		Stop(b, s)
	}
	b.ReportMetric(closed, "closed-ns/"+unit)
	b.ReportMetric(opened, "open-ns/"+unit)
	b.ReportMetric(opened/closed, "open/closed")

	// Last, since this measurement costs something too.
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	Start(b, s)
	for range 5 {
		pass()
	}
	Stop(b, s)
	for _, prog := range programs {
		st, err := prog.Stats()
		if err != nil {
			b.Fatal(err)
		}
		info, err := prog.Info()
		if err != nil {
			b.Fatal(err)
		}
		if st.RunCount > 0 {
			b.ReportMetric(float64(st.Runtime.Nanoseconds())/float64(st.RunCount), info.Name+"-ns/run")
		}
	}
}

// Kernel is a bpf.CgroupCounts that counts what a test puts into Counts in an open
// window.
type Kernel[R any] struct {
	Counts map[uint64]R // by sample.CgroupID
	Pairs  []Pair
	Serves bool // Pairs are reported
	Missed uint64
	// Each call returns its error, nil for none.
	OpenErr, DetachErr, EachErr error
	Closed                      int
	// What room was made for when the window was opened.
	Room      []uint64
	RoomPairs [][2]uint64
}

// Pair says how long a cgroup was served while another waited.
type Pair struct {
	Waits, By uint64
	Time      time.Duration
}

// Served implements bpf.CgroupCounts.
func (k *Kernel[R]) Served(yield func(waits, by uint64, d time.Duration)) (ok bool, err error) {
	for _, p := range k.Pairs {
		yield(p.Waits, p.By, p.Time)
	}
	return k.Serves, k.EachErr
}

// PairsDropped implements bpf.CgroupCounts.
func (k *Kernel[R]) PairsDropped() uint64 { return k.Missed }

// Open implements bpf.CgroupCounts.
func (k *Kernel[R]) Open(cgroups map[uint64]uint64, pairs [][2]uint64) error {
	k.Room, k.RoomPairs = slices.Sorted(maps.Keys(cgroups)), pairs
	k.Counts, k.Pairs = map[uint64]R{}, nil
	return k.OpenErr
}

// Detach implements bpf.CgroupCounts.
func (k *Kernel[R]) Detach() error { return k.DetachErr }

// Each implements bpf.CgroupCounts.
func (k *Kernel[R]) Each(yield func(uint64, *R)) error {
	for id, r := range k.Counts {
		yield(id, &r)
	}
	return k.EachErr
}

// Of implements bpf.CgroupCounts.
func (k *Kernel[R]) Of(cgroup uint64) R { return k.Counts[cgroup] }

// Lost implements bpf.CgroupCounts.
func (k *Kernel[R]) Lost() uint64 { return k.Missed }

// Close implements bpf.CgroupCounts.
func (k *Kernel[R]) Close() error {
	k.Closed++
	return nil
}
