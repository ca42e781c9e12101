package place

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/host"
)

// MissingError says that a placement is not possible on a machine.
type MissingError struct {
	Placement string
	Want      string // e.g. "2 packages"
	Have      string // e.g. "1"
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("placement %s needs %s, this machine has %s", e.Placement, e.Want, e.Have)
}

// Resolve returns the CPUs of each part of a cell, in the order of its parts: one set
// per virtual CPU if these are placed individually, else one for all. The parts may use
// the allowed CPUs only. If the machine lacks what the placement needs, the error is a
// *MissingError.
func Resolve(top host.Topology, allowed sample.Set, c *study.Cell) ([][]sample.Set, error) {
	m := machineOf(top, allowed)
	sets := make([][]sample.Set, len(c.Parts))
	packed, total := 0, 0 // CPUs of earlier guests and of all
	for i := range c.Parts {
		total += max(1, c.Parts[i].Environment.CPUs)
	}
	for i := range c.Parts {
		p := &c.Parts[i]
		var err error
		switch list := listOf(c, p); {
		case list != "":
			sets[i], err = lists(list, allowed, p.Name())
		case c.Mapping != nil:
			sets[i], err = m.mapped(c.Mapping, p)
		case p.Cores > 0:
			sets[i], err = m.first(p.Cores)
		case c.Place.Relation == study.Packed && p.Environment.Driver != study.Bare:
			sets[i], err = m.packed(packed, total, p)
			packed += max(1, p.Environment.CPUs)
		case c.Place.Dynamic != nil:
			sets[i], err = m.related(c.Place.Dynamic.Below, p.Slot, p.Slots)
		default:
			sets[i], err = m.related(cmp.Or(c.Place.Relation, "neutral"), p.Slot, p.Slots)
		}
		if err != nil {
			return nil, err
		}
	}
	return sets, nil
}

// listOf is the list of a part's CPUs, "" if the study gives none.
func listOf(c *study.Cell, p *study.Part) string { return cmp.Or(p.CPUs, c.Place.CPUs[p.Role]) }

// Listed returns the CPUs that are listed for a part, none if there is no list. It is
// for parts on other machines, whose topology is unknown here.
func Listed(c *study.Cell, p *study.Part) ([]sample.Set, error) {
	list := listOf(c, p)
	if list == "" {
		return nil, nil
	}
	return parse(list, p.Name())
}

// Relation returns the CPUs of slot of slots under a relation.
func Relation(top host.Topology, allowed sample.Set, relation string, slot, slots int) ([]sample.Set, error) {
	return machineOf(top, allowed).related(relation, slot, slots)
}

// lists parses "0-3" or, per virtual CPU, "0;1", and checks that the CPUs are allowed.
func lists(text string, allowed sample.Set, part string) ([]sample.Set, error) {
	sets, err := parse(text, part)
	if err != nil {
		return nil, err
	}
	for _, set := range sets {
		for _, n := range set.Numbers() {
			if !allowed.Has(n) {
				return nil, &MissingError{fmt.Sprintf("%q of %s", text, part), fmt.Sprintf("CPU %d", n), "the CPUs " + allowed.String()}
			}
		}
	}
	return sets, nil
}

func parse(text, part string) ([]sample.Set, error) {
	var sets []sample.Set
	for list := range strings.SplitSeq(text, ";") {
		set, err := sample.ParseSet(strings.TrimSpace(list))
		if err != nil {
			return nil, fmt.Errorf("place %s: %w", part, err)
		}
		sets = append(sets, set)
	}
	return sets, nil
}

// core is a physical core with its allowed CPUs, ascending.
type core struct {
	pkg, node, llc int
	cpus           []int
}

type machine struct {
	all   sample.Set
	cores []core // by package, then by their first CPU
}

func machineOf(top host.Topology, allowed sample.Set) machine {
	var m machine
	seen := sample.Set{}
	for _, c := range top.CPUs {
		if !allowed.Has(c.ID) {
			continue
		}
		m.all = m.all.With(c.ID)
		if seen.Has(c.ID) {
			continue
		}
		k := core{pkg: c.Package, node: c.Node, llc: c.LLC.ID}
		if k.llc < 0 { // not known: no core is known to share it
			k.llc = -1 - len(m.cores)
		}
		siblings := c.Siblings
		if siblings.Len() == 0 {
			siblings = sample.SetOf(c.ID)
		}
		for _, n := range siblings.Numbers() {
			if allowed.Has(n) {
				k.cpus = append(k.cpus, n)
				seen = seen.With(n)
			}
		}
		m.cores = append(m.cores, k)
	}
	slices.SortStableFunc(m.cores, func(a, b core) int { return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.cpus[0], b.cpus[0])) })
	return m
}

// groups groups the cores by a key, in order.
func (m machine) groups(key func(core) int) [][]core {
	var all [][]core
	for _, c := range m.cores {
		i := slices.IndexFunc(all, func(g []core) bool { return key(g[0]) == key(c) })
		if i < 0 {
			all = append(all, nil)
			i = len(all) - 1
		}
		all[i] = append(all[i], c)
	}
	return all
}

func pkg(c core) int  { return c.pkg }
func node(c core) int { return c.node }
func llc(c core) int  { return c.llc }

// share is a slot's part of a list that is divided among slots. If the division is not
// even the parts differ by at most one.
func share[T any](list []T, slot, slots int) []T {
	from, to := len(list)*slot/slots, len(list)*(slot+1)/slots
	return list[from:to]
}

func cpusOf(cores []core) sample.Set {
	var s sample.Set
	for _, c := range cores {
		s = s.Union(sample.SetOf(c.cpus...))
	}
	return s
}

func (m machine) related(relation string, slot, slots int) ([]sample.Set, error) {
	missing := func(want string, have any) ([]sample.Set, error) {
		return nil, &MissingError{relation, fmt.Sprintf("%d %s", slots, want), fmt.Sprint(have)}
	}
	one := func(s sample.Set) ([]sample.Set, error) { return []sample.Set{s}, nil }
	// within gives each slot its own cores, all in one group that has enough cores.
	within := func(key func(core) int, what string, all bool) ([]sample.Set, error) {
		most := 0
		for _, g := range m.groups(key) {
			if most = max(most, len(g)); len(g) < slots {
				continue
			}
			if all {
				return one(cpusOf(share(g, slot, slots)))
			}
			return one(cpusOf(g[slot : slot+1]))
		}
		return missing("cores in one "+what, fmt.Sprintf("at most %d", most))
	}
	threads := func() int {
		least := 0
		for i, c := range m.cores {
			if n := len(c.cpus); i == 0 || n < least {
				least = n
			}
		}
		return least
	}
	switch relation {
	case "neutral", study.Packed: // the latter places guests only
		return one(m.all)
	case "per-chip", "cross-package":
		chips := m.groups(pkg)
		if len(chips) < slots {
			return missing("packages", len(chips))
		}
		return one(cpusOf(slices.Concat(share(chips, slot, slots)...)))
	case "per-core":
		var mine []core
		for _, chip := range m.groups(pkg) {
			if len(chip) < slots {
				return missing("cores in each package", len(chip))
			}
			mine = append(mine, share(chip, slot, slots)...)
		}
		return one(cpusOf(mine))
	case "per-thread":
		if n := threads(); n < slots {
			return missing("threads in each core", n)
		}
		var s sample.Set
		for _, c := range m.cores {
			s = s.Union(sample.SetOf(share(c.cpus, slot, slots)...))
		}
		return one(s)
	case "same-thread":
		return one(sample.SetOf(m.cores[0].cpus[0]))
	case "smt-sibling":
		for _, c := range m.cores {
			if len(c.cpus) >= slots {
				return one(sample.SetOf(c.cpus[slot]))
			}
		}
		return missing("threads in one core", threads())
	case "same-core":
		return one(cpusOf(m.cores[:1]))
	case "same-llc":
		return within(llc, "last-level cache", false)
	case "same-package":
		return within(pkg, "package", true)
	case "same-numa":
		return within(node, "memory node", true)
	}
	return nil, fmt.Errorf("place: unknown relation %q", relation)
}

// first are the CPUs of the first n cores.
func (m machine) first(n int) ([]sample.Set, error) {
	if n > len(m.cores) {
		return nil, &MissingError{study.Unpinned, fmt.Sprintf("%d cores", n), fmt.Sprint(len(m.cores))}
	}
	return []sample.Set{cpusOf(m.cores[:n])}, nil
}

// packed places a guest's virtual CPUs on the CPUs after those that earlier guests take,
// core by core, so that its first two are the threads of one core. Each is pinned to its
// own if the guest has virtual CPUs.
func (m machine) packed(taken, total int, p *study.Part) ([]sample.Set, error) {
	var order []int
	for _, c := range m.cores {
		order = append(order, c.cpus...)
	}
	n := max(1, p.Environment.CPUs)
	if taken+n > len(order) {
		return nil, &MissingError{study.Packed, fmt.Sprintf("%d CPUs", total), fmt.Sprint(len(order))}
	}
	mine := order[taken : taken+n]
	if d := p.Environment.Driver; d != study.QEMU && d != study.Xen {
		return []sample.Set{sample.SetOf(mine...)}, nil
	}
	var sets []sample.Set
	for _, cpu := range mine {
		sets = append(sets, sample.SetOf(cpu))
	}
	return sets, nil
}

// byNumber orders virtual CPUs by their machine and then by number: vm/2 is before
// vm/10.
func byNumber(a, b string) int {
	i, j := strings.LastIndexByte(a, '/')+1, strings.LastIndexByte(b, '/')+1
	return cmp.Or(cmp.Compare(a[:i], b[:j]), cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// mapped places a part's virtual CPUs on the threads of the cores they are mapped to.
// Virtual CPUs that share a core get different threads in turn, and share threads if
// there are too few.
func (m machine) mapped(mapping map[string]int, p *study.Part) ([]sample.Set, error) {
	taken := map[int]int{} // core to virtual CPUs placed there
	var sets []sample.Set
	for _, name := range slices.SortedFunc(maps.Keys(mapping), byNumber) {
		k := mapping[name]
		if k >= len(m.cores) {
			return nil, &MissingError{"mapping", fmt.Sprintf("%d cores", k+1), fmt.Sprint(len(m.cores))}
		}
		cpus := m.cores[k].cpus
		if strings.HasPrefix(name, p.Name()+"/") {
			sets = append(sets, sample.SetOf(cpus[taken[k]%len(cpus)]))
		}
		taken[k]++
	}
	if len(sets) == 0 { // the part is not mapped
		return []sample.Set{m.all}, nil
	}
	return sets, nil
}
