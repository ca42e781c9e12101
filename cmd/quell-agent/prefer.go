package main

import (
	"context"
	"log/slog"
	"syscall"
	"time"

	"github.com/quell-dev/quell/internal/machine/host"
)

// The agent prefers itself to others where CPU time is short only as long as it needs little: it
// must not become the noisy neighbour. Shares of a CPU over a minute.
const (
	preferEvery = time.Minute
	mostShare   = 0.01
	againShare  = 0.005
)

// stillPrefers reports whether the agent prefers itself after a minute in which it used a share of a
// CPU; it did before or not.
func stillPrefers(before bool, share float64) bool {
	if before {
		return share <= mostShare
	}
	return share < againShare
}

// preferSelf gives the agent a nice value, unless it was started with another than 0, until ctx ends.
// With the service manager's value below 0 it also asks for short slices, for which it needs no
// capability.
func preferSelf(ctx context.Context, log *slog.Logger, nice int) {
	now, err := host.Niceness()
	switch {
	case err != nil || now > 0 || nice == 0:
		return
	case now < 0:
		err = host.Prefer(now)
	default:
		err = host.Prefer(nice)
	}
	if now < 0 && err == nil {
		return
	}
	if err != nil {
		log.Info("the agent does not prefer itself where CPU time is short", "nice", nice, "reason", err)
		return
	}
	prefers, used := true, ownTime()
	for tick := time.Tick(preferEvery); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		total := ownTime()
		share := float64(total-used) / float64(preferEvery)
		used = total
		next := stillPrefers(prefers, share)
		if next == prefers {
			continue
		}
		value := nice
		if !next {
			value = 0
		}
		if err := host.Prefer(value); err != nil {
			log.Warn("the agent's nice value could not be changed", "nice", value, "reason", err)
			return
		}
		prefers = next
		log.Info("the agent's nice value follows its own use", "nice", value, "share_of_a_cpu", share)
	}
}

// ownTime is the CPU time of this process.
func ownTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
