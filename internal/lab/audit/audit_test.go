package audit

import (
	"math"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// smt is a machine of two cores with two threads each: 0 and 2, 1 and 3.
func smt() host.Topology {
	var t host.Topology
	for n := range 4 {
		t.CPUs = append(t.CPUs, host.CPU{ID: n, Core: n % 2, Siblings: sample.SetOf(n%2, n%2+2)})
		t.Online = t.Online.With(n)
	}
	return t
}

func on(at int64, cpu, tid int) Switch  { return Switch{At: at, CPU: cpu, TID: tid, On: true} }
func off(at int64, cpu, tid int) Switch { return Switch{At: at, CPU: cpu, TID: tid} }

func TestLedger(t *testing.T) {
	a, b := Placed{"a", []sample.Set{sample.SetOf(0)}, []int{10}}, Placed{"b", nil, []int{20}}
	for _, c := range []struct {
		name     string
		switches []Switch
		onPlace  float64
		moves    [2]int // of a: logical, physical
		perCPU   []float64
		doubled  [2]float64
	}{
		{"there from the beginning", []Switch{off(100, 0, 10)}, 1, [2]int{}, []float64{1}, [2]float64{}},
		{"there to the end", []Switch{on(90, 0, 10)}, 1, [2]int{}, []float64{1}, [2]float64{}},
		{"away for a fifth of its time, on the same core", []Switch{on(0, 0, 10), off(40, 0, 10), on(50, 2, 10), off(60, 2, 10)}, 0.8, [2]int{1, 0}, []float64{0.8, 0, 0.2}, [2]float64{}},
		{"and back, on another core", []Switch{on(0, 1, 10), off(20, 1, 10), on(30, 0, 10), off(40, 0, 10), on(40, 1, 10), off(50, 1, 10)}, 0.25, [2]int{2, 2}, []float64{0.25, 0.75}, [2]float64{}},
		{"slept and came back to its CPU", []Switch{on(0, 0, 10), off(40, 0, 10), on(50, 0, 10), off(60, 0, 10)}, 1, [2]int{}, []float64{1}, [2]float64{}},
		{"both on a core while the other idles", []Switch{on(0, 1, 0), on(0, 3, 0), on(0, 0, 10), on(50, 2, 20), off(75, 2, 20)}, 1, [2]int{}, []float64{1}, [2]float64{0.25, 0.25}},
		{"both on a core while the other half is busy", []Switch{on(0, 1, 0), on(0, 3, 77), on(0, 0, 10), on(50, 2, 20)}, 1, [2]int{}, []float64{1}, [2]float64{}},
		{"one waits for the other's CPU", []Switch{on(0, 1, 0), on(0, 3, 0), on(0, 0, 20), {At: 20, CPU: 0, TID: 20, Preempted: true}, on(20, 0, 10), off(50, 0, 10)}, 1, [2]int{}, []float64{1}, [2]float64{0.3, 0.3}},
		{"one sleeps", []Switch{on(0, 1, 0), on(0, 3, 0), on(0, 0, 20), off(20, 0, 20), on(20, 0, 10), off(50, 0, 10)}, 1, [2]int{}, []float64{1}, [2]float64{}},
		{"a record of going off was lost", []Switch{on(0, 0, 10), on(40, 0, 77)}, 1, [2]int{}, []float64{1}, [2]float64{}},
	} {
		l := NewLedger(smt(), 0)
		parts := []Placed{a, b}
		l.Track(parts)
		for _, s := range c.switches {
			l.Add(s)
		}
		got := l.Close(100, parts, Trace)
		m := got[0].Migrations[0] // b may have slept
		if !near(got[0].OnPlace, c.onPlace) || m.Logical != c.moves[0] || m.Physical != c.moves[1] || !slices.EqualFunc(m.PerCPU, c.perCPU, near) ||
			!near(got[0].Doubled, c.doubled[0]) || !near(got[1].Doubled, c.doubled[1]) {
			t.Errorf("%s: %+v and doubled %g, want %+v", c.name, got[0], got[1].Doubled, c)
		}
	}
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

// Compared with a reference that counts each nanosecond: random schedules, four CPUs.
func TestLedgerAgainstATwin(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	for round := range 200 {
		const length = 400
		parts := []Placed{{"a", []sample.Set{sample.SetOf(0, 2)}, []int{1, 2}}, {"b", []sample.Set{sample.SetOf(1), sample.SetOf(3)}, []int{3, 4}}}
		l := NewLedger(smt(), 0)
		l.Track(parts)
		var running [4]int
		var last, sits, moves, across [6]int
		var ran [6][4]int64
		var doubled [2]int64
		for i := range last {
			last[i], sits[i] = -1, -1
		}
		for cpu := range 4 {
			l.Add(on(0, cpu, 0))
		}
		for at := range int64(length) {
			for cpu := range 4 {
				if r.IntN(8) > 0 {
					continue
				}
				next := r.IntN(6) // 5 is a foreign thread
				if next != 0 && slices.Contains(running[:], next) {
					continue
				}
				old, stays := running[cpu], r.IntN(2) == 0
				l.Add(Switch{At: at, CPU: cpu, TID: old, Preempted: stays})
				l.Add(on(at, cpu, next))
				if sits[old] = -1; stays {
					sits[old] = cpu
				}
				running[cpu], sits[next] = next, cpu
				if next != 0 {
					if last[next] >= 0 && last[next] != cpu {
						moves[next]++
						if last[next]%2 != cpu%2 {
							across[next]++
						}
					}
					last[next] = cpu
				}
			}
			for cpu, tid := range running {
				ran[tid][cpu]++
			}
			idle := running[0] == 0 && running[2] == 0 || running[1] == 0 && running[3] == 0
			var hit [2]bool
			for core := range 2 {
				var here []int
				for tid := 1; tid <= 4; tid++ {
					if sits[tid] >= 0 && sits[tid]%2 == core {
						here = append(here, (tid-1)/2)
					}
				}
				for _, p := range here {
					hit[p] = hit[p] || len(here) > 1
				}
			}
			for p := range hit {
				if idle && hit[p] {
					doubled[p]++
				}
			}
		}
		got := l.Close(length, parts, Trace)
		for p, part := range parts {
			var right, total int64
			for k, tid := range part.Threads {
				if last[tid] < 0 {
					continue
				}
				for cpu, ns := range ran[tid] {
					total += ns
					if part.Sets[min(k, len(part.Sets)-1)].Has(cpu) {
						right += ns
					}
				}
				i := slices.IndexFunc(got[p].Migrations, func(m result.Migrations) bool { return m.Thread == strconv.Itoa(tid) })
				if i < 0 {
					if moves[tid] > 0 || ran[tid] != [4]int64{} {
						t.Errorf("seed %d round %d: thread %d is missing", seed, round, tid)
					}
					continue
				}
				if m := got[p].Migrations[i]; m.Logical != moves[tid] || m.Physical != across[tid] {
					t.Errorf("seed %d round %d thread %d: %+v, want %d and %d moves", seed, round, tid, m, moves[tid], across[tid])
				}
			}
			want := 1.0
			if total > 0 {
				want = float64(right) / float64(total)
			}
			if !near(got[p].OnPlace, want) || !near(got[p].Doubled, float64(doubled[p])/length) {
				t.Fatalf("seed %d round %d part %d: on place %g, doubled %g, want %g, %g", seed, round, p, got[p].OnPlace, got[p].Doubled, want, float64(doubled[p])/length)
			}
		}
	}
}

// spinner is a busy process on one CPU.
func spinner(t *testing.T, cpu int) int {
	t.Helper()
	cmd := exec.Command("sh", "-c", "while :; do :; done")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	move(t, cmd.Process.Pid, cpu)
	return cmd.Process.Pid
}

func move(t *testing.T, pid, cpu int) {
	t.Helper()
	var mask unix.CPUSet
	mask.Set(cpu)
	if err := unix.SchedSetaffinity(pid, &mask); err != nil {
		t.Fatal(err)
	}
}

func ran(pid int) int64 { l, _ := lookAt(pid); return l.ran }

// Each method finds that a process that stays is on place, and that a process that is
// moved half-way is not.
func TestRealThreads(t *testing.T) {
	quelltest.Need(t, quelltest.TwoCPUs)
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	top, err := h.Topology()
	if err != nil {
		t.Fatal(err)
	}
	cpus := top.Online.Numbers()
	for _, method := range []string{Trace, Poll} {
		t.Run(method, func(t *testing.T) {
			stays, moves := spinner(t, cpus[0]), spinner(t, cpus[0])
			part := func(pid int) Part {
				return Part{Name: strconv.Itoa(pid), Sets: []sample.Set{sample.SetOf(cpus[0])}, Threads: func() ([]int, error) { return []int{pid}, nil }}
			}
			begin, had := time.Now(), ran(moves)
			a, err := Open(top, []Part{part(stays), part(moves)}, method)
			if err != nil {
				quelltest.Skip(t, "placement-"+method, err)
			}
			// seen is for how long the audit has seen it on a CPU so far.
			seen := func(cpu int) time.Duration {
				a.mu.Lock()
				defer a.mu.Unlock()
				if th := a.ledger.threads[moves]; th != nil {
					return time.Duration(th.on[cpu])
				}
				return 0
			}
			quelltest.Until(t, "it is seen where it is placed", func() bool { return seen(cpus[0]) > 100*time.Millisecond })
			there := seen(cpus[0])
			move(t, moves, cpus[1])
			before := time.Duration(ran(moves) - had) // all of its CPU time on place, and perhaps more
			quelltest.Until(t, "it is seen elsewhere for longer", func() bool { return seen(cpus[1]) > before })
			got, err := a.Close()
			if err != nil {
				t.Fatal(err)
			}
			// The first look may lack the time since the kernel's last tick. It was on place for at
			// most half, by its CPU time; what the hypervisor took on place counts in a trace.
			const tick, most = 50 * time.Millisecond, 0.7
			least := float64(there) / float64(time.Since(begin)+tick)
			if got[0].Method != method || got[0].OnPlace != 1 || got[0].Migrations[0].Logical != 0 {
				t.Errorf("it stayed: %+v", got[0])
			}
			m := got[1].Migrations[0]
			if on := got[1].OnPlace; on < least || on > most || m.Logical != 1 || m.Physical > 1 || len(m.PerCPU) != cpus[1]+1 {
				t.Errorf("it was moved, on place for %.2f to %.2f of its time: %+v", least, most, got[1])
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte{15, 0, 0, 0, 0, 0x20, 40, 0})
	f.Fuzz(func(t *testing.T, record []byte) {
		var lost uint64
		if len(record) >= 8 {
			if got := parse(nil, record, &lost); len(got) > 1 {
				t.Errorf("%d switches from one record", len(got))
			}
		}
	})
}

// quiet is an observer without evidence.
type quiet struct{ windows []bool }

func (q *quiet) Second(time.Time) (result.Sample, []result.Evidence) { return result.Sample{}, nil }
func (q *quiet) Window(open bool) error                              { q.windows = append(q.windows, open); return nil }
func (q *quiet) Close([]result.Part) ([]result.Evidence, error)      { return nil, nil }
func (q *quiet) Energy(result.Window) (float64, string)              { return 0, "" }

// threads is an environment that only implements Threads.
type threads struct {
	lab.Environment
	ids []int
}

func (e threads) Threads() ([]int, error) { return e.ids, nil }

func TestWithFindsTheMisplaced(t *testing.T) {
	quelltest.Need(t, quelltest.TwoCPUs)
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	top, err := h.Topology()
	if err != nil {
		t.Fatal(err)
	}
	cpus := top.Online.Numbers()
	pid := spinner(t, cpus[1])
	for _, dynamic := range []bool{false, true} {
		cell := &study.Cell{}
		if dynamic {
			cell.Place.Dynamic = &study.Dynamic{}
		}
		inner := &quiet{}
		w := WithAudit(inner, top, lab.Observed{Cell: cell, Names: []string{"fg"}, Envs: []lab.Environment{threads{ids: []int{pid}}}, Sets: [][]sample.Set{{sample.SetOf(cpus[0])}}}, Poll)
		if err := w.Window(true); err != nil {
			t.Fatal(err)
		}
		at := ran(pid)
		quelltest.Until(t, "it runs", func() bool { return ran(pid) > at+50e6 })
		if err := w.Window(false); err != nil {
			t.Fatal(err)
		}
		parts := []result.Part{{Name: "fg"}}
		evidence, err := w.Close(parts)
		if err != nil || parts[0].Audit == nil || !slices.Equal(inner.windows, []bool{true, false}) {
			t.Fatalf("%v, %+v, %v", err, parts[0], inner.windows)
		}
		if wrong := len(evidence) == 1 && evidence[0].Reason == result.Misplaced; wrong == dynamic {
			t.Errorf("dynamic %t: %+v", dynamic, evidence)
		}
	}
}
