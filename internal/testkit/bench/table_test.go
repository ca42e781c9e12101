package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// row sums up the rounds of one contender over one number of cgroups.
type row struct {
	contender          string
	cgroups, rounds    int
	share, least, most float64 // of one CPU: median, range
	rss                int64
	fds                int
	scrape             float64 // s, the slowest; NaN if it is not scraped
	bytes              int64
}

// rows sums up results, ordered by cgroups and then by first appearance.
func rows(results []result) []row {
	type key struct {
		contender string
		cgroups   int
	}
	groups := map[key][]result{}
	var order []key
	for _, r := range results {
		k := key{r.Contender, r.Cgroups}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], r)
	}
	slices.SortStableFunc(order, func(a, b key) int { return a.cgroups - b.cgroups })
	var all []row
	for _, k := range order {
		w := row{contender: k.contender, cgroups: k.cgroups, rounds: len(groups[k]), scrape: math.NaN()}
		var shares []float64
		for _, r := range groups[k] {
			shares = append(shares, r.share())
			w.rss, w.fds, w.bytes = max(w.rss, r.RSS), max(w.fds, r.FDs), max(w.bytes, r.Bytes)
			if len(r.Scrapes) > 0 {
				if slowest := slices.Max(r.Scrapes); !(slowest <= w.scrape) {
					w.scrape = slowest
				}
			}
		}
		slices.Sort(shares)
		w.least, w.most, w.share = shares[0], shares[len(shares)-1], median(shares)
		all = append(all, w)
	}
	return all
}

// median returns the median of sorted numbers.
func median(sorted []float64) float64 {
	m := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[m]
	}
	return (sorted[m-1] + sorted[m]) / 2
}

func find(all []row, contender string, cgroups int) (row, bool) {
	i := slices.IndexFunc(all, func(w row) bool { return w.cgroups == cgroups && strings.HasPrefix(w.contender, contender) })
	if i < 0 {
		return row{}, false
	}
	return all[i], true
}

func printRows(w io.Writer, all []row) {
	fmt.Fprintln(w, "| cgroups | what | CPU, % of one core (range) | µs per cgroup and 10 s | × floor | RSS MB | fds | slowest scrape ms | scrape kB |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|")
	for _, r := range all {
		span := ""
		if r.rounds > 1 {
			span = fmt.Sprintf(" (%.3f–%.3f)", 100*r.least, 100*r.most)
		}
		scrape, size := "–", "–"
		if !math.IsNaN(r.scrape) {
			scrape, size = fmt.Sprintf("%.1f", 1e3*r.scrape), fmt.Sprintf("%.0f", float64(r.bytes)/1e3)
		}
		times := "–"
		floor := floorName
		if strings.HasSuffix(r.contender, awake) {
			floor += awake
		}
		if base, ok := find(all, floor, r.cgroups); ok && base.share > 0 {
			times = fmt.Sprintf("%.2f", r.share/base.share)
		}
		fmt.Fprintf(w, "| %d | %s | %.3f%s | %.1f | %s | %.1f | %d | %s | %s |\n", r.cgroups, r.contender, 100*r.share, span,
			1e7*r.share/float64(r.cgroups), times, float64(r.rss)/1e6, r.fds, scrape, size)
	}
}

func printOverheads(w io.Writer, taxes []switchOverhead) {
	fmt.Fprintln(w, "| signals | switch without the agent, ns | between windows, ns more | in a window that counts, ns more | in a window as shipped, ns more | on average at 10 s in 60 s, as shipped, ns more |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|")
	for _, t := range taxes {
		rests := ""
		if t.Rests {
			rests = " (cpi paused)"
		}
		fmt.Fprintf(w, "| %s | %.0f | %+.0f | %+.0f | %+.0f%s | %+.0f |\n", t.Signals, t.Off, t.between(), t.inner(), t.shipped(), rests, t.average())
		if t.Bpftrace > 0 {
			ns := t.Bpftrace - t.Off
			fmt.Fprintf(w, "| bpftrace, CPU time by cgroup | %.0f | %+.0f | %+.0f | %+.0f | %+.0f |\n", t.Off, ns, ns, ns, ns)
		}
	}
}

// target is a target that the figures must meet.
type target struct {
	what        string
	value, most float64
	unit        string
}

func (p target) kept() bool { return p.value <= p.most }

// busySwitches is the number of switches between cgroups per second and CPU on
// a busy machine with dozens of tasks. The last promise is computed with it.
const busySwitches = 1000

// targets compares the figures with their targets. What was not measured is left out.
func targets(all []row, taxes []switchOverhead, cpus int) (ps []target) {
	add := func(what string, value, most float64, unit string) {
		ps = append(ps, target{what, value, most, unit})
	}
	if sweep, ok := find(all, sweepName, 1000); ok {
		add("CPU at 1,000 cgroups, sweep every 10 s", 100*sweep.share, 0.25, "% of a core")
		add("RSS at 1,000 cgroups", float64(sweep.rss)/1e6, 40, "MB")
		if base, ok := find(all, floorName, 1000); ok {
			add("times the floor at 1,000 cgroups", sweep.share/base.share, 3, "")
		}
		for _, rival := range []string{"cAdvisor", "below"} {
			if other, ok := find(all, rival, 1000); ok {
				// Inverted, so that less is better, as in the other rows.
				add("share of "+rival+"'s cost at 1,000 cgroups", sweep.share/other.share, 1.0/12, "")
			}
		}
		add("slowest scrape at 1,000 cgroups", 1e3*sweep.scrape, 50, "ms")
		add("scrape at 1,000 cgroups", float64(sweep.bytes)/1e6, 1, "MB")
	}
	if sweep, ok := find(all, sweepName+awake, 1000); ok {
		add("CPU at 1,000 cgroups, tasks awake", 100*sweep.share, 0.25, "% of a core")
		if base, ok := find(all, floorName+awake, 1000); ok {
			add("times the floor, tasks awake", sweep.share/base.share, 3, "")
		}
	}
	if w, ok := find(all, defaultName, most); ok {
		add("RSS at 10,000 cgroups, default", float64(w.rss)/1e6, 120, "MB")
		add("descriptors at 10,000 cgroups, default", float64(w.fds), 200, "")
	}
	few, ok1 := find(all, sweepName, 100)
	many, ok2 := find(all, sweepName, 2000)
	if ok1 && ok2 {
		add("cost per cgroup at 2,000 to that at 100", many.share/2000/(few.share/100), 1.2, "")
	}
	if w, ok := find(all, sweepName, most); ok && ok1 {
		add("cost per cgroup at 10,000 to that at 100", w.share/most/(few.share/100), 1.25, "")
	}
	for _, t := range taxes {
		add("switch overhead between windows, "+t.Signals, t.between(), 150, "ns")
		switch t.Signals {
		case "cpi":
			add("average switch overhead, "+t.Signals, t.average(), 250, "ns")
		case "cpi + runq":
			add("average switch overhead, "+t.Signals, t.average(), 450, "ns")
			if w, ok := find(all, defaultName, 100); ok {
				machine := w.share/float64(cpus) + max(0, t.average())*1e-9*busySwitches
				add(fmt.Sprintf("agent and switch overhead at 100 tasks and %d switches/s a CPU", busySwitches), 100*machine, 0.1, "% of the machine")
			}
		}
	}
	return ps
}

func printTargets(w io.Writer, ps []target) (kept bool) {
	kept = true
	fmt.Fprintln(w, "| target | measured | at most | |")
	fmt.Fprintln(w, "|---|---|---|---|")
	for _, p := range ps {
		verdict := "kept"
		if !p.kept() {
			verdict, kept = "**missed**", false
		}
		fmt.Fprintf(w, "| %s | %.3g %s | %.3g | %s |\n", p.what, p.value, p.unit, p.most, verdict)
	}
	return kept
}
