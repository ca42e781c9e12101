package render

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/lab/analyse"
)

// large is more than 1,000 runs of 600 s: 25 pairs of workloads at 4 placements, 10
// times.
const large = `
version: 1
study: large
environments:
  ve: {driver: synthetic, truth: {base: 1s, slope: 0.5, by_placement: {per-thread: 100%, per-core: 40%, per-chip: 0%}, noise: 3%, ar1: 0.5, power: 100, power_per_cpu: 20, fail: 5%}}
workloads: {avrora: {builtin: burn}, h2: {builtin: burn}, luindex: {builtin: burn}, scalac: {builtin: burn}, specs: {builtin: burn}}
roles:
  fg: {workload: $fgw, environment: ve, measure: true}
  bg: {workload: $bgw, environment: ve, measure: true, load: {target: $load}}
factors:
  fgw: [avrora, h2, luindex, scalac, specs]
  bgw: [avrora, h2, luindex, scalac, specs]
  load: {staircase: {from: 10%, to: 95%, step: 17%, hold: 50s, settle: 8s, trail: 8s}}
  placement: [{name: per-chip, relation: per-chip}, {name: per-core, relation: per-core}, {name: per-thread, relation: per-thread}, {name: neutral, relation: neutral}]
controls: {solo: true, aa_pairs: 1}
design: {repetitions: 10}
analysis:
  - {kind: interference}
  - {kind: degradation}
  - {kind: throughput}
`

// The page of a full-size study is small enough for mail.
func TestLargeReportIsSmall(t *testing.T) {
	s, once := play(t, strings.Replace(large, "repetitions: 10", "repetitions: 1", 1))
	r := &Report{Study: s, Runs: once}
	// Reuse the runs of one repetition, which is faster than simulating more. Four
	// repetitions are half a study; BenchmarkReport does the whole.
	for n := 1; n < 4; n++ {
		for _, run := range once {
			run.N = n
			r.Runs = append(r.Runs, run)
		}
	}
	r.Results = analyse.Compute(r.Study, r.Runs)
	if len(r.Runs) < 500 {
		t.Fatalf("%d runs", len(r.Runs))
	}
	text := htmlOf(t, r)
	t.Logf("%d runs: %d kB of HTML", len(r.Runs), len(text)/1000)
	if len(text) > 2.5e6 {
		t.Errorf("%d bytes of HTML for %d runs, want at most 2.5 MB", len(text), len(r.Runs))
	}
}

// BenchmarkReport measures everything from the records on disk to the page. The limit is
// 10 s for 1,000 runs of 600 seconds.
func BenchmarkReport(b *testing.B) {
	s, runs := play(b, large)
	f := folderOf(b, &Report{Study: s, Runs: runs})
	for b.Loop() {
		runs, err := f.Runs()
		if err != nil {
			b.Fatal(err)
		}
		var page, md, csv, jsonl bytes.Buffer
		o := &Report{Study: s, Runs: runs, Results: analyse.Compute(s, runs)}
		if err := errors.Join(HTML(&page, o), Markdown(&md, o), CSV(&csv, o), JSONL(&jsonl, o)); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(page.Len())/1e6, "MB-html")
		b.ReportMetric(float64(len(runs)), "runs")
	}
}
