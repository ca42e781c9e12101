package render

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Report is the input of all renderings. Study and Results are required; other fields
// that are empty are left out, or shown as not known.
type Report struct {
	Study   *study.Study
	Lock    result.Lock
	Results analyse.Results
	// Runs are the records: verdicts with evidence, and the timelines.
	Runs []result.Run
	// Machines are those on which the study ran.
	Machines []Machine
	// Missed are the requirements that a machine did not meet and that the study only
	// preferred.
	Missed []string
	// Overhead is the cost of observing the runs, as text with its bound; "" where it was
	// not measured.
	Overhead string
	Checks   []Check // from Expectations.Against
}

// Machine is a machine's description, in reading order.
type Machine struct {
	Name  string
	Facts []Fact
}

// Fact is one property of a machine, e.g. kernel 6.1.0.
type Fact struct{ Name, Value string }

// stampsOf are the kinds of results that these numbers are, e.g. simulated.
func stampsOf(x *analyse.Results) []string {
	s := slices.Clone(x.Stamps)
	if x.Simulated && !slices.Contains(s, "simulated") {
		s = append(s, "simulated")
	}
	return s
}

func (r *Report) stamps() []string { return stampsOf(&r.Results) }

// words are levels as text for people, except those of the factors in without.
func words(ls []study.Level, without ...string) string {
	return cmp.Or(study.LevelText(ls, without...), "all")
}

// placing are the factors that determine where parts run: plots have one series for each
// of their levels.
func (r *Report) placing() []string {
	var names []string
	for _, f := range r.Study.Factors {
		if len(f.Placements) > 0 || f.Mappings != nil {
			names = append(names, f.Name)
		}
	}
	return names
}

// place are the levels of those factors, for a legend.
func (r *Report) place(ls []study.Level) string {
	var w []string
	for _, name := range r.placing() {
		if v := study.LevelOf(ls, name); v != "" {
			w = append(w, v)
		}
	}
	return cmp.Or(strings.Join(w, " "), "all")
}

// order compares levels by the study's own order. Results are not in that order, because
// runs are shuffled.
func (r *Report) order(a, b []study.Level) int {
	for i := range min(len(a), len(b)) {
		if a[i].Value == b[i].Value {
			continue
		}
		var names []string
		if f := r.Study.Factor(a[i].Factor); f != nil {
			names = f.LevelNames()
		}
		return cmp.Or(cmp.Compare(slices.Index(names, a[i].Value), slices.Index(names, b[i].Value)), cmp.Compare(a[i].Value, b[i].Value))
	}
	return cmp.Compare(len(a), len(b))
}

// sorted returns the elements in the order of the study.
func sorted[T any](r *Report, all []T, levels func(*T) []study.Level) []T {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b T) int { return r.order(levels(&a), levels(&b)) })
	return all
}

// ordered returns the report with all results in the order of the study.
func (r *Report) ordered() *Report {
	o := *r
	x := &o.Results
	x.Degradations = sorted(r, x.Degradations, func(d *analyse.Degradation) []study.Level { return d.Levels })
	x.Interferences = sorted(r, x.Interferences, func(i *analyse.Interference) []study.Level { return i.Levels })
	x.Systems = sorted(r, x.Systems, func(y *analyse.System) []study.Level { return y.Levels })
	x.Migrations = sorted(r, x.Migrations, func(m *analyse.MigrationStats) []study.Level { return m.Levels })
	x.NetIO = r.netOrder()
	x.Tenants = r.tenantOrder()
	x.Doses = sorted(r, x.Doses, func(d *analyse.Dose) []study.Level { return d.Levels })
	x.DoseCosts = sorted(r, x.DoseCosts, func(c *analyse.DoseCost) []study.Level { return c.Levels })
	x.Variations = sorted(r, x.Variations, func(v *analyse.Variation) []study.Level { return v.Levels })
	o.Runs = sorted(r, o.Runs, func(n *result.Run) []study.Level { return n.Cell.Levels })
	return &o
}

// colour is the index of a placement in plots: the same in all plots, also where a plot
// does not have all placements.
func (r *Report) colour(ls []study.Level) int {
	var names []string
	for _, name := range r.placing() {
		names = append(names, r.Study.Factor(name).LevelNames()...)
	}
	return max(0, slices.Index(names, r.place(ls)))
}

// grouped yields elements by name, in the order in which names first occur.
func grouped[T any](all []T, name func(*T) string) iter.Seq2[string, []*T] {
	var names []string
	groups := map[string][]*T{}
	for i := range all {
		n := name(&all[i])
		if groups[n] == nil {
			names = append(names, n)
		}
		groups[n] = append(groups[n], &all[i])
	}
	return func(yield func(string, []*T) bool) {
		for _, n := range names {
			if !yield(n, groups[n]) {
				return
			}
		}
	}
}
