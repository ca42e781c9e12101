package counter

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
)

// slow is a fake kernel on which switching a group takes some time of the fake's own
// clock.
type slow struct {
	*fake
	clock time.Time
	takes []time.Duration // of each toggle in turn, the last for all others
}

func (s *slow) toggle(fd int, on bool) error {
	if s.events[fd].leader == fd {
		s.clock = s.clock.Add(s.takes[0])
		if len(s.takes) > 1 {
			s.takes = s.takes[1:]
		}
	}
	return s.fake.toggle(fd, on)
}

// The toll is the minimum over pairs of toggles: the first ones were disturbed.
func TestToll(t *testing.T) {
	for _, tc := range []struct {
		name  string
		takes []time.Duration
		off   bool // the first CPU is offline
		err   error
		want  time.Duration
		dear  bool
	}{
		{name: "bare metal", takes: []time.Duration{9e6, 9e6, time.Microsecond}, want: 2 * time.Microsecond},
		{name: "trapped", takes: []time.Duration{54 * time.Microsecond, 55 * time.Microsecond, 9e6}, want: 109 * time.Microsecond, dear: true},
		{name: "first CPU offline", takes: []time.Duration{10 * time.Microsecond}, off: true, want: 20 * time.Microsecond, dear: true},
		{name: "refused", takes: []time.Duration{1}, err: unix.EIO},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			at, err := openCgroup(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer at.close()
			k := &slow{fake: newFake(t), takes: tc.takes}
			k.refuseOn = tc.err
			k.refuse = func(_ *unix.PerfEventAttr, cpu, _ int) error {
				if tc.off && cpu == 0 {
					return unix.ENODEV
				}
				return nil
			}
			g := newGroups(k, sample.SetOf(0, 1))
			g.events = []event{cpiCycles[0], instructions}
			g.now = func() time.Time { return k.clock }
			p := Info{Signal: sample.CPI}
			p.SetSwitchOverhead(g.measureSwitchOverhead(at.fd))
			if p.SwitchOverhead != tc.want {
				t.Errorf("toll %s, want %s", p.SwitchOverhead, tc.want)
			}
			if text := p.Expensive; (text != "") != tc.dear || tc.dear && !strings.Contains(text, tc.want.String()) {
				t.Errorf("says %q", text)
			}
		})
	}
}
