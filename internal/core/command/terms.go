package command

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Terms are the rate of an operator's cap on each task, and its duration.
type Terms struct {
	Rate float64  `json:"rate"` // CPU-s/s, MinRate to MaxRate
	For  Duration `json:"for"`  // the lease, MinLease to MaxLease
}

// The limits of an operator's cap. The rates are those of the configuration (enforce.rate). The kernel
// may refuse a rate that is so low (sched_cfs: a quota of less than 1 ms).
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

// Duration is a time.Duration that is written as text outside the program, such as 5m or 1h30m.
type Duration time.Duration

// String is sample.Duration's.
func (d Duration) String() string { return sample.Duration(d).String() }

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. Leases from every entry point are
// parsed here; the error is an *InvalidError.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := sample.ParseDuration(string(text))
	if err != nil {
		return Invalid([]string{fmt.Sprintf("for %.40q", text) + wantLease})
	}
	*d = Duration(v)
	return nil
}

// Rate is the limit of a cap in CPUs, as people write it in a flag: 0.1, 10% of a CPU, or 100m
// (Kubernetes' thousandths).
type Rate float64

// Set reads a flag's text. Whether a cap may have that rate is for Terms.Validate.
func (r *Rate) Set(text string) error {
	number, unit := strings.TrimSpace(text), 1.0
	switch {
	case strings.HasSuffix(number, "%"):
		number, unit = strings.TrimSpace(strings.TrimSuffix(number, "%")), 100
	case strings.HasSuffix(number, "m"):
		number, unit = strings.TrimSuffix(number, "m"), 1000
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return fmt.Errorf("%.40q is no rate: want CPUs such as 0.1, a share of one such as 10%%, or thousandths such as 100m", text)
	}
	*r = Rate(v / unit)
	return nil
}

// String is in CPUs.
func (r Rate) String() string { return strconv.FormatFloat(float64(r), 'g', -1, 64) }

// Type names the kind of value in help.
func (*Rate) Type() string { return "rate" }
