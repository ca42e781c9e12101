package analyse

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Advice is the mapping that would be chosen before any is tried, from the cache misses
// of each machine alone: the machines with the most misses are placed apart (paper 000
// leaves this to future work). The advice is then compared with the measurements of all
// mappings.
type Advice struct {
	By      string `json:"by"` // the event
	Mapping string `json:"mapping"`
	// Averages over machines of the degradation over each machine's own best mapping,
	// percent: in the advised mapping, in the best and in the worst for all together,
	// and where the kernel's scheduler decides (NaN if that was not tried).
	Percent      float64    `json:"percent"`
	Best         float64    `json:"best"`
	BestMapping  string     `json:"best_mapping"`
	Worst        float64    `json:"worst"`
	WorstMapping string     `json:"worst_mapping"`
	Default      stat.Float `json:"default"`
}

// adviceBy are the events that advice may be based on, the best first.
var adviceBy = [...]string{"llc-misses", "l2-misses", "cache-misses"}

// advise returns nil if no event was counted of every machine alone, or if a mapping
// was not measured of all machines.
func advise(b *MappingResult, runs []result.Run, factor string) *Advice {
	cores := map[string]map[string]int{} // of each mapping of the set
	alone := map[string]map[string][]float64{}
	var parts []study.Part
	good := valid(runs)
	of := func(r *result.Run) bool {
		return r.Cell.Kind == study.Main && study.LevelText(r.Cell.Levels, factor) == b.Set
	}
	var knobs map[string]string // of the set's runs
	if i := slices.IndexFunc(good, of); i >= 0 {
		knobs = good[i].Cell.Knobs
	}
	for _, r := range good {
		c := &r.Cell
		switch name := c.Level(factor); {
		case of(r) && c.Mapping != nil:
			cores[name], parts = c.Mapping, c.Parts
		case c.Kind == study.Solo && len(r.Parts) > 0 && maps.Equal(c.Knobs, knobs):
			rec, seconds := &r.Parts[0], (r.Window.To - r.Window.From).Seconds()
			for event, n := range rec.Events {
				if seconds > 0 {
					k := identity(&c.Parts[0])
					if alone[k] == nil {
						alone[k] = map[string][]float64{}
					}
					alone[k][event] = append(alone[k][event], n/seconds)
				}
			}
		}
	}
	average := map[string]float64{}
	for _, p := range b.Parts {
		for name, v := range p.Percent {
			average[name] += v / float64(len(b.Parts))
		}
	}
	for _, event := range adviceBy {
		cost := map[string]float64{}
		for name, mapping := range cores {
			// NaN if the event was not counted of a machine alone.
			cost[name] = crowding(mapping, parts, func(p *study.Part) float64 { return stat.Mean(alone[identity(p)][event]) })
		}
		names := sortedKeys(cost)
		if len(names) < 2 || slices.ContainsFunc(names, func(n string) bool { return math.IsNaN(cost[n]) || math.IsNaN(average[n]) }) {
			continue
		}
		byAverage := func(a, b string) int { return cmp.Compare(average[a], average[b]) }
		a := &Advice{By: event, BestMapping: slices.MinFunc(names, byAverage), WorstMapping: slices.MaxFunc(names, byAverage), Default: stat.Float(math.NaN()),
			Mapping: slices.MinFunc(names, func(a, b string) int { return cmp.Compare(cost[a], cost[b]) })}
		a.Percent, a.Best, a.Worst = average[a.Mapping], average[a.BestMapping], average[a.WorstMapping]
		if v, ok := average[study.Unpinned]; ok {
			a.Default = stat.Float(v)
		}
		return a
	}
	return nil
}

// crowding is the sum over cores of the square of the misses that their virtual CPUs
// have alone. It is least where the machines with the most misses are apart.
func crowding(mapping map[string]int, parts []study.Part, rate func(p *study.Part) float64) float64 {
	byCore := map[int]float64{}
	for _, vcpu := range sortedKeys(mapping) {
		for _, p := range parts {
			if strings.HasPrefix(vcpu, p.Name()+"/") {
				byCore[mapping[vcpu]] += rate(&p) / float64(max(p.Environment.CPUs, 1))
			}
		}
	}
	var sum float64
	for _, core := range sortedKeys(byCore) {
		sum += byCore[core] * byCore[core]
	}
	return sum
}

// identity is equal for a part that is alone in one run and with others in another: at the same
// load, with as many threads, on the same host.
func identity(p *study.Part) string {
	return fmt.Sprintf("%s/%s/%s on %s at %s with %d threads", p.Role, p.Workload.Name, p.Environment.Name, p.Host, p.Target, p.Threads())
}
