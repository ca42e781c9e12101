package study

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Unpinned is the level of mappings in which the kernel's scheduler chooses among the
// threads of the mappings' cores.
const Unpinned = "default"

// noMapping is the level of mappings in a cell without any of the mapped roles.
const noMapping = "none"

// Packed is the relation of guests whose virtual CPUs fill one core after the other, as
// clouds place instances: the first virtual machine of a host then has one core, and two
// threads without a hypervisor have two (paper 002: 36.6 %).
const Packed = "packed"

// Key is a cell's identity: the hash of everything that is resolved in it. Two studies
// with the same cell have the same key for it.
func (c *Cell) Key() string {
	text, err := json.Marshal(c)
	if err != nil { // a cell is made of strings and numbers
		panic(fmt.Sprintf("marshal cell: %v", err))
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// Level is a factor's value in the cell, "" if it has none.
func (c *Cell) Level(factor string) string { return LevelOf(c.Levels, factor) }

// LevelOf is a factor's value among levels, "" if it has none.
func LevelOf(levels []Level, factor string) string {
	for _, l := range levels {
		if l.Factor == factor {
			return l.Value
		}
	}
	return ""
}

// String names the cell for people: "solo ve=kvm fgw=h2".
func (c *Cell) String() string {
	return strings.TrimSpace(string(c.Kind) + " " + LevelText(c.Levels))
}

// LevelText is levels as text, except those of some factors: "ve=kvm fgw=h2".
func LevelText(levels []Level, without ...string) string {
	var words []string
	for _, l := range levels {
		if !slices.Contains(without, l.Factor) {
			words = append(words, l.Factor+"="+l.Value)
		}
	}
	return strings.Join(words, " ")
}

// Name is the role, with the index where there are several of it.
func (p *Part) Name() string {
	if p.Index == 0 && !p.Several {
		return p.Role
	}
	return p.Role + "/" + strconv.Itoa(p.Index)
}

// Cells are all cells of the study: the main cells first, then the controls. Each cell
// occurs once.
func (s *Study) Cells() []Cell {
	var cells []Cell
	for _, c := range s.cells() {
		cells = append(cells, c.Cell)
	}
	return cells
}

// cells are the cells with their keys.
func (s *Study) cells() []Planned {
	levels := map[string][]string{}
	for _, f := range s.Factors {
		if levels[f.Name] = f.LevelNames(); f.Mappings != nil {
			levels[f.Name] = []string{""} // one for all; mappedCells expands it once the machines are known
		}
	}
	var cells []Planned
	seen := map[string]bool{}
	add := func(c Cell) {
		if k := c.Key(); !seen[k] {
			seen[k] = true
			cells = append(cells, Planned{Cell: c, Takes: s.takes(&c), Key: k})
		}
	}
	var main []Cell
	for _, ls := range s.combinations(levels) {
		for _, c := range s.mappedCells(s.cell(ls)) {
			main = append(main, c)
			add(c)
		}
	}
	for i := range main {
		if s.Controls.Solo {
			for _, c := range s.solos(&main[i]) {
				add(c)
			}
		}
		if s.Controls.IdleNeighbour {
			if c, ok := idle(&main[i]); ok {
				add(c)
			}
		}
	}
	return cells
}

// cell resolves one combination of levels.
func (s *Study) cell(ls []Level) Cell {
	c := Cell{Kind: Main, Levels: ls, For: s.Run.For}
	for i := range s.Roles {
		r := &s.Roles[i]
		n, _ := strconv.Atoi(s.resolve(r, r.Count, ls))
		for k := range n {
			w := s.Workloads[s.resolve(r, r.Workload, ls)]
			if r.Threads != "" {
				w.Threads, _ = strconv.Atoi(s.resolve(r, r.Threads, ls))
			}
			e := s.Environments[s.resolve(r, r.Environment, ls)]
			p := Part{Role: r.Name, Index: k, Several: n > 1, Host: s.hostOf(cmp.Or(e.Host, s.resolve(r, r.Host, ls)), k), Environment: e, Workload: w,
				Measure: r.Measure, Idle: s.resolve(r, r.State, ls) == "idle", Restart: r.End == "restart", Load: r.Load, CPUs: r.CPUs}
			if r.Load.Control != "none" {
				// It stays 0 for MaxRate, and for a staircase, whose steps have the targets.
				_ = p.Target.UnmarshalText([]byte(s.resolve(r, r.Load.Target, ls)))
			}
			c.Warmup = max(c.Warmup, w.Warmup.For)
			c.Parts = append(c.Parts, p)
		}
	}
	for i := range c.Parts {
		c.Parts[i].Slot, c.Parts[i].Slots = i, len(c.Parts)
	}
	s.connect(&c)
	c.Off = s.off(&c)
	for _, f := range s.Factors {
		if p := find(f.Placements, func(p Placement) bool { return p.Name == c.Level(f.Name) }); p != nil {
			c.Place = *p
		}
		if f.Knob != "" {
			if c.Knobs == nil {
				c.Knobs = map[string]string{}
			}
			c.Knobs[f.Knob] = c.Level(f.Name)
		}
	}
	if f := s.Staircase(); f != nil {
		for _, r := range s.Roles {
			if r.Load.Target == "$"+f.Name {
				c.Steps = f.Staircase.Steps(r.Name, c.Warmup)
			}
		}
	}
	return c
}

// resolve replaces $factor in a role's field by the level of that factor.
func (s *Study) resolve(r *Role, field string, ls []Level) string {
	name, ok := strings.CutPrefix(field, "$")
	if !ok {
		return field
	}
	level := LevelOf(ls, name)
	if f := s.Factor(name); f != nil {
		if set := find(f.Sets, func(set Set) bool { return set.Name == level }); set != nil {
			return set.Values[r.Name]
		}
	}
	return level
}

// mappedCells expands a cell by the factor of mappings.
func (s *Study) mappedCells(c Cell) []Cell {
	f := find(s.Factors, func(f Factor) bool { return f.Mappings != nil })
	if f == nil {
		return []Cell{c}
	}
	var names, kinds []string // of the virtual CPUs that are mapped
	for _, p := range c.Parts {
		if len(f.Mappings.Roles) > 0 && !slices.Contains(f.Mappings.Roles, p.Role) {
			continue
		}
		// Equal machines are interchangeable, but a virtual CPU of one is not
		// interchangeable with one of another: it matters whether CPUs of the same
		// machine share a core.
		kind := p.Workload.Name + "@" + p.Environment.Name
		if p.Environment.CPUs > 1 {
			kind = p.Name()
		}
		for v := range max(p.Environment.CPUs, 1) {
			names = append(names, fmt.Sprintf("%s/%d", p.Name(), v))
			kinds = append(kinds, kind)
		}
	}
	var cells []Cell
	take := func(name string, mapping map[string]int) {
		m := c
		m.Levels = slices.Clone(c.Levels)
		for k := range m.Levels {
			if m.Levels[k].Factor == f.Name {
				m.Levels[k].Value = name
			}
		}
		m.Mapping = mapping
		if mapping == nil {
			m.Place = Placement{Name: Unpinned, Relation: "neutral"}
			m.Parts = slices.Clone(c.Parts)
			for k := range m.Parts {
				if len(f.Mappings.Roles) == 0 || slices.Contains(f.Mappings.Roles, m.Parts[k].Role) {
					m.Parts[k].Cores = f.Mappings.Cores
				}
			}
		}
		if !s.excluded(m.Levels) {
			cells = append(cells, m)
		}
	}
	if len(names) == 0 { // none of the mapped roles is in this cell
		take(noMapping, map[string]int{})
		return cells
	}
	for _, at := range distinctMappings(kinds, f.Mappings.Cores, f.Mappings.PerCore) {
		mapping := map[string]int{}
		groups := make([]string, slices.Max(at)+1)
		for k, core := range at {
			mapping[names[k]] = core
			// A machine with one virtual CPU has its own name.
			short := strings.TrimSuffix(names[k], "/0")
			if slices.Contains(names, short+"/1") {
				short = names[k]
			}
			groups[core] = strings.TrimPrefix(groups[core]+"+"+short, "+")
		}
		take(strings.Join(groups, "|"), mapping)
	}
	if f.Mappings.Default {
		take(Unpinned, nil)
	}
	return cells
}

// solos are a cell's measured parts, each alone, at the same place and load.
func (s *Study) solos(c *Cell) []Cell {
	var cells []Cell
	for i := range c.Parts {
		p := c.Parts[i]
		if !p.Measure || len(c.Parts) == 1 {
			continue
		}
		p.Index, p.Several = 0, false
		solo := Cell{Kind: Solo, Parts: []Part{p}, Place: c.Place, For: c.For, Warmup: p.Workload.Warmup.For, Knobs: c.Knobs}
		solo.Off = s.off(&solo)
		if len(c.Steps) > 0 {
			// Alone it needs no steps, but a window.
			last := c.Steps[len(c.Steps)-1]
			solo.For = max(solo.For, min(last.To-solo.Warmup, 4*(last.To-last.From)))
			if c.Steps[0].Role == p.Role {
				solo.For, solo.Steps = c.For, slices.Clone(c.Steps)
				for k := range solo.Steps { // its own warm-up, not its neighbours'
					solo.Steps[k].From += solo.Warmup - c.Steps[0].From
					solo.Steps[k].To += solo.Warmup - c.Steps[0].From
				}
			}
		}
		for name := range c.Mapping {
			if vcpu, ok := strings.CutPrefix(name, c.Parts[i].Name()+"/"); ok {
				if solo.Mapping == nil {
					solo.Mapping = map[string]int{}
				}
				// Alone the core number does not matter; which of its own CPUs share a
				// core does.
				solo.Mapping[p.Name()+"/"+vcpu] = c.Mapping[name]
			}
		}
		solo.Mapping = renumber(solo.Mapping)
		// Only the levels on which this part depends. Others would duplicate the cell.
		solo.Levels = []Level{{"role", p.Role}, {"workload", p.Workload.Name}, {"environment", p.Environment.Name}}
		if c.Place.Name != "" {
			solo.Levels = append(solo.Levels, Level{"placement", c.Place.Name})
		}
		for _, f := range s.Factors {
			if f.Knob != "" {
				solo.Levels = append(solo.Levels, Level{f.Name, c.Level(f.Name)})
			}
		}
		cells = append(cells, solo)
	}
	return cells
}

// renumber gives the cores of a mapping the smallest numbers, in the order of the virtual
// CPUs' names.
func renumber(m map[string]int) map[string]int {
	if m == nil {
		return nil
	}
	numbers, out := map[int]int{}, map[string]int{}
	for _, name := range sorted(m) {
		n, ok := numbers[m[name]]
		if !ok {
			n = len(numbers)
			numbers[m[name]] = n
		}
		out[name] = n
	}
	return out
}

// idle is the cell in which the other environments exist and run nothing; false where
// every part is measured.
func idle(c *Cell) (Cell, bool) {
	d := *c
	d.Kind, d.Steps = Idle, nil
	d.Parts = slices.Clone(c.Parts)
	any := false
	for i := range d.Parts {
		p := &d.Parts[i]
		if !p.Measure && !p.Idle {
			p.Idle, any = true, true
			p.Load, p.Target = Load{Control: "none"}, 0
		}
	}
	if len(c.Steps) > 0 {
		d.For = max(d.For, 4*(c.Steps[0].To-c.Steps[0].From))
	}
	return d, any
}

// Plan is the study's runs in order: every repetition is a block of all cells, shuffled
// by the seed, so that a drift of the machine biases no cell. A-A pairs are in the first
// block, sentinels between the other runs.
func (s *Study) Plan() []Planned {
	cells := s.cells()
	r := rand.New(rand.NewPCG(s.Design.Seed, 0))
	var plan []Planned
	since := 0
	planned := func(c Cell) Planned { return Planned{Cell: c, Takes: s.takes(&c), Key: c.Key()} }
	var sentinel Planned
	if s.Controls.SentinelEvery > 0 && len(cells) > 0 {
		c := cells[0].Cell
		c.Kind = Sentinel
		sentinel = planned(c)
	}
	take := func(p Planned, n int) {
		p.N = n
		if len(plan) > 0 && !slices.Equal(plan[len(plan)-1].Cell.Off, p.Cell.Off) {
			p.Takes += switchTakes
		}
		plan = append(plan, p)
		if since++; s.Controls.SentinelEvery > 0 && since == s.Controls.SentinelEvery {
			plan = append(plan, sentinel)
			sentinel.N++
			since = 0
		}
	}
	for n := range s.Design.Repetitions {
		block := slices.Clone(cells)
		if s.Design.Order == "blocked-random" {
			r.Shuffle(len(block), func(i, j int) { block[i], block[j] = block[j], block[i] })
		}
		for _, c := range block {
			take(c, n)
		}
		if n == 0 && len(cells) > 0 {
			for pair := range s.Controls.AAPairs {
				c := planned(aa(cells))
				take(c, 2*pair)
				take(c, 2*pair+1)
			}
		}
	}
	return plan
}

// aa is the cell that is run twice to measure the noise between equal runs: the cheapest
// main cell.
func aa(cells []Planned) Cell {
	main := slices.DeleteFunc(slices.Clone(cells), func(p Planned) bool { return p.Cell.Kind != Main })
	c := slices.MinFunc(main, func(a, b Planned) int {
		return cmp.Or(cmp.Compare(len(a.Cell.Steps), len(b.Cell.Steps)), cmp.Compare(a.Cell.For, b.Cell.For))
	}).Cell
	c.Kind = AA
	return c
}

// Times to create environments, one after the other. Measured on the two CPUs of a
// virtual machine, where an emulated guest takes about 6 s of a CPU to boot.
const (
	startTakes    = 2 * time.Second // of any run
	guestTakes    = 2 * time.Second
	emulatedTakes = 6 * time.Second
	boxTakes      = time.Second // a container
	switchTakes   = time.Minute // hosts that go on or off: a guess, as no cloud was available
)

// takes estimates a run's length: warm-up, steady window, cool-down, and the time to
// create its environments.
func (s *Study) takes(c *Cell) time.Duration {
	d := c.Warmup + s.Run.Cooldown + startTakes
	steady := c.For
	for _, p := range c.Parts {
		switch p.Environment.Driver {
		case QEMU:
			if slices.Equal(p.Environment.Accel, []string{"kvm"}) {
				d += guestTakes
			} else {
				d += emulatedTakes
			}
		case LXC:
			d += boxTakes
		}
		if p.Measure {
			steady = max(steady, p.Workload.Time)
		}
		if p.Environment.Driver == Synthetic {
			return 0
		}
	}
	if n := len(c.Steps); n > 0 {
		steady = max(steady, c.Steps[n-1].To-c.Warmup)
	}
	return d + steady
}

// mostPlanned bounds a plan's runs, and the instances and steps of all its cells: a file of a few lines, a stranger's or
// with a few zeros too many, would take all memory of the machine.
const mostPlanned = 500_000

func (c *checker) size() {
	cells, each := 1.0, 1.0 // itself, and the instances of roles and the steps in it
	for i := range c.Factors {
		f := &c.Factors[i]
		cells *= float64(max(1, len(f.LevelNames())))
		if st := f.Staircase; st != nil && st.Step > 0 {
			each += 2 * float64((st.To-st.From)/st.Step)
		}
	}
	vcpus := 0.0 // that are mapped
	m := find(c.Factors, func(f Factor) bool { return f.Mappings != nil })
	for i := range c.Roles {
		r := &c.Roles[i]
		most, cpus := 0, 1
		for _, text := range c.possible(r, r.Count) {
			n, _ := strconv.Atoi(text) // of what is too large for it, the largest; 0 of what roles refuses
			most = max(most, n)
		}
		for _, name := range c.possible(r, r.Environment) {
			cpus = max(cpus, c.Environments[name].CPUs)
		}
		each += float64(most)
		if m != nil && (len(m.Mappings.Roles) == 0 || slices.Contains(m.Mappings.Roles, r.Name)) {
			vcpus += float64(most) * float64(cpus)
		}
	}
	if m != nil {
		each += vcpus
		cells *= m.Mappings.tries(int(min(vcpus, mostPlanned)))
	}
	runs := cells*float64(c.Design.Repetitions) + float64(max(0, c.Controls.AAPairs)) // readable takes any number
	if cells*each > mostPlanned || runs > mostPlanned {
		c.add("design", fmt.Sprintf("%.3g runs, of %.3g cells with up to %.3g instances and steps", runs, cells, each), fmt.Sprintf("at most %d runs, and as many instances and steps of all cells", mostPlanned))
	}
}

// possible are the values that a role's field has in the cells.
func (c *checker) possible(r *Role, field string) []string {
	name, refers := strings.CutPrefix(field, "$")
	f := c.Factor(name)
	if !refers || f == nil {
		return []string{field}
	}
	values := slices.Clone(f.Levels)
	for _, set := range f.Sets {
		values = append(values, set.Values[r.Name])
	}
	return values
}

// tries is how many ways to place virtual CPUs on cores distinctMappings looks at: the first of those that are left
// has the next core, with some of the others. It places as many as have room. Of more than a hundred, the ways of
// the first hundred are enough: there is one, or there are far too many.
func (m *Mappings) tries(vcpus int) float64 {
	cores, each := max(1, min(m.Cores, vcpus)), max(0, min(m.PerCore, vcpus))
	if each == 0 {
		each = (vcpus + cores - 1) / cores
	}
	vcpus, cores, each = min(vcpus, 100), min(cores, 100), min(each, 100)
	var ways []float64 // of so many virtual CPUs on the cores until now
	for range cores + 1 {
		next := make([]float64, min(vcpus, cores*each)+1)
		next[0] = 1
		for i := 1; i < len(next) && ways != nil; i++ {
			choose := 1.0
			for k := 1; k <= min(each, i); k++ {
				next[i] += choose * ways[i-k]
				choose = choose * float64(i-k) / float64(k)
			}
		}
		ways = next
	}
	return ways[len(ways)-1]
}
