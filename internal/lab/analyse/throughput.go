package analyse

import (
	"math"
	"slices"

	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// System is the work of all parts together along a staircase (paper 003,
// sections IV-C and IV-D).
type System struct {
	Levels []study.Level `json:"levels"`
	// Symmetric: all parts run the same workload, and their work is summed unchanged.
	// The paper leaves other pairs out; for them each part's work is divided by its
	// work alone at full load, and Normalised is true.
	Symmetric  bool         `json:"symmetric"`
	Normalised bool         `json:"normalised"`
	Unit       string       `json:"unit"`
	Steps      []SystemStep `json:"steps"`
}

// SystemStep is one step: means over runs.
type SystemStep struct {
	Target     float64  `json:"target"`
	Up         bool     `json:"up"`
	Throughput Interval `json:"throughput"`
	// PerWh is work per watt-hour of the energy source that Energy names; NaN without
	// one.
	PerWh Interval `json:"per_wh"`
	Watts Interval `json:"watts"` // mean power between the step's cuts (figure 7)
	// Relative values are percentages of the base placement's step; NaN if there is no
	// base. Their intervals are over repetitions, and are quell's addition.
	Relative      Interval `json:"relative"`
	RelativePerWh Interval `json:"relative_per_wh"`
}

// byBlock is a step's work and its work per watt-hour, by repetition.
type byBlock struct{ rates, perWh map[int]float64 }

// Systems computes the System of every cell with a staircase, relative to the placement
// named base ("per-chip" in the paper).
func Systems(runs []result.Run, factor, base string) []System {
	good := valid(runs)
	solos := byCell(good, study.Solo)
	var out []System
	var blocks [][]byBlock
	for _, group := range byCell(good, study.Main) {
		if len(group[0].Cell.Steps) == 0 {
			continue
		}
		if s, b, ok := system(group, solos); ok {
			out, blocks = append(out, s), append(blocks, b)
		}
	}
	for i := range out {
		b := slices.IndexFunc(out, func(o System) bool { return sameBut(o.Levels, out[i].Levels, factor, base) })
		for k := range out[i].Steps {
			s := &out[i].Steps[k]
			s.Relative, s.RelativePerWh = meanInterval(nil, ""), meanInterval(nil, "")
			if b >= 0 && k < len(out[b].Steps) {
				base := &out[b].Steps[k]
				s.Relative = relative(s.Throughput.Value/base.Throughput.Value, blocks[i][k].rates, blocks[b][k].rates)
				s.RelativePerWh = relative(s.PerWh.Value/base.PerWh.Value, blocks[i][k].perWh, blocks[b][k].perWh)
			}
		}
	}
	return out
}

// relative is a ratio of means in percent, with the interval of the ratios of the
// repetitions. The base is 100 % of itself and has no interval.
func relative(ratio float64, a, base map[int]float64) Interval {
	over := overBlocks(a, base)
	var values []float64
	for _, n := range sortedKeys(over) {
		values = append(values, 100+over[n])
	}
	i := meanInterval(values, "t over repetitions")
	i.Value = 100 * ratio
	if i.Low == i.High {
		i.Low, i.High = math.NaN(), math.NaN()
	}
	return i
}

// sameBut reports whether a has b's levels, except that one factor has the given value.
func sameBut(a, b []study.Level, factor, value string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		want := b[i].Value
		if a[i].Factor == factor {
			want = value
		}
		if a[i].Factor != b[i].Factor || a[i].Value != want {
			return false
		}
	}
	return true
}

// aloneRate is the rate at which a part works alone, the mean over runs. A part that climbs the
// staircase alone too, or that is held at a load, works in the share of the time that this leaves
// it: its rate is that at full load, so that it is the same unit at every step.
func aloneRate(solo []*result.Run) float64 {
	name := solo[0].Cell.Parts[0].Name()
	var all []float64
	for _, r := range solo {
		p := partOf(r, name)
		if p == nil {
			continue
		}
		if len(r.Steps) == 0 {
			rate := Throughput(p.Iterations, r.Window.From, r.Window.To)
			if load := float64(r.Cell.Parts[0].Target); load > 0 {
				rate /= load
			}
			all = append(all, rate)
			continue
		}
		var t Ratio
		for _, s := range r.Steps {
			from, to := s.From+s.Settle, s.To-s.Trail
			t.Of += Throughput(p.Iterations, from, to) * (to - from).Seconds()
			t.By += s.Achieved * (to - from).Seconds()
		}
		all = append(all, t.Of/t.By)
	}
	return stat.Mean(all)
}

func system(group []*result.Run, solos [][]*result.Run) (System, []byBlock, bool) {
	c := &group[0].Cell
	s := System{Levels: c.Levels, Unit: c.Parts[0].WorkUnit() + "s/s",
		Symmetric: !slices.ContainsFunc(c.Parts, func(p study.Part) bool { return p.Workload.Name != c.Parts[0].Workload.Name })}
	weights := map[string]float64{}
	for _, p := range c.Parts {
		weights[p.Name()] = 1
		if s.Symmetric {
			continue
		}
		s.Normalised, s.Unit = true, "share of solo"
		solo := soloOf(solos, c, &p)
		if solo == nil {
			return s, nil, false
		}
		weights[p.Name()] = 1 / aloneRate(solo)
	}
	var blocks []byBlock
	for k, step := range group[0].Steps {
		var rates, perWh, watts []float64
		one := byBlock{map[int]float64{}, map[int]float64{}}
		for _, r := range group {
			if k >= len(r.Steps) {
				continue
			}
			from, to := step.From+step.Settle, step.To-step.Trail
			var sum float64
			for i := range r.Parts {
				sum += weights[r.Parts[i].Name] * Throughput(r.Parts[i].Iterations, from, to)
			}
			rates = append(rates, sum)
			one.rates[r.N] = sum
			if j := r.Steps[k].Joules; j > 0 {
				one.perWh[r.N] = sum * (to - from).Seconds() / (j / 3600)
				perWh, watts = append(perWh, one.perWh[r.N]), append(watts, j/(to-from).Seconds())
			}
		}
		blocks = append(blocks, one)
		s.Steps = append(s.Steps, SystemStep{Target: float64(step.Target), Up: step.Up,
			Throughput: meanInterval(rates, "t over runs"), PerWh: meanInterval(perWh, "t over runs"), Watts: meanInterval(watts, "t over runs")})
	}
	return s, blocks, len(s.Steps) > 0
}
