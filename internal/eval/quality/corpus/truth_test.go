package main

import (
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// A victim's own rate of work decides whether it was hurt, and which difference suffices.
func TestJudge(t *testing.T) {
	const length = 10 * time.Second
	x := []antagonist{{"/x", "cpu"}}
	foreigners := []antagonist{{"/x", "cpu"}} // stretches with a load outside
	for _, tt := range []struct {
		name  string
		rates [3]float64 // pieces a second before, in and after the stretch
		whose []antagonist
		phase string
		// number of labels and of stretches that are not known
		labels, unknown int
	}{
		{"hurt", [3]float64{100, 60, 100}, x, "", 1, 0},
		{"hurt by two", [3]float64{100, 60, 100}, []antagonist{{"/x", "cpu"}, {"/y", "cpu"}}, "", 2, 0},
		{"not hurt", [3]float64{100, 98, 100}, x, "", 0, 0},
		{"hurt a little", [3]float64{100, 93, 100}, x, "", 0, 1},
		{"less than before, and more than after", [3]float64{100, 92, 90}, x, "", 0, 1},
		{"more than both", [3]float64{100, 101, 90}, x, "", 0, 0},
		{"load outside", [3]float64{100, 60, 100}, foreigners, "", 0, 1},
		{"no antagonist", [3]float64{100, 100, 100}, nil, "", 0, 0},
		{"no antagonist and less work", [3]float64{100, 80, 100}, nil, "", 0, 1},
		{"its own doing", [3]float64{100, 50, 100}, nil, "/v", 0, 0},
		{"another's phase", [3]float64{100, 80, 100}, nil, "/w", 0, 1},
		{"one piece fewer of nine", [3]float64{0.9, 0.8, 0.9}, x, "", 0, 1},
		{"as many of so few", [3]float64{0.9, 0.9, 0.9}, x, "", 0, 1},
		{"nothing to compare with", [3]float64{100, 50, 0}, x, "", 0, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var w work
			var all []stretch
			at := time.Unix(1000, 0)
			for i, rate := range tt.rates {
				s := stretch{from: at, to: at.Add(length), calm: i != 1}
				if i == 1 {
					s.antagonists, s.phase = tt.whose, tt.phase
					if len(tt.whose) > 0 && &tt.whose[0] == &foreigners[0] {
						s.foreign = 0.5
					}
				}
				for k := range int(rate * length.Seconds()) {
					w = append(w, at.Add(time.Duration(float64(k)/rate*1e9)))
				}
				all, at = append(all, s), s.to
			}
			j := judge("m", "/v", w, all)
			if len(j.labels) != tt.labels || len(j.unknown) != tt.unknown {
				t.Errorf("%d labels %+v, %d unknown %+v; want %d and %d", len(j.labels), j.labels, len(j.unknown), j.unknown, tt.labels, tt.unknown)
			}
			for _, l := range j.labels {
				if l.Victim != "/v" || l.From != sample.At(all[1].from) || l.To != sample.At(all[1].to) {
					t.Errorf("label %+v", l)
				}
			}
		})
	}
}

// If a victim's rate varies too much to tell no harm from a decrease by a tenth, the truth
// is not known; measured harm still counts as harm.
func TestAnUnevenPace(t *testing.T) {
	at := time.Unix(1000, 0)
	var all []stretch
	for i := range 3 {
		from := at.Add(time.Duration(i) * 16 * time.Second)
		s := stretch{from: from, to: from.Add(16 * time.Second), calm: i != 1}
		if i == 1 {
			s.antagonists = []antagonist{{"/x", "cpu"}}
		}
		all = append(all, s)
	}
	for _, c := range []struct {
		uneven, less    float64
		labels, unknown int
	}{{0, 0.97, 0, 0}, {0.05, 0.97, 0, 0}, {0.4, 0.97, 0, 1}, {0.4, 0.8, 1, 0}} {
		var w work
		for second := range 48 {
			pace := 100 * (1 + c.uneven*float64(second%2*2-1))
			if second/16 == 1 {
				pace *= c.less
			}
			for k := range int(pace) {
				w = append(w, at.Add(time.Duration((float64(second)+float64(k)/pace)*1e9)))
			}
		}
		if j := judge("m", "/v", w, all); len(j.labels) != c.labels || len(j.unknown) != c.unknown {
			t.Errorf("%+v: %+v", c, j)
		}
	}
}

// For a task that does not count its work it is not known whether it suffers while there is
// an antagonist, and known that it does not otherwise.
func TestUncounted(t *testing.T) {
	at := time.Unix(1000, 0)
	all := []stretch{{from: at, to: at.Add(10 * time.Second), calm: true},
		{from: at.Add(10 * time.Second), to: at.Add(20 * time.Second), antagonists: []antagonist{{"/x", "cpu"}}},
		{from: at.Add(20 * time.Second), to: at.Add(30 * time.Second), phase: "/v"}}
	got := uncounted("m", "/i", all)
	if len(got) != 1 || got[0].Machine != "m" || got[0].Victim != "/i" || got[0].From != sample.At(all[1].from) || got[0].To != sample.At(all[1].to) {
		t.Errorf("%+v", got)
	}
}

// Each case of innocence has a victim that counts its work, an innocent, and a stage in
// which the victim suffers.
func TestOrdeals(t *testing.T) {
	seen := map[string]bool{}
	for _, o := range ordeals() {
		s := o.stages
		if seen[o.name] || o.why == "" || len(o.victims) != 1 || len(o.innocents) != 1 || len(s) != 1 || s[0].shape != phase && len(s[0].antagonists) == 0 ||
			s[0].shape == phase && !o.victims[0].phases {
			t.Errorf("%+v", o)
		}
		seen[o.name] = true
	}
	if got := playing("pushed", 2); got != 2*(learning+busy+calm)*interval || playing("", 1) != time.Duration(len(seen))*got/2 {
		t.Errorf("two rounds take %v", got)
	}
}

// The halves share no program, and each scene has everything it needs.
func TestScenes(t *testing.T) {
	for _, roles := range [][]program{victims(), antagonists(), innocents()} {
		seen := map[string]half{}
		for _, p := range roles {
			if h, ok := seen[p.name]; ok {
				t.Errorf("duplicate program %s, in %s and %s", p.name, h, p.half)
			}
			seen[p.name] = p.half
			if p.half != tuning && p.half != test || p.run == "" || p.needs == "" || len(p.packages) == 0 {
				t.Errorf("%+v", p)
			}
		}
	}
	for _, h := range []half{tuning, test} {
		count := map[shape]int{}
		times := map[string]int{}
		for _, s := range allScenes() {
			if s.half != h {
				continue
			}
			for _, p := range append(append([]*program{}, s.victims...), s.innocents...) {
				if p.half != h || p.on != s.on && p.on != onCPUs {
					t.Errorf("%s: %s belongs to another half or place", s.name, p.name)
				}
			}
			if len(s.victims) != 2 || s.victims[0] == s.victims[1] {
				t.Errorf("%s: victims %v", s.name, s.victims)
			}
			for _, one := range s.stages {
				count[one.shape]++
				for _, a := range one.antagonists {
					times[a.name]++
				}
			}
		}
		for _, want := range []shape{arrives, bursts, ramp, group, phase, quiet} {
			if count[want] == 0 {
				t.Errorf("%s: no stage %s in any scene: %v", h, want, count)
			}
		}
		for _, a := range antagonists() {
			if a.half == h && times[a.name] == 0 {
				t.Errorf("%s is in no scene", a.name)
			}
		}
		t.Log(h, count, times)
	}
}
