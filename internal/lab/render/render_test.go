package render

import (
	"bytes"
	"encoding/csv"
	"flag"
	"html/template"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/format/page"
	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/synthetic"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// stairs has the shape of paper 003's study, pairs the shape of paper 000's.
const stairs = `
version: 1
study: stairs
question: "How much does <b>a neighbour</b> cost?"
environments:
  ve: {driver: synthetic, truth: {base: 200ms, slope: 0.5, by_placement: {per-thread: 100%, per-chip: 0%}, noise: 1%, power: 100, power_per_cpu: 20}}
workloads:
  h2: {builtin: burn}
  specs: {builtin: burn}
roles:
  fg: {workload: $fgw, environment: ve, measure: true}
  bg: {workload: $bgw, environment: ve, load: {target: $load}}
factors:
  fgw: [h2, specs]
  bgw: [h2, specs]
  load: {staircase: {from: 10%, to: 90%, step: 10%, hold: 20s, settle: 3s, trail: 3s}}
  placement:
    - {name: per-thread, relation: per-thread}
    - {name: per-chip, relation: per-chip}
controls: {aa_pairs: 1}
design: {repetitions: 3}
analysis:
  - {kind: interference, exclude_rows: specs}
  - {kind: throughput}
  - {kind: energy}
  - {kind: migration}
`

const pairs = `
version: 1
study: pairs
environments:
  ve: {driver: synthetic, truth: {base: 500ms, slope: 0.3, by_placement: {near: 100%, far: 0%}, noise: 3%, fail: 20%}}
workloads:
  a: {builtin: burn}
  b: {builtin: burn}
roles:
  fg: {workload: a, environment: ve, measure: true}
  bg: {workload: b, environment: ve, measure: true}
factors:
  placement:
    - {name: near, relation: neutral}
    - {name: far, relation: per-core}
design: {repetitions: 6}
run: {for: 60s}
analysis:
  - {kind: degradation}
`

// simulate returns a report of a study with synthetic environments.
func simulate(t testing.TB, text string) *Report {
	t.Helper()
	s, runs := play(t, text)
	return &Report{Study: s, Runs: runs, Results: analyse.Compute(s, runs), Missed: []string{"governor: powersave, wanted performance"},
		Machines: []Machine{{"local", []Fact{{"kernel", "6.1.0"}, {"cpu model", "A CPU"}}}}}
}

// play returns the runs of a study with synthetic environments.
func play(t testing.TB, text string) (*study.Study, []result.Run) {
	t.Helper()
	s, err := study.Parse("sim.yaml", []byte(text), study.Known{Builtins: []string{"burn"}})
	if err != nil {
		t.Fatal(err)
	}
	plan := s.Plan()
	var runs []result.Run
	for i, p := range plan {
		r, _ := synthetic.Run(&p.Cell, synthetic.RunID{N: p.N, Order: i, Runs: len(plan), Seed: s.Design.Seed})
		runs = append(runs, *r)
	}
	return s, runs
}

func htmlOf(t testing.TB, r *Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := HTML(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func markdownOf(t testing.TB, r *Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := Markdown(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The facts that a reader must see before any number, in both renderings.
func TestHeader(t *testing.T) {
	r := simulate(t, pairs)
	r.Lock.Program, r.Lock.Hash = "quell 1.2.3", "abc123"
	for name, text := range map[string]string{"HTML": htmlOf(t, r), "Markdown": markdownOf(t, r)} {
		for _, want := range []string{"6.1.0", "A CPU", "powersave", "noise floor", "detectable", "simulated", "quell 1.2.3", "abc123", "corunner-died", "no energy source", "not measured"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s does not say %q", name, want)
			}
		}
	}
}

var update = flag.Bool("update", false, "write the golden files anew")

// The text of two small studies, to be reviewed as a diff.
func TestGolden(t *testing.T) {
	for name, text := range map[string]string{"stairs": stairs, "pairs": pairs} {
		got := markdownOf(t, simulate(t, text))
		file := filepath.Join("testdata", name+".md")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); d != "" {
			t.Errorf("%s (-update if it is meant to change):\n%s", file, d)
		}
	}
}

// The file is self-contained: any reference would be a network request.
func TestHTMLStandsAlone(t *testing.T) {
	text := htmlOf(t, simulate(t, stairs))
	for _, bad := range []string{"<script", "src=", "@import", "url(", "<b>a neighbour", "NaN", "Inf", "ZgotmplZ", "%!"} {
		if strings.Contains(text, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	for _, link := range regexp.MustCompile(`href="([^"]*)"`).FindAllStringSubmatch(text, -1) {
		if !strings.HasPrefix(link[1], "#") && link[1] != "data:," {
			t.Errorf("the page links to %q", link[1])
		}
	}
	if !strings.Contains(text, "&lt;b&gt;a neighbour") {
		t.Error("the question is not there, escaped")
	}
	tags := regexp.MustCompile(`<(/?)([a-z][a-z0-9]*)([^>]*)>`)
	void := map[string]bool{"meta": true, "link": true}
	var open []string
	for _, m := range tags.FindAllStringSubmatch(text, -1) {
		switch {
		case m[1] == "/":
			if len(open) == 0 || open[len(open)-1] != m[2] {
				t.Fatalf("</%s> closes %v", m[2], open)
			}
			open = open[:len(open)-1]
		case !void[m[2]] && !strings.HasSuffix(m[3], "/"):
			open = append(open, m[2])
		}
	}
	if len(open) > 0 {
		t.Errorf("never closed: %v", open)
	}
}

// Every plot of the page has a table and a text description.
func TestEveryPlotHasItsTable(t *testing.T) {
	for _, text := range []string{stairs, pairs} {
		plots := 0
		for _, s := range simulate(t, text).page().Sections {
			for _, e := range s.Exhibits {
				plots += len(e.Plots)
				if len(e.Plots) > 0 && len(e.Table.Rows) == 0 {
					t.Errorf("%s: %d plots and no table", s.Title, len(e.Plots))
				}
				for _, r := range e.Table.Rows {
					if len(r) != len(e.Table.Head) {
						t.Errorf("%s: %d cells under %d heads", e.Table.Caption, len(r), len(e.Table.Head))
					}
				}
				for _, p := range e.Plots {
					if p.Title == "" || p.About == "" || !strings.Contains(p.SVG, "<desc>"+template.HTMLEscapeString(p.About)) {
						t.Errorf("%s: a plot without words: %.400s", s.Title, p.SVG)
					}
				}
			}
		}
		if plots == 0 {
			t.Error("no plots")
		}
	}
}

// A placement has the same colour in every plot of the report, also where results are in
// a different order.
func TestColoursAreOfPlacements(t *testing.T) {
	r := simulate(t, stairs)
	for range 2 {
		o := r.ordered()
		for _, e := range []page.Exhibit{o.loadPlots(), o.systems(nil).Exhibits[0]} {
			for _, p := range e.Plots {
				for _, k := range p.Legend {
					if want := map[bool]int{true: 0, false: 1}[strings.HasPrefix(k.Text, "per-thread")]; k.Series != want {
						t.Errorf("%s: %s has colour %d", p.Title, k.Text, k.Series)
					}
				}
			}
		}
		slices.Reverse(r.Results.Interferences)
		slices.Reverse(r.Results.Systems)
	}
}

// Tables I and II of paper 003 as the report prints them.
func TestTablesOfThePaper(t *testing.T) {
	f, err := os.Open("../../../testdata/reference/pinning_interference.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	text := `
version: 1
study: pinning
environments: {kvm: {driver: qemu, cpus: 1}, lxc: {driver: lxc}}
workloads: {avrora: {builtin: burn}, h2: {builtin: burn}, luindex: {builtin: burn}, scalac: {builtin: burn}, specs: {builtin: burn}}
roles:
  fg: {workload: $fgw, environment: $ve, measure: true}
  bg: {workload: $bgw, environment: $ve, load: {target: $load}}
factors:
  ve: [kvm, lxc]
  placement: [{name: per-chip, relation: per-chip}, {name: per-core, relation: per-core}, {name: per-thread, relation: per-thread}, {name: neutral, relation: neutral}]
  fgw: [avrora, h2, luindex, scalac, specs]
  bgw: [avrora, h2, luindex, scalac, specs]
  load: {staircase: {from: 5%, to: 95%, step: 5%, hold: 3m}}
analysis: [{kind: interference, exclude_rows: avrora}]
`
	s, err := study.Parse("p.yaml", []byte(text), study.Known{Builtins: []string{"burn"}})
	if err != nil {
		t.Fatal(err)
	}
	r := &Report{Study: s}
	for _, c := range rows[1:] {
		v, err := strconv.ParseFloat(c[4], 64)
		if err != nil {
			t.Fatal(err)
		}
		i := analyse.Interference{Role: "fg", Metric: v, Interval: noBounds(v), Symmetric: true, Significant: v > 0,
			Levels: []study.Level{{Factor: "ve", Value: c[0]}, {Factor: "placement", Value: c[1]}, {Factor: "fgw", Value: c[2]}, {Factor: "bgw", Value: c[3]}}}
		r.Results.Interferences = append(r.Results.Interferences, i)
	}
	tables, excluded := r.ordered().shaded("avrora")
	if len(tables) != 7 || excluded != "avrora" {
		t.Fatalf("%d tables without %s, the paper has 4 and 3", len(tables), excluded)
	}
	// "per-thread" on KVM, row specs, column luindex.
	c := tables[2].Rows[4][3]
	if tables[2].Caption != "Interference metric (%) of fg, ve=kvm placement=per-thread" || tables[2].Head[3] != "luindex" || tables[2].Rows[4][0].Text != "specs" ||
		!strings.HasPrefix(c.Text, "37.5 ") || c.Style != "bold" || !c.Shaded {
		t.Errorf("%s: %+v", tables[2].Caption, c)
	}
	// The scale of a kind ranges from its lowest to its highest value without avrora's
	// rows: 49.1 is KVM's darkest, avrora's 106.3 is no darker.
	if dark, over, light := tables[2].Rows[3][5], tables[2].Rows[0][3], tables[0].Rows[1][1]; dark.Shade != 1 || over.Shade != 1 || light.Shade > 0.05 || light.Style != "plain" {
		t.Errorf("shades: %+v %+v %+v", dark, over, light)
	}
	// LXC has its own scale.
	most := 0.0
	for _, tab := range tables[4:] {
		for _, cells := range tab.Rows[1:] {
			for _, c := range cells[1:] {
				most = max(most, c.Shade)
			}
		}
	}
	if most != 1 {
		t.Errorf("LXC's darkest is %g", most)
	}
}

// An unknown value is a dash, in every rendering.
func TestNothingKnown(t *testing.T) {
	r := simulate(t, stairs)
	nan := math.NaN()
	for i := range r.Results.Systems {
		for k := range r.Results.Systems[i].Steps {
			s := &r.Results.Systems[i].Steps[k]
			s.Throughput, s.PerWh, s.Relative, s.RelativePerWh = noBounds(nan), noBounds(math.Inf(1)), noBounds(nan), noBounds(nan)
		}
	}
	r.Results.Interferences[0].Interval = noBounds(nan)
	r.Results.Interferences[0].Metric = nan
	r.Study.Analysis = append(r.Study.Analysis, study.Analysis{Kind: "correlation"}, study.Analysis{Kind: "mapping"})
	r.Results.Correlations = []analyse.Correlations{{Names: []string{"degradation", "cycles"}, PerVM: square(nan), Pooled: square(nan), Spearman: square(nan), P: square(nan), Q: square(nan), VMs: [][]int{{0, 0}, {0, 0}}}}
	r.Results.Mappings = []analyse.MappingResult{{Set: "s", Average: nan, Worst: math.Inf(-1), WorstInterval: noBounds(math.Inf(-1)), Parts: []analyse.MappingPart{{Part: "vm", Percent: map[string]float64{"0|1": nan}}}}}
	for _, text := range []string{htmlOf(t, r), markdownOf(t, r)} {
		if m := regexp.MustCompile(`.{0,60}(NaN|Inf).{0,60}`).FindString(text); m != "" || !strings.Contains(text, unknown) {
			t.Errorf("what is not known is not a dash: %s", m)
		}
	}
	if text := htmlOf(t, &Report{Study: &study.Study{Name: "empty"}}); !strings.Contains(text, "empty") {
		t.Error("an empty report is nothing")
	}
}

func square(v float64) analyse.Matrix {
	f := stat.Float(v)
	return analyse.Matrix{{f, f}, {f, f}}
}

// Numbers in tables are rounded without a change of magnitude.
func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 12: "12", 1066: "1066", 33.727: "33.7", 0.0123456: "0.0123", -4.99: "-4.99", 5.0004: "5", 123456.7: "123457", 0.00001234: "1.23e-05", math.Inf(1): unknown, 99.96: "100"} {
		if got := number(v); got != want {
			t.Errorf("%g is printed as %s, want %s", v, got, want)
		}
	}
}

// tableText is an exhibit's table as text, one line per row.
func tableText(e page.Exhibit) string {
	var b strings.Builder
	for _, row := range e.Table.Rows {
		for _, c := range row {
			b.WriteString(c.Text + "|")
		}
		b.WriteString("\n")
	}
	return b.String()
}
