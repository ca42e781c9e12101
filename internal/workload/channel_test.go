package workload

import (
	"flag"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/quelltest"
	"github.com/quell-dev/quell/internal/sample"
)

var (
	rounds = flag.Int("rounds", 2, "rounds of the channel measurements")
	window = flag.Duration("window", 700*time.Millisecond, "least length of one window of them")
)

func lines(s string) iter.Seq[string] { return strings.Lines(s) }

func cutPrefix(row, key string) (string, bool) {
	rest, ok := strings.CutPrefix(row, key)
	return strings.TrimSpace(rest), ok
}

// figures are what one window says of a victim.
type figures struct {
	wait    float64          // s/CPU-s
	cpu     float64          // CPU-s/s
	cpt     float64          // CPU-ns per transaction
	latency float64          // ns per transaction, wall, thinking included
	trips   [2]time.Duration // ping-pong before and after
	where   string           // what they say: near, far or moved
}

// watch observes a victim for a window: until it has done enough transactions
// for it at its usual pace and the time is over.
func watch(t *testing.T, p *Proc) figures {
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
	quelltest.Until(t, time.Minute, "the window is over", func() bool {
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
	cpu, n := s1.CPU-s0.CPU, float64(n1-n0)
	return figures{wait: float64(s1.Wait-s0.Wait) / float64(cpu), cpu: cpu.Seconds() / took.Seconds(),
		cpt: float64(cpu) / n, latency: float64(took) / n}
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
	contended = "contended" // beside an antagonist that never rests
	capped    = "capped"    // beside one that is held at 0.1 CPU-s/s

	near  = "near" // the CPUs shared a cache before and after the window
	far   = "far"  // they did not
	moved = "moved"
)

// distance measures the two CPUs; a CPU is no distance from itself.
func distance(t *testing.T, a, b int) RoundTrip {
	t.Helper()
	if a == b {
		return RoundTrip{}
	}
	rt, err := PingPong(a, b, 5*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	return rt
}

// channel measures a victim alone, beside an antagonist that never rests, and
// beside one that is capped, in turn, so that what else the machine does falls
// on all three alike.
func channel(t *testing.T, victim, antagonist Spec, on, off int) map[string][]figures {
	tree := openTree(t)
	all := map[string][]figures{}
	v := start(t, tree, "victim", victim, StartOptions{CPUs: sample.SetOf(on)})
	counted(t, v, 20)
	antagonist.Work, antagonist.Pause = time.Hour, 0
	look := func(state string) {
		before := distance(t, on, off)
		f := watch(t, v)
		after := distance(t, on, off)
		f.trips = [2]time.Duration{before.Min, after.Min}
		switch shared := Shared(before); {
		case shared != Shared(after):
			f.where = moved
		case shared:
			f.where = near
		default:
			f.where = far
		}
		all[state] = append(all[state], f)
		t.Logf("%-9s  cpu %.2f  wait %.3f s/CPU-s  cpt %.3f ms  %.3f ms/transaction  %s %v",
			state, f.cpu, f.wait, f.cpt/1e6, f.latency/1e6, f.where, f.trips)
	}
	for range *rounds {
		look(alone)
		a := start(t, tree, "antagonist", antagonist, StartOptions{CPUs: sample.SetOf(off)})
		quelltest.Until(t, 10*time.Second, "the antagonist is at work", func() bool {
			s, err := a.Sched()
			return err == nil && s.CPU > 50*time.Millisecond
		})
		look(contended)
		limit(t, tree, "antagonist", 0.1)
		before := throttled(t, tree, "antagonist")
		quelltest.Until(t, 10*time.Second, "the cap holds", func() bool {
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

// TestChannelCPU measures the cpu channel: a serve and a hog on one CPU. The
// figures stand in docs/design/0001-contention-channels.md.
func TestChannelCPU(t *testing.T) {
	on := cpus(t, 1)[0]
	all := channel(t, Default(Serve), Default(Hog), on, on)
	wait := func(f figures) float64 { return f.wait }
	for _, state := range []string{alone, contended, capped} {
		t.Logf("%-9s wait %s s/CPU-s, cpu %s, ms a request %s", state, spread(all[state], wait),
			spread(all[state], func(f figures) float64 { return f.cpu }),
			spread(all[state], func(f figures) float64 { return f.latency / 1e6 }))
	}
	// Whatever else this machine does only adds to all three.
	a, b, c := middle(all[alone], wait), middle(all[contended], wait), middle(all[capped], wait)
	if b < 0.4 {
		t.Errorf("wait beside a hog is %.3f s/CPU-s, want more than 0.4", b)
	}
	if b-c < 0.2 || c-a > (b-a)/2 {
		t.Errorf("wait is %.3f alone, %.3f beside a hog, %.3f when that is capped: the cap should undo most of it", a, b, c)
	}
}

// TestChannelCache measures the cache channel: a chase and a stream on two
// CPUs. They disturb each other only while the CPUs share a cache, which is
// for the ping-pong to say.
func TestChannelCache(t *testing.T) {
	on := cpus(t, 2)
	all := channel(t, Default(Chase), Default(Stream), on[0], on[1])
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
			t.Logf("%-5s %-9s %d windows: ns a step %s", where, state, len(of[state]), spread(of[state], perStep))
		}
		if where == near && len(of[alone]) > 0 && len(of[contended]) > 0 {
			if a, b := middle(of[alone], perStep), middle(of[contended], perStep); b < 1.2*a {
				t.Errorf("a step takes %.1f ns alone and %.1f ns beside a stream in the same cache", a, b)
			}
		}
	}
}
