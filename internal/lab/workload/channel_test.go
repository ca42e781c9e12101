package workload

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

var (
	rounds = flag.Int("rounds", 3, "rounds of the channel measurements")
	window = flag.Duration("window", 250*time.Millisecond, "least length of one window of them")
)

// figures are the measurements of a victim in one window.
type figures struct {
	wait  float64          // s/CPU-s
	cpu   float64          // CPU-s/s
	cpt   float64          // CPU-ns per transaction
	p50   float64          // ns, latency of a serve's requests: the median
	p99   float64          // and the 99th percentile
	trips [2]time.Duration // ping-pong before and after
	where string           // their meaning: near, far or moved
}

// reports collects the output of a serve.
type reports struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *reports) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(b)
}

func (r *reports) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text.Reset()
}

// latency returns the median p50 and the largest p99 of the lines since drop, 0 if there
// are none. The first line is skipped, because it began before drop.
func (r *reports) latency(t testing.TB) (p50, p99 float64) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var mid []float64
	for i := 0; ; i++ {
		var line Report
		row, err := r.text.ReadBytes('\n')
		if err != nil {
			break
		}
		if err := json.Unmarshal(row, &line); err != nil {
			t.Fatalf("%q: %v", row, err)
		}
		if i > 0 {
			mid = append(mid, float64(line.P50))
			p99 = max(p99, float64(line.P99))
		}
	}
	if len(mid) == 0 {
		return 0, 0
	}
	slices.Sort(mid)
	return mid[len(mid)/2], p99
}

// watch observes a victim for a window: until it has done more than 20 transactions and
// the time is over.
func watch(t testing.TB, p *Proc) figures {
	t.Helper()
	s0, err := p.Sched()
	if err != nil {
		t.Fatal(err)
	}
	n0, err := LoadProgress(p.Progress)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	quelltest.Until(t, "the window is over", func() bool {
		n, err := LoadProgress(p.Progress)
		return err == nil && n > n0+20 && time.Since(begin) > *window
	})
	took := time.Since(begin)
	s1, err := p.Sched()
	if err != nil {
		t.Fatal(err)
	}
	n1, err := LoadProgress(p.Progress)
	if err != nil {
		t.Fatal(err)
	}
	cpu := s1.CPU - s0.CPU
	return figures{wait: float64(s1.Wait-s0.Wait) / float64(cpu), cpu: cpu.Seconds() / took.Seconds(),
		cpt: float64(cpu) / float64(n1-n0)}
}

func middle(all []figures, of func(figures) float64) float64 {
	var v []float64
	for _, f := range all {
		v = append(v, of(f))
	}
	slices.Sort(v)
	return v[len(v)/2]
}

func spread(all []figures, of func(figures) float64) string {
	if len(all) == 0 {
		return "-"
	}
	var v []float64
	for _, f := range all {
		v = append(v, of(f))
	}
	return fmt.Sprintf("%.3f [%.3f, %.3f]", middle(all, of), slices.Min(v), slices.Max(v))
}

const (
	alone     = "alone"
	contended = "contended" // with an antagonist that never rests
	capped    = "capped"    // with one that is capped at 0.1 CPU-s/s

	near  = "near" // the CPUs shared a cache before and after the window
	far   = "far"  // they did not
	moved = "moved"
)

// distance measures the two CPUs; it is zero for the same CPU.
func distance(t testing.TB, a, b int) RoundTrip {
	t.Helper()
	if a == b {
		return RoundTrip{}
	}
	return pingPong(t, a, b, 5*time.Millisecond)
}

// channel measures a victim alone, with an antagonist that never rests, and with a capped
// one, in turn, so that other load on the machine affects all three equally.
func channel(t testing.TB, victim, antagonist Spec, on, off int, opt TreeOptions, rounds int) map[string][]figures {
	tree := openTree(t, opt)
	all := map[string][]figures{}
	var said reports
	v := start(t, tree, "victim", victim, StartOptions{CPUs: sample.SetOf(on), Stdout: &said})
	counted(t, v, 20)
	antagonist.Work, antagonist.Pause = time.Hour, 0
	look := func(state string) {
		before := distance(t, on, off)
		said.drop()
		f := watch(t, v)
		f.p50, f.p99 = said.latency(t)
		after := distance(t, on, off)
		f.trips = [2]time.Duration{before.Min, after.Min}
		switch shared := SharesCache(before); {
		case shared != SharesCache(after):
			f.where = moved
		case shared:
			f.where = near
		default:
			f.where = far
		}
		all[state] = append(all[state], f)
		t.Logf("%-9s  cpu %.2f  wait %.3f s/CPU-s  cpt %.3f ms  p50 %.2f p99 %.2f ms  %s %v",
			state, f.cpu, f.wait, f.cpt/1e6, f.p50/1e6, f.p99/1e6, f.where, f.trips)
	}
	for range rounds {
		look(alone)
		a := start(t, tree, "antagonist", antagonist, StartOptions{CPUs: sample.SetOf(off)})
		quelltest.Until(t, "the antagonist is at work", func() bool {
			s, err := a.Sched()
			return err == nil && s.CPU > 50*time.Millisecond
		})
		look(contended)
		limit(t, tree, "antagonist", 0.1)
		before := throttled(t, tree, "antagonist")
		quelltest.Until(t, "the cap holds", func() bool {
			return throttled(t, tree, "antagonist") > before+1
		})
		look(capped)
		limit(t, tree, "antagonist", 0)
		if err := a.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestChannelCPU measures the cpu channel: a serve and a hog on one CPU. The figures are
// in docs/design/0001-contention-channels.md.
func TestChannelCPU(t *testing.T) {
	on := cpus(t, 1)[0]
	t.Setenv(reportEnv, (*window / 5).String())
	// The weight keeps the effect of other builds on this test small.
	all := channel(t, Default(Serve), Default(Hog), on, on, TreeOptions{Weight: 100}, *rounds)
	wait := func(f figures) float64 { return f.wait }
	for _, state := range []string{alone, contended, capped} {
		t.Logf("%-9s wait %s s/CPU-s, cpu %s, latency p50 %s, p99 %s ms", state, spread(all[state], wait),
			spread(all[state], func(f figures) float64 { return f.cpu }),
			spread(all[state], func(f figures) float64 { return f.p50 / 1e6 }),
			spread(all[state], func(f figures) float64 { return f.p99 / 1e6 }))
	}
	// Other load on this machine only adds to all three values, so they are compared with
	// each other.
	a, b, c := middle(all[alone], wait), middle(all[contended], wait), middle(all[capped], wait)
	if !(b > a) || b-c < (b-a)/2 {
		t.Errorf("wait is %.3f alone, %.3f with a hog, %.3f when that is capped: the cap should undo most of it", a, b, c)
	}
}

// inCache is the longest time of a load from a last-level cache, ns; a load from memory
// takes 70 and more.
const inCache = 50

// BenchmarkChannelCache measures the cache channel, one round for each b.N: a chase and a
// stream on two CPUs. They affect each other only while the CPUs share a cache, which the
// ping-pong decides, and only if the chase alone runs from the cache. near-rounds counts
// the windows in which both hold.
func BenchmarkChannelCache(b *testing.B) {
	on := cpus(b, 2)
	// Without a weight, which would take the CPUs away from the ping-pong.
	all := channel(b, Default(Chase), Default(Stream), on[0], on[1], TreeOptions{}, b.N)
	perStep := func(f figures) float64 { return f.cpt / float64(Default(Chase).Steps) }
	for _, where := range []string{near, far, moved} {
		of := map[string][]figures{}
		for state, fs := range all {
			for _, f := range fs {
				if f.where == where {
					of[state] = append(of[state], f)
				}
			}
		}
		for _, state := range []string{alone, contended, capped} {
			b.Logf("%-5s %-9s %d windows: ns a step %s", where, state, len(of[state]), spread(of[state], perStep))
		}
		if where != near || len(of[alone]) == 0 || len(of[contended]) == 0 {
			continue
		}
		// Other load, here or in the host's other guests, can degrade a window but not
		// improve it.
		best := perStep(slices.MinFunc(of[alone], func(a, b figures) int { return cmp.Compare(a.cpt, b.cpt) }))
		beside := middle(of[contended], perStep)
		if best <= inCache {
			b.ReportMetric(float64(len(of[contended])), "near-rounds")
			b.ReportMetric(best, "alone-ns/step")
			b.ReportMetric(beside, "beside-ns/step")
			b.ReportMetric(beside/best, "ratio")
		}
	}
}
