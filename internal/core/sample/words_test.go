package sample_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

func TestFlagsRoundTrip(t *testing.T) {
	all := sample.Capped | sample.Throttled | sample.Stolen | sample.Restarted | sample.Split
	seen := map[string]bool{}
	for f := sample.Flags(0); f <= all; f++ {
		s := f.String()
		if got, err := sample.ParseFlags(s); got != f || err != nil {
			t.Errorf("%08b is %q, which is %08b, %v", f, s, got, err)
		}
		if seen[s] {
			t.Errorf("%q stands for two sets", s)
		}
		seen[s] = true
	}
	if s := (sample.Capped | sample.Split).String(); s != "capped+split" {
		t.Errorf("got %q", s)
	}
	for _, bad := range []string{"+", "capped+", "+capped", "Capped", "capped split", "tired"} {
		if f, err := sample.ParseFlags(bad); err == nil {
			t.Errorf("ParseFlags(%q) = %v", bad, f)
		}
	}
}

func TestClassRoundTrip(t *testing.T) {
	for c, name := range map[sample.Class]string{
		sample.BestEffort: "best-effort", sample.Batch: "batch", sample.LatencySensitive: "latency-sensitive",
	} {
		text, err := json.Marshal(c)
		var back sample.Class
		if err == nil {
			err = json.Unmarshal(text, &back)
		}
		if err != nil || string(text) != `"`+name+`"` || back != c {
			t.Errorf("%v is %s, which is %v, %v", c, text, back, err)
		}
	}
	if !(sample.BestEffort < sample.Batch && sample.Batch < sample.LatencySensitive) {
		t.Error("the least important class is not the least")
	}
	for _, bad := range []string{"", "Batch", "latency", "class(7)"} {
		if c, err := sample.ParseClass(bad); err == nil || !strings.Contains(err.Error(), "best-effort, batch, latency-sensitive") {
			t.Errorf("ParseClass(%q) = %v, %v; want an error that lists the classes", bad, c, err)
		}
	}
	if s := sample.Class(7).String(); s != "class(7)" {
		t.Errorf("an unknown class is %q", s)
	}
}

func TestExtrasHoldWhatWasMeasured(t *testing.T) {
	var x sample.Extras
	names := map[string]bool{}
	for i, e := range sample.AllExtras() {
		if v, ok := x.Get(e); ok || v != 0 {
			t.Errorf("%s was not measured and is %g, %v", e, v, ok)
		}
		v := float64(i) - 1 // zero is a value like any other
		x.Set(e, v)
		if got, ok := x.Get(e); !ok || got != v || x.Len() != i+1 {
			t.Errorf("%s is %g, %v; %d measured", e, got, ok, x.Len())
		}
		names[e.String()] = true
	}
	if len(names) != len(sample.AllExtras()) || names[""] {
		t.Errorf("names %v", names)
	}
}

func TestExtrasMergeKeepsWhatTheOtherLacks(t *testing.T) {
	var x, y sample.Extras
	x.Set(sample.Cycles, 1)
	x.Set(sample.Threads, 2)
	y.Set(sample.Threads, 0)
	y.Set(sample.Wakeups, 3)
	x.Merge(&y)
	for e, want := range map[sample.Extra]float64{sample.Cycles: 1, sample.Threads: 0, sample.Wakeups: 3} {
		if got, ok := x.Get(e); !ok || got != want {
			t.Errorf("%s is %g, %v; want %g", e, got, ok, want)
		}
	}
	if x.Len() != 3 || y.Len() != 2 {
		t.Errorf("%d and %d measured, want 3 and 2", x.Len(), y.Len())
	}
}

func TestMillis(t *testing.T) {
	at := time.Date(2026, 5, 1, 12, 0, 0, 1_999_999, time.FixedZone("x", 3600))
	m := sample.At(at)
	if want := at.Truncate(time.Millisecond).UTC(); m.Time() != want {
		t.Errorf("%v came back as %v", want, m.Time())
	}
	if got := m.Add(1500*time.Microsecond) - m; got != 1 {
		t.Errorf("1.5 ms later is %d later", got)
	}
	if got := m.Add(-time.Hour).Sub(m); got != -time.Hour {
		t.Errorf("an hour ago is %v ago", got)
	}
}

// Ids of v1 and of cgroup2 are counted separately, so they must not collide in a map.
func TestTaskKeysOfHierarchiesDiffer(t *testing.T) {
	v1, v2 := sample.TaskKey{Hierarchy: sample.V1CPU, Inode: 7}, sample.TaskKey{Hierarchy: sample.Unified, Inode: 7}
	if v1.CgroupID() == v2.CgroupID() || v2.CgroupID() != 7 {
		t.Errorf("ids %x and %x", v1.CgroupID(), v2.CgroupID())
	}
	if v1.String() != "v1cpu:7@0" || v2.String() != "v2:7@0" {
		t.Errorf("%s and %s", v1, v2)
	}
}

// The built-in signals have the design's starting values of least activity and least
// effect.
func TestSignals(t *testing.T) {
	want := []struct {
		name                          sample.SignalName
		domain                        sample.Domain
		cpu, rate, absolute, relative float64
	}{
		{sample.CPI, sample.SharedCache, 0.25, 0, 0, 0.05},
		{sample.CPT, sample.SharedCache, 0.25, 0, 0, 0.05},
		{sample.CPS, sample.SharedCache, 0.25, 0, 0, 0.05},
		{sample.RunQ, sample.SharedCPU, 0.02, 20, 0.05, 0.20},
		{sample.IO, sample.SharedDevice, math.MaxFloat64, 10, 0, 0.20},
		{sample.Net, sample.SharedInterface, math.MaxFloat64, 100, 100e-6, 0.20},
		{sample.Probe, sample.SharedCache, 0, 0, 0, 0.10},
		{sample.Steal, sample.OtherVM, 0.25, 0, 0.02, 0},
	}
	got := sample.Signals()
	if len(got) != len(want) {
		t.Fatalf("%d signals, want %d", len(got), len(want))
	}
	for i, w := range want {
		s := got[i]
		if s.Name != w.name || s.Domain != w.domain || s.LeastCPU != w.cpu || s.LeastRate != w.rate ||
			s.EffectAbs != w.absolute || s.EffectRel != w.relative {
			t.Errorf("got %+v, want %+v", s, w)
		}
		if s.Unit == "" || s.Cost == "" || s.Pressure == "" || !(s.Min < s.Max) {
			t.Errorf("%s lacks a unit, words or a range", s.Name)
		}
		if found, ok := sample.LookupSignal(s.Name); !ok || found != s {
			t.Errorf("LookupSignal(%q) = %+v, %v", s.Name, found, ok)
		}
	}
	got[0].LeastCPU = 99
	if s, _ := sample.LookupSignal(sample.CPI); s.LeastCPU == 99 {
		t.Error("the table can be changed through Signals")
	}
	if _, ok := sample.LookupSignal("luck"); ok {
		t.Error("a signal that does not exist was found")
	}
}

func TestActive(t *testing.T) {
	for _, c := range []struct {
		signal          sample.SignalName
		cpu, rate, cost float64
		want            bool
	}{
		{sample.CPI, 0.25, 0, 1, true},
		{sample.CPI, 0.2499, 1e6, 1e3, false}, // CPI has no least rate and no waits
		{sample.RunQ, 0.02, 0, 0, true},
		{sample.RunQ, 0.01, 20, 0, true},
		{sample.RunQ, 0.01, 19, 49, false},
		{sample.RunQ, 0.01, 19, 50, true}, // 0.5 s of waiting a second
		{sample.RunQ, 0, 0, 1e4, false},
		{sample.IO, 0, 9, 0.01, false},
		{sample.IO, 0, 1, 0.5, true},
		{sample.Net, 0.9, 99, 0.001, false},
		{sample.Net, 0, 25, 0.04, true},
		{sample.Net, 0, 25, math.NaN(), false},
	} {
		s, _ := sample.LookupSignal(c.signal)
		if got := s.Active(c.cpu, c.rate, c.cost); got != c.want {
			t.Errorf("%s.Active(%g, %g, %g) = %v", c.signal, c.cpu, c.rate, c.cost, got)
		}
	}
}

// A few large packets are as active as many small ones with as many bytes.
func TestRate(t *testing.T) {
	net, _ := sample.LookupSignal(sample.Net)
	var few sample.Extras
	few.Set(sample.NetPackets, 100)
	few.Set(sample.NetBytes, 100*150e3)
	if got := net.Rate(&few, 2*time.Second); got != 50+5000 {
		t.Errorf("rate %g", got)
	}
	runq, _ := sample.LookupSignal(sample.RunQ)
	var wakes sample.Extras
	wakes.Set(sample.Wakeups, 40)
	if got := runq.Rate(&wakes, 2*time.Second); got != 20 {
		t.Errorf("rate %g", got)
	}
}

func TestSane(t *testing.T) {
	cpi, _ := sample.LookupSignal(sample.CPI)
	runq, _ := sample.LookupSignal(sample.RunQ)
	for _, c := range []struct {
		signal sample.Signal
		cost   float64
		want   bool
	}{
		{cpi, 0.1, true}, {cpi, 1000, true}, {cpi, 0.099, false}, {cpi, 1001, false}, {cpi, 0, false},
		{cpi, -1, false}, {cpi, math.NaN(), false}, {cpi, math.Inf(1), false},
		{runq, 0, true}, {runq, 1e4, true}, {runq, -1e-9, false}, {runq, math.NaN(), false},
	} {
		if got := c.signal.Sane(c.cost); got != c.want {
			t.Errorf("%s.Sane(%g) = %v", c.signal.Name, c.cost, got)
		}
	}
}
