package sample

// Count is one reading of a kernel counter that may have been multiplexed: its value, and
// for how long it was enabled and actually counting, ns (perf_event_open(2),
// PERF_FORMAT_TOTAL_TIME_ENABLED and _RUNNING).
type Count struct {
	Value, Enabled, Running uint64
}

// Delta is the change of a counter over an interval.
type Delta struct {
	Value     float64 // scaled up for the time it was not counting
	Enabled   uint64  // ns
	Running   uint64  // ns
	Restart   bool    // the counter went backwards: it restarted from zero
	Uncounted bool    // it was enabled but never counting: Value has no meaning
}

// Since returns the difference from an earlier reading, scaled by the enabled/running ratio of that
// interval. The ratio of the whole lifetime is never used: if it changes, a counter scaled by it can
// fall. A counter that was enabled but never ran is Uncounted, which is not zero. A counter that was
// not enabled (a cgroup that did not run on that CPU) counted a true zero.
func (c Count) Since(prev Count) Delta {
	if c.Value < prev.Value || c.Enabled < prev.Enabled || c.Running < prev.Running {
		d := c.Since(Count{})
		d.Restart = true
		return d
	}
	d := Delta{
		Value:   float64(c.Value - prev.Value),
		Enabled: c.Enabled - prev.Enabled,
		Running: c.Running - prev.Running,
	}
	switch {
	case d.Enabled == 0:
	case d.Running == 0:
		d.Value, d.Uncounted = 0, true
	case d.Running < d.Enabled:
		d.Value *= float64(d.Enabled) / float64(d.Running)
	}
	return d
}

// Monotonic returns cur−prev of a counter that only grows. A counter that is smaller than
// before has restarted: its delta is cur.
func Monotonic(cur, prev uint64) (delta uint64, restarted bool) {
	if cur < prev {
		return cur, true
	}
	return cur - prev, false
}
