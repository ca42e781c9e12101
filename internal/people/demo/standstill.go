package demo

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

// standstill is the time in which a CPU with continuous work did not execute: an
// emulator ran the other CPU, or a hypervisor ran another guest. The guest charges such
// time to the task on the CPU, so all tasks that wanted the CPU seem to have waited for
// that task. If it is not reported as stolen, nothing else shows it.
type standstill struct {
	share   float64       // of the time watched
	longest time.Duration // without interruption
}

// leastJump is longer than an interrupt and shorter than a time slice of a hypervisor;
// unreliableShare is the share from which on measured waits are not reliable.
const (
	leastJump       = 2 * time.Millisecond
	unreliableShare = 0.1
)

// standstills measures both CPUs under load for a duration.
func standstills(a, b int, d time.Duration) (both [2]standstill, err error) {
	failed := make(chan error, 2)
	var there sync.WaitGroup
	there.Add(2)
	for i, cpu := range [...]int{a, b} {
		host.OwnThread(func() {
			err := host.SetAffinity(0, sample.SetOf(cpu))
			there.Done()
			there.Wait()
			if err == nil {
				both[i], err = watchClock(d, lookAtClock)
			}
			failed <- err
		})
	}
	if err := errors.Join(<-failed, <-failed); err != nil {
		return both, fmt.Errorf("watch CPUs %d and %d: %w", a, b, err)
	}
	return both, nil
}

// lookAtClock returns the time, and how often this thread has been switched out so far.
func lookAtClock() (now time.Time, switches int64, err error) {
	var use unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &use); err != nil {
		return now, 0, fmt.Errorf("count context switches: %w", err)
	}
	return time.Now(), use.Nvcsw + use.Nivcsw, nil
}

// watchClock reads the clock continuously. A jump during which the kernel did not
// switch the thread out is time in which the CPU stood still.
func watchClock(d time.Duration, look func() (time.Time, int64, error)) (s standstill, err error) {
	begin, before, err := look()
	var lost time.Duration
	for last := begin; err == nil; {
		now, switches, failed := look()
		if jump := now.Sub(last); jump >= leastJump && switches == before {
			lost, s.longest = lost+jump, max(s.longest, jump)
		}
		last, before, err = now, switches, failed
		if watched := last.Sub(begin); watched >= d {
			s.share = float64(lost) / float64(watched)
			break
		}
	}
	return s, err
}

// excuse says why measured waits are not reliable on this machine; "" if they are, or
// if that is not known.
func (d *demo) excuse() string {
	both, err := standstills(d.victimCPU, d.otherCPU, time.Second)
	if err != nil || max(both[0].share, both[1].share) < unreliableShare {
		return ""
	}
	return fmt.Sprintf("CPUs %d and %d take turns here: in a second with work for both they stood still for %.0f %% and %.0f %% of it, "+
		"up to %s without interruption, as in an emulator or if a hypervisor has too few processors. That time is charged to the task on the CPU, "+
		"so other tasks seem to wait for that task", d.victimCPU, d.otherCPU, 100*both[0].share, 100*both[1].share,
		max(both[0].longest, both[1].longest).Round(time.Millisecond))
}
