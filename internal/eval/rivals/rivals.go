// Package rivals has the detection rules of other projects, reimplemented from their
// published descriptions (docs/rules.md cites them), to be compared with quell's on the
// same samples. Agents do not link it.
package rivals

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/detect"
)

// The rules of other projects.
const (
	// CPI2Sigma3 is detect.CPI2 with the advice of the paper's section 7.2: an anomaly
	// requires 3 σ.
	CPI2Sigma3 detect.Method = "cpi2-3sigma"
	// Rubik is openEuler rubik's rule: the paper's correlation with a bar of 0.15, a spec
	// per task, and the biggest user that may be limited if no suspect reaches the bar.
	Rubik detect.Method = "rubik"
	// CPUShare is linnix's rule: the task that used most CPU while the victim suffered.
	CPUShare detect.Method = "cpu-share"
	// Biggest is the manual procedure: an anomaly, and the biggest user of the window that
	// may be limited.
	Biggest detect.Method = "2sigma-biggest"
	// Fences is Intel PRM's rule: a fence for each range of the victim's own CPU usage, and
	// the task whose usage increased most.
	Fences detect.Method = "prm-fences"
)

// Names returns the names of all rules, quell's first.
func Names() []detect.Method {
	return append(detect.Methods(), CPI2Sigma3, Rubik, CPUShare, Biggest, Fences)
}

// Rule is a rule's parameters and its requirements on detect.Reading.Spec: a spec of the
// task's own history, or one of the current range of its usage.
type Rule struct {
	detect.Params
	OwnSpec, UsageBins bool
}

// Load returns the rule of that name, of quell or of another project. A rule's name may be
// followed by switches of quell to turn off, which shows their effect: "evidence-look_back"; or
// by one to turn on: "evidence+groups".
func Load(name detect.Method) (Rule, error) {
	if slices.Contains(Names(), name) {
		return load(name)
	}
	full := name
	if rule, key, found := strings.Cut(string(name), "+"); found {
		r, err := load(detect.Method(rule))
		on := switches(&r.Switches)[key]
		if err != nil || on == nil || *on {
			return Rule{}, fmt.Errorf("rule %q: want one of quell's, with a switch that it does not turn on, such as evidence+groups", full)
		}
		*on, r.Method = true, full
		return r, nil
	}
	rule, off, found := strings.Cut(string(name), "-")
	r, err := load(detect.Method(rule))
	if !found || err != nil {
		return Rule{}, fmt.Errorf("rule %q: want one of %v, or one of quell's without a switch, such as evidence-look_back", full, Names())
	}
	for key := range strings.SplitSeq(off, "-") {
		on := switches(&r.Switches)[key]
		if on == nil || !*on {
			return Rule{}, fmt.Errorf("rule %q: %s has no switch %q: want one of %v", full, rule, key, slices.Sorted(maps.Keys(switches(&r.Switches))))
		}
		*on = false
	}
	r.Method = full
	return r, nil
}

// switches returns pointers to all switches by their names in the configuration.
func switches(s *detect.Switches) map[string]*bool {
	all := map[string]*bool{}
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		all[v.Type().Field(i).Tag.Get("key")] = v.Field(i).Addr().Interface().(*bool)
	}
	return all
}

func load(name detect.Method) (Rule, error) {
	own := name
	if slices.Contains(Names(), name) && !slices.Contains(detect.Methods(), name) {
		own = detect.CPI2
	}
	p, err := detect.Paper(own)
	if err != nil {
		return Rule{}, fmt.Errorf("rule %q: want one of %v", name, Names())
	}
	r := Rule{Params: p}
	if own != name {
		r.Method = name
	}
	if own != name && name != CPI2Sigma3 { // what no project does without
		sw := &r.Switches
		sw.Bounds, sw.Outside, sw.CappedApart, sw.Withhold = true, true, true, true
	}
	// Correlations are at most 1, so the last three accuse only the suspect that is selected.
	const unreachable = 2
	switch name {
	case CPI2Sigma3:
		r.Sigmas = 3
	case Rubik:
		r.Correlation, r.OwnSpec, r.Select = 0.15, true, highest(usage)
	case CPUShare:
		r.Correlation, r.Select = unreachable, highest(func(a *detect.Accusable) float64 { return a.BadUsage })
	case Biggest:
		r.Correlation, r.Select = unreachable, highest(usage)
	case Fences:
		r.Correlation, r.UsageBins, r.Select = unreachable, true, highest(func(a *detect.Accusable) float64 { return a.Rise })
	}
	return r, nil
}

// usage is the usage of a suspect that may be limited.
func usage(a *detect.Accusable) float64 {
	if !a.Task.MayBeCapped() {
		return 0
	}
	return a.Usage
}

// highest returns a detect.Params.Select that selects the suspect with the highest value
// above 0; of equal ones that whose name is first.
func highest(value func(*detect.Accusable) float64) func([]detect.Accusable) int {
	return func(all []detect.Accusable) int {
		best, most := -1, 0.0
		for i := range all {
			if v := value(&all[i]); v > most || v == most && v > 0 && all[i].Task.Name < all[best].Task.Name {
				best, most = i, v
			}
		}
		return best
	}
}
