package runq

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cflags "-O2 -g -mcpu=v3 -Wall -Werror" -type event twin twin.bpf.c

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// The kinds of events (twin.bpf.c).
const (
	eventSwitch = iota
	eventWakeup
	eventMigrate
)

// recorder keeps every event of the scheduler since the recorder was made.
type recorder struct {
	objs   twinObjects
	events *ringbuf.Reader
}

func recordEvents(t testing.TB) *recorder {
	t.Helper()
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	spec, err := loadTwin()
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{}
	if err := spec.LoadAndAssign(&r.objs, &ebpf.CollectionOptions{Cache: kernelTypes}); err != nil {
		t.Fatal(err)
	}
	var links []link.Link
	for _, p := range []*ebpf.Program{r.objs.RawSwitch, r.objs.RawWakeup, r.objs.RawWakeupNew, r.objs.RawMigrate} {
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err != nil {
			t.Fatal(err)
		}
		links = append(links, l)
	}
	if r.events, err = ringbuf.NewReader(r.objs.Events); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		var errs []error
		for _, l := range links {
			errs = append(errs, l.Close())
		}
		if err := errors.Join(append(errs, r.events.Close(), r.objs.Close())...); err != nil {
			t.Error(err)
		}
	})
	return r
}

// take returns the events until now, in order, and how many are missing.
func (r *recorder) take(t testing.TB) (all []twinEvent, missing uint64) {
	t.Helper()
	if err := r.objs.Refused.Get(&missing); err != nil {
		t.Fatal(err)
	}
	if err := r.events.Flush(); err != nil {
		t.Fatal(err)
	}
	var raw ringbuf.Record
	for {
		err := r.events.ReadInto(&raw)
		if errors.Is(err, ringbuf.ErrFlushed) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, *(*twinEvent)(unsafe.Pointer(&raw.RawSample[0])))
	}
	slices.SortStableFunc(all, func(a, b twinEvent) int { return int(int64(a.Ns - b.Ns)) })
	return all, missing
}

// span is an interval of time on a CPU, in ns.
type span struct {
	from, to uint64
	cgroup   uint64 // of the thread that ran or waited
	idle     bool
	lost     uint64 // the part lost to interrupts and the hypervisor
	held     uint64 // the part in which the quota was exhausted
	unsure   bool   // a wait whose end was not shown: it ended at any time until then
}

// story is what happened on one CPU.
type story struct{ runs, waits []span }

// tell makes spans of events. A kernel may hide switches from programs, such as those
// away from certain threads. A thread that was not seen to be switched in was then not
// seen to end its wait either, and the wait is unsure: the program may have been shown more.
// Of threads that were not seen at all it says nothing.
func tell(events []twinEvent) (_ map[uint32]*story, seen map[uint32]bool, hidden int, murky uint64) {
	began := events[0].Ns
	end := events[len(events)-1].Ns
	stories := map[uint32]*story{}
	at := func(cpu uint32) *story {
		if stories[cpu] == nil {
			stories[cpu] = &story{}
		}
		return stories[cpu]
	}
	type waiting struct {
		cpu                uint32
		from, cgroup, held uint64
	}
	waits := map[uint32]waiting{}
	seen = map[uint32]bool{}
	running := map[uint32]*twinEvent{}
	broken := map[uint32]uint64{} // when the newest switch was hidden, by CPU
	done := func(pid uint32, to, held uint64) {
		if w, ok := waits[pid]; ok {
			s := at(w.cpu)
			s.waits = append(s.waits, span{from: w.from, to: to, cgroup: w.cgroup, held: held - w.held})
			delete(waits, pid)
		}
	}
	for i := range events {
		e := &events[i]
		old := !seen[e.Pid[0]]
		switch e.Kind {
		case eventSwitch:
			if w, ok := waits[e.Pid[0]]; ok {
				done(e.Pid[0], e.Ns, e.Held[0])
				s := at(w.cpu)
				s.waits[len(s.waits)-1].unsure = true
			}
			if r := running[e.Cpu]; r != nil {
				if r.Pid[1] != e.Pid[0] {
					broken[e.Cpu] = e.Ns
					hidden++
					murky += e.Ns - r.Ns // another thread ran in a part of that
				}
				s := at(e.Cpu)
				s.runs = append(s.runs, span{from: r.Ns, to: e.Ns, cgroup: r.Cgroup[1], idle: r.Pid[1] == 0, lost: e.Lost - r.Lost})
			}
			running[e.Cpu] = e
			if prev := e.Pid[0]; prev != 0 {
				seen[prev] = true
				if e.Wants == 1 {
					waits[prev] = waiting{e.Cpu, e.Ns, e.Cgroup[0], e.Held[0]}
				}
			}
			if next := e.Pid[1]; next != 0 {
				if !seen[next] { // it has waited since before the first event
					waits[next] = waiting{e.Cpu, began, e.Cgroup[1], e.Held[1]}
				}
				seen[next] = true
				done(next, e.Ns, e.Held[1])
			}
		case eventWakeup:
			seen[e.Pid[0]] = true
			if w, known := waits[e.Pid[0]]; e.Runs == 0 && (!known || broken[w.cpu] > w.from) {
				waits[e.Pid[0]] = waiting{e.Cpu, e.Ns, e.Cgroup[0], e.Held[0]}
			}
		case eventMigrate:
			if e.Queued == 0 {
				break
			}
			if old {
				waits[e.Pid[0]] = waiting{e.Cpu, began, e.Cgroup[0], e.Held[0]}
			}
			seen[e.Pid[0]] = true
			done(e.Pid[0], e.Ns, e.Held[0])
			waits[e.Pid[0]] = waiting{e.Dest, e.Ns, e.Cgroup[0], e.Held[1]}
		}
	}
	for pid, w := range maps.Clone(waits) {
		done(pid, end, w.held)
	}
	for cpu, r := range running {
		s := at(cpu)
		s.runs = append(s.runs, span{from: r.Ns, to: end, cgroup: r.Cgroup[1], idle: r.Pid[1] == 0})
	}
	return stories, seen, hidden, murky
}

func overlap(aFrom, aTo, bFrom, bTo uint64) float64 {
	from, to := max(aFrom, bFrom), min(aTo, bTo)
	if to <= from {
		return 0
	}
	return float64(to - from)
}

// who is a pair of tasks: one waits, one runs.
type who struct{ waits, runs sample.TaskKey }

// truth is what a window must report: ns by pair, and by task how long it waited for
// others.
type truth struct {
	pairs map[who]float64
	other map[sample.TaskKey]float64
}

// judge sums every part of every wait in a window, by brute force. When the quota was
// exhausted within a wait is not known: before anything else, for a thread that
// exhausts it; but at any time, also outside the window, if other threads of its task
// ran meanwhile. In that case late subtracts the held time from each served task and
// from their sum, and waits that are unsure are left out. Without late it is subtracted from no
// task, and from the sum only what must be in it: held neither outside the window nor while the
// CPU was idle.
func judge(stories map[uint32]*story, owners map[uint64]sample.TaskKey, from, to uint64, late bool) truth {
	x := truth{map[who]float64{}, map[sample.TaskKey]float64{}}
	for _, s := range stories {
		for _, w := range s.waits {
			victim, followed := owners[w.cgroup]
			if !followed || w.unsure && late {
				continue
			}
			first, _ := slices.BinarySearchFunc(s.runs, w.from, func(r span, at uint64) int {
				if r.to <= at {
					return -1
				}
				return 1
			})
			runs := s.runs[first:]
			if last := slices.IndexFunc(runs, func(r span) bool { return r.from >= w.to }); last >= 0 {
				runs = runs[:last]
			}
			own := slices.ContainsFunc(runs, func(r span) bool { return !r.idle && owners[r.cgroup] == victim })
			wFrom, wTo := max(w.from, from), min(w.to, to)
			if !own {
				wFrom = max(wFrom, w.from+w.held)
			}
			mine := map[sample.TaskKey]float64{}
			all, idle := 0.0, 0.0
			for _, r := range runs {
				culprit := owners[r.cgroup]
				d := overlap(wFrom, wTo, r.from, r.to)
				if r.idle {
					idle += d
				}
				if r.idle || culprit == victim {
					continue
				}
				all += d
				// More may have been lost than the time that it seems to have run: the hypervisor took the CPU
				// before the switch, and the kernel's clock noticed that after it.
				mine[culprit] += d * max(0, 1-float64(r.lost)/float64(r.to-r.from))
			}
			for culprit, d := range mine {
				if own && late {
					d = max(0, d-float64(w.held))
				}
				x.pairs[who{victim, culprit}] += d
			}
			if own {
				held := float64(w.held)
				if !late {
					outside := float64(w.to-w.from) - overlap(w.from, w.to, from, to)
					held = max(0, held-outside-idle)
				}
				all = max(0, all-held)
			}
			x.other[victim] += all
		}
	}
	return x
}

// against measures a window and compares each pair of tasks with the twin's. A window
// opens and closes thread by thread: what the programs report must lie between the
// twin's results for the shortest and for the longest window that it can have been, or
// at most 3 % or 1 ms outside.
func against(t *testing.T, p *Program, groups []*group, r *recorder, length time.Duration, during func(context.Context)) {
	t.Helper()
	claims := make([]counter.Claim[sample.TaskKey], 0, len(p.tasks))
	names := map[sample.TaskKey]string{outside: "outside"}
	for key, f := range p.tasks {
		c, ok := counter.ClaimOf(&f.target, key)
		if !ok {
			t.Fatal("no claim")
		}
		claims = append(claims, c)
		names[key] = f.target.Dir[len(f.target.Dir)-1:]
	}
	owners := counter.Assign(claims)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	// The end of Start and the beginning of Stop once more, with the times.
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(p.k.number(p.k.window + 1))
	for _, f := range p.tasks {
		var err error
		f.base, err = p.k.read(nil, f.owner.Slot)
		must(err)
	}
	lost := p.Totals().Lost
	longFrom := uint64(host.Monotonic())
	must(p.k.begin())
	shortFrom := uint64(host.Monotonic())
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	if during != nil {
		during(ctx)
	}
	<-ctx.Done()
	shortTo := uint64(host.Monotonic())
	must(p.k.settleWaits())
	must(p.k.number(p.k.window + 1)) // nothing is settled from here on
	longTo := uint64(host.Monotonic())
	p.k.window--
	got := map[sample.TaskKey]counter.Reading{}
	must(p.Stop(counter.WindowEnd{CPU: func(sample.TaskKey) (time.Duration, bool) { return time.Second, true }},
		func(k sample.TaskKey, r counter.Reading) { got[k] = r }))

	<-time.After(200 * time.Millisecond) // until quotas are back: for an unfinished wait it is not known how long it was held
	events, missing := r.take(t)
	t.Logf("%d events, %d missing; edges of %v and %v", len(events), missing,
		time.Duration(shortFrom-longFrom), time.Duration(longTo-shortTo))
	if missing > 0 {
		quelltest.Skip(t, "raw-events", fmt.Errorf("%d of them had no room: the window is not judged", missing))
	}
	stories, seen, hidden, murky := tell(events)
	unknown := map[sample.TaskKey]bool{}
	for _, g := range groups { // the first turn of a thread with a quota may be long after the window
		unknown[g.Key] = slices.ContainsFunc(g.burners, func(b *burning) bool { return !seen[uint32(b.PID)] })
	}
	if hidden > 0 {
		t.Logf("%d switches were not shown to programs: waits that ended with them may be shorter, and not judged are the tasks that ran for %v", hidden, time.Duration(murky))
	}
	least, most := judge(stories, owners, shortFrom, shortTo, true), judge(stories, owners, longFrom, longTo, false)
	// A switch may be hidden from the programs and shown to the recorder. Waits that
	// end with it are lost, and counted as lost.
	if lost = p.Totals().Lost - lost; lost > 0 {
		t.Logf("%d waits were lost: what is missing is not judged", lost)
	}
	check := func(what string, ns, least, most float64) {
		t.Helper()
		if lost > 0 {
			least = 0
		}
		slack := func(v float64) float64 { return max(0.03*v, 1e6) + float64(murky) }
		if ns < least-slack(least) || ns > most+slack(most) {
			t.Errorf("%s: %.2f ms, the twin says %.2f to %.2f", what, ns/1e6, least/1e6, most/1e6)
		} else if most > 5e6 {
			t.Logf("%s: %.2f ms, %.2f to %.2f", what, ns/1e6, least/1e6, most/1e6)
		}
	}
	for key, f := range p.tasks {
		reading, ok := got[key]
		if !ok {
			t.Fatalf("no reading of %s", f.target.Dir)
		}
		checkServed(t, &group{Target: f.target}, reading)
		if unknown[key] {
			t.Logf("%s is not judged: a thread of it has not run since the recorder began", names[key])
			continue
		}
		other, _ := reading.Extras.Get(sample.WaitOther)
		check(names[key]+" waits for others", other*1e9, least.other[key], most.other[key])
		pairs := map[sample.TaskKey]float64{}
		for by := range names {
			pairs[by] = 0
		}
		for _, s := range reading.Served {
			pairs[s.By] = float64(s.Time)
		}
		for by, ns := range pairs {
			if hidden > 0 && by == (sample.TaskKey{}) {
				continue // a thread whose switch away was hidden seems to run on, outside any task
			}
			check(names[key]+" waits while "+names[by]+" runs", ns, least.pairs[who{key, by}], most.pairs[who{key, by}])
		}
	}
}

// sleeper starts to compute and to sleep in turn inside the cgroup, in processes that
// start and end.
func (g *group) sleeper(t testing.TB, b burner, spins int, pause time.Duration) *burning {
	b.loop = fmt.Sprintf("while :; do i=0; while [ $i -lt %d ]; do i=$((i+1)); done; sleep %.4f; done", spins, pause.Seconds())
	return g.burn(t, b)
}

// mover pins threads to one CPU or the other at random moments.
func mover(t testing.TB, r *rand.Rand, threads ...*burning) func(context.Context) {
	return func(ctx context.Context) {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Duration(500+r.IntN(6000)) * time.Microsecond):
				threads[r.IntN(len(threads))].pin(t, r.IntN(2))
			}
		}
	}
}

// The reported served tasks are those that a naive twin computes from the scheduler's
// events.
func TestServedAgainstTheTwin(t *testing.T) {
	const length = 300 * time.Millisecond
	type scene struct {
		groups []*group
		during func(context.Context)
	}
	random := func(seed uint64) func(*testing.T) scene {
		return func(t *testing.T) (s scene) {
			r := rand.New(rand.NewPCG(seed, 15))
			var movable []*burning
			for i := range 3 + r.IntN(3) {
				var g *group
				switch name, kind := string(rune('a'+i)), r.IntN(5); {
				case kind == 0 && throttledClock(t):
					g = capped(t, name, 10+r.IntN(60))
				case kind == 1:
					g = weighted(t, name, 20+r.IntN(100))
				default:
					g = unified(t, name)
				}
				for range 1 + r.IntN(3) {
					b := burner{cpu: r.IntN(2)}
					switch r.IntN(6) {
					case 0:
						b.nice = r.IntN(10)
					case 1:
						b.policy = unix.SCHED_BATCH
					}
					if r.IntN(2) == 0 {
						g.sleeper(t, b, 200+r.IntN(8000), time.Duration(r.IntN(8000))*time.Microsecond)
					} else {
						movable = append(movable, g.burn(t, b))
					}
				}
				s.groups = append(s.groups, g)
			}
			if len(movable) > 0 {
				s.during = mover(t, r, movable...)
			}
			return s
		}
	}
	scenes := []struct {
		name string
		make func(t *testing.T) scene
	}{
		{"threads that compute and threads that sleep", func(t *testing.T) scene {
			a, b, c := unified(t, "a"), unified(t, "b"), unified(t, "c")
			a.sleeper(t, burner{cpu: 1}, 1000, 2*time.Millisecond)
			b.burn(t, burner{cpu: 1})
			c.sleeper(t, burner{cpu: 1}, 5000, 3*time.Millisecond)
			return scene{groups: []*group{a, b, c}}
		}},
		{"a waiting thread is moved", func(t *testing.T) scene {
			a, b, c := unified(t, "a"), unified(t, "b"), unified(t, "c")
			moved := a.burn(t, burner{cpu: 1})
			b.burn(t, burner{cpu: 0})
			c.burn(t, burner{cpu: 1})
			return scene{[]*group{a, b, c}, mover(t, rand.New(rand.NewPCG(1, 1)), moved)}
		}},
		{"threads are woken from another CPU", func(t *testing.T) scene {
			a, b, c := unified(t, "a"), unified(t, "b"), unified(t, "c")
			woken := a.burn(t, burner{cpu: 1, echo: true})
			b.burn(t, burner{cpu: 1})
			c.sleeper(t, burner{cpu: 1}, 3000, time.Millisecond)
			runtime.LockOSThread() // never unlocked: the pinned thread ends with the test
			pin(t, 0, 0)
			return scene{[]*group{a, b, c}, func(ctx context.Context) {
				for ctx.Err() == nil {
					woken.ask()
				}
			}}
		}},
		{"cgroups in cgroups", func(t *testing.T) scene {
			a, pod := unified(t, "a"), unified(t, "pod")
			inner := newGroup(t, sample.Unified, pod.Dir, "inner")
			deep, side := newGroup(t, sample.Unified, inner.Dir, "deep"), newGroup(t, sample.Unified, pod.Dir, "side")
			pod.Below = func() ([]uint64, error) { return []uint64{inner.Key.Inode, deep.Key.Inode, side.Key.Inode}, nil }
			inner.Below = func() ([]uint64, error) { return []uint64{deep.Key.Inode}, nil }
			a.burn(t, burner{cpu: 1})
			deep.burn(t, burner{cpu: 1})
			deep.sleeper(t, burner{cpu: 1}, 2000, 2*time.Millisecond)
			side.burn(t, burner{cpu: 1})
			return scene{groups: []*group{a, pod, inner}}
		}},
		{"weights", func(t *testing.T) scene {
			a, b, c := weighted(t, "a", 30), weighted(t, "b", 60), weighted(t, "c", 120)
			for _, g := range []*group{a, b, c} {
				g.burn(t, burner{cpu: 1})
				g.sleeper(t, burner{cpu: 1}, 2000, 2*time.Millisecond)
			}
			return scene{groups: []*group{a, b, c}}
		}},
		{"a quota", func(t *testing.T) scene {
			needThrottledClock(t)
			a, b, c := capped(t, "a", 20), unified(t, "b"), unified(t, "c")
			a.burn(t, burner{cpu: 1})
			b.burn(t, burner{cpu: 1})
			c.sleeper(t, burner{cpu: 1}, 4000, 4*time.Millisecond)
			return scene{groups: []*group{a, b, c}}
		}},
		{"a quota of two threads", func(t *testing.T) scene {
			needThrottledClock(t)
			a, b, c := capped(t, "a", 40), unified(t, "b"), unified(t, "c")
			a.burn(t, burner{cpu: 1})
			a.burn(t, burner{cpu: 1})
			b.burn(t, burner{cpu: 1})
			c.burn(t, burner{cpu: 1})
			return scene{groups: []*group{a, b, c}}
		}},
		{"real time", func(t *testing.T) scene {
			a, b, c := unified(t, "a"), unified(t, "b"), unified(t, "c")
			a.burn(t, burner{cpu: 1})
			b.sleeper(t, burner{cpu: 1, policy: unix.SCHED_FIFO}, 3000, 4*time.Millisecond)
			c.sleeper(t, burner{cpu: 1, policy: unix.SCHED_RR}, 2000, 3*time.Millisecond)
			return scene{groups: []*group{a, b, c}}
		}},
		{"a deadline", func(t *testing.T) scene {
			a, b, c := unified(t, "a"), unified(t, "b"), unified(t, "c")
			a.burn(t, burner{cpu: 1})
			b.burn(t, burner{cpu: anyCPU, policy: unix.SCHED_DEADLINE})
			c.burn(t, burner{cpu: 0})
			return scene{groups: []*group{a, b, c}}
		}},
		{"threads that ask to be served last", func(t *testing.T) scene {
			a, b, c := unified(t, "a"), unified(t, "b"), unified(t, "c")
			a.burn(t, burner{cpu: 1, nice: 10})
			b.burn(t, burner{cpu: 1, policy: unix.SCHED_IDLE})
			c.sleeper(t, burner{cpu: 1}, 3000, 3*time.Millisecond)
			return scene{groups: []*group{a, b, c}}
		}},
		{"many that wait", func(t *testing.T) scene {
			a, b := unified(t, "a"), unified(t, "b")
			for range 24 {
				a.burn(t, burner{cpu: 1})
			}
			b.burn(t, burner{cpu: 1})
			b.sleeper(t, burner{cpu: 1}, 1000, time.Millisecond)
			return scene{groups: []*group{a, b}}
		}},
		{"seed 1", random(1)}, {"seed 2", random(2)}, {"seed 3", random(3)}, {"seed 4", random(4)},
	}
	for _, tt := range scenes {
		t.Run(tt.name, func(t *testing.T) {
			quelltest.Need(t, quelltest.Root, quelltest.EBPF, quelltest.TwoCPUs)
			s := tt.make(t)
			r := recordEvents(t)
			<-time.After(150 * time.Millisecond) // until every thread has been seen
			for _, g := range s.groups {
				g.haveRun(t)
			}
			var w options
			if strings.HasPrefix(tt.name, "seed") {
				w.records = 256 // given out where tasks run
			}
			against(t, programWith(t, maxTasks, w, s.groups...), s.groups, r, length, s.during)
		})
	}
}
