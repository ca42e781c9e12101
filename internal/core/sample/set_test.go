package sample_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
)

func TestParseSet(t *testing.T) {
	for _, c := range []struct {
		text, want string // "!" for an error
	}{
		{"", ""},
		{" \n", ""},
		{"0", "0"},
		{"0-3,8\n", "0-3,8"},
		{"8,0-1,1-3", "0-3,8"},
		{"63-65", "63-65"},
		{"5-5", "5"},
		{"65536", "65536"},
		{"65537", "!"},
		{"4294967296", "!"},
		{"0-99999999", "!"},
		{"3-1", "!"},
		{"-1", "!"},
		{"1,", "!"},
		{",", "!"},
		{"1-", "!"},
		{"1 2", "!"},
		{"0x1", "!"},
		{"+1", "!"},
		{"a", "!"},
		{"1-2-3", "!"},
	} {
		got, err := sample.ParseSet(c.text)
		switch {
		case c.want == "!":
			if err == nil || !strings.Contains(err.Error(), strings.TrimSpace(c.text)) {
				t.Errorf("ParseSet(%q) = %v, %v; want an error that quotes it", c.text, got, err)
			}
		case err != nil || got.String() != c.want:
			t.Errorf("ParseSet(%q) = %q, %v; want %q", c.text, got, err, c.want)
		}
	}
}

// TestSetIsASet compares Set with a map.
func TestSetIsASet(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	draw := func() (sample.Set, map[int]bool) {
		var s sample.Set
		m := map[int]bool{}
		for range rng.IntN(40) {
			n := rng.IntN(200) - 5
			s = s.With(n)
			if n >= 0 {
				m[n] = true
			}
		}
		return s, m
	}
	for range 1000 {
		s, m := draw()
		other, om := draw()
		var numbers []int
		meets := false
		for n := -5; n < 300; n++ {
			if s.Has(n) != m[n] {
				t.Fatalf("%v.Has(%d) = %v", m, n, s.Has(n))
			}
			if m[n] {
				numbers = append(numbers, n)
				meets = meets || om[n]
			}
		}
		if !slices.Equal(s.Numbers(), numbers) || s.Len() != len(numbers) {
			t.Fatalf("%v: numbers %v, len %d", numbers, s.Numbers(), s.Len())
		}
		if s.Intersects(other) != meets || other.Intersects(s) != meets {
			t.Fatalf("%v meets %v: %v, %v; want %v", s, other, s.Intersects(other), other.Intersects(s), meets)
		}
		back, err := sample.ParseSet(s.String())
		if err != nil || !slices.Equal(back.Numbers(), numbers) {
			t.Fatalf("%q parses to %v, %v", s, back.Numbers(), err)
		}
		if !slices.Equal(sample.SetOf(numbers...).Numbers(), numbers) {
			t.Fatalf("SetOf(%v) = %v", numbers, sample.SetOf(numbers...).Numbers())
		}
	}
}

func FuzzParseSet(f *testing.F) {
	for _, s := range []string{"", "0-3,8", "1,1,1", "65536", "0-65536", "-", "9-1", " 1 "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := sample.ParseSet(text)
		if err != nil {
			return
		}
		back, err := sample.ParseSet(s.String())
		if err != nil || back.String() != s.String() {
			t.Errorf("%q is %q, which is %q, %v", text, s, back, err)
		}
		for _, n := range s.Numbers() {
			if !s.Has(n) || n > 1<<16 {
				t.Errorf("%q holds %d", text, n)
			}
		}
	})
}
