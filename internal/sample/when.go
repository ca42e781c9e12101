package sample

import "time"

// ParseWhen reads a time as people write it: 2026-11-21T13:00:00Z, a day, or how
// long before now (24h). It is at least 1: 0 stands for no time at all.
func ParseWhen(text string, now Millis) (Millis, bool) {
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return max(1, now.Add(-d)), true
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil && t.Year() >= 1970 && t.Year() < 10000 {
			return max(1, At(t)), true
		}
	}
	return 0, false
}
