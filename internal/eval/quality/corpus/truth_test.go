package main

import (
	"maps"
	"slices"
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
func TestInnocenceScenes(t *testing.T) {
	all, err := allScenes()
	if err != nil {
		t.Fatal(err)
	}
	rounds := map[string]int{}
	for _, s := range all {
		if s.half != innocence {
			continue
		}
		if len(s.victims) != 1 || len(s.innocents) != 1 || len(s.stages) != 1 || s.length() != learning+busy+calm ||
			s.victims[0].Phases != (s.stages[0].shape == phase) || s.victims[0].Phases == (len(s.stages[0].antagonists) > 0) {
			t.Errorf("%s", s.String())
		}
		rounds[s.victims[0].Name]++
	}
	if want := map[string]int{"pushed": 10, "more-work": 10, "framing": 10, "niced": 10}; !maps.Equal(rounds, want) {
		t.Errorf("%v, want %v", rounds, want)
	}
}

// Packages have programs of the same role in both halves only where docs/corpus.md says so.
func TestHalvesShareWhatIsSaid(t *testing.T) {
	programs, err := loadPrograms()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		role []program
		want []string
	}{
		"victims":     {programs.Victims, []string{"python3"}},
		"antagonists": {programs.Antagonists, []string{"coreutils", "python3", "stress-ng", "sysbench"}},
		"innocents":   {programs.Innocents, []string{"coreutils", "curl", "procps", "python3"}},
	} {
		in := map[half]map[string]bool{tuning: {}, test: {}, innocence: {}}
		for _, p := range c.role {
			for _, one := range p.Packages {
				in[p.Half][one] = true
			}
		}
		var got []string
		for one := range in[tuning] {
			if in[test][one] {
				got = append(got, one)
			}
		}
		if slices.Sort(got); !slices.Equal(got, c.want) {
			t.Errorf("%s of both halves are of %q, want %q", name, got, c.want)
		}
	}
}

// No name is in two halves, and each scene has everything it needs.
func TestScenes(t *testing.T) {
	programs, err := loadPrograms()
	if err != nil {
		t.Fatal(err)
	}
	all, err := allScenes()
	if err != nil {
		t.Fatal(err)
	}
	halves, places := []half{tuning, test, innocence}, []place{onCPUs, onDisk, onLink}
	for _, role := range [][]program{programs.Victims, programs.Antagonists, programs.Innocents} {
		seen := map[string]half{}
		for _, p := range role {
			if h, ok := seen[p.Name]; ok {
				t.Errorf("duplicate program %s, in %s and %s", p.Name, h, p.Half)
			}
			seen[p.Name] = p.Half
			if !slices.Contains(halves, p.Half) || !slices.Contains(places, p.Place) || p.Run == "" || p.Needs == "" || len(p.Packages) == 0 {
				t.Errorf("%+v", p)
			}
		}
	}
	for _, h := range []half{tuning, test} {
		count := map[shape]int{}
		times := map[string]int{}
		for _, s := range all {
			if s.half != h {
				continue
			}
			for _, p := range append(append([]*program{}, s.victims...), s.innocents...) {
				if p.Half != h || p.Place != s.on && p.Place != onCPUs {
					t.Errorf("%s: %s belongs to another half or place", s.name, p.Name)
				}
			}
			if len(s.victims) != 2 || s.victims[0] == s.victims[1] {
				t.Errorf("%s: victims %v", s.name, s.victims)
			}
			for _, one := range s.stages {
				count[one.shape]++
				for _, a := range one.antagonists {
					times[a.Name]++
				}
			}
		}
		for _, want := range []shape{arrives, bursts, ramp, group, phase, quiet} {
			if count[want] == 0 {
				t.Errorf("%s: no stage %s in any scene: %v", h, want, count)
			}
		}
		for _, a := range programs.Antagonists {
			if a.Half == h && times[a.Name] == 0 {
				t.Errorf("%s is in no scene", a.Name)
			}
		}
		t.Log(h, count, times)
	}
}
