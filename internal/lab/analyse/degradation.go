package analyse

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Degradation is how much worse a part did with others than alone.
type Degradation struct {
	Levels   []study.Level `json:"levels"`
	Part     string        `json:"part"`
	Workload string        `json:"workload"`
	// Partners are the workloads that shared its core in a mapping, else all
	// others of the run.
	Partners []string `json:"partners"`
	Baseline string   `json:"baseline"` // what it is compared with, e.g. "solo"
	Better   string   `json:"better"`   // of the metric: a rate, or a time
	Unit     string   `json:"unit"`
	Solo     Interval `json:"solo"`
	Co       Interval `json:"co"`
	// Slowdown is ≥ 1 where the part is worse, for times and rates alike.
	Slowdown Interval `json:"slowdown"`
	// Percent is 100·(C/S−1) of times (paper 000, section 5) and 100·(1−C/S) of
	// rates: a slowdown of 2 is 100 % of a time and 50 % of a rate.
	Percent Interval `json:"percent"`
	// CPU is the same for user and system time per unit of work. It distinguishes
	// waiting from slower execution.
	CPU Interval `json:"cpu_percent"`
}

// Degradations compares every measured part of every cell with its solo run, at the
// same placement if it was alone there too. The control with idle neighbours shows what
// their environments alone cost; its cells have a level that says so.
func Degradations(runs []result.Run, seed uint64) []Degradation {
	good := valid(runs)
	solos := byCell(good, study.Solo)
	var out []Degradation
	for _, group := range append(byCell(good, study.Main), byCell(good, study.Idle)...) {
		c := &group[0].Cell
		if len(c.Parts) < 2 {
			continue
		}
		for _, p := range c.Parts {
			if !p.Measure || p.Idle {
				continue
			}
			if solo := soloOf(solos, c, &p); solo != nil {
				d := degradation(group, &p, solo, seed)
				if c.Kind == study.Idle {
					d.Levels = append(slices.Clone(d.Levels), study.Level{Factor: "control", Value: string(c.Kind)})
				}
				out = append(out, d)
			}
		}
	}
	return out
}

// soloOf returns the runs of a part alone at the same place.
func soloOf(solos [][]*result.Run, c *study.Cell, p *study.Part) []*result.Run {
	for _, g := range solos {
		s := &g[0].Cell
		alone := &s.Parts[0]
		if identity(alone) == identity(p) && samePlace(c, p, s, alone) && maps.Equal(s.Knobs, c.Knobs) {
			return g
		}
	}
	return nil
}

// samePlace reports whether a part has the same CPUs in a cell as alone. A relation gives each
// slot CPUs of its own, and fewer of them the more slots there are.
func samePlace(c *study.Cell, p *study.Part, s *study.Cell, alone *study.Part) bool {
	if s.Place.Name != c.Place.Name || !slices.Equal(shape(c.Mapping, p), shape(s.Mapping, alone)) {
		return false
	}
	related := c.Place.Dynamic != nil || c.Place.Relation != "" && c.Place.Relation != "neutral"
	return !related || c.Mapping != nil || p.CPUs != "" || alone.Slot == p.Slot && alone.Slots == p.Slots
}

// shape says which of a part's virtual CPUs share a core in a mapping: for each, the
// first one that is on its core. The solo run of a machine with two virtual CPUs on one
// core differs from that of a machine with two on two cores.
func shape(mapping map[string]int, p *study.Part) []int {
	var cores, first []int
	for n := 0; ; n++ {
		core, ok := mapping[p.Name()+"/"+strconv.Itoa(n)]
		if !ok {
			return first
		}
		cores = append(cores, core)
		first = append(first, slices.Index(cores, core))
	}
}

func degradation(co []*result.Run, p *study.Part, solo []*result.Run, seed uint64) Degradation {
	m := &p.Workload.Metric
	d := Degradation{Levels: co[0].Cell.Levels, Part: p.Name(), Workload: p.Workload.Name, Partners: partners(&co[0].Cell, p),
		Baseline: "solo", Better: m.Better, Unit: p.FigureUnit()}
	c, cpuC := figures(co, p.Name(), m)
	s, cpuS := figures(solo, solo[0].Cell.Parts[0].Name(), m)
	d.Solo, d.Co = s.mean(seed), c.mean(seed)
	if m.Better == "lower" {
		d.Slowdown = RatioOfMeans(c, s, seed)
	} else {
		d.Slowdown = RatioOfMeans(s, c, seed)
	}
	d.Percent = percent(d.Slowdown, m.Better)
	d.CPU = percent(RatioOfMeans(cpuC, cpuS, seed), "lower")
	return d
}

// percent converts a slowdown to a degradation.
func percent(slow Interval, better string) Interval {
	if better == "lower" {
		return slow.apply(func(s float64) float64 { return 100 * (s - 1) })
	}
	return slow.apply(func(s float64) float64 { return 100 * (1 - 1/s) })
}

// figures returns a part's values in each run, and its CPU seconds per unit of work in
// each.
func figures(runs []*result.Run, name string, m *study.Metric) (values, cpu Levels) {
	for _, r := range runs {
		p := partOf(r, name)
		if p == nil {
			continue
		}
		values = append(values, figure(r, p, m))
		if units := work(r, p, m); units > 0 && p.CPUTime > 0 {
			cpu = append(cpu, []Ratio{{p.CPUTime.Seconds(), units}})
		}
	}
	return values, cpu
}

// partners returns the workloads of the other parts: those on its core where parts are
// mapped to cores, else all.
func partners(c *study.Cell, p *study.Part) []string {
	var names []string
	for _, q := range c.Parts {
		if q.Name() == p.Name() || q.Idle || c.Mapping != nil && !shareCore(c.Mapping, p.Name(), q.Name()) {
			continue
		}
		names = append(names, q.Workload.Name)
	}
	slices.Sort(names)
	return names
}

func shareCore(m map[string]int, a, b string) bool {
	for x, core := range m {
		for y, other := range m {
			if core == other && strings.HasPrefix(x, a+"/") && strings.HasPrefix(y, b+"/") {
				return true
			}
		}
	}
	return false
}

// MappingResult is figure 4 of paper 000: within one set of workloads each machine's times are
// compared with those of its own best mapping.
type MappingResult struct {
	Set   string        `json:"set"` // the levels without the mapping
	Parts []MappingPart `json:"parts"`
	// Average is the arithmetic mean of all machines' degradations in all mappings,
	// including the 0 % of each best one; Worst is the highest.
	Average  float64 `json:"average"`
	Worst    float64 `json:"worst"`
	WorstOf  string  `json:"worst_of"`
	Mappings int     `json:"mappings"`
	// Interval is that of Average, over repetitions, with each machine's best mapping
	// as found. It is quell's addition to the paper.
	Interval Interval `json:"interval"`
	// WorstInterval is that of Worst; also an addition.
	WorstInterval Interval `json:"worst_interval"`
	// Advised is the mapping chosen from the cache misses measured alone; nil if none
	// were counted.
	Advised *Advice `json:"advised,omitempty"`
}

// MappingPart is the part of one machine in a Best.
type MappingPart struct {
	Part     string             `json:"part"`
	Workload string             `json:"workload"`
	Percent  map[string]float64 `json:"percent"` // by mapping
	Average  float64            `json:"average"`
	Worst    float64            `json:"worst"`
	// Intervals are of Percent, over repetitions.
	Intervals map[string]Interval `json:"intervals"`
}

// OverBest returns the degradations of times over the best of them, in percent: 10, 11
// and 15 s give 0, 10 and 50 % (paper 000, section 5).
func OverBest(times []float64) (percent []float64, average, worst float64) {
	if len(times) == 0 {
		return nil, math.NaN(), math.NaN()
	}
	best := slices.Min(times)
	for _, t := range times {
		percent = append(percent, 100*(t/best-1))
	}
	return percent, stat.Mean(percent), slices.Max(percent)
}

// Mappings ranks the mappings of each set of workloads. The level "default", where the
// kernel's scheduler decides, is not a mapping: as in the paper it is in Percent,
// compared with the best mapping, and in no average.
func Mappings(runs []result.Run, factor string) []MappingResult {
	var out []MappingResult
	sets, times := mappingTimes(runs, factor)
	for _, set := range sets {
		b := MappingResult{Set: set, Worst: math.Inf(-1)}
		var all []float64
		blocks := map[int][]float64{} // percentages by repetition
		for _, m := range times[set] {
			names := slices.DeleteFunc(sortedKeys(m.times), func(name string) bool { return name == study.Unpinned })
			if len(names) == 0 {
				continue
			}
			var ts []float64
			for _, name := range names {
				ts = append(ts, meanOf(m.times[name]))
			}
			if !(slices.Min(ts) > 0) { // nothing is a multiple of 0
				continue
			}
			percent, average, worst := OverBest(ts)
			best := names[slices.Index(ts, slices.Min(ts))]
			o := MappingPart{Part: m.part, Workload: m.workload, Percent: map[string]float64{}, Average: average, Worst: worst, Intervals: map[string]Interval{}}
			for i, name := range names {
				o.Percent[name] = percent[i]
			}
			if v := m.times[study.Unpinned]; len(v) > 0 {
				o.Percent[study.Unpinned] = 100 * (meanOf(v)/slices.Min(ts) - 1)
			}
			for name := range o.Percent {
				over := overBlocks(m.times[name], m.times[best])
				var values []float64
				for _, n := range sortedKeys(over) {
					values = append(values, over[n])
					if name != study.Unpinned {
						blocks[n] = append(blocks[n], over[n])
					}
				}
				// The best mapping is 0 % over itself in every repetition.
				if i := meanInterval(values, "t over repetitions"); name != best {
					i.Value = o.Percent[name]
					o.Intervals[name] = i
				}
			}
			b.Mappings = max(b.Mappings, len(names))
			b.Parts = append(b.Parts, o)
			all = append(all, percent...)
			if worst > b.Worst {
				b.Worst, b.WorstOf = worst, fmt.Sprintf("%s (%s)", m.part, m.workload)
			}
		}
		if len(all) == 0 {
			continue
		}
		b.Average = stat.Mean(all)
		var values []float64
		for _, n := range sortedKeys(blocks) {
			if len(blocks[n]) == len(all) { // a repetition without missing values
				values = append(values, stat.Mean(blocks[n]))
			}
		}
		b.Interval = meanInterval(values, "t over repetitions")
		b.Interval.Value = b.Average
		b.WorstInterval = worstInterval(b.Worst, times[set], study.Unpinned)
		b.Advised = advise(&b, runs, factor)
		out = append(out, b)
	}
	return out
}

// mappedPart holds a part's times per unit of work, by mapping and repetition.
type mappedPart struct {
	part, workload string
	times          map[string]map[int]float64
}

// mappingTimes collects the sets of workloads and the parts of each, in the order of
// their first appearance.
func mappingTimes(runs []result.Run, factor string) (sets []string, parts map[string][]*mappedPart) {
	parts = map[string][]*mappedPart{}
	for _, r := range valid(runs) {
		c := &r.Cell
		mapping := c.Level(factor)
		if c.Kind != study.Main || mapping == "" {
			continue
		}
		name := study.LevelText(c.Levels, factor)
		if !slices.Contains(sets, name) {
			sets = append(sets, name)
		}
		for p, rec := range measured(r) {
			t, ok := unitTime(r, rec, &p.Workload.Metric)
			if !ok {
				continue
			}
			k := slices.IndexFunc(parts[name], func(m *mappedPart) bool { return m.part == p.Name() })
			if k < 0 {
				k = len(parts[name])
				parts[name] = append(parts[name], &mappedPart{p.Name(), p.Workload.Name, map[string]map[int]float64{}})
			}
			m := parts[name][k]
			if m.times[mapping] == nil {
				m.times[mapping] = map[int]float64{}
			}
			m.times[mapping][r.N] = t
		}
	}
	return sets, parts
}

// overBlocks returns 100·(a/b−1) for each repetition that has both.
func overBlocks(a, b map[int]float64) map[int]float64 {
	over := map[int]float64{}
	for n, t := range a {
		if base, ok := b[n]; ok {
			over[n] = 100 * (t/base - 1)
		}
	}
	return over
}

func meanOf(byBlock map[int]float64) float64 {
	var all []float64
	for _, n := range sortedKeys(byBlock) {
		all = append(all, byBlock[n])
	}
	return stat.Mean(all)
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
