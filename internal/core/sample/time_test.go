package sample

import (
	"strings"
	"testing"
	"time"
)

func TestParseWhen(t *testing.T) {
	now := At(time.Date(2026, 11, 21, 13, 0, 0, 0, time.UTC))
	for text, want := range map[string]string{
		"24h": "2026-11-20T13:00:00Z", "0s": "2026-11-21T13:00:00Z", "2026-11-01": "2026-11-01T00:00:00Z", "2026-11-21T13:00:00+01:00": "2026-11-21T12:00:00Z",
		"1000000h": "1970-01-01T00:00:00.001Z", "1970-01-01": "1970-01-01T00:00:00.001Z",
		"": "", "-1h": "", "yesterday": "", "1969-12-31": "", "2026-13-01": "", "24": "",
	} {
		got, ok := ParseTime(text, now)
		if ok != (want != "") || ok && got.Time().Format(time.RFC3339Nano) != want {
			t.Errorf("%q: %v, %v; want %s", text, got.Time(), ok, want)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for _, c := range []struct {
		text string
		want time.Duration
		ok   bool
	}{
		{"30s", 30 * time.Second, true},
		{"1h30m", 90 * time.Minute, true},
		{"1d", 24 * time.Hour, true},
		{"1.5d", 36 * time.Hour, true},
		{"1d12h", 36 * time.Hour, true},
		{"2w", 14 * 24 * time.Hour, true},
		{"-1d", -24 * time.Hour, true},
		{"0", 0, true},
		{"10", 0, false},
		{"1x", 0, false},
		{"d", 0, false},
		{"", 0, false},
		{"999999999d", 0, false},
		{"1m30s", 90 * time.Second, true},
		{"1e3d", 0, false},
		{"5µs", 5 * time.Microsecond, true},
		{"5\xffd", 0, false},
	} {
		got, err := ParseDuration(c.text)
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%q: %s, %v", c.text, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), "such as 30s, 10m, 2h or 1d") {
			t.Errorf("%q: %v", c.text, err)
		}
	}
}
