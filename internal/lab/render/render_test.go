package render

import (
	"bytes"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/synthetic"
	"github.com/quell-dev/quell/internal/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// stairs is the shape of paper 003's study, pairs is that of paper 000's.
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

// simulate makes a report of a study of synthetic environments.
func simulate(t testing.TB, text string) *Report {
	t.Helper()
	s, err := study.Parse("sim.yaml", []byte(text), study.Known{Builtins: []string{"burn"}})
	if err != nil {
		t.Fatal(err)
	}
	plan := s.Plan()
	var runs []result.Run
	for i, p := range plan {
		r, _ := synthetic.Run(&p.Cell, synthetic.Where{N: p.N, Order: i, Runs: len(plan), Seed: s.Design.Seed})
		runs = append(runs, *r)
	}
	return &Report{Study: s, Runs: runs, Results: analyse.Of(s, runs), Missed: []string{"governor: powersave, wanted performance"},
		Machines: []Machine{{"local", []Fact{{"kernel", "6.1.0"}, {"cpu model", "A CPU"}}}}}
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

// What a reader must see before a number, in both renderings.
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
