package main

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// TestMeasuredPairsAreWorthMore: on a small fleet, keeping the measured pairs apart leaves at
// most half of the interference that as many random pairs leave, and the more pairs are wrong,
// the more is left. Rule quell measures them, which takes less time than evidence.
func TestMeasuredPairsAreWorthMore(t *testing.T) {
	t.Parallel()
	s := study{Machines: 16, Days: 3, Draws: 200, Served: 2, Work: 8, Rule: detect.Quell, Seed: 2}
	r, err := s.run()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := r.write(&text, &s); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", text.String())
	by := map[string]row{}
	for _, x := range r.Rows {
		by[strings.ReplaceAll(x.Name, " replaced by random ones", "")] = x
	}
	if r.Measured < 2 || r.Wrong > r.Measured/4 || by["random"].Hours == 0 {
		t.Fatalf("%+v", r)
	}
	if m := by["measured"]; m.Hours > 0.5*r.Random || m.Pairs != by["random"].Pairs {
		t.Errorf("measured pairs leave %.1f h, as many random ones %.1f h", m.Hours, r.Random)
	}
	last := by["measured"].Hours
	for _, name := range []string{"measured, 25 %", "measured, 75 %", "random"} {
		x := by[name]
		if x.Hours < last {
			t.Errorf("%s: %.1f h, with fewer wrong pairs %.1f h", name, x.Hours, last)
		}
		last = x.Hours
	}
	if all := by["all that interfere"]; all.Hours > 0.1*r.Random {
		t.Errorf("all pairs that interfere leave %.1f h", all.Hours)
	}
}

// TestUtilisationIsEqual: whatever is kept apart, every task is placed, and every machine has
// as many as any other.
func TestUtilisationIsEqual(t *testing.T) {
	s := study{Machines: 32, Served: 16, Work: 24}
	rng := rand.New(rand.NewPCG(1, 2))
	f := s.fleet(rng)
	all := pairSet{}
	for v := range s.Served {
		for w := range s.Work {
			all[pair{v, w}] = true
		}
	}
	if want := s.Served * s.Work / resources; len(f.interfere) != want {
		t.Errorf("%d pairs interfere, want %d", len(f.interfere), want)
	}
	for _, apart := range []pairSet{nil, f.interfere, all, f.random(pairSet{}, 100, rng)} {
		count := make([]int, s.Work)
		hurt := 0
		for m, work := range f.place(s.Machines, apart, rng) {
			if len(work) != 2 {
				t.Errorf("machine %d has %d visitors", m, len(work))
			}
			for _, w := range work {
				count[w]++
				if apart[pair{f.victim(m), w}] {
					hurt++
				}
			}
		}
		for w, n := range count {
			if want := (s.Machines*2 + s.Work - 1 - w) / s.Work; n != want {
				t.Errorf("%d tasks of job %d were placed, want %d", n, w, want)
			}
		}
		if len(apart) == len(f.interfere) && hurt > 6 {
			t.Errorf("%d tasks are where they should not be", hurt)
		}
	}
}

func TestStudiesThatMakeNoSense(t *testing.T) {
	for _, s := range []study{{Days: 1, Draws: 1, Served: 1, Work: 1, Rule: detect.CPI2}, {Machines: 1, Days: 1, Draws: 1, Served: 1, Work: 1, Rule: "luck"}} {
		if _, err := s.run(); err == nil {
			t.Errorf("%+v was accepted", s)
		}
	}
}
