package demo

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestAJumpOfTheClockWithoutASwitchIsAStandstill(t *testing.T) {
	type at struct {
		ms       int
		switches int64
	}
	for _, c := range []struct {
		name    string
		looks   []at
		share   float64
		longest time.Duration
	}{
		{"it runs", []at{{0, 5}, {1, 5}, {2, 5}, {3, 5}, {4, 5}, {5, 5}, {6, 5}, {7, 5}, {8, 5}, {9, 5}, {10, 5}}, 0, 0},
		{"it stands still twice", []at{{0, 5}, {1, 5}, {4, 5}, {5, 5}, {7, 5}, {8, 5}, {9, 5}, {10, 5}}, 0.5, 3 * time.Millisecond},
		{"another task runs", []at{{0, 5}, {1, 5}, {6, 6}, {7, 6}, {8, 6}, {9, 6}, {10, 6}}, 0, 0},
		{"another task, then a standstill", []at{{0, 5}, {3, 6}, {4, 6}, {10, 6}}, 0.6, 6 * time.Millisecond},
		{"a standstill to the end and past it", []at{{0, 5}, {20, 5}}, 1, 20 * time.Millisecond},
	} {
		var base time.Time
		i := -1
		s, err := watchClock(10*time.Millisecond, func() (time.Time, int64, error) {
			i++
			return base.Add(time.Duration(c.looks[i].ms) * time.Millisecond), c.looks[i].switches, nil
		})
		if err != nil || math.Abs(s.share-c.share) > 1e-9 || s.longest != c.longest || i != len(c.looks)-1 {
			t.Errorf("%s: %+v after %d looks, %v; want %v, %v", c.name, s, i+1, err, c.share, c.longest)
		}
	}
	bad := errors.New("bad")
	if _, err := watchClock(time.Second, func() (time.Time, int64, error) { return time.Time{}, 0, bad }); !errors.Is(err, bad) {
		t.Errorf("got %v", err)
	}
}

// On any machine: the guest tests use one whose CPUs are run alternately.
func TestStandstillsOfThisMachine(t *testing.T) {
	quelltest.Need(t, quelltest.TwoCPUs)
	both, err := standstills(0, 1, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range both {
		if s.share < 0 || s.share > 1 || (s.share > 0) != (s.longest >= leastJump) {
			t.Errorf("%+v", both)
		}
	}
	if _, err := standstills(0, 1<<12, time.Millisecond); err == nil {
		t.Error("a CPU that is not there was watched")
	}
}
