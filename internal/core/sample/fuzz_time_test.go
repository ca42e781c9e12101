package sample

import "testing"

// FuzzParseTime: a time from a client is refused, or lies after 1970 and not after the year 9999,
// whatever the clock.
func FuzzParseTime(f *testing.F) {
	for _, s := range []string{"24h", "2026-11-21", "2026-11-21T13:00:00Z", "-1h", "9999999h", "10000-01-01", "1969-12-31"} {
		f.Add(s, int64(1_795_262_400_000))
	}
	f.Fuzz(func(t *testing.T, text string, now int64) {
		if now < 0 || now > 253_402_300_800_000 {
			return
		}
		at, ok := ParseTime(text, Millis(now))
		if ok && (at < 1 || at > max(Millis(now), 253_402_300_800_000+86_400_000)) {
			t.Errorf("%q: %d", text, at)
		}
	})
}
