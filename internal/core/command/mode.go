package command

import (
	"fmt"
	"slices"
)

// Mode is how far enforcement goes.
type Mode uint8

const (
	// Off only records.
	Off Mode = iota
	// Advise also says what it would do. The default.
	Advise
	// On acts.
	On
)

var modeNames = [...]string{"off", "advise", "on"}

func (m Mode) String() string { return modeNames[m] }

// ParseMode is the inverse of String.
func ParseMode(s string) (Mode, error) {
	if i := slices.Index(modeNames[:], s); i >= 0 {
		return Mode(i), nil
	}
	return Advise, fmt.Errorf("mode %.40q: want off, advise or on", s)
}

// MarshalText implements encoding.TextMarshaler.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *Mode) UnmarshalText(b []byte) (err error) {
	*m, err = ParseMode(string(b))
	return err
}
