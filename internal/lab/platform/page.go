package platform

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/format/page"
	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Page holds the studies' results for a machine.
type Page struct {
	// CPUs, Cores, Packages and LLC (bytes) are the kernel's figures.
	CPUs     int   `json:"cpus"`
	Cores    int   `json:"cores"`
	Packages int   `json:"packages"`
	LLC      int64 `json:"llc_bytes"`
	// Threads is the dose of busy threads; nil if it was not measured.
	Threads *analyse.Dose `json:"threads,omitempty"`
	// Loads are by working set, ascending; Bandwidth is one thread's, in bytes per
	// second as STREAM counts them.
	Loads     []Load           `json:"loads"`
	Bandwidth analyse.Interval `json:"bandwidth"`
	Pairs     []Pair           `json:"pairs"`
	Trips     []Trip           `json:"round_trips"`
	// Floors are the noise floors in percent, by study.
	Floors map[string]stat.Float `json:"noise_floor_percent"`
	// Findings are the findings in words.
	Findings []string `json:"says"`
}

// Load is the latency of a load that depends on the previous load.
type Load struct {
	Set     string           `json:"set"`
	Seconds analyse.Interval `json:"seconds"`
}

// Pair is the loss of one workload next to another.
type Pair struct {
	Workload  string           `json:"workload"`
	Neighbour string           `json:"beside"`
	Relation  string           `json:"relation"`
	Percent   analyse.Interval `json:"percent"` // of time
}

// Trip is the round-trip time of a datagram to another network namespace, in seconds.
type Trip struct {
	Relation string           `json:"relation"` // of the CPUs of the two ends
	Median   analyse.Interval `json:"median"`
	P99      analyse.Interval `json:"p99"`
}

// NewPage computes the page from the results of the studies, by name; a study without
// results was not run.
func NewPage(top host.Topology, results map[string]*analyse.Results) *Page {
	p := &Page{CPUs: top.Online.Len(), Loads: []Load{}, Pairs: []Pair{}, Trips: []Trip{}, Floors: map[string]stat.Float{},
		Bandwidth: analyse.Interval{Value: math.NaN(), Low: math.NaN(), High: math.NaN()}}
	cores, packages := map[[2]int]bool{}, map[int]bool{}
	for _, c := range top.CPUs {
		cores[[2]int{c.Package, c.Core}], packages[c.Package] = true, true
		p.LLC = max(p.LLC, c.LLC.Size)
	}
	p.Cores, p.Packages = len(cores), len(packages)
	for name, r := range results {
		if r.Noise != nil {
			p.Floors[name] = stat.Float(100 * r.Noise.Floor)
		}
	}
	if r := results[Threads]; r != nil && len(r.Doses) > 0 {
		p.Threads = &r.Doses[0]
	}
	if r := results[Memory]; r != nil {
		for _, s := range r.Scores {
			if set, ok := strings.CutPrefix(s.Workload, "chase-"); ok {
				p.Loads = append(p.Loads, Load{set, s.Value})
			} else {
				p.Bandwidth = s.Value
			}
		}
	}
	if r := results[Pairs]; r != nil {
		for _, d := range r.Degradations {
			p.Pairs = append(p.Pairs, Pair{d.Workload, strings.Join(d.Partners, " "), study.LevelOf(d.Levels, "placement"), d.Percent})
		}
	}
	if r := results[Network]; r != nil && r.Tenants != nil {
		for _, l := range r.Tenants.Latencies {
			p.Trips = append(p.Trips, Trip{study.LevelOf(l.Levels, "placement"), l.P50, l.P99})
		}
	}
	p.say()
	for _, of := range []struct {
		what, study string
		there       bool
	}{{"Cores", Threads, p.Threads != nil}, {"Memory", Memory, len(p.Loads) > 0}, {"Neighbours", Pairs, len(p.Pairs) > 0}, {"Network", Network, len(p.Trips) > 0}} {
		if r := results[of.study]; r != nil && !of.there {
			p.Findings = append(p.Findings, fmt.Sprintf("%s: unknown, because no run of %s is valid%s.", of.what, of.study, reasons(r)))
		}
	}
	return p
}

// reasons lists the reasons for invalid runs, the most frequent first.
func reasons(r *analyse.Results) string {
	names := slices.SortedFunc(maps.Keys(r.Reasons), func(a, b result.Reason) int {
		return cmp.Or(cmp.Compare(r.Reasons[b], r.Reasons[a]), cmp.Compare(a, b))
	})
	var texts []string
	for _, n := range names {
		texts = append(texts, fmt.Sprintf("%s %d times", n, r.Reasons[n]))
	}
	if len(texts) == 0 {
		return ""
	}
	return " (" + strings.Join(texts, ", ") + ")"
}

// far is the ratio of the latencies of two successive sets from which they count as
// different levels of memory.
const far = 1.5

// say writes the findings in words.
func (p *Page) say() {
	add := func(format string, args ...any) { p.Findings = append(p.Findings, fmt.Sprintf(format, args...)) }
	if d := p.Threads; d != nil {
		var k *analyse.Knee
		if d.Cores != nil {
			k = d.Cores.Knee
		}
		switch {
		case len(d.Points) < 2:
			add("Cores: unknown, because only one thread can run.")
		case k == nil:
			add("Cores: no step of 2 %% or more up to %d busy threads, so each CPU performs as a core of its own (the kernel reports %d cores).", d.Points[len(d.Points)-1].Threads, p.Cores)
		default:
			least, most := k.Cores()
			cores := fmt.Sprint(least)
			if most > least {
				cores = fmt.Sprintf("%d to %d", least, most)
			}
			add("Cores: %s, by a step of %s from %d to %d busy threads (the kernel reports %d cores and %d CPUs).", cores, percent(k.Step), k.Before, k.After, p.Cores, p.CPUs)
		}
		if len(d.Points) > 1 {
			add("All CPUs busy: each thread takes %s longer than one alone.", percent(d.Full))
		}
	}
	var steps []string
	for i := 1; i < len(p.Loads); i++ {
		if a, b := p.Loads[i-1], p.Loads[i]; b.Seconds.Value > far*a.Seconds.Value {
			steps = append(steps, fmt.Sprintf("%s %s → %s %s", a.Set, ns(a.Seconds.Value), b.Set, ns(b.Seconds.Value)))
		}
	}
	if len(steps) > 0 {
		add("Memory: the latency of a load rises at %s.", strings.Join(steps, ", "))
	}
	p.sayPairs(add)
	var trips []string
	for _, t := range p.Trips {
		trips = append(trips, fmt.Sprintf("%s (99th percentile %s) at %s", us(t.Median.Value), us(t.P99.Value), t.Relation))
	}
	if len(trips) > 0 {
		add("Network: a datagram to another namespace of this machine and back takes %s.", strings.Join(trips, ", "))
	}
}

// sayPairs compares the relations by the loss of all pairs.
func (p *Page) sayPairs(add func(string, ...any)) {
	if len(p.Pairs) == 0 {
		return
	}
	type sum struct {
		relation string
		percent  float64
		n        int
	}
	var sums []sum
	worst := p.Pairs[0]
	for _, x := range p.Pairs {
		if x.Relation != "same-thread" && (worst.Relation == "same-thread" || x.Percent.Value > worst.Percent.Value) {
			worst = x
		}
		i := slices.IndexFunc(sums, func(s sum) bool { return s.relation == x.Relation })
		if i < 0 {
			i, sums = len(sums), append(sums, sum{relation: x.Relation})
		}
		sums[i].percent, sums[i].n = sums[i].percent+x.Percent.Value, sums[i].n+1
	}
	if worst.Relation != "same-thread" {
		add("Sensitivity: the largest loss on separate CPUs is %s, %s next to %s at %s.", percent(worst.Percent), worst.Workload, worst.Neighbour, worst.Relation)
	}
	for i := range sums {
		sums[i].percent /= float64(sums[i].n)
	}
	slices.SortStableFunc(sums, func(a, b sum) int { return cmp.Compare(a.percent, b.percent) })
	var texts []string
	for _, s := range sums {
		texts = append(texts, fmt.Sprintf("%s %.0f %%", s.relation, s.percent))
	}
	floor, known := p.Floors[Pairs]
	switch last := sums[len(sums)-1]; {
	case len(sums) < 2:
		add("Pinning: only one relation is possible for a pair (%s).", sums[0].relation)
	case !known:
		add("Pinning: %s is best by the average loss of pairs: %s; the noise was not measured.", sums[0].relation, strings.Join(texts, ", "))
	case last.percent-sums[0].percent <= float64(floor):
		add("Pinning: the relation makes no difference above the noise floor of %.1f %%: %s.", float64(floor), strings.Join(texts, ", "))
	default:
		add("Pinning: %s is best by the average loss of pairs: %s (noise floor %.1f %%).", sums[0].relation, strings.Join(texts, ", "), float64(floor))
	}
}

// Markdown writes the page.
func (p *Page) Markdown(w io.Writer) error {
	d := page.Page{Heading: "This platform", Points: p.Findings,
		Lead: []page.Lead{{Text: fmt.Sprintf("%d CPUs; the kernel reports %d cores, %d packages, last-level cache %s.", p.CPUs, p.Cores, p.Packages, size(p.LLC))}}}
	chapter := func(title string, rows [][]page.Cell, notes []string, head ...string) {
		s := page.Section{Title: title, Notes: notes}
		if len(rows) > 0 {
			s.Exhibits = []page.Exhibit{{Table: page.Table{Head: head, Rows: rows}}}
		}
		d.Add(s)
	}
	var threads, loads, pairs, trips [][]page.Cell
	if p.Threads != nil {
		for i, x := range p.Threads.Points {
			longer := ""
			if i > 0 {
				longer = percent(x.Longer)
			}
			threads = append(threads, page.Row(fmt.Sprint(x.Threads), longer))
		}
	}
	var memory, noise []string
	for _, l := range p.Loads {
		loads = append(loads, page.Row(l.Set, ns(l.Seconds.Value)))
	}
	if v := p.Bandwidth.Value; !math.IsNaN(v) {
		memory = append(memory, fmt.Sprintf("One thread reaches %.1f GB/s (STREAM triad).", v/1e9))
	}
	for _, x := range p.Pairs {
		pairs = append(pairs, page.Row(x.Workload, x.Neighbour, x.Relation, percent(x.Percent)))
	}
	for _, t := range p.Trips {
		trips = append(trips, page.Row(t.Relation, us(t.Median.Value), us(t.P99.Value)))
	}
	for _, name := range []string{Threads, Pairs} {
		if f, ok := p.Floors[name]; ok {
			noise = append(noise, fmt.Sprintf("Two equal runs of %s differ by up to %.1f %%.", name, float64(f)))
		}
	}
	chapter("Busy threads", threads, nil, "threads", "longer than one alone")
	chapter("Memory", loads, memory, "working set", "latency of a load")
	chapter("Next to a neighbour", pairs, nil, "workload", "neighbour", "CPUs", "takes longer")
	chapter("Round trip of a datagram", trips, nil, "CPUs", "median", "99th percentile")
	chapter("Noise", nil, noise)
	chapter("Not measured", nil, []string{"Network cards, which need a second machine, and disks."})
	return d.Markdown(w)
}

func percent(i analyse.Interval) string {
	if math.IsNaN(i.Value) {
		return "an unknown share"
	}
	if math.IsNaN(i.Low) || math.IsInf(i.Low, 0) {
		return fmt.Sprintf("%.1f %%", i.Value)
	}
	return fmt.Sprintf("%.1f %% (%.1f to %.1f)", i.Value, i.Low, i.High)
}

func us(seconds float64) string { return fmt.Sprintf("%.0f µs", seconds*1e6) }

func ns(seconds float64) string { return fmt.Sprintf("%.1f ns", seconds*1e9) }

func size(n int64) string {
	switch {
	case n == 0:
		return "unknown"
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}
