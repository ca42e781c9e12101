package workload

import (
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// busy reports whether an innocent computes at t, and until when that holds. It is a pure
// function of the spec and the time: cycle k begins at Epoch + Phase + k·Period and is
// loud for its first Duty·Period, varied by Vary. A counter-phase is the complement.
func (s Spec) busy(t time.Time) (on bool, until time.Time) {
	k, into := s.cycle(t)
	length := min(vary(time.Duration(s.Duty*float64(s.Period)), s.Vary, s.Seed, uint64(k)), s.Period)
	on = into < length
	left := s.Period - into
	if on {
		left = length - into
	}
	if s.Kind == CounterPhase {
		on = !on
	}
	return on, t.Add(left)
}

// cycle returns the number of the cycle that t is in and how far into it.
func (s Spec) cycle(t time.Time) (k int64, into time.Duration) {
	since := t.Sub(s.Epoch.Time()) - s.Phase
	k = int64(since / s.Period)
	into = since % s.Period
	if into < 0 {
		k--
		into += s.Period
	}
	return k, into
}

// vary distributes d uniformly over d·(1±by); the value depends on seed and k only.
func vary(d time.Duration, by float64, seed, k uint64) time.Duration {
	if by == 0 {
		return d
	}
	u := float64(splitmix(seed^splitmix(k))>>11) / (1 << 53)
	return time.Duration(float64(d) * (1 + by*(2*u-1)))
}

// splitmix is the output function of SplitMix64 (Steele, Lea, Flood 2014).
func splitmix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Epoch is the current time, as an Epoch for workloads that must be in step.
func Epoch() sample.Millis { return sample.At(time.Now()) }
