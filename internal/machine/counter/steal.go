package counter

import (
	"errors"
	"math"
	"strings"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

// StealVariant is the variant of Steal.
const StealVariant = "proc-stat"

// Steal is the MachineSource of the time that the hypervisor took: stolen time of all CPUs ÷
// the CPU time used, in s/CPU-s, for the machine as a whole (proc(5): steal).
type Steal struct {
	times      func() (host.CPUTimes, error)
	windowOpen bool
	from       host.CPUTimes
	failed     error // error of the reading at the start
	last       Reading
}

// OpenSteal prepares a Steal for a virtual machine. Any other machine has no hypervisor
// to steal from it; the error is a *NotSupportedError.
func OpenSteal(h *host.Host) (*Steal, error) {
	platform, err := h.Platform()
	if err != nil {
		return nil, err
	}
	if !strings.HasSuffix(string(platform), "-vm") {
		return nil, &NotSupportedError{What: "stolen time", Reason: "not a virtual machine"}
	}
	if _, err := h.CPUTimes(); err != nil {
		return nil, err
	}
	return newSteal(h.CPUTimes), nil
}

func newSteal(times func() (host.CPUTimes, error)) *Steal {
	return &Steal{times: times, last: Reading{Cost: math.NaN()}}
}

// Info implements MachineSource.
func (s *Steal) Info() Info { return Info{Signal: sample.Steal, Variant: StealVariant} }

// Start implements MachineSource.
func (s *Steal) Start() error {
	if s.windowOpen {
		return ErrOpen
	}
	s.windowOpen = true
	s.from, s.failed = s.times()
	return nil
}

// Stop implements MachineSource.
func (s *Steal) Stop() error {
	if !s.windowOpen {
		return ErrNotOpen
	}
	s.windowOpen = false
	to, err := s.times()
	s.last = Reading{Cost: math.NaN(), Coverage: 1}
	if err := errors.Join(s.failed, err); err != nil {
		return err
	}
	s.last.Cost = stolen(s.from.Total, to.Total)
	return nil
}

// stolen returns the stolen time per CPU time used. It is NaN if none was used or a
// counter went back (a CPU that goes offline may take its share with it).
func stolen(from, to host.CPUTime) float64 {
	busy, steal := to.Busy()-from.Busy(), to.Steal-from.Steal
	if busy <= 0 || steal < 0 {
		return math.NaN()
	}
	return steal.Seconds() / busy.Seconds()
}

// MachineReadings implements MachineSource.
func (s *Steal) MachineReadings(yield func(string, sample.Set, Reading)) {
	yield("(machine)", nil, s.last)
}

// Close implements MachineSource.
func (s *Steal) Close() error { return nil }
