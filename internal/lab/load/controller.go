package load

import "time"

// Controller computes, once per period, the share of the period in which the role runs. It
// reads no clock: times are relative to any fixed instant. Its zero value is not
// usable; call NewController and then Hold.
type Controller struct {
	period time.Duration
	cpus   float64
	target float64 // share of cpus, 0..1

	since  time.Duration // when the target was set
	owed0  time.Duration // CPU time used at that time
	at     time.Duration // start of the last period, with the CPU time used and the duty given
	used   time.Duration
	duty   float64
	rate   float64 // estimate of the CPU-s per second of running
	clamps int

	full     time.Duration // since when duty is 1 in every period, or -1
	fullUsed time.Duration
}

// maxErrorPeriods limits the error that is compensated, in periods of all CPUs. Without it a
// role that starved would run at full for long: the mean would be right, but not the
// load.
const maxErrorPeriods = 5

// least is the smallest duty from which a rate is estimated: over shorter times the
// kernel's resolution dominates.
const least = 0.02

// NewController returns the controller of a role that may use the given CPUs.
func NewController(cpus float64, period time.Duration) *Controller {
	return &Controller{period: period, cpus: cpus, rate: cpus, full: -1}
}

// Hold sets the share of the CPUs to hold from now on, 0..1, given the CPU time used
// until now. It discards the earlier error.
func (l *Controller) Hold(now, used time.Duration, share float64) {
	l.target, l.since, l.owed0, l.full = share, now, used, -1
	l.at, l.used, l.duty = now, used, 0
}

// Duty returns the share of the coming period in which the role is to run,
// given the CPU time it has used until now.
func (l *Controller) Duty(now, used time.Duration) float64 {
	// The rate at which it uses CPU time while it may run.
	if ran := l.duty * l.period.Seconds(); l.duty > least {
		l.rate = 0.8*l.rate + 0.2*(used-l.used).Seconds()/ran
		l.rate = min(max(l.rate, 0.05), l.cpus)
	}
	owed := l.target*l.cpus*(now-l.since).Seconds() - (used - l.owed0).Seconds()
	if limit := maxErrorPeriods * l.cpus * l.period.Seconds(); owed > limit || owed < -limit {
		l.clamps++
		keep := min(max(owed, -limit), limit)
		// The rest is discarded.
		l.owed0 -= time.Duration((owed - keep) * 1e9)
		owed = keep
	}
	want := l.target*l.cpus*l.period.Seconds() + owed
	d := min(max(want/(l.rate*l.period.Seconds()), 0), 1)
	if d < 1 {
		l.full = -1
	} else if l.full < 0 {
		l.full, l.fullUsed = now, used
	}
	l.at, l.used, l.duty = now, used, d
	return d
}

// patience is how long a role may run at full below its target before the target counts
// as unattainable.
const patience = 3 * time.Second

// Unattainable reports whether the role has run without a stop for patience and still
// used less than its target by more than tolerance (both shares of its CPUs).
func (l *Controller) Unattainable(tolerance float64) bool {
	if l.full < 0 || l.at-l.full < patience {
		return false
	}
	got := (l.used - l.fullUsed).Seconds() / (l.at - l.full).Seconds() / l.cpus
	return got < l.target-tolerance
}
