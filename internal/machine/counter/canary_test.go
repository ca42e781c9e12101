package counter

import (
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/chase"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func canary(t testing.TB, budget time.Duration, caches ...Cache) *Canary {
	t.Helper()
	c, err := OpenCanary(caches, budget)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// anyCPU returns the CPUs of this machine.
func anyCPU(t testing.TB) sample.Set {
	t.Helper()
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	online, err := h.Online()
	if err != nil {
		t.Fatal(err)
	}
	return online
}

// Caches returns each of a machine's caches once, with the CPUs that use it.
func TestCaches(t *testing.T) {
	two := host.Topology{Online: sample.SetOf(0, 1, 2, 3), CPUs: []host.CPU{
		{ID: 0, LLC: host.Cache{ID: 0, Size: 32 << 20, CPUs: sample.SetOf(0, 2)}}, {ID: 1, LLC: host.Cache{ID: 4, Size: 16 << 20, CPUs: sample.SetOf(1, 3)}},
		{ID: 2, LLC: host.Cache{ID: 0, Size: 32 << 20, CPUs: sample.SetOf(0, 2)}}, {ID: 3, LLC: host.Cache{ID: 4, Size: 16 << 20, CPUs: sample.SetOf(1, 3)}}}}
	got := Caches(two)
	if len(got) != 2 || got[0].Name != "(cache 0)" || got[0].CPUs.String() != "0,2" || got[1].Name != "(cache 4)" || got[1].Size != 16<<20 {
		t.Errorf("%+v", got)
	}
	unknown := host.Topology{Online: sample.SetOf(0, 1), CPUs: []host.CPU{{ID: 0, LLC: host.Cache{ID: -1}}, {ID: 1, LLC: host.Cache{ID: -1}}}}
	if got := Caches(unknown); len(got) != 1 || got[0].Name != "(cache)" || got[0].CPUs.Len() != 2 {
		t.Errorf("where nothing is known: %+v", got)
	}
}

// The set is one cycle through every line; otherwise a pass would not read all of it.
func TestTheChaseSeesEveryLine(t *testing.T) {
	c := canary(t, time.Millisecond, Cache{Name: "x", CPUs: anyCPU(t), Size: 8 << 20})
	n := len(c.set) * 8 / chase.Line
	if n != 1<<20/chase.Line {
		t.Fatalf("%d lines, want an eighth of the cache", n)
	}
	at, seen := uint64(0), 0
	for {
		at = chase.Walk(c.set, at, 1)
		seen++
		if at == 0 || seen > n {
			break
		}
	}
	if seen != n {
		t.Errorf("the cycle is %d of %d lines long", seen, n)
	}
}

// A window gives a plausible cost and exceeds its budget by one burst at most. A canary
// that is stopped at once has run one burst.
func TestCanary(t *testing.T) {
	c := canary(t, time.Nanosecond, Cache{Name: "a", CPUs: anyCPU(t)}, Cache{Name: "b", CPUs: sample.SetOf(1 << 14)})
	if err := c.Stop(); err != ErrNotOpen {
		t.Errorf("stopped before it was started: %v", err)
	}
	window := func() map[string]Reading {
		t.Helper()
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != ErrOpen {
			t.Errorf("started twice: %v", err)
		}
		if err := c.Stop(); err != nil {
			t.Fatal(err)
		}
		return overallOf(t, c)
	}
	// One cache in each window, since the budget is enough for one.
	first := window()
	if r, ok := first["a"]; len(first) != 1 || !ok || r.Err != nil || !(r.Cost > 1e-10 && r.Cost < 1e-4) {
		t.Errorf("first %+v", first)
	}
	if n := len(c.last[0].turns); n != warmPasses*partsPerPass {
		t.Errorf("%d turns, want one burst's", n)
	}
	second := window()
	if r, ok := second["b"]; len(second) != 1 || !ok || r.Err == nil || !math.IsNaN(r.Cost) {
		t.Errorf("on a CPU that is not there: %+v", second)
	}
	if _, ok := window()["a"]; !ok {
		t.Error("the turns do not go round")
	}
}

// An agent that is kept off some CPUs reads on none of them.
func TestTheCanaryStaysOnTheAgentsCPUs(t *testing.T) {
	quelltest.Need(t, quelltest.TwoCPUs)
	cpus, err := host.Affinity(0)
	if err != nil {
		t.Fatal(err)
	}
	c := canary(t, time.Nanosecond, Cache{Name: "a", CPUs: cpus})
	home := sample.SetOf(cpus.Numbers()[0])
	var set, moved error
	var where sample.Set
	done := make(chan []cacheTiming)
	host.OwnThread(func() {
		set = host.SetAffinity(0, home)
		all := c.watch(nil)
		where, moved = host.Affinity(0)
		done <- all
	})
	all := <-done
	if err := errors.Join(set, moved, all[0].err); err != nil || !slices.Equal(where, home) {
		t.Errorf("it read on CPUs %s, the agent may use %s: %v", where, home, err)
	}
}

// With a larger budget it measures again in the same window, after a pause.
func TestTheCanaryLooksMoreThanOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := canary(t, time.Hour, Cache{Name: "a", CPUs: anyCPU(t)})
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		<-time.After(3*canaryPause - 1)
		if err := c.Stop(); err != nil {
			t.Fatal(err)
		}
		if n := len(c.last[0].turns); n != 3*warmPasses*partsPerPass {
			t.Errorf("%d turns, want three bursts'", n)
		}
	})
}

func TestWhatIsUsual(t *testing.T) {
	for _, c := range []struct {
		turns []time.Duration
		want  time.Duration
	}{
		{[]time.Duration{7}, 7}, {[]time.Duration{100, 4}, 4}, {[]time.Duration{2, 900, 4}, 3},
		{[]time.Duration{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 500, 500}, 1},
	} {
		if got := trimmedMean(c.turns); got != c.want {
			t.Errorf("%v: %v, want %v", c.turns, got, c.want)
		}
	}
}
