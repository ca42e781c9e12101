package sample

import (
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
