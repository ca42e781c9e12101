package study

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/quell-dev/quell/internal/format/keyed"
)

// Parse reads a study file and returns it with its defaults filled in. The error is a
// *keyed.InvalidError with every problem, or reports that the text is not YAML. Problems
// contain the name of the file. known gives the available built-in workloads and parsers.
func Parse(file string, text []byte, known Known) (*Study, error) {
	s := defaults()
	r := keyed.Reader{File: file}
	if err := r.Document(s, text); err != nil {
		return nil, fmt.Errorf("read study %s: %w", file, err)
	}
	s.complete()
	if len(r.Problems) == 0 { // otherwise it would also list the consequences of a misreading
		for _, p := range s.validate(known) {
			p.Where = r.Near(p.Key)
			r.Problems = append(r.Problems, p)
		}
	}
	if len(r.Problems) > 0 {
		return nil, &keyed.InvalidError{What: "study " + file, Problems: r.Problems}
	}
	return s, nil
}

// Known is what a study file may name in addition to its own declarations.
type Known struct {
	Builtins []string // workload kernels
	Parsers  []string // of commands' output
	// Options checks a kernel's flags; nil: no check.
	Options func(builtin string, flags []string) error
	// Knob checks a value for a knob of the machine; nil: no check.
	Knob func(name, value string) error
}

// Local is the name of the machine that runs the lab, where a study names no
// hosts.
const Local = "local"

func defaults() *Study {
	return &Study{
		Controls: Controls{Solo: true, AAPairs: 1},
		Design:   Design{Order: "blocked-random", Seed: 1, Repetitions: 3},
		Run: Run{MinOverlap: 0.99, Timeout: 30 * time.Minute, Retries: 2, Cooldown: time.Second, OnFailure: "continue",
			MaxForeignCPU: 0.05, MaxSteal: 0.05},
		Observe: Observe{Sets: []string{"cpu", "psi", "schedstat"}, Placement: []string{"poll"}},
		Report:  Report{Formats: []string{"html", "md", "csv", "jsonl"}},
	}
}

// The SetName methods also set the defaults of elements that have a name.

// SetName implements keyed.Named.
func (h *Host) SetName(n string) { h.Name, h.Address = n, Local }

// SetName implements keyed.Named.
func (e *Environment) SetName(n string) { e.Name = n }

// SetName implements keyed.Named.
func (w *Workload) SetName(n string) {
	w.Name, w.WorkUnit = n, "iteration"
}

// usual are the metrics of the built-in workloads, and those of commands by their parsers.
var usual = map[string]Metric{
	"":           {Name: "throughput", Unit: "iterations/s", Better: "higher"},
	"iterations": {Name: "throughput", Unit: "iterations/s", Better: "higher"},
	"time":       {Name: "runtime", Unit: "s", Better: "lower"},
	"sysbench":   {Name: "throughput", Unit: "events/s", Better: "higher"},
	"stress-ng":  {Name: "throughput", Unit: "bogo ops/s", Better: "higher"},
	"iperf3":     {Name: "throughput", Unit: "bit/s", Better: "higher"},
	"sockperf":   {Name: "round trip", Unit: "s", Better: "lower"},
}

// complete fills in what follows from the parser. Of a figure that a path or a pattern reads, only the
// file can say which is better. Nothing reads a server's.
func (w *Workload) complete() {
	m, u := &w.Metric, usual[w.Metric.Parse]
	if w.Serves > 0 {
		u = usual[""]
	}
	m.Name, m.Unit, m.Better = cmp.Or(m.Name, u.Name), cmp.Or(m.Unit, u.Unit), cmp.Or(m.Better, u.Better)
}

// SetName implements keyed.Named.
func (r *Role) SetName(n string) {
	r.Name, r.Count, r.State, r.End = n, "1", "busy", "restart"
	r.Load = Load{Control: "none", Actuator: "freezer", Period: 107 * time.Millisecond, Tolerance: 0.01}
}

// SetName implements keyed.Named.
func (f *Factor) SetName(n string) { f.Name = n }

// SetName implements keyed.Named.
func (s *Set) SetName(n string) { s.Name = n }

// Fill implements keyed.Filler: a set is written as role: value.
func (s *Set) Fill(r *keyed.Reader, key string, n *yaml.Node) { r.Fill(key, &s.Values, n) }

// Fill implements keyed.Filler: a factor may be a plain list of levels, a list
// of placements, or keys.
func (f *Factor) Fill(r *keyed.Reader, key string, n *yaml.Node) {
	type keys Factor
	switch {
	case n.Kind == yaml.MappingNode:
		r.Fill(key, (*keys)(f), n)
	case n.Kind == yaml.SequenceNode && len(n.Content) > 0 && n.Content[0].Kind == yaml.MappingNode:
		r.Fill(key, &f.Placements, n)
	default:
		r.Fill(key, &f.Levels, n)
	}
	if f.Staircase != nil && f.Staircase.Direction == "" {
		f.Staircase.Direction = "up-down"
	}
}

// Fill implements keyed.Filler: an analysis has its kind and the options of that kind.
func (a *Analysis) Fill(r *keyed.Reader, key string, n *yaml.Node) {
	r.Fill(key, &a.Options, n)
	a.Kind = a.Options["kind"]
	delete(a.Options, "kind")
}

// complete fills in the values that follow from others.
func (s *Study) complete() {
	if len(s.Hosts) == 0 {
		s.Hosts = map[string]Host{Local: {Name: Local, Address: Local}}
	}
	s.completeHosts()
	for name, w := range s.Workloads {
		w.complete()
		s.Workloads[name] = w
	}
	if len(s.Analysis) == 0 { // a report would have no figure, and the folder of the runs keeps to their file
		s.Analysis = []Analysis{{Kind: "score"}}
		if s.Controls.Solo && len(s.Roles) > 1 {
			s.Analysis = append(s.Analysis, Analysis{Kind: "degradation"})
		}
	}
	for i := range s.Roles {
		r := &s.Roles[i]
		if r.Host == "" && len(s.Hosts) == 1 {
			for name := range s.Hosts {
				r.Host = name
			}
		}
		// A target implies a load control.
		if r.Load.Target != "" && r.Load.Control == "none" {
			r.Load.Control = "duty-cycle"
		}
	}
}

// Here reports whether a part runs on the machine that runs the lab.
func (s *Study) Here(p *Part) bool {
	h, ok := s.Hosts[p.Host]
	return !ok || h.Address == Local
}

// Factor finds a factor by name.
func (s *Study) Factor(name string) *Factor {
	return find(s.Factors, func(f Factor) bool { return f.Name == name })
}

// Role finds a role by name.
func (s *Study) Role(name string) *Role {
	return find(s.Roles, func(r Role) bool { return r.Name == name })
}

// find returns the first element that fits, nil if there is none.
func find[T any](all []T, fits func(T) bool) *T {
	i := slices.IndexFunc(all, fits)
	if i < 0 {
		return nil
	}
	return &all[i]
}
