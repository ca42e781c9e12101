package blockio

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cflags "-O2 -g -mcpu=v3 -Wall -Werror" -type event twin twin.bpf.c

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/bpftest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// recorder keeps every request that a disk has done since the recorder was made.
type recorder struct {
	objs   twinObjects
	events *ringbuf.Reader
}

func recordRequests(t testing.TB) *recorder {
	t.Helper()
	r := &recorder{}
	if err := loadTwinObjects(&r.objs, nil); err != nil {
		t.Fatal(err)
	}
	var links []link.Link
	for _, p := range []*ebpf.Program{r.objs.RawMake, r.objs.RawComplete} {
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err != nil {
			t.Fatal(err)
		}
		links = append(links, l)
	}
	var err error
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

// take returns the requests that were done since the last call, in order.
func (r *recorder) take(t testing.TB) (all []twinEvent) {
	t.Helper()
	var refused uint64
	if err := errors.Join(r.objs.Refused.Get(&refused), r.events.Flush()); err != nil || refused > 0 {
		t.Fatalf("%v; %d requests are missing", err, refused)
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
	slices.SortStableFunc(all, func(a, b twinEvent) int { return int(int64(a.Done - b.Done)) })
	return all
}

// pairs computes by brute force how long each task was served while each waited: a disk
// serves one request after the other, each from the end of the one before.
func pairs(events []twinEvent) map[[2]uint64]time.Duration {
	type service struct{ who, from, to uint64 }
	served, last := map[uint64][]service{}, map[uint64]uint64{}
	for _, e := range events {
		served[e.Disk] = append(served[e.Disk], service{e.Who, last[e.Disk], e.Done})
		last[e.Disk] = e.Done
	}
	all := map[[2]uint64]time.Duration{}
	for _, e := range events {
		for _, s := range served[e.Disk] {
			if from, to := max(s.from, e.Came), min(s.to, e.Done); from < to && s.to <= e.Done {
				all[[2]uint64{e.Who, s.who}] += time.Duration(to - from)
			}
		}
	}
	return all
}

// On a disk that two tasks keep busy, by threads that read and write at once, each
// pair's time is what a twin computes from the requests, within 3 % or 1 ms, plus what
// the kernel hid from either (hidden): each of the waiting task's threads may have waited
// for a hidden request. A task alone waits only for itself.
func TestServedAsATwinSays(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.EBPF, quelltest.Cgroup2)
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	web, loud := bpftest.Task(t, h, sample.Unified, "web"), bpftest.Task(t, h, sample.Unified, "loud")
	s, k := open(t, web, loud)
	if !s.Info().Accounts {
		quelltest.Skip(t, "bpf-loop", errors.New("this kernel cannot report served tasks"))
	}
	readers := []*quelltest.Child{start(t, web.Dir), start(t, web.Dir)}
	var writers []*quelltest.Child
	for range 4 {
		writers = append(writers, start(t, loud.Dir))
	}
	events := recordRequests(t)
	programs := k.Programs()
	unseen := hidden(t, []*ebpf.Program{programs[0], events.objs.RawMake}, []*ebpf.Program{programs[1], events.objs.RawComplete})
	var behind time.Duration // time that the readers waited for the others, in all scenes
	for _, scene := range []struct {
		name         string
		reads, loads int // blocks of each child, at least of a reader
	}{{"alone", 200, 0}, {"with others", 200, 300}, {"others wait too", 100, 20}} {
		events.take(t)
		unseen()
		bpftest.Start(t, s)
		work := []func(){}
		var busy atomic.Int32 // others that are not done: until then the readers go on
		if scene.loads > 0 {
			busy.Store(int32(len(writers)))
		}
		for _, c := range readers {
			work = append(work, func() {
				for c.Ask("r", scene.reads); busy.Load() > 0; {
					c.Ask("r", scene.reads)
				}
			})
		}
		for i, c := range writers {
			work = append(work, func() { defer busy.Add(-1); c.Ask([]string{"r", "w"}[i%2], scene.loads) })
		}
		together(work)
		all := bpftest.Stop(t, s)
		missing := unseen()
		requests := events.take(t)
		twin, longest := pairs(requests), time.Duration(0)
		for _, e := range requests {
			longest = max(longest, time.Duration(e.Done-e.Came))
		}
		for _, p := range []struct {
			waits, by counter.Target
			threads   int // of the one that waits
		}{{web, loud, len(readers)}, {loud, web, len(writers)}} {
			got := servedBy(all[p.waits.Key], p.by.Key)
			want := twin[[2]uint64{p.waits.Key.CgroupID(), p.by.Key.CgroupID()}]
			r := all[p.waits.Key]
			allowed := max(time.Millisecond, want*3/100) + time.Duration(missing)*longest*time.Duration(p.threads)
			t.Logf("%s: %v of %v behind the other, the twin says %v; %v hidden", scene.name, got, time.Duration(bpftest.Count(r, sample.IOTime)*1e9), want, missing)
			if d := (got - want).Abs(); d > allowed {
				t.Errorf("%s: %v behind the other, the twin says %v", scene.name, got, want)
			}
			sum := time.Duration(0)
			for _, o := range r.Served {
				sum += o.Time
			}
			if waited := time.Duration(bpftest.Count(r, sample.WaitOther) * 1e9); r.Served == nil || sum > waited+1 {
				t.Errorf("%s: served %v, of a wait of %v", scene.name, r.Served, waited)
			} else if missing == 0 && sum < waited*9/10 {
				t.Errorf("%s: of a wait of %v only %v is known", scene.name, waited, sum)
			}
		}
		waited := servedBy(all[web.Key], loud.Key)
		if scene.loads == 0 && waited > 0 && missing == 0 {
			t.Errorf("%s: the readers waited %v for the others", scene.name, waited)
		}
		behind += waited
	}
	if behind == 0 {
		t.Error("the readers never waited for the others")
	}
	if n := s.Totals().PairsDropped; n > 0 {
		t.Errorf("%d services had no room", n)
	}
}

func servedBy(r counter.Reading, k sample.TaskKey) time.Duration {
	for _, o := range r.Served {
		if o.By == k {
			return o.Time
		}
	}
	return 0
}

// together runs all functions in parallel, and returns when all are done.
func together(all []func()) {
	done := make(chan struct{})
	for _, f := range all {
		go func() { defer func() { done <- struct{}{} }(); f() }()
	}
	for range all {
		<-done
	}
}

// Pairs of a constructed sequence.
func TestPairs(t *testing.T) {
	got := pairs([]twinEvent{
		{Who: 1, Came: 100, Done: 110, Disk: 8}, // alone
		{Who: 2, Came: 120, Done: 140, Disk: 8}, // 20 for itself
		{Who: 1, Came: 125, Done: 150, Disk: 8}, // 15 behind 2, 10 for itself
		{Who: 1, Came: 126, Done: 160, Disk: 9}, // on another disk
	})
	want := map[[2]uint64]time.Duration{{1, 1}: 10 + 10 + 34, {2, 2}: 20, {1, 2}: 15}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
}
