package workload

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestArgsAndParseAgree(t *testing.T) {
	specs := []Spec{
		{Kind: Serve, Work: time.Millisecond, Pause: 0},
		{Kind: Chase, Set: 1 << 20, Steps: 7},
		{Kind: Hog, Work: 1500 * time.Millisecond, Period: 10 * time.Second, Phase: -time.Second, Epoch: 1_760_000_000_123},
		{Kind: Stream, Work: time.Second, Pause: time.Second, Set: 1 << 30, Vary: 1.0 / 3, Seed: 1 << 63},
		{Kind: CounterPhase, Period: time.Minute, Duty: 0.1, Vary: 1},
	}
	for _, k := range Kinds() {
		specs = append(specs, Default(k))
		if args := Default(k).Args(); !slices.Equal(args, []string{string(k)}) {
			t.Errorf("default %s: args %q, want only the kind", k, args)
		}
	}
	for _, want := range specs {
		got, err := Parse(want.Args())
		if err != nil || got != want {
			t.Errorf("Parse(%q) = %+v, %v, want %+v", want.Args(), got, err, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"", "serve, chase"},
		{"sing", "serve, chase"},
		{"serve -duty=0.5", "not defined"},
		{"serve -work=2", "invalid value"},
		{"serve -work=0s", "work 0s: want 1µs to 24h"},
		{"serve extra", `unexpected "extra"`},
		{"spin -duty=1.5", "duty 1.5: want 0 to 1"},
		{"spin -duty=NaN", "duty NaN: want 0 to 1"},
		{"burst -period=0s", "period 0s"},
		{"hog -work=-1s -vary=2", "vary 2"},
		{"hog -phase=25h", "phase 25h0m0s"},
		{"chase -set=64", "two cache lines"},
		{"chase -steps=0", "1 or more"},
		{"spin -epoch=-1", "ms since 1970"},
	} {
		_, err := Parse(strings.Fields(c.line))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Parse(%q): %v, want %q in it", c.line, err, c.want)
		}
	}
}

func TestValidateRefusesAFieldTheKindDoesNotHave(t *testing.T) {
	s := Default(Serve)
	s.Set = 1 << 20
	if err := s.Validate(); err == nil || !strings.Contains(err.Error(), "does not have") {
		t.Errorf("a serve with a working set: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, k := range Kinds() {
		f.Add(string(k))
	}
	f.Add("hog -work=1s -epoch=5 -vary=0.25")
	f.Add("spin -duty=1e-300 -seed=18446744073709551615")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(strings.Fields(text))
		if err != nil {
			return
		}
		again, err := Parse(s.Args())
		if err != nil || again != s {
			t.Errorf("%q: %+v became %+v, %v", text, s, again, err)
		}
		if has := s.flags(); has.Lookup("duty") != nil {
			now := time.UnixMilli(1_760_000_000_000)
			if _, until := s.busy(now); !until.After(now) {
				t.Errorf("%q: the schedule does not move on from %v: %v", text, now, until)
			}
		}
	})
}
