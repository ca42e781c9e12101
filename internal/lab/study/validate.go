package study

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/format/keyed"
)

// Relations are the relations of two roles' CPUs that a placement may require. The first
// four are the pinnings of paper 003 (figure 1).
var relations = []string{"neutral", "per-chip", "per-core", "per-thread",
	"same-thread", "smt-sibling", "same-core", "same-llc", "same-package", "cross-package", "same-numa", Packed}

var goodName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

// checker collects problems.
type checker struct {
	*Study
	known    Known
	problems []keyed.Problem
	used     map[string]bool // factors that a role refers to
}

func (c *checker) add(key string, value any, want string) {
	c.problems = append(c.problems, keyed.Problem{Key: key, Value: fmt.Sprint(value), Want: want})
}

// oneOf checks that a value is one of the words.
func (c *checker) oneOf(key, value string, words []string) {
	if !slices.Contains(words, value) {
		c.add(key, strconv.Quote(value), "one of "+strings.Join(words, ", "))
	}
}

// validate returns every problem of the study.
func (s *Study) validate(known Known) []keyed.Problem {
	c := &checker{Study: s, known: known, used: map[string]bool{}}
	c.problems = keyed.Check("", s)
	c.header()
	for _, name := range sorted(s.Hosts) {
		h := s.Hosts[name]
		c.problems = append(c.problems, keyed.Check("hosts."+name+".", &h)...)
	}
	for _, name := range sorted(s.Environments) {
		c.environment(s.Environments[name])
	}
	for _, name := range sorted(s.Workloads) {
		c.workload(s.Workloads[name])
	}
	for i := range s.Factors {
		c.factor(&s.Factors[i])
	}
	c.networks()
	c.prices()
	c.roles()
	c.steps()
	c.run()
	for i := range s.Analysis {
		c.analysis(i)
	}
	for i, x := range s.Design.Exclude {
		for _, name := range sorted(x) {
			key := fmt.Sprintf("design.exclude[%d].%s", i, name)
			f := s.Factor(name)
			switch {
			case f == nil:
				c.add(key, "unknown factor", "one of "+c.factorNames())
			case f.Mappings == nil && !slices.ContainsFunc(f.LevelNames(), func(l string) bool { return meets(l, x[name]) }):
				c.add(key, strconv.Quote(x[name]), "one of "+strings.Join(f.LevelNames(), ", "))
			}
		}
	}
	if len(c.problems) == 0 {
		cells := s.cells()
		if len(cells) == 0 {
			c.add("factors", "no cell", "a combination of levels that design.exclude leaves, and cores and per_core that have room for the virtual CPUs")
		}
		for i := 0; i < len(cells) && len(c.problems) == 0; i++ { // the first is enough
			c.servers(&cells[i].Cell)
		}
	}
	return c.problems
}

func (c *checker) header() {
	if c.Version != 1 {
		c.add("version", c.Version, "1")
	}
	if !goodName.MatchString(c.Name) {
		c.add("study", strconv.Quote(c.Name), "a name of letters, digits, dots and dashes")
	}
	c.size()
}

// options are the keys of each kind of analysis; the others have none.
var options = map[string][]string{"net-io": {"case", "rate"}, "net-tenants": {"count"}, "mapping": {"factor", "headline"},
	"interference": {"exclude_rows"}, "throughput": {"factor", "base"}, "energy": {"factor", "base"},
	"dose-response": {"count", "state", "environment", "base"}, "variation": {"factor"}}

// analysis checks the i-th analysis. There is one result of each kind, and what is not an option
// of the kind would be ignored.
func (c *checker) analysis(i int) {
	a, key := &c.Analysis[i], fmt.Sprintf("analysis[%d].", i)
	bad := keyed.Check(key, a)
	if c.problems = append(c.problems, bad...); len(bad) > 0 {
		return
	}
	if slices.ContainsFunc(c.Analysis[:i], func(b Analysis) bool { return b.Kind == a.Kind }) {
		c.add(key+"kind", a.Kind+" twice", "each kind once")
	}
	for _, name := range sorted(a.Options) {
		c.oneOf(key+name, name, append([]string{"kind"}, options[a.Kind]...))
	}
	if slices.Contains([]string{"interference", "throughput", "energy"}, a.Kind) {
		c.inSteps(key+"kind", a.Kind)
	}
	if steps := []string{"throughput", "energy"}; slices.Contains(steps, a.Kind) {
		for _, b := range c.Analysis[:i] {
			if slices.Contains(steps, b.Kind) && !maps.Equal(a.Options, b.Options) {
				c.add(key+"kind", a.Kind, "the options of "+b.Kind+": both are in one table, relative to one base")
			}
		}
	}
	if a.Kind != "net-io" {
		return
	}
	for j := range c.Factors {
		f := &c.Factors[j]
		if f.Name != cmp.Or(a.Options["case"], "case") && f.Name != cmp.Or(a.Options["rate"], "rate") && len(f.LevelNames()) > 1 {
			c.add("factors."+f.Name, strings.Join(f.LevelNames(), ", "), "one level: net-io compares each server with one base case of its file; make a study of each level")
		}
	}
}

// inSteps checks that each step of a staircase shows what measured roles do.
func (c *checker) inSteps(key, kind string) {
	quiet := &checker{Study: c.Study, used: c.used} // what is wrong with the roles themselves is listed already
	for i := range c.Roles {
		r := &c.Roles[i]
		for _, v := range quiet.values(r, "", r.Workload) {
			w := c.Workloads[v]
			if m := w.Metric; r.Measure && m.OfRun() {
				c.add(key, kind+" of workload "+v, "one with parse: iterations, or parse: time and a fixed amount of work: parse: "+m.Parse+" has no figure of a step")
			}
			if r.Measure && w.Warmup.Iterations > 0 {
				c.add(key, kind+" of workload "+v, "warmup: {for: TIME}: the steps begin at a time, also if its warm-up of iterations lasts longer")
			}
		}
	}
}

func (c *checker) environment(e Environment) {
	key := "environments." + e.Name
	c.problems = append(c.problems, keyed.Check(key+".", &e)...)
	if e.Driver == QEMU && e.CPUs < 1 {
		c.add(key+".cpus", e.CPUs, "at least 1: the guest's virtual CPUs")
	}
	for _, only := range []struct {
		name    string
		given   bool
		drivers []Driver
	}{{"weight", e.Weight != 0, []Driver{Xen}}, {"cap", e.Cap != 0, []Driver{Xen}}, {"accel", len(e.Accel) > 0, []Driver{QEMU}}, {"kernel", e.Kernel != "", []Driver{QEMU, Xen}}} {
		if only.given && !slices.Contains(only.drivers, e.Driver) {
			c.add(key+"."+only.name, "given", fmt.Sprintf("none: driver %s ignores it, it is of %v", e.Driver, only.drivers))
		}
	}
	if e.Image != "" && e.Driver != QEMU {
		c.add(key+".image", e.Image, "none: only guests of driver qemu have a disk image")
	}
	if e.Host != "" {
		c.oneOf(key+".host", e.Host, sorted(c.Hosts))
	}
	if e.Disk > 0 && e.Image == "" {
		c.add(key+".disk", e.Disk, "0 without image: the guest has no disk")
	}
	if (e.Driver == Synthetic) != (e.Truth != nil) {
		c.add(key+".truth", "given: "+strconv.FormatBool(e.Truth != nil), "true for driver synthetic, false for any other")
	}
	if e.Truth != nil && e.Truth.Base <= 0 {
		c.add(key+".truth.base", e.Truth.Base, "the time of an undisturbed iteration")
	}
	if e.Truth != nil && math.Abs(e.Truth.AR1) >= 1 { // its noise would have no deviation
		c.add(key+".truth.ar1", e.Truth.AR1, "more than -1, less than 1")
	}
	c.truth(key+".truth.", e.Truth)
	for i, a := range e.Accel {
		c.oneOf(fmt.Sprintf("%s.accel[%d]", key, i), a, []string{"kvm", "tcg"})
	}
}

// truth checks that a model's numbers are some: a cell is written as JSON, which has neither inf nor
// nan, and both are read as numbers.
func (c *checker) truth(key string, m *Model) {
	if m == nil {
		return
	}
	numbers := map[string]float64{"slope": m.Slope, "ar1": m.AR1, "power": m.Power, "power_per_cpu": m.PerCPU}
	for _, name := range sorted(numbers) {
		if v := numbers[name]; math.IsNaN(v) || math.IsInf(v, 0) {
			c.add(key+name, v, "a finite number")
		}
	}
}

func (c *checker) workload(w Workload) {
	key := "workloads." + w.Name
	c.problems = append(c.problems, keyed.Check(key+".", &w)...)
	switch {
	case w.Builtin == "" && len(w.Command) == 0 || w.Builtin != "" && len(w.Command) > 0:
		c.add(key, "builtin and command", "exactly one of them")
	case w.Builtin != "" && !slices.Contains(c.known.Builtins, w.Builtin):
		c.add(key+".builtin", strconv.Quote(w.Builtin), "one of "+strings.Join(c.known.Builtins, ", "))
	case len(w.Command) > 0 && w.Metric.Parse == "" && w.Serves == 0:
		c.add(key+".metric.parse", "not given", "how to read the metric from the command's output: "+c.parsers())
	case w.Builtin != "" && w.Metric.Parse != "" && w.Metric.Parse != "iterations":
		c.add(key+".metric.parse", strconv.Quote(w.Metric.Parse), "none: a built-in workload reports its own work")
	}
	if c.known.Options != nil && slices.Contains(c.known.Builtins, w.Builtin) {
		if err := c.known.Options(w.Builtin, strings.Fields(w.Options)); err != nil {
			c.add(key+".options", strconv.Quote(w.Options), "flags of the kernel: "+err.Error())
		}
	}
	if p := w.Metric.Parse; p != "" {
		if pattern, ok := strings.CutPrefix(p, "/"); ok {
			re, err := regexp.Compile(strings.TrimSuffix(pattern, "/"))
			if err != nil || re.NumSubexp() != 1 || !strings.HasSuffix(pattern, "/") {
				c.add(key+".metric.parse", strconv.Quote(p), "a regular expression with one group, between slashes")
			}
		} else if path, ok := strings.CutPrefix(p, "json:"); ok && path != "" && !slices.Contains(strings.Split(path, "."), "") {
			// Only the output shows whether it has such a number.
		} else if !slices.Contains(c.known.Parsers, p) {
			c.add(key+".metric.parse", strconv.Quote(p), c.parsers())
		}
	}
	if w.Serves > 0 && len(w.Command) == 0 {
		c.add(key+".serves", w.Serves, "a command: the built-in servers have a port of their own")
	}
	if w.Threads > 0 && !w.threaded() {
		c.add(key+".threads", w.Threads, noThreads)
	}
	if w.Builtin == HTTPClient && w.Time == 0 {
		c.add(key+".time", "0s", "the length of the client's measurement")
	}
	if w.Iterations < 0 || w.Iterations > 0 && w.Time > 0 {
		c.add(key+".iterations", w.Iterations, "a number of iterations, or time, not both")
	}
}

// threaded reports whether a workload runs in as many threads as it is given.
func (w *Workload) threaded() bool {
	return w.Builtin != "" && w.Builtin != HTTPServer && w.Builtin != HTTPClient
}

const noThreads = "none: a command and the web workloads have words or flags of their own for that; count: of a role runs several"

func (c *checker) parsers() string {
	return "one of " + strings.Join(c.known.Parsers, ", ") + ", json:PATH, or /a regular expression with one group/"
}

func (c *checker) factor(f *Factor) {
	key := "factors." + f.Name
	kinds := 0
	for _, given := range []bool{len(f.Levels) > 0, len(f.Sets) > 0, f.Staircase != nil, len(f.Placements) > 0, f.Mappings != nil} {
		if given {
			kinds++
		}
	}
	if kinds != 1 {
		c.add(key, fmt.Sprintf("%d kinds of levels", kinds), "exactly one of a list, sets, staircase, placements, mappings")
		return
	}
	if f.Knob != "" {
		c.knob(key, f)
	}
	seen := map[string]bool{}
	for _, l := range f.LevelNames() {
		if seen[l] {
			c.add(key, strconv.Quote(l)+" twice", "each level once")
		}
		seen[l] = true
	}
	for i, p := range f.Placements {
		c.placement(fmt.Sprintf("%s[%d]", key, i), p)
	}
	if f.Staircase != nil {
		c.staircase(key, f.Staircase)
	}
	if f.Mappings != nil {
		c.mappings(key, f.Mappings)
	}
	for _, set := range f.Sets {
		for _, role := range sorted(set.Values) {
			if c.Role(role) == nil {
				c.add(key+".sets."+set.Name+"."+role, "unknown role", "one of "+strings.Join(c.roleNames(), ", "))
			}
		}
	}
}

func (c *checker) staircase(key string, st *Staircase) {
	c.problems = append(c.problems, keyed.Check(key+".staircase.", st)...)
	if st.From < 0 || st.To > 1 || st.From >= st.To {
		c.add(key+".staircase", fmt.Sprintf("from %s to %s", st.From, st.To), "from < to, both in 0% to 100%")
	}
	if st.Step <= 0 {
		c.add(key+".staircase.step", st.Step, "more than 0%")
	}
	if st.Hold <= st.Settle+st.Trail {
		c.add(key+".staircase.hold", st.Hold, "more than settle + trail, "+(st.Settle+st.Trail).String())
	}
}

func (c *checker) mappings(key string, m *Mappings) {
	if m.Cores < 1 || m.Cores > 4096 {
		c.add(key+".mappings.cores", m.Cores, "1 to 4096")
	}
	if m.PerCore < 0 {
		c.add(key+".mappings.per_core", m.PerCore, "0 (as evenly as possible) or more")
	}
	for i, name := range m.Roles {
		c.oneOf(fmt.Sprintf("%s.mappings.roles[%d]", key, i), name, c.roleNames())
	}
}

// knob checks a factor that varies a knob of the machine.
func (c *checker) knob(key string, f *Factor) {
	if len(f.Levels) == 0 {
		c.add(key+".knob", strconv.Quote(f.Knob), "levels: the values to set")
	}
	if _, ok := c.Preconditions.Set[f.Knob]; ok {
		c.add(key+".knob", strconv.Quote(f.Knob), "a knob that is not in preconditions.set")
	}
	for _, g := range c.Factors {
		if g.Knob == f.Knob && g.Name < f.Name {
			c.add(key+".knob", strconv.Quote(f.Knob), "a knob that no other factor sets ("+g.Name+" does)")
		}
	}
	if c.known.Knob == nil {
		return
	}
	for _, l := range f.Levels {
		if err := c.known.Knob(f.Knob, l); err != nil {
			c.add(key+".levels", strconv.Quote(l), err.Error())
		}
	}
}

func (c *checker) placement(key string, p Placement) {
	if !goodName.MatchString(p.Name) {
		c.add(key+".name", strconv.Quote(p.Name), "a name of letters, digits and dashes")
	}
	kinds := 0
	for _, given := range []bool{p.Relation != "", len(p.CPUs) > 0, p.Dynamic != nil} {
		if given {
			kinds++
		}
	}
	if kinds != 1 {
		c.add(key, fmt.Sprintf("%d of relation, cpus, dynamic", kinds), "exactly one of them")
	}
	if p.Relation != "" {
		c.oneOf(key+".relation", p.Relation, relations)
	}
	for _, role := range sorted(p.CPUs) {
		if c.Role(role) == nil {
			c.add(key+".cpus."+role, "unknown role", "one of "+strings.Join(c.roleNames(), ", "))
		}
	}
	if d := p.Dynamic; d != nil {
		c.oneOf(key+".dynamic.below", d.Below, relations)
		c.oneOf(key+".dynamic.above", d.Above, relations)
		c.oneOf(key+".dynamic.role", d.Role, c.roleNames())
		if d.At <= 0 || d.At >= 1 || d.Hysteresis < 0 || d.Hysteresis >= d.At {
			c.add(key+".dynamic.at", fmt.Sprintf("%s, hysteresis %s", d.At, d.Hysteresis), "between 0% and 100%, more than the hysteresis")
		}
	}
}

func (c *checker) roles() {
	if len(c.Roles) == 0 {
		c.add("roles", "none", "at least one role")
		return
	}
	if !slices.ContainsFunc(c.Roles, func(r Role) bool { return r.Measure }) {
		c.add("roles", "no role with measure: true", "at least one")
	}
	for i := range c.Roles {
		r := &c.Roles[i]
		key := "roles." + r.Name
		if !goodName.MatchString(r.Name) {
			c.add(key, strconv.Quote(r.Name), "a name of letters, digits and dashes")
		}
		c.problems = append(c.problems, keyed.Check(key+".", r)...)
		for _, v := range c.values(r, key+".state", r.State) {
			if v != "busy" && v != "idle" {
				c.add(key+".state", strconv.Quote(v), "busy, idle, or a $factor with these levels")
			}
		}
		if r.State != "idle" || r.Workload != "" {
			refer(c, r, key+".workload", r.Workload, c.Workloads)
		}
		refer(c, r, key+".environment", r.Environment, c.Environments)
		most := 0
		for _, v := range c.values(r, key+".count", r.Count) {
			n, err := strconv.Atoi(v)
			if err != nil || n < 0 {
				c.add(key+".count", strconv.Quote(v), "a whole number, or a $factor with such levels")
			}
			most = max(most, n)
		}
		c.hosts(r, key+".host", most)
		if r.Threads != "" {
			for _, v := range c.values(r, key+".threads", r.Threads) {
				if n, err := strconv.Atoi(v); err != nil || n < 1 {
					c.add(key+".threads", strconv.Quote(v), "a whole number of at least 1, or a $factor with such levels")
				}
			}
			for _, v := range c.values(r, key+".workload", r.Workload) {
				if w, ok := c.Workloads[v]; ok && !w.threaded() {
					c.add(key+".threads", strconv.Quote(r.Threads)+" of "+v, noThreads)
				}
			}
		}
		if r.Load.Control == "duty-cycle" {
			c.load(r, key+".load")
		}
	}
	for _, f := range c.Factors {
		if !c.used[f.Name] && len(f.Placements) == 0 && f.Mappings == nil && f.Knob == "" {
			c.add("factors."+f.Name, "used nowhere", "a role that refers to $"+f.Name)
		}
	}
}

func (c *checker) load(r *Role, key string) {
	if r.Load.Period <= 0 {
		c.add(key+".period", r.Load.Period, "more than 0s, e.g. 107ms")
	}
	if r.Load.Target == "" {
		c.add(key+".target", "not given", "a percentage, or the $factor that varies it")
		return
	}
	if f := c.Factor(strings.TrimPrefix(r.Load.Target, "$")); f != nil && f.Staircase != nil && strings.HasPrefix(r.Load.Target, "$") {
		c.used[f.Name] = true
		return
	}
	for _, v := range c.values(r, key+".target", r.Load.Target) {
		var s Share
		if err := s.UnmarshalText([]byte(v)); err != nil || s < 0 || s > 1 {
			c.add(key+".target", strconv.Quote(v), "0% to 100%")
		}
	}
}

// values are the values that a field of a role can have in the study's cells.
func (c *checker) values(r *Role, key, field string) []string {
	name, ok := strings.CutPrefix(field, "$")
	if !ok {
		return []string{field}
	}
	f := c.Factor(name)
	if f == nil {
		c.add(key, strconv.Quote(field), "one of the factors "+c.factorNames())
		return nil
	}
	c.used[name] = true
	if f.Staircase != nil || len(f.Placements) > 0 || f.Mappings != nil {
		c.add(key, strconv.Quote(field), "a factor with a list of levels or sets")
		return nil
	}
	var vs []string
	for _, set := range f.Sets {
		v, ok := set.Values[r.Name]
		if !ok {
			c.add("factors."+name+".sets."+set.Name, "no value for "+r.Name, "a value for every role that refers to $"+name)
			continue
		}
		vs = append(vs, v)
	}
	return append(vs, f.Levels...)
}

// refer checks that a field names an existing element in every cell.
func refer[T any](c *checker, r *Role, key, field string, there map[string]T) {
	for _, v := range c.values(r, key, field) {
		c.oneOf(key, v, sorted(there))
	}
}

// steps checks that at most one staircase is used, by one role, and that at most one
// factor determines placement.
func (c *checker) steps() {
	places, stairs := 0, 0
	for _, f := range c.Factors {
		if len(f.Placements) > 0 || f.Mappings != nil {
			places++
		}
		if f.Staircase == nil {
			continue
		}
		stairs++
		climbing := 0
		for _, r := range c.Roles {
			if r.Load.Target == "$"+f.Name {
				climbing++
			}
		}
		if climbing > 1 {
			c.add("factors."+f.Name, fmt.Sprintf("used by %d roles", climbing), "one role")
		}
	}
	if stairs > 1 {
		c.add("factors", fmt.Sprintf("%d staircases", stairs), "at most one: it is climbed within each run")
	}
	if places > 1 {
		c.add("factors", fmt.Sprintf("%d factors with placements or mappings", places), "at most one")
	}
}

func (c *checker) run() {
	r := c.Run
	if r.MinOverlap < 0 || r.MinOverlap > 1 {
		c.add("run.min_overlap", r.MinOverlap, "0% to 100%")
	}
	if r.Retries < 0 || r.Retries > 100 {
		c.add("run.retries", r.Retries, "0 to 100")
	}
	if c.Design.Repetitions < 1 {
		c.add("design.repetitions", c.Design.Repetitions, "at least 1")
	}
	for i, name := range c.Observe.Hosts {
		if h, ok := c.Hosts[name]; !ok || h.Address == Local {
			c.add(fmt.Sprintf("observe.hosts[%d]", i), strconv.Quote(name), "one of the study's hosts, not the lab's own machine")
		}
	}
	if a := c.Observe.Agent; a != nil && (a.Period < 100*time.Millisecond || a.Period > time.Minute) {
		c.add("observe.agent.period", a.Period, "100ms to 1m")
	}
	if !slices.ContainsFunc(sorted(c.Hosts), func(n string) bool { return c.Hosts[n].Address == Local }) {
		c.elsewhere()
	}
	if r.For > 0 || c.Staircase() != nil {
		return
	}
	for i := range c.Roles {
		role := &c.Roles[i]
		if !role.Measure {
			continue
		}
		for _, v := range c.values(role, "roles."+role.Name+".workload", role.Workload) {
			if w, ok := c.Workloads[v]; ok && w.Iterations == 0 && w.Time == 0 {
				c.add("run.for", "0s", fmt.Sprintf("the length of a run: workload %s has neither iterations nor time, and there is no staircase", v))
				return
			}
		}
	}
}

func (c *checker) factorNames() string {
	return strings.Join(names(c.Factors, func(f Factor) string { return f.Name }), ", ")
}

func (c *checker) roleNames() []string {
	return names(c.Roles, func(r Role) string { return r.Name })
}
