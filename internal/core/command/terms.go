package command

import (
	"fmt"
	"strings"
	"time"
)

// Terms are the rate of an operator's cap on each task, and its duration.
type Terms struct {
	Rate float64  `json:"rate"` // CPU-s/s, MinRate to MaxRate
	For  Duration `json:"for"`  // the lease, MinLease to MaxLease
}

// The limits of an operator's cap. The rates are those of the configuration
// (enforce.rate). The kernel may refuse a rate that is so low (sched_cfs: a quota of less
// than 1 ms).
const (
	MinRate, MaxRate = 0.001, 1024
	// MaxLease: every cap has an end, even if it is forgotten.
	MinLease, MaxLease = time.Second, 24 * time.Hour
	// MaxFor is the longest end of a protection or a mode that has one.
	MaxFor = 365 * 24 * time.Hour
)

// Validate returns an *InvalidError with all that is wrong with the terms.
func (t Terms) Validate() error { return Invalid(t.problems()) }

// String is for people: "to 0.5 CPU-s/s for 5m".
func (t Terms) String() string { return fmt.Sprintf("to %g CPU-s/s for %s", t.Rate, t.For) }

func (t Terms) problems() (bad []string) {
	if !(t.Rate >= MinRate && t.Rate <= MaxRate) { // also false for NaN
		bad = append(bad, fmt.Sprintf("rate %g: want %g to %g CPU-s/s", t.Rate, MinRate, float64(MaxRate)))
	}
	if d := time.Duration(t.For); d < MinLease || d > MaxLease {
		bad = append(bad, "for "+t.For.String()+wantLease)
	}
	return bad
}

const wantLease = ": want a duration from 1s to 24h"

// Duration is a time.Duration that is written as text outside the program, such as 5m or
// 1h30m.
type Duration time.Duration

// String is time.Duration's, without trailing zero units.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. Leases from every entry point are
// parsed here; the error is an *InvalidError.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return Invalid([]string{fmt.Sprintf("for %.40q", text) + wantLease})
	}
	*d = Duration(v)
	return nil
}
