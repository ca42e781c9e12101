package study

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// UnmarshalText reads a percentage: "50%".
func (s *Share) UnmarshalText(text []byte) error {
	number, ok := strings.CutSuffix(string(text), "%")
	f, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if !ok || err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return fmt.Errorf("%q: want a percentage such as 50%%", text)
	}
	*s = Share(f / 100)
	return nil
}

// String is the share as a percentage, exact to 12 digits.
func (s Share) String() string { return strconv.FormatFloat(float64(s)*100, 'g', 12, 64) + "%" }

// MarshalText writes the format that UnmarshalText reads.
func (s Share) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// sizes are the units of Bytes, the longer names first.
var sizes = []struct {
	unit  string
	bytes int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}}

// UnmarshalText reads a size with a unit: "2GiB", "100KB", "64B".
func (b *Bytes) UnmarshalText(text []byte) error {
	for _, u := range sizes {
		number, ok := strings.CutSuffix(string(text), u.unit)
		if !ok {
			continue
		}
		f, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if n := f * float64(u.bytes); err == nil && n >= 0 && n < math.MaxInt64 && n == math.Trunc(n) {
			*b = Bytes(n)
			return nil
		}
		break
	}
	return fmt.Errorf("%q: want a size with a unit such as 512MiB or 100KB", text)
}

// String is the size in the largest binary unit that divides it.
func (b Bytes) String() string {
	for _, u := range sizes[:3] {
		if n := int64(b) / u.bytes; n > 0 && int64(b)%u.bytes == 0 && n < 1024 {
			return strconv.FormatInt(n, 10) + u.unit
		}
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}

// MarshalText writes the format that UnmarshalText reads.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }
