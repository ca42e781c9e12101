package workload

import (
	"math/rand/v2"
	"testing"
	"time"
)

// randomSchedule is a random valid schedule of an innocent.
func randomSchedule(r *rand.Rand) Spec {
	return Spec{Kind: Burst, Period: time.Duration(1+r.IntN(1e4)) * time.Millisecond, Duty: r.Float64(),
		Vary: r.Float64() * float64(r.IntN(2)), Seed: r.Uint64(), Epoch: 1_760_000_000_000,
		Phase: time.Duration(r.IntN(2e4)-1e4) * time.Millisecond}
}

func TestCounterPhaseIsLoudExactlyWhenTheBurstIsNot(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		burst := randomSchedule(r)
		counter := burst
		counter.Kind = CounterPhase
		at := burst.Epoch.Time().Add(time.Duration(r.Int64N(int64(time.Hour))) - time.Minute)
		on, until := burst.busy(at)
		off, same := counter.busy(at)
		if on == off || !until.Equal(same) {
			t.Fatalf("%+v at %v: burst %v until %v, counter-phase %v until %v", burst, at, on, until, off, same)
		}
	}
}

func TestAScheduleHoldsUntilItSays(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 5_000 {
		s := randomSchedule(r)
		at := s.Epoch.Time().Add(time.Duration(r.Int64N(int64(time.Hour))) - time.Minute)
		on, until := s.busy(at)
		if !until.After(at) {
			t.Fatalf("%+v at %v: until %v", s, at, until)
		}
		last := until.Add(-1)
		if still, end := s.busy(last); still != on || !end.Equal(until) {
			t.Fatalf("%+v: %v at %v until %v, but %v until %v at %v", s, on, at, until, still, end, last)
		}
	}
}

func TestASteadyScheduleSpendsItsDuty(t *testing.T) {
	s := Spec{Kind: Burst, Period: 4 * time.Second, Duty: 0.25, Phase: time.Second}
	begin := time.UnixMilli(0)
	var loud time.Duration
	for at := begin; at.Before(begin.Add(time.Minute)); {
		on, until := s.busy(at)
		if on {
			loud += until.Sub(at)
		}
		at = until
	}
	if loud != 15*time.Second {
		t.Errorf("loud for %v of a minute, want 15s", loud)
	}
	if on, until := s.busy(begin.Add(time.Second)); !on || !until.Equal(begin.Add(2*time.Second)) {
		t.Errorf("cycle 0 begins at the phase: loud %v until %v", on, until)
	}
}

func TestVaryIsEvenAndRepeats(t *testing.T) {
	const n = 10_000
	var sum time.Duration
	low, high := time.Hour, time.Duration(0)
	for k := range uint64(n) {
		d := vary(time.Second, 0.3, 7, k)
		if d != vary(time.Second, 0.3, 7, k) {
			t.Fatal("the same seed gives other lengths")
		}
		sum += d
		low, high = min(low, d), max(high, d)
	}
	mean := sum / n
	if mean < 990*time.Millisecond || mean > 1010*time.Millisecond || low < 700*time.Millisecond || low > 705*time.Millisecond ||
		high > 1300*time.Millisecond || high < 1295*time.Millisecond {
		t.Errorf("mean %v, least %v, most %v", mean, low, high)
	}
	if vary(time.Second, 0.3, 7, 1) == vary(time.Second, 0.3, 8, 1) {
		t.Error("another seed gives the same length")
	}
}
