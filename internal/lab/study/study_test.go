package study

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/format/keyed"
)

var update = flag.Bool("update", false, "write golden files")

var (
	known   = Known{Builtins: []string{"burst", "primes"}, Parsers: []string{"sysbench"}}
	burning = Known{Builtins: []string{"burn"}}
)

func read(t *testing.T, name string) *Study {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	s, err := Parse(name, text, known)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-update to accept):\n%s", path, d)
	}
}

// Every error is listed, with line, key and remedy: first the parts that cannot be read
// and, after these are fixed, the inconsistencies.
func TestProblems(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "bad.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var list strings.Builder
	problems := func(text string) {
		_, err := Parse("bad.yaml", []byte(text), known)
		var invalid *keyed.InvalidError
		if !errors.As(err, &invalid) {
			t.Fatalf("got %v", err)
		}
		for _, p := range invalid.Problems {
			if p.Where == "" && p.Key != "run.for" {
				t.Errorf("%v is nowhere", p)
			}
			fmt.Fprintln(&list, p)
		}
	}
	problems(string(text))
	list.WriteString("\nwhen those are mended:\n\n")
	mended := strings.NewReplacer("colour: red\n", "", "cpus: two", "cpus: 2", "memory: 512,", "memory: 512MiB,",
		"for: 10}", "for: 10s}", "  bg: {workload: a}\n", "", "min_overlap: 99}", "min_overlap: 99%}").Replace(string(text))
	problems(mended)
	golden(t, "bad.txt", list.String())
}

func TestCells(t *testing.T) {
	var list strings.Builder
	cells := read(t, "pinning.yaml").Cells()
	keys := map[string]bool{}
	for _, c := range cells {
		keys[c.Key()] = true
		fmt.Fprintf(&list, "%s, %d parts, %d steps, %s\n", c.String(), len(c.Parts), len(c.Steps), c.For)
	}
	if len(keys) != len(cells) {
		t.Errorf("%d keys for %d cells", len(keys), len(cells))
	}
	golden(t, "pinning.cells.txt", list.String())
}

// Paper 003, III-C: 19 levels of 5 to 95 %, up and down, give 38 steps.
func TestStaircaseOfThePaper(t *testing.T) {
	cells := read(t, "pinning.yaml").Cells()
	i := slices.IndexFunc(cells, func(c Cell) bool { return c.Kind == Main && c.Level("bgw") == "luindex" })
	steps := cells[i].Steps
	if len(steps) != 38 || !steps[18].Up || steps[19].Up || steps[18].Target != steps[19].Target {
		t.Fatalf("%d steps: %v", len(steps), steps)
	}
	for k, s := range steps {
		if s.From != 20*time.Second+time.Duration(k)*3*time.Minute || s.To-s.From != 3*time.Minute || s.Role != "bg" {
			t.Errorf("step %d: %+v", k, s)
		}
		if mirror := steps[37-k]; mirror.Target != s.Target || mirror.Up == s.Up {
			t.Errorf("step %d goes to %s, its mirror to %s", k, s.Target, mirror.Target)
		}
	}
	if first, last := steps[0].Target, steps[18].Target; first != 0.05 || last.String() != "95%" {
		t.Errorf("from %s to %s", first, last)
	}
}

func TestMappings(t *testing.T) {
	for _, c := range []struct {
		kinds          string
		cores, perCore int
		want           int
	}{
		{"abcd", 2, 0, 3},       // paper 000, section 5: "three different ways"
		{"aabb", 2, 0, 2},       // aa|bb, ab|ab
		{"aaaa", 2, 0, 1},       // all equal
		{"abc", 2, 0, 3},        // one core with one machine
		{"ab", 2, 0, 1},         // symmetric
		{"abcd", 2, 4, 8},       // 1 + 4 + 3: partitions into at most two
		{"abcdefgh", 4, 0, 105}, // pairings of eight
		{"a", 3, 0, 1},
	} {
		got := distinctMappings(strings.Split(c.kinds, ""), c.cores, c.perCore)
		if len(got) != c.want {
			t.Errorf("%s on %d cores, at most %d: %d mappings, want %d: %v", c.kinds, c.cores, c.perCore, len(got), c.want, got)
		}
		m := Mappings{Cores: c.cores, PerCore: c.perCore}
		if tries := m.tries(len(c.kinds)); tries < float64(len(got)) || len(slices.Compact([]byte(c.kinds))) == len(c.kinds) && tries != float64(len(got)) {
			t.Errorf("%s on %d cores, at most %d: %d mappings in %v tries", c.kinds, c.cores, c.perCore, len(got), tries)
		}
		if len(c.kinds) > 6 {
			continue
		}
		if twin := mappedNaively(c.kinds, c.cores, c.perCore); twin != len(got) {
			t.Errorf("%s on %d cores, at most %d: %d mappings, trying all gives %d", c.kinds, c.cores, c.perCore, len(got), twin)
		}
	}
}

// Two equal machines with two virtual CPUs each, and a process. It matters which
// machine's CPUs share a core; which of a machine's own CPUs it is does not.
func TestMappingsOfSeveralCPUs(t *testing.T) {
	text := `
version: 1
study: t
environments: {vm: {driver: qemu, cpus: 2}, bare: {driver: cgroup, cpus: 1}}
workloads: {w: {builtin: burn}}
roles:
  a: {workload: w, environment: vm, measure: true}
  b: {workload: w, environment: vm, measure: true}
  c: {workload: w, environment: bare, measure: true}
factors: {mapping: {mappings: {cores: 2}}}
run: {for: 1s}
`
	s, err := Parse("t.yaml", []byte(text), burning)
	if err != nil {
		t.Fatal(err)
	}
	var mains, solos []string
	for _, c := range s.Cells() {
		switch c.Kind {
		case Main:
			mains = append(mains, c.Level("mapping"))
		case Solo:
			solos = append(solos, fmt.Sprint(c.Parts[0].Role, c.Mapping))
		}
	}
	want := []string{"a/0+a/1+b/0|b/1+c", "a/0+a/1+c|b/0+b/1", "a/0+a/1|b/0+b/1+c", "a/0+b/0+b/1|a/1+c", "a/0+b/0+c|a/1+b/1"}
	slices.Sort(mains)
	if !slices.Equal(mains, want) {
		t.Errorf("mappings %q, want %q", mains, want)
	}
	slices.Sort(solos)
	// Alone, a machine's two virtual CPUs are on one core or on two.
	if got := slices.Compact(solos); !slices.Equal(got, []string{"amap[a/0:0 a/1:0]", "amap[a/0:0 a/1:1]", "bmap[b/0:0 b/1:0]", "bmap[b/0:0 b/1:1]", "cmap[c/0:0]"}) {
		t.Errorf("alone %q", got)
	}
}

// mappedNaively counts the distinct mappings by trying every assignment.
func mappedNaively(kinds string, cores, perCore int) int {
	most, least := perCore, 0
	if perCore == 0 {
		most, least = (len(kinds)+cores-1)/cores, len(kinds)/cores
	}
	seen := map[string]bool{}
	total := 1
	for range kinds {
		total *= cores
	}
	for code := range total {
		groups := make([]string, cores)
		for i, rest := 0, code; i < len(kinds); i, rest = i+1, rest/cores {
			groups[rest%cores] += kinds[i : i+1]
		}
		good := true
		for i, g := range groups {
			good = good && len(g) <= most && len(g) >= least
			letters := strings.Split(g, "")
			slices.Sort(letters)
			groups[i] = strings.Join(letters, "")
		}
		slices.Sort(groups)
		if good {
			seen[strings.Join(groups, "|")] = true
		}
	}
	return len(seen)
}

// A command's own figure is of the whole run: a step of a staircase has none. Iterations are what a
// built-in workload reports anyway.
func TestFiguresOfSteps(t *testing.T) {
	const text = `
version: 1
study: t
environments: {ve: {driver: cgroup, cpus: 1}}
workloads: {work: {command: [x], metric: {parse: PARSE}}, noise: {builtin: burn, metric: {parse: iterations}}}
roles:
  fg: {workload: work, environment: ve, measure: true}
  bg: {workload: noise, environment: ve, load: {target: $load}}
factors: {load: {staircase: {from: 10%, to: 90%, step: 20%, hold: 10s}}}
analysis: [{kind: interference}]
`
	for parse, good := range map[string]bool{"time": true, "iterations": true, "sysbench": false} {
		_, err := Parse("t.yaml", []byte(strings.Replace(text, "PARSE", parse, 1)), Known{Builtins: []string{"burn"}, Parsers: []string{"time", "iterations", "sysbench"}})
		if good != (err == nil) || !good && !strings.Contains(err.Error(), "analysis[0].kind: interference of workload work") {
			t.Errorf("%s: %v", parse, err)
		}
	}
	cold := strings.Replace(text, "{parse: PARSE}", "{parse: iterations}, warmup: {iterations: 3}", 1)
	if _, err := Parse("t.yaml", []byte(cold), Known{Builtins: []string{"burn"}, Parsers: []string{"iterations"}}); err == nil || !strings.Contains(err.Error(), "warmup: {for: TIME}") {
		t.Errorf("a warm-up in the first steps: %v", err)
	}
	_, err := Parse("t.yaml", []byte(strings.Replace(text, "workload: work", "workload: $none", 1)), known)
	if err == nil || strings.Count(err.Error(), "roles.fg.workload") != 1 {
		t.Errorf("a role of an unknown factor: %v", err)
	}
}

// What a built-in workload reports is not iterations: one of cpu-burn is millions of additions.
func TestFigureUnits(t *testing.T) {
	const text = `
version: 1
study: t
environments: {ve: {driver: DRIVER, cpus: 1}}
workloads: {work: {builtin: primes}}
roles: {fg: {workload: work, environment: ve, measure: true}}
run: {for: 1s}
`
	for _, c := range []struct{ driver, workload, figure, work string }{
		{"cgroup", "{builtin: primes}", "events/s", "event"},
		{"cgroup", "{builtin: primes, metric: {unit: s/prime, better: lower}}", "s/prime", "event"},
		{"cgroup", "{builtin: primes, metric: {better: lower}}", "s/event", "event"},
		{"cgroup", "{builtin: primes, work_unit: prime}", "primes/s", "prime"},
		{"cgroup", "{command: [x], metric: {parse: iterations}}", "iterations/s", "iteration"},
		{"synthetic, truth: {base: 1s}", "{builtin: primes}", "iterations/s", "iteration"},
	} {
		s, err := Parse("t.yaml", []byte(strings.NewReplacer("DRIVER", c.driver, "{builtin: primes}", c.workload).Replace(text)), Known{Builtins: []string{"primes"}, Parsers: []string{"iterations"}})
		if err != nil {
			t.Fatal(err)
		}
		if p := &s.Cells()[0].Parts[0]; p.FigureUnit() != c.figure || p.WorkUnit() != c.work {
			t.Errorf("%+v: %s, %s", c, p.FigureUnit(), p.WorkUnit())
		}
	}
}

// A block has every cell once, in an order that depends on the seed.
func TestPlanIsBlocked(t *testing.T) {
	s := read(t, "pinning.yaml")
	s.Controls.AAPairs, s.Controls.SentinelEvery = 2, 10
	cells := s.Cells()
	plan := s.Plan()
	count := map[CellKind]int{}
	block := map[int]map[string]bool{}
	for i, p := range plan {
		count[p.Cell.Kind]++
		switch p.Cell.Kind {
		case AA:
			if p.N%2 == 1 && (plan[i-1].Cell.Kind != AA && plan[i-2].Cell.Kind != AA) {
				t.Error("a pair is apart")
			}
		case Sentinel:
		default:
			if block[p.N] == nil {
				block[p.N] = map[string]bool{}
			}
			k := p.Cell.Key()
			if block[p.N][k] {
				t.Errorf("%s twice in block %d", p.Cell.String(), p.N)
			}
			block[p.N][k] = true
			if p.N == 1 && len(block[0]) != len(cells) {
				t.Error("block 1 begins before block 0 is whole")
			}
		}
	}
	if len(block[0]) != len(cells) || len(block[1]) != len(cells) || len(block) != 2 {
		t.Errorf("blocks of %d and %d, %d cells", len(block[0]), len(block[1]), len(cells))
	}
	if want := (2*len(cells) + 4) / 10; count[AA] != 4 || count[Sentinel] != want {
		t.Errorf("%d a-a runs, %d sentinels, want 4, %d", count[AA], count[Sentinel], want)
	}
	if d := cmp.Diff(plan, s.Plan()); d != "" {
		t.Error("the same seed gave another order")
	}
	s.Design.Seed++
	if cmp.Equal(plan, s.Plan()) {
		t.Error("another seed gave the same order")
	}
}

func TestUnits(t *testing.T) {
	for text, want := range map[string]Share{"50%": 0.5, "0%": 0, "99.5%": 0.995, "-1%": -0.01} {
		var s Share
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want || s.String() != text {
			t.Errorf("%s: %v, %v, written %s", text, float64(s), err, s)
		}
	}
	for text, want := range map[string]Bytes{"512MiB": 512 << 20, "100KB": 100_000, "2GiB": 2 << 30, "64B": 64, "1.5KiB": 1536} {
		var b Bytes
		if err := b.UnmarshalText([]byte(text)); err != nil || b != want {
			t.Errorf("%s: %d, %v", text, b, err)
		}
		var again Bytes
		if err := again.UnmarshalText([]byte(b.String())); err != nil || again != b {
			t.Errorf("%s is written %s", text, b)
		}
	}
	for _, text := range []string{"", "50", "0.5", "x%", "NaN%"} {
		var s Share
		if s.UnmarshalText([]byte(text)) == nil {
			t.Errorf("%q is a share", text)
		}
	}
	for _, text := range []string{"", "5", "-1KiB", "1.1B", "99999999999GiB", "KiB"} {
		var b Bytes
		if b.UnmarshalText([]byte(text)) == nil {
			t.Errorf("%q is a size", text)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"pinning.yaml", "bad.yaml"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Add("roles: {a: &a {workload: *a}}")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse("f", []byte(text), known)
		if err != nil || strings.Count(text, ",") > 60 {
			return
		}
		for _, r := range s.Roles { // valid, but too large
			if len(r.Count) > 2 {
				return
			}
		}
		for _, f := range s.Factors {
			if f.Mappings != nil || len(f.Levels) > 20 || f.Staircase != nil && f.Staircase.Step < 0.001 {
				return
			}
		}
		for _, c := range s.Cells() {
			for _, p := range c.Parts {
				if !p.Idle && p.Workload.Name == "" || p.Environment.Name == "" || p.Host == "" {
					t.Errorf("%s: %s is unresolved: %+v", c.String(), p.Name(), p)
				}
			}
		}
	})
}

// A study without a cell has no run: it is not one that is right and done at once.
func TestNoCellIsLeft(t *testing.T) {
	const text = `version: 1
study: t
environments: {ve: {driver: cgroup}}
workloads: {work: {builtin: burn, iterations: 1}}
roles: {vm: {workload: work, environment: ve, count: "4", measure: true}}
factors: {%s}
design: {%s}
`
	for _, c := range []struct{ factors, design string }{
		{"mapping: {mappings: {cores: 1, per_core: 2}}", "seed: 1"},
		{"placement: [{name: a, relation: neutral}]", "exclude: [{placement: a}]"},
	} {
		_, err := Parse("t.yaml", []byte(fmt.Sprintf(text, c.factors, c.design)), burning)
		if err == nil || !strings.Contains(err.Error(), "no cell") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := Parse("t.yaml", []byte(fmt.Sprintf(text, "mapping: {mappings: {cores: 2, per_core: 2}}", "seed: 1")), burning); err != nil {
		t.Error(err)
	}
}

// The mapped neighbours are added one by one, from none.
func TestMappingsOfNone(t *testing.T) {
	s, err := Parse("t.yaml", []byte(`version: 1
study: t
environments: {ve: {driver: cgroup}}
workloads: {work: {builtin: burn, iterations: 1}}
roles:
  fg: {workload: work, environment: ve, measure: true}
  nb: {workload: work, environment: ve, count: $n}
factors:
  n: ["0", "1", "2"]
  mapping: {mappings: {cores: 2, roles: [nb]}}
controls: {solo: false}
`), burning)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range s.Cells() {
		names = append(names, c.String())
	}
	if want := []string{"main n=0 mapping=none", "main n=1 mapping=nb", "main n=2 mapping=nb/0|nb/1"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}

// Stored results are read whatever a later version refuses, but not without the plan's basis.
func TestRecorded(t *testing.T) {
	const text = `version: 1
study: old
retired: key
environments: {ve: {driver: cgroup}}
workloads: {work: {builtin: primes}}
roles: {fg: {workload: work, environment: ve, measure: true, threads: $n}}
factors: {n: ["1", "2"]}
run: {for: 1s}
analysis: [{kind: score, bse: 1}]
`
	s, problems, err := Recorded("t.yaml", []byte(text), known)
	if err != nil || len(problems) != 1 || problems[0].Key != "retired" || len(s.Plan()) == 0 || s.Analysis[0].Kind != "score" {
		t.Errorf("%+v, %v, %v", s, problems, err)
	}
	s, problems, err = Recorded("t.yaml", []byte(strings.Replace(text, "retired: key\n", "design: {exclude: [{n: '1'}, {n: '2'}]}\n", 1)), known)
	if err != nil || len(problems) != 1 || len(s.Plan()) != 0 {
		t.Errorf("%+v, %v, %v", s, problems, err)
	}
	odd := strings.NewReplacer("cgroup", "synthetic, truth: {base: 1s, ar1: 1.5}", "retired: key\n", "", ", bse: 1", "").Replace(text)
	if _, problems, err := Recorded("t.yaml", []byte(odd), known); err != nil || len(problems) != 1 || problems[0].Key != "environments.ve.truth.ar1" {
		t.Errorf("%v, %v", problems, err)
	}
	for old, now := range map[string]string{
		"study: old":   "study: ../old",
		`["1", "2"]`:   "{staircase: {from: 10%, to: 90%, step: 0%, hold: 1s}}",
		`["1", "2"]}`:  "{mappings: {cores: 0}}}",
		"retired: key": "\tnot: YAML",
		"cgroup":       "synthetic, truth: {base: 1s, slope: inf}",
		"version: 1\n": "version: 2\n",
	} {
		if _, _, err := Recorded("t.yaml", []byte(strings.Replace(text, old, now, 1)), known); err == nil {
			t.Errorf("%q is read", now)
		}
	}
}

// TestAttackAStudyTooLarge: a file of a few lines, of which even the plan would take all memory, is neither run nor
// reported.
func TestAttackAStudyTooLarge(t *testing.T) {
	const text = `version: 1
study: large
retired: key
environments: {ve: {driver: cgroup}}
workloads: {work: {builtin: primes}}
roles: {fg: {workload: work, environment: ve, measure: true, count: $n}}
factors: {n: ["1", "2"]}
run: {for: 1s}
`
	if _, _, err := Recorded("t.yaml", []byte(text), known); err != nil {
		t.Fatal(err)
	}
	hundred := strings.TrimSuffix(strings.Repeat("'1', ", 100), ", ")
	for old, now := range map[string]string{
		`"2"`:            `"1000000000"`,
		`["1", `:         `["99999999999999999999", `,
		"count: $n":      "count: '1000000000'",
		`["1", "2"]`:     "{staircase: {from: 10%, to: 90%, step: 0.0000001%, hold: 1s}}",
		`n: ["1", "2"]`:  "n: [" + hundred + "], a: [" + hundred + "], b: [" + hundred + "]",
		"retired: key\n": "design: {repetitions: 1000000000}\nretired: key\n",
		"run: {":         "controls: {aa_pairs: 1000000000}\nrun: {",
		"count: $n}}\nfactors: {n: [\"1\", \"2\"]}":      "count: '20'}}\nfactors: {mapping: {mappings: {cores: 8}}}",
		"count: $n}}\nfactors: {n: [\"1\", \"2\"]}\n":    "count: '30'}}\nfactors: {mapping: {mappings: {cores: 12, per_core: 2}}}\n",
		"count: $n}}\nfactors: {n: [\"1\", \"2\"]}\nrun": "count: '150'}}\nfactors: {mapping: {mappings: {cores: 100}}}\nrun",
		"study: large\n": "study: large\ndesign: {repetitions: 1000000000}\ncontrols: {aa_pairs: -9000000000}\n",
		"count: $n}}\nfactors: {n: [\"1\", \"2\"]": "count: '0'}}\ndesign: {repetitions: 0}\nfactors: {n: [" + hundred + "], a: [" + hundred + "], b: [" + hundred + "]",
	} {
		var invalid *keyed.InvalidError
		if _, _, err := Recorded("t.yaml", []byte(strings.Replace(text, old, now, 1)), known); !errors.As(err, &invalid) || !strings.Contains(err.Error(), "at most 500000 runs") {
			t.Errorf("%q: %v", now[:min(len(now), 80)], err)
		}
	}
}
