package study

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// LevelNames are the names of a factor's levels: none for a staircase, which varies within
// a run, and none for mappings, which depend on the other factors.
func (f *Factor) LevelNames() []string {
	switch {
	case len(f.Placements) > 0:
		return names(f.Placements, func(p Placement) string { return p.Name })
	case len(f.Sets) > 0:
		return names(f.Sets, func(s Set) string { return s.Name })
	}
	return f.Levels
}

func names[T any](all []T, name func(T) string) []string {
	list := make([]string, len(all))
	for i, one := range all {
		list[i] = name(one)
	}
	return list
}

// Staircase is the study's factor with a staircase, nil if it has none.
func (s *Study) Staircase() *Factor {
	return find(s.Factors, func(f Factor) bool { return f.Staircase != nil })
}

// Targets are the staircase's loads on the way up, ascending.
func (st *Staircase) Targets() []Share {
	var ts []Share
	// A rounding error must not add a step above To.
	for i := 0; ; i++ {
		t := st.From + Share(i)*st.Step
		if t > st.To+st.Step/1e6 {
			return ts
		}
		ts = append(ts, t)
	}
}

// Steps is the staircase for a role, beginning after the warm-up.
func (st *Staircase) Steps(role string, warmup time.Duration) []Step {
	up := st.Targets()
	down := slices.Clone(up)
	slices.Reverse(down)
	var steps []Step
	climb := func(targets []Share, rising bool) {
		for _, t := range targets {
			from := warmup + time.Duration(len(steps))*st.Hold
			steps = append(steps, Step{Role: role, Target: t, Up: rising, From: from, To: from + st.Hold, Settle: st.Settle, Trail: st.Trail})
		}
	}
	if st.Direction != "down" {
		climb(up, true)
	}
	if st.Direction != "up" {
		climb(down, false)
	}
	return steps
}

// combinations are all choices of one level per factor that are not excluded; the last
// factor varies fastest. A staircase has no level here.
func (s *Study) combinations(levels map[string][]string) [][]Level {
	all := [][]Level{nil}
	for _, f := range s.Factors {
		if f.Staircase != nil {
			continue
		}
		var next [][]Level
		for _, before := range all {
			for _, l := range levels[f.Name] {
				next = append(next, append(slices.Clone(before), Level{f.Name, l}))
			}
		}
		all = next
	}
	return slices.DeleteFunc(all, func(ls []Level) bool { return s.excluded(ls) })
}

func (s *Study) excluded(ls []Level) bool {
	return slices.ContainsFunc(s.Design.Exclude, func(x map[string]string) bool {
		if len(x) == 0 {
			return false
		}
		for name, value := range x {
			if !slices.ContainsFunc(ls, func(l Level) bool { return l.Factor == name && meets(l.Value, value) }) {
				return false
			}
		}
		return true
	})
}

// meets reports whether an exclusion matches a level: the same level, or a number above
// or below a bound (">11", "<3").
func meets(level, meant string) bool {
	if level == meant {
		return true
	}
	for sign, way := range map[string]int{">": 1, "<": -1} {
		bound, ok := strings.CutPrefix(meant, sign)
		b, err := strconv.ParseFloat(bound, 64)
		if n, err2 := strconv.ParseFloat(level, 64); ok && err == nil && err2 == nil && cmp.Compare(n, b) == way {
			return true
		}
	}
	return false
}

// distinctMappings are the distinct ways to place n virtual machines on cores, up to symmetry of
// the cores: each is one core number per machine, in which a core's first machine comes
// after those of the cores before it (a restricted growth string). With perCore 0 the
// cores are filled as evenly as possible. Machines of the same kind are interchangeable
// too.
func distinctMappings(kinds []string, cores, perCore int) [][]int {
	n := len(kinds)
	least := 0
	if perCore == 0 {
		perCore = (n + cores - 1) / cores
		least = n / cores
	}
	var all [][]int
	seen := map[string]bool{}
	at := make([]int, n)
	count := make([]int, cores)
	var place func(i, used int)
	place = func(i, used int) {
		if i == n {
			if slices.Min(count) < least {
				return
			}
			if k := shape(kinds, at, used); !seen[k] {
				seen[k] = true
				all = append(all, slices.Clone(at))
			}
			return
		}
		for c := range min(used+1, cores) {
			if count[c] == perCore {
				continue
			}
			at[i] = c
			count[c]++
			place(i+1, max(used, c+1))
			count[c]--
		}
	}
	place(0, 0)
	return all
}

// shape names a mapping by the kinds of machines on each core, so that equal machines are
// interchangeable: "gcc+mcf|lbm+lbm".
func shape(kinds []string, at []int, cores int) string {
	groups := make([][]string, cores)
	for i, c := range at {
		groups[c] = append(groups[c], kinds[i])
	}
	names := make([]string, cores)
	for i, g := range groups {
		slices.Sort(g)
		names[i] = strings.Join(g, "+")
	}
	slices.Sort(names)
	return strings.Join(names, "|")
}

// sorted are a map's keys in order.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
