package labcmd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/keyed"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/env"
	"github.com/quell-dev/quell/internal/lab/network"
	"github.com/quell-dev/quell/internal/lab/observe"
	"github.com/quell-dev/quell/internal/lab/place"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/web"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

// target is a machine that a study is to run on: this one, or one that a file describes.
type target struct {
	name     string // "" for this machine
	topology host.Topology
	allowed  sample.Set
	facts    env.Facts
	knob     func(name, value string) error // an error: it does not take the setting
	hosts    string                         // file of the inventory of other hosts
}

// machineFile describes a machine that is not this one.
type machineFile struct {
	Version  int      `key:"version" help:"format of this file; 1"`
	Machine  string   `key:"machine" help:"what it is, for people"`
	Source   string   `key:"source" help:"where the description is from"`
	Recorded []string `key:"recorded" oneof:"arch packages cores threads has programs knobs" help:"the keys below that were read from a machine; the others are made up"`
	Arch     string   `key:"arch" oneof:"amd64 arm64"`
	Packages int      `key:"packages" min:"1" max:"64"`
	Cores    int      `key:"cores" min:"1" max:"1024" help:"of each package"`
	Threads  int      `key:"threads" min:"1" max:"8" help:"of each core"`
	Has      []string `key:"has" oneof:"memory lxc qemu kvm kernel xen"`
	Programs []string `key:"programs" help:"by name or path, as studies call them"`
	Knobs    []string `key:"knobs" help:"knobs of the machine that can be set"`
}

// targetFlags are the flags of commands that check a study against a machine.
type targetFlags struct{ machine, hosts string }

func (f *targetFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.machine, "machine", "", "file that describes another machine to check for (default: this machine)")
	cmd.Flags().StringVar(&f.hosts, "hosts", "", "inventory of the study's other hosts (quell lab hosts --help)")
}

// open reads the machine.
func (f *targetFlags) open() (*target, error) {
	t := &target{hosts: f.hosts}
	if f.machine == "" {
		return t, t.here()
	}
	text, err := os.ReadFile(f.machine)
	if err != nil {
		return nil, app.Usage(fmt.Errorf("read machine: %w", err), "name a file that describes one; docs/lab.md has an example")
	}
	m := machineFile{Version: 1, Arch: "amd64", Packages: 1, Cores: 1, Threads: 1}
	r := keyed.Reader{File: f.machine}
	if err := r.Document(&m, text); err != nil {
		return nil, app.Usage(err, "docs/lab.md has an example")
	}
	if r.Problems = append(r.Problems, keyed.Check("", &m)...); len(r.Problems) > 0 {
		return nil, app.Negative(&keyed.InvalidError{What: "machine " + f.machine, Problems: r.Problems}, "correct "+f.machine)
	}
	t.described(&m)
	return t, nil
}

func (t *target) here() error {
	h, err := host.Open("/")
	if err != nil {
		return app.Usage(err, "mount /proc")
	}
	if t.topology, t.allowed, err = (&labMachine{host: h}).cpus(); err != nil {
		return app.Usage(err, "mount /sys")
	}
	m, err := env.Open(env.Options{Hold: []string{"quell"}, Agent: []string{"quell"}}) // only asked for facts
	if err != nil {
		return err
	}
	t.facts, t.knob = m.Here(), observe.Knobs{Host: h}.Check
	return nil
}

// described fills the target from a file. CPUs are numbered as Linux does: all first
// threads, then all second ones.
func (t *target) described(m *machineFile) {
	t.name = m.Machine
	n := m.Packages * m.Cores
	for id := range n * m.Threads {
		k := id % n
		var siblings sample.Set
		for s := range m.Threads {
			siblings = siblings.With(k + s*n)
		}
		p := k / m.Cores
		t.topology.CPUs = append(t.topology.CPUs, host.CPU{ID: id, Package: p, Core: k % m.Cores, Node: p, Siblings: siblings, LLC: host.Cache{ID: p}})
		t.topology.Online = t.topology.Online.With(id)
	}
	t.allowed = t.topology.Online
	has := func(what string) bool { return slices.Contains(m.Has, what) }
	t.facts = env.Facts{Arch: m.Arch, Memory: has("memory"), LXC: has("lxc"), QEMU: has("qemu"), KVM: has("kvm"), Kernel: has("kernel"), FirstDomain: has("xen"),
		Program: func(name string) bool { return slices.Contains(m.Programs, name) }}
	t.knob = func(name, _ string) error {
		if slices.Contains(m.Knobs, name) {
			return nil
		}
		return &observe.KnobError{Name: name, Reason: "this machine has none", Remedy: "use a machine that has it, e.g. bare metal"}
	}
}

// lack is why some of a study's runs cannot be done on a machine.
type lack struct {
	Why    string `json:"why"`
	Remedy string `json:"remedy,omitempty"`
	Runs   int    `json:"runs"`
	// A placement that needs more of the same in some cells counts once, with the most.
	placement string
	needs     int
	// The lists of CPUs of all cells that a machine lacks count once, with all their CPUs.
	listed sample.Set
}

// cellsOf is the number of a plan's cells, as quell lab plan lists them.
func cellsOf(plan []study.Planned) (n int) {
	for _, p := range plan {
		if p.N == 0 {
			n++
		}
	}
	return n
}

// lacks are the reasons why runs of a study cannot be done, those of most runs first. The
// drivers refuse for the same reasons, by the same code.
func (t *target) lacks(s *study.Study, plan []study.Planned) (all []lack, runs int) {
	known := map[string]*lack{}
	far, noHosts := hostsOf(s, runOptions{hosts: t.hosts})
	for _, p := range plan {
		if len(p.Cell.Parts) == 0 || simulatedCell(&p.Cell) {
			continue
		}
		key := p.Key
		l, seen := known[key]
		if !seen {
			err := noHosts
			if err == nil {
				err = errors.Join(far.refuse(&p.Cell), refuseRate(plan, &p.Cell))
			}
			if err != nil {
				l = lackFrom(err)
			} else {
				l = t.lackOf(s, &p.Cell)
			}
			known[key] = l
		}
		if l == nil {
			continue
		}
		runs++
		i := slices.IndexFunc(all, func(o lack) bool {
			return o.Why == l.Why || l.needs > 0 && o.placement == l.placement || l.listed.Len() > 0 && o.listed.Len() > 0
		})
		if i < 0 {
			i, all = len(all), append(all, *l)
		} else if l.needs > all[i].needs {
			n := all[i].Runs
			all[i] = *l
			all[i].Runs = n
		} else if l.listed.Len() > 0 {
			n := all[i].Runs
			all[i] = t.unlisted(all[i].listed.Union(l.listed))
			all[i].Runs = n
		}
		all[i].Runs++
	}
	slices.SortStableFunc(all, func(a, b lack) int { return b.Runs - a.Runs })
	return all, runs
}

func simulatedCell(c *study.Cell) bool {
	return !slices.ContainsFunc(c.Parts, func(p study.Part) bool { return p.Environment.Driver != study.Synthetic })
}

// lackOf is the first reason why a cell cannot be run, nil if none is known.
func (t *target) lackOf(s *study.Study, c *study.Cell) *lack {
	for _, settings := range []map[string]string{s.Preconditions.Set, c.Knobs} {
		for _, name := range sortedKeys(settings) {
			if err := t.knob(name, settings[name]); err != nil {
				return lackFrom(err)
			}
		}
	}
	for i := range c.Parts {
		p := &c.Parts[i]
		serves := p.Workload.Builtin == study.HTTPServer && !p.Idle
		kind, err := parseServer(strings.Fields(p.Workload.Options))
		if serves && err == nil {
			if err := refuseServer(s, p, kind); err != nil {
				return lackFrom(err)
			}
		}
		if !s.Here(p) {
			continue
		}
		if err := errors.Join(network.Refuse(p), t.facts.Refuse(p)); err != nil {
			return lackFrom(err)
		}
		if program := web.Program(kind); serves && err == nil && p.Environment.Driver != study.QEMU && program != "" && !t.facts.Program(program) {
			return &lack{Why: "no web server " + program, Remedy: "apt-get install " + program + ", or options: -server=" + web.Go}
		}
	}
	var listed sample.Set
	for i := range c.Parts {
		if !s.Here(&c.Parts[i]) {
			continue
		}
		sets, err := place.Listed(c, &c.Parts[i])
		if err != nil {
			return lackFrom(err)
		}
		for _, set := range sets {
			listed = listed.Union(set)
		}
	}
	if listed.Union(t.allowed).Len() > t.allowed.Len() {
		l := t.unlisted(listed)
		return &l
	}
	sets, err := lab.Places(s, t.topology, t.allowed, c)
	if err != nil {
		return lackFrom(err)
	}
	for i := range c.Parts {
		if n := len(sets[i]); n > 0 {
			if err := env.RefusePlacement(&c.Parts[i].Environment, n); err != nil {
				return lackFrom(err)
			}
		}
	}
	return nil
}

// unlisted is the lack of CPUs that a study lists.
func (t *target) unlisted(listed sample.Set) lack {
	return lack{Why: fmt.Sprintf("the study lists the CPUs %s, this machine has %s", listed, t.allowed), listed: listed,
		Remedy: "use a machine with these CPUs, or list others in the study (cpus:)"}
}

// lackFrom takes an error apart into the reason and what to do.
func lackFrom(err error) *lack {
	if l, ok := errors.AsType[*lab.LackError](err); ok {
		return &lack{Why: l.What, Remedy: l.Remedy}
	}
	if k, ok := errors.AsType[*observe.KnobError](err); ok {
		return &lack{Why: k.Error(), Remedy: k.Remedy}
	}
	if m, ok := errors.AsType[*place.MissingError](err); ok {
		l := &lack{Why: m.Error(), Remedy: "use a machine with " + m.Want + ", or another placement", placement: m.Placement}
		if n, err := fmt.Sscanf(m.Want, "%d ", &l.needs); n == 0 || err != nil {
			l.needs = 0
		}
		return l
	}
	l := &lack{Why: err.Error()}
	if known, ok := errors.AsType[interface {
		error
		Remedy() string
	}](err); ok {
		l.Remedy = known.Remedy()
	}
	return l
}

// verdict prints one line: that all runs can be done, or the reason of most that cannot,
// and what to do.
func (t *target) verdict(w io.Writer, prefix string, planned int, all []lack, runs int) {
	at := "here"
	if t.name != "" {
		at = "on " + t.name
	}
	if len(all) == 0 {
		fmt.Fprintf(w, "%sright %s\n", prefix, at)
		return
	}
	fmt.Fprintf(w, "%snot %s (%d of %d runs): %s", prefix, at, runs, planned, all[0].Why)
	if n := len(all) - 1; n > 0 {
		fmt.Fprintf(w, ", and %d more reason%s (--json)", n, strings.Repeat("s", min(n-1, 1)))
	}
	if all[0].Remedy != "" {
		fmt.Fprintf(w, "; what to do: %s", all[0].Remedy)
	}
	fmt.Fprintln(w)
}

// judge returns what lacks says of a valid study, and prints it as one line.
func (t *target) judge(w io.Writer, file string, s *study.Study, plan []study.Planned) (all []lack, runs int) {
	all, runs = t.lacks(s, plan)
	fmt.Fprintf(w, "%s: study %s is valid: %d cells, %d runs, %s; ", file, s.Name, cellsOf(plan), len(plan), formatDuration(total(plan)))
	t.verdict(w, "", len(plan), all, runs)
	return all, runs
}

// errImpossible says that no run of a study can be done.
var errImpossible = errors.New("no run of the study can be done")

// refused returns an error if a study cannot have a single run on the machine.
func refused(planned int, all []lack, runs int) error {
	if planned == 0 || runs < planned {
		return nil
	}
	return app.Negative(fmt.Errorf("%w: %s", errImpossible, all[0].Why), all[0].Remedy)
}

func (a *commands) labCheck() *cobra.Command {
	var f targetFlags
	cmd := &cobra.Command{
		Use: "check STUDY.yaml...", Short: "list every problem of studies' files, and what a machine lacks for them", Args: cobra.MinimumNArgs(1),
		ValidArgsFunction: files("yaml", "yml"),
		RunE: func(_ *cobra.Command, args []string) error {
			t, err := f.open()
			if err != nil {
				return err
			}
			var views []check
			var errs []error
			for _, file := range args {
				s, _, err := readStudy(file)
				c := checked(s, err)
				if err == nil {
					plan := s.Plan()
					out := a.Out
					if a.JSON {
						out = io.Discard
					}
					c.Lacks, c.Without = t.judge(out, file, s, plan)
					err = refused(len(plan), c.Lacks, c.Without)
				}
				views, errs = append(views, c), append(errs, err)
			}
			err = errors.Join(errs...)
			if len(args) > 1 {
				if bad := slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil }); len(bad) > 0 {
					if !a.JSON && !errors.Is(err, errImpossible) {
						fmt.Fprintln(a.Err, err)
					}
					err = app.Negative(fmt.Errorf("%d of %d studies cannot run", len(bad), len(args)), "see the lines above")
				}
			}
			switch {
			case a.JSON && len(args) == 1:
				return errors.Join(err, a.WriteJSON(views[0]))
			case a.JSON:
				return errors.Join(err, a.WriteJSON(views))
			}
			return err
		},
	}
	f.flags(cmd)
	return a.WithJSON(cmd)
}

type check struct {
	OK       bool            `json:"ok"` // the file is valid
	Study    string          `json:"study,omitempty"`
	Problems []keyed.Problem `json:"problems"`
	// Lacks are what the machine lacks, Without the number of runs that cannot be done.
	Lacks   []lack `json:"lacks,omitempty"`
	Without int    `json:"runs_without,omitempty"`
}

func checked(s *study.Study, err error) check {
	c := check{OK: err == nil, Problems: []keyed.Problem{}}
	if s != nil {
		c.Study = s.Name
	}
	if invalid, ok := errors.AsType[*keyed.InvalidError](err); ok {
		c.Problems = invalid.Problems
	}
	return c
}
