package sample

import "time"

// ParseTime reads a time in the forms that people write: 2026-11-21T13:00:00Z, a day, or
// a duration before now (24h). The result is at least 1: 0 means no time.
func ParseTime(text string, now Millis) (Millis, bool) {
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
