// Package tracetest has what tests of traces share, in any format: samples that are
// hard to write, and reading and writing them all.
package tracetest

import (
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Equal compares samples; NaN equals NaN.
func Equal() cmp.Options {
	return cmp.Options{cmp.AllowUnexported(sample.Extras{}), cmpopts.EquateNaNs()}
}

// Random makes a sample that a trace can hold, with names that need every kind
// of quoting.
func Random(r *rand.Rand) sample.Sample {
	name := func() string {
		parts := []string{"a", "b c", ",", `"`, `""`, " ", "/", "ü", "\t", "\xff", "'", "#", "\x00", `\`, "\u2028"}
		var b strings.Builder
		for range r.IntN(6) {
			b.WriteString(parts[r.IntN(len(parts))])
		}
		return b.String()
	}
	f32 := func() float32 {
		for {
			f := math.Float32frombits(r.Uint32() &^ (1 << 31))
			if f == f && !math.IsInf(float64(f), 0) {
				return f
			}
		}
	}
	s := sample.Sample{
		TS: sample.Millis(r.Int64()), Machine: name(), Job: sample.JobName(name()), Task: sample.TaskName("t" + name()),
		Platform: sample.Platform(name()), Signal: sample.SignalName("s" + name()), Variant: name(),
		Class: sample.Class(r.IntN(3)), CPU: f32(), Cost: f32(), Coverage: r.Float32(), Flags: sample.Flags(r.IntN(32)),
	}
	if r.IntN(4) == 0 {
		s.Cost = float32(math.NaN())
	}
	for _, e := range sample.AllExtras() {
		if r.IntN(2) == 0 {
			s.Extras.Set(e, r.NormFloat64()*math.Pow(10, float64(r.IntN(40)-20)))
		}
	}
	switch r.IntN(4) {
	case 0:
		s.Served = []sample.Served{}
	case 1:
		for range 1 + r.IntN(5) {
			one := sample.Served{By: sample.TaskName("/" + name()), Time: r.ExpFloat64() * math.Pow(10, float64(r.IntN(40)-20))}
			if r.IntN(2) == 0 {
				one.Fair = r.Float64()
			}
			s.Served = append(s.Served, one)
		}
	}
	return s
}

// ReadAll reads to the end.
func ReadAll(t testing.TB, r interface{ Read(*sample.Sample) error }) []sample.Sample {
	t.Helper()
	var all []sample.Sample
	for {
		var s sample.Sample
		if err := r.Read(&s); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
}

// WriteAll writes all samples.
func WriteAll(t testing.TB, w interface{ Write(*sample.Sample) error }, samples []sample.Sample) {
	t.Helper()
	for i := range samples {
		if err := w.Write(&samples[i]); err != nil {
			t.Fatal(err)
		}
	}
}
