package load

import "time"

// Law computes, once a period, for what share of it the role is to run. It
// knows no clock: times are since any fixed instant. Its zero value is not
// usable; call NewLaw and then Hold.
type Law struct {
	period time.Duration
	cpus   float64
	target float64 // share of cpus, 0..1

	since  time.Duration // when the target was set
	owed0  time.Duration // CPU time used then
	at     time.Duration // the last period's beginning, with the CPU time used and the duty given
	used   time.Duration
	duty   float64
	rate   float64 // CPU-s per second of running, an estimate
	clamps int

	full     time.Duration // since when duty has been 1 in every period, or -1
	fullUsed time.Duration
}

// windup bounds the error that is made up for, in periods of all CPUs: more
// would run at full for long after a role that starved, which has the right
// mean but not the load that was asked for.
const windup = 5

// least is the smallest duty from which a rate is learnt: over shorter times
// the kernel's resolution shows.
const least = 0.02

// NewLaw returns the law of a role that may use so many CPUs.
func NewLaw(cpus float64, period time.Duration) *Law {
	return &Law{period: period, cpus: cpus, rate: cpus, full: -1}
}

// Hold sets the share of the CPUs to hold from now on, 0..1, given the CPU time
// used until now. What was owed before is forgotten.
func (l *Law) Hold(now, used time.Duration, share float64) {
	l.target, l.since, l.owed0, l.full = share, now, used, -1
	l.at, l.used, l.duty = now, used, 0
}

// Duty returns the share of the coming period in which the role is to run,
// given the CPU time it has used until now.
func (l *Law) Duty(now, used time.Duration) float64 {
	// How fast it uses CPU time when it may run.
	if ran := l.duty * l.period.Seconds(); l.duty > least {
		l.rate = 0.8*l.rate + 0.2*(used-l.used).Seconds()/ran
		l.rate = min(max(l.rate, 0.05), l.cpus)
	}
	owed := l.target*l.cpus*(now-l.since).Seconds() - (used - l.owed0).Seconds()
	if limit := windup * l.cpus * l.period.Seconds(); owed > limit || owed < -limit {
		l.clamps++
		keep := min(max(owed, -limit), limit)
		// Forget the rest for good.
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

// Clamps counts the periods in which more was owed than is made up for.
func (l *Law) Clamps() int { return l.clamps }

// patience is how long a role may run at full and stay under its target before
// the target counts as unattainable.
const patience = 3 * time.Second

// Unattainable reports whether the role has run without a stop for patience and still
// used less than its target by more than tolerance (both shares of its CPUs).
func (l *Law) Unattainable(tolerance float64) bool {
	if l.full < 0 || l.at-l.full < patience {
		return false
	}
	got := (l.used - l.fullUsed).Seconds() / (l.at - l.full).Seconds() / l.cpus
	return got < l.target-tolerance
}
