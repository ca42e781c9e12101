package workload

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/chase"
)

// Kind says what a workload does.
type Kind string

// The kinds. Victims count transactions in a progress file. Antagonists are intermittent
// batch jobs whose bursts are an amount of CPU work, so that a burst under a cap lasts
// longer instead of doing less. Innocents touch less than 256 KiB.
const (
	Serve        Kind = "serve"         // victim, CPU channel: a closed loop of small requests
	Chase        Kind = "chase"         // victim, cache channel: dependent loads in a working set
	Spin         Kind = "spin"          // innocent: computes steadily
	Burst        Kind = "burst"         // innocent: computes in seeded bursts
	Syscall      Kind = "syscall"       // innocent: system calls, steadily
	CounterPhase Kind = "counter-phase" // innocent: computes exactly when a burst of the same schedule does not
	Hog          Kind = "hog"           // antagonist, CPU channel: bursts of compute
	Stream       Kind = "stream"        // antagonist, cache channel: bursts of memory traffic
)

// Kinds returns every kind.
func Kinds() []Kind {
	return []Kind{Serve, Chase, Spin, Burst, Syscall, CounterPhase, Hog, Stream}
}

// Spec is one workload. Start from Default: a field that its kind does not have must be
// zero, a field that it has must not be zero (except Vary, Seed, Phase and Epoch).
type Spec struct {
	Kind Kind

	// Work is the CPU time of one request (serve: calibrated to a fixed
	// number of instructions at the start) or of one burst (hog, stream: read
	// from the thread's own CPU clock).
	Work time.Duration
	// Pause is the time between requests (serve) or bursts (hog, stream).
	Pause time.Duration

	// Period, if not 0 (hog, stream), starts a burst every Period instead of a Pause
	// after the last one; a late burst begins immediately. For the innocents it is the
	// cycle, of which the share Duty is loud.
	Period time.Duration
	// Duty is the loud share of Period, 0..1, in wall time.
	Duty float64
	// Epoch and Phase determine the begin of cycle 0: Epoch + Phase. Workloads with the
	// same values are in step.
	Epoch sample.Millis
	Phase time.Duration

	// Vary distributes burst and pause lengths uniformly over ±Vary of themselves, 0..1,
	// by Seed. The same seed gives the same lengths.
	Vary float64
	Seed uint64

	// Set is the working set in bytes (chase, stream). A stream's 0 means
	// four times the last-level cache, at least 128 MiB.
	Set int64
	// Steps is the number of dependent loads of one transaction (chase).
	Steps int
}

// Default returns the kind's usual parameters. The sizes of serve, hog, chase and stream
// are those measured in docs/design/0001-contention-channels.md.
func Default(k Kind) Spec {
	s := Spec{Kind: k}
	switch k {
	case Serve:
		s.Work, s.Pause = 2*time.Millisecond, 600*time.Microsecond
	case Chase:
		s.Set, s.Steps = 8<<20, 100_000
	case Spin:
		s.Period, s.Duty = 10*time.Millisecond, 0.3
	case Syscall:
		s.Period, s.Duty = 10*time.Millisecond, 0.3
	case Burst, CounterPhase:
		s.Period, s.Duty, s.Vary, s.Seed = 4*time.Second, 0.5, 0.5, 1
	case Hog, Stream:
		s.Work, s.Pause, s.Vary, s.Seed = 3*time.Second, 3*time.Second, 0.3, 1
	}
	return s
}

// flags binds the fields that the kind has; their current values are the defaults.
func (s *Spec) flags() *flag.FlagSet {
	f := flag.NewFlagSet(string(s.Kind), flag.ContinueOnError)
	f.SetOutput(io.Discard)
	switch s.Kind {
	case Serve:
		f.DurationVar(&s.Work, "work", s.Work, "CPU time of a request")
		f.DurationVar(&s.Pause, "pause", s.Pause, "time between requests")
	case Chase:
		f.Int64Var(&s.Set, "set", s.Set, "working set, bytes")
		f.IntVar(&s.Steps, "steps", s.Steps, "loads in a transaction")
	case Spin, Syscall, Burst, CounterPhase:
		f.Float64Var(&s.Duty, "duty", s.Duty, "busy share of a period, 0..1")
	case Hog, Stream:
		f.DurationVar(&s.Work, "work", s.Work, "CPU time of a burst")
		f.DurationVar(&s.Pause, "pause", s.Pause, "time between bursts")
	}
	if s.Kind == Stream {
		f.Int64Var(&s.Set, "set", s.Set, "bytes to stream over (0: 4 x last-level cache)")
	}
	switch s.Kind {
	case Spin, Syscall, Burst, CounterPhase, Hog, Stream:
		f.DurationVar(&s.Period, "period", s.Period, "length of a cycle")
		f.DurationVar(&s.Phase, "phase", s.Phase, "start of cycle 0 after the epoch")
		f.Int64Var((*int64)(&s.Epoch), "epoch", int64(s.Epoch), "the epoch, ms since 1970")
		f.Float64Var(&s.Vary, "vary", s.Vary, "random variation of burst and pause lengths, 0..1")
		f.Uint64Var(&s.Seed, "seed", s.Seed, "random seed")
	}
	return f
}

// Args returns the command line that Parse reads back as s.
func (s Spec) Args() []string {
	args := []string{string(s.Kind)}
	usual := Default(s.Kind)
	defaults := usual.flags()
	s.flags().VisitAll(func(f *flag.Flag) {
		if v := f.Value.String(); v != defaults.Lookup(f.Name).Value.String() {
			args = append(args, "-"+f.Name+"="+v)
		}
	})
	return args
}

// Parse reads "KIND -flag=value …", the format of Args.
func Parse(args []string) (Spec, error) {
	if len(args) == 0 {
		return Spec{}, fmt.Errorf("parse workload: want one of %s", kindNames())
	}
	s := Default(Kind(args[0]))
	f := s.flags()
	if err := f.Parse(args[1:]); err != nil {
		return Spec{}, fmt.Errorf("parse workload %q: %w", args[0], err)
	}
	if f.NArg() > 0 {
		return Spec{}, fmt.Errorf("parse workload %q: unexpected %q", args[0], f.Arg(0))
	}
	return s, s.Validate()
}

// longest bounds every duration: schedules are computed in ns and must not overflow.
const longest = 24 * time.Hour

// Validate returns every error in s, joined.
func (s Spec) Validate() error {
	var all []error
	bad := func(field string, value any, want string) {
		all = append(all, fmt.Errorf("workload %s: %s %v: want %s", s.Kind, field, value, want))
	}
	has := s.flags()
	if has.Lookup("vary") == nil && s.Kind != Serve && s.Kind != Chase {
		return fmt.Errorf("workload %q: want one of %s", s.Kind, kindNames())
	}
	length := func(field string, d, least time.Duration) {
		if d < least || d > longest {
			bad(field, d, fmt.Sprintf("%v to %v", least, longest))
		}
	}
	isBatch := s.Kind == Hog || s.Kind == Stream
	if s.Kind == Serve || isBatch {
		length("work", s.Work, time.Microsecond)
		length("pause", s.Pause, 0)
	}
	switch {
	case has.Lookup("period") == nil:
	case isBatch && s.Period == 0:
	default:
		length("period", s.Period, time.Millisecond)
	}
	if s.Phase < -longest || s.Phase > longest {
		bad("phase", s.Phase, fmt.Sprintf("%v to %v", -longest, longest))
	}
	if s.Epoch < 0 || s.Epoch > 1<<42 {
		bad("epoch", s.Epoch, "ms since 1970")
	}
	if !(s.Duty >= 0 && s.Duty <= 1) {
		bad("duty", s.Duty, "0 to 1")
	}
	if !(s.Vary >= 0 && s.Vary <= 1) {
		bad("vary", s.Vary, "0 to 1")
	}
	if s.Set < 0 || s.Set > 1<<36 || s.Kind == Chase && s.Set < 2*chase.Line {
		bad("set", s.Set, "two cache lines to 64 GiB")
	}
	if s.Kind == Chase && (s.Steps < 1 || s.Steps > 1<<40) {
		bad("steps", s.Steps, "1 or more")
	}
	if len(all) == 0 && s.hasForeignField() {
		all = append(all, fmt.Errorf("workload %s: %+v sets a field that this kind does not have", s.Kind, s))
	}
	return errors.Join(all...)
}

// hasForeignField reports whether a field is set that has no flag for this kind: then the command
// line would not contain all of s.
func (s Spec) hasForeignField() bool {
	only := Default(s.Kind)
	f := only.flags()
	if err := f.Parse(s.Args()[1:]); err != nil {
		return true
	}
	return only != s
}

func kindNames() string {
	var names []string
	for _, k := range Kinds() {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}
