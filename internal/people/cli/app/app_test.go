package app

import (
	"testing"
	"time"
)

func TestColourNeedsATerminalAndNobodyAgainstIt(t *testing.T) {
	for _, c := range []struct {
		name string
		tty  bool
		env  map[string]string
		flag bool
		want bool
	}{
		{"terminal", true, nil, false, true},
		{"pipe", false, nil, false, false},
		{"NO_COLOR", true, map[string]string{"NO_COLOR": "1"}, false, false},
		{"dumb", true, map[string]string{"TERM": "dumb"}, false, false},
		{"--no-color", true, nil, true, false},
	} {
		a := &App{Getenv: func(name string) string { return c.env[name] }, Now: time.Now, NoColor: c.flag,
			Terminal: func() (int, int, bool) { return 97, 40, c.tty }}
		s := a.Style()
		if s.Color != c.want || (s.Width == 97) != c.tty {
			t.Errorf("%s: colour %t at width %d", c.name, s.Color, s.Width)
		}
	}
}
