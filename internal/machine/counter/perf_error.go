package counter

import (
	"errors"
	"fmt"
)

// ErrNoCounters is the Err of a reading whose events had no counters for most of the time in
// which the task ran.
var ErrNoCounters = errors.New("the events had no counters for most of the time: another profiler (here or in a virtual machine) or the NMI watchdog (sysctl kernel.nmi_watchdog) holds them, or the hypervisor offers too few")

// NotSupportedError says that this machine cannot count something, permanently: another
// attempt gives the same answer until the machine is changed.
type NotSupportedError struct {
	What   string // e.g. "event instructions"
	Reason string // what was tried and how it failed
	Remedy string // what an operator can do about it, "" if nothing is known
	Err    error  // the kernel's answer, may be nil
}

func (e *NotSupportedError) Error() string {
	return fmt.Sprintf("%s: not supported: %s", e.What, e.Reason)
}

func (e *NotSupportedError) Unwrap() error { return e.Err }

// Remedy is what an operator can do about an error, "" if nothing is known.
func Remedy(err error) string {
	var e *NotSupportedError
	if errors.As(err, &e) {
		return e.Remedy
	}
	return ""
}

// FDLimitError says that following one more task would need more file
// descriptors than the process may open. Nothing was opened for the task.
type FDLimitError struct {
	Need  int    // descriptors that this task would take
	Held  int    // descriptors that its other tasks take in a window
	Limit uint64 // RLIMIT_NOFILE, 0 if it could not be read
	Err   error  // EMFILE or ENFILE
}

func (e *FDLimitError) Error() string {
	return fmt.Sprintf("open counters: %d file descriptors needed in addition to the %d held, limit %d: %v",
		e.Need, e.Held, e.Limit, e.Err)
}

func (e *FDLimitError) Unwrap() error { return e.Err }
