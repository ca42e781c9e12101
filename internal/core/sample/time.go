package sample

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Duration is a time.Duration as people write it: 30s, 10m, 1h30m, 1d, 2w. It is also the value
// of a flag.
type Duration time.Duration

// ParseDuration reads a duration as time.ParseDuration does, with days and weeks.
func ParseDuration(text string) (time.Duration, error) {
	var hours strings.Builder
	number := 0 // where the present number begins in text
	for i := range len(text) {
		of, long := map[byte]float64{'d': 24, 'w': 7 * 24}[text[i]]
		n, err := strconv.ParseFloat(strings.TrimLeft(text[number:i], "+-"), 64)
		switch {
		case long && err == nil:
			hours.WriteString(text[number:i][:strings.LastIndexAny(text[number:i], "+-")+1])
			hours.WriteString(strconv.FormatFloat(of*n, 'f', -1, 64) + "h")
			number = i + 1
		case strings.IndexByte("0123456789.+-", text[i]) < 0: // another unit
			hours.WriteString(text[number : i+1])
			number = i + 1
		}
	}
	hours.WriteString(text[number:])
	d, err := time.ParseDuration(hours.String())
	if err != nil {
		return 0, fmt.Errorf("%.40q is no duration: want a number with a unit, such as 30s, 10m, 2h or 1d", text)
	}
	return d, nil
}

// String is time.Duration's, without trailing zero units.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Set reads a flag's text.
func (d *Duration) Set(text string) error {
	v, err := ParseDuration(text)
	if err == nil {
		*d = Duration(v)
	}
	return err
}

// Type names the kind of value in help.
func (*Duration) Type() string { return "duration" }

// ParseTime reads a time in the forms that people write: 2026-11-21T13:00:00Z, a day, or
// a duration before now (24h, 7d). The result is at least 1: 0 means no time.
func ParseTime(text string, now Millis) (Millis, bool) {
	if d, err := ParseDuration(text); err == nil && d >= 0 {
		return max(1, now.Add(-d)), true
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil && t.Year() >= 1970 && t.Year() < 10000 {
			return max(1, At(t)), true
		}
	}
	return 0, false
}
