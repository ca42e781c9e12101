package counter

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// ticks is a line of /proc/stat: user, nice, system, idle, iowait, irq, softirq,
// steal, in ticks of 10 ms.
func ticks(n ...int) host.CPUTimes {
	var t host.CPUTime
	for i, to := range []*time.Duration{&t.User, &t.Nice, &t.System, &t.Idle, &t.IOWait, &t.IRQ, &t.SoftIRQ, &t.Steal} {
		*to = time.Duration(n[i]) * 10 * time.Millisecond
	}
	return host.CPUTimes{Total: t}
}

// overallOf returns the readings of a machine-wide source after a window.
func overallOf(t *testing.T, s MachineSource) map[string]Reading {
	t.Helper()
	all := map[string]Reading{}
	s.MachineReadings(func(name string, _ sample.Set, r Reading) { all[name] = r })
	return all
}

// Costs of windows from counters. The first row was recorded on a 2-vCPU guest, 13 s
// apart, with quiet neighbours.
func TestSteal(t *testing.T) {
	for _, c := range []struct {
		name     string
		from, to host.CPUTimes
		want     float64 // NaN: not known
	}{
		{"recorded", ticks(2343642, 564488, 741789, 1345533, 12112, 0, 25439, 48368),
			ticks(2345062, 564488, 741924, 1346495, 12113, 0, 25460, 48370), 2. / 1576},
		{"a fifth", ticks(0, 0, 0, 0, 0, 0, 0, 0), ticks(800, 0, 190, 500, 0, 0, 10, 200), 0.2},
		{"none", ticks(0, 0, 0, 0, 0, 0, 0, 7), ticks(800, 0, 200, 500, 0, 0, 0, 7), 0},
		{"nothing used", ticks(5, 0, 0, 0, 0, 0, 0, 0), ticks(5, 0, 0, 500, 0, 0, 0, 3), math.NaN()},
		{"a counter that went back", ticks(5, 0, 0, 0, 0, 0, 0, 9), ticks(100, 0, 0, 500, 0, 0, 0, 3), math.NaN()},
	} {
		t.Run(c.name, func(t *testing.T) {
			reads := []host.CPUTimes{c.from, c.to}
			s := newSteal(func() (host.CPUTimes, error) {
				next := reads[0]
				reads = reads[1:]
				return next, nil
			})
			if err := errors.Join(s.Start(), s.Stop()); err != nil {
				t.Fatal(err)
			}
			all := overallOf(t, s)
			got, ok := all["(machine)"]
			if !ok || len(all) != 1 || math.Abs(got.Cost-c.want) > 1e-12 || math.IsNaN(got.Cost) != math.IsNaN(c.want) {
				t.Errorf("%+v, want a cost of %v", all, c.want)
			}
		})
	}
}

func TestStealThatCannotBeRead(t *testing.T) {
	bad := errors.New("no /proc")
	for name, fails := range map[string]int{"at the beginning": 0, "at the end": 1} {
		t.Run(name, func(t *testing.T) {
			n := 0
			s := newSteal(func() (host.CPUTimes, error) {
				n++
				if n-1 == fails {
					return host.CPUTimes{}, bad
				}
				return ticks(n, 0, 0, 0, 0, 0, 0, 0), nil
			})
			if err := s.Start(); err != nil {
				t.Fatal(err)
			}
			if err := s.Stop(); !errors.Is(err, bad) {
				t.Errorf("stop: %v", err)
			}
			if r := overallOf(t, s)["(machine)"]; !math.IsNaN(r.Cost) {
				t.Errorf("%+v", r)
			}
		})
	}
}

// On this machine, if it is a virtual one: a window of real counters.
func TestStealHere(t *testing.T) {
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	s, err := OpenSteal(h)
	if e := (*NotSupportedError)(nil); errors.As(err, &e) {
		quelltest.Skip(t, "virtual-machine", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != ErrOpen {
		t.Errorf("started twice: %v", err)
	}
	from := s.from.Total
	quelltest.Until(t, "the machine has used some ticks", func() bool {
		now, err := h.CPUTimes()
		return err == nil && now.Total.Busy()-from.Busy() >= 50*time.Millisecond
	})
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != ErrNotOpen {
		t.Errorf("stopped twice: %v", err)
	}
	if r := overallOf(t, s)["(machine)"]; !(r.Cost >= 0) {
		t.Errorf("%+v", r)
	}
}
