package pipeline_test

import (
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
)

// generate feeds the victim's samples in the first line, together with suspects' usage
// constructed so that their correlation after the last sample has the given value: those
// of a case study of the paper (testdata/reference), or "NAME: CORRELATION" a line. It
// prints the table that it feeds, and fails unless the finding that follows has those
// correlations.
func (w *world) generate(args []string, table []string) {
	w.t.Helper()
	v := w.task(args[0])
	cells := columns(table[0])
	var costs []float64
	for _, text := range cells {
		costs = append(costs, w.cell(text).cost)
	}
	type want struct {
		name string
		r    float64
	}
	var suspects []want
	if len(args) > 1 {
		n, _ := strings.CutPrefix(args[1], "case ")
		for _, row := range reference(w, "cpi2_case_studies.csv") {
			if row[0] == n {
				w.addTask(row[1:3])
				suspects = append(suspects, want{row[1], w.number(row[3])})
			}
		}
	}
	for _, line := range table[1:] {
		name, r, _ := strings.Cut(strings.TrimSpace(line), ": ")
		suspects = append(suspects, want{name, w.number(r)})
	}
	if len(suspects) == 0 {
		w.t.Fatalf("generate %v: no suspects", args)
	}
	limit := w.params.Threshold(w.signal, v.spec)
	names, rows := "  "+args[0], make([]string, len(cells))
	for i, c := range cells {
		rows[i] = fmt.Sprintf("  %*s", len(args[0]), c)
	}
	clear(w.wanted)
	for _, s := range suspects {
		u, err := correlated(costs, limit, s.r, 0.5)
		if err != nil {
			w.t.Fatalf("%s: %v", s.name, err)
		}
		w.task(s.name)
		w.wanted[sample.TaskName(s.name)] = s.r
		names += "  " + s.name
		for i := range rows {
			rows[i] += fmt.Sprintf("  %*.4f", len(s.name), u[i])
		}
	}
	table = append([]string{names}, rows...)
	fmt.Fprintln(&w.out, strings.Join(table, "\n"))
	w.samples(table)
	if w.found.Victim.Name != v.Name || w.found.At != w.now.at {
		w.t.Fatalf("nothing is found on %s after the last sample", v.Name)
	}
	for _, s := range w.found.Suspects {
		if r, ok := w.wanted[s.Name]; ok {
			if delete(w.wanted, s.Name); !(math.Abs(s.Correlation-r) <= 0.005) {
				w.t.Errorf("%s correlates %v, constructed for %v", s.Name, s.Correlation, r)
			}
		}
	}
	if len(w.wanted) > 0 {
		w.t.Errorf("not among the suspects: %v", w.wanted)
	}
}

// correlated constructs a usage series of the given mean whose correlation
// (CPI², section 4.2) with the costs is exactly r.
//
// The correlation is the mean of the weights w = 1 − t/c or c/t − 1 of the intervals,
// weighted by usage. So it is linear in a mix λ·p + (1−λ)·n of two series of sum 1: p in
// phase (usage only where c > t, following w) with correlation a, and n in anti-phase
// (usage only where c < t, steady) with correlation b; λ = (r − b)/(a − b). If a is too
// small, p follows w², w³ and so on, with more weight on the worst intervals.
func correlated(costs []float64, t, r, mean float64) ([]float64, error) {
	weights := make([]float64, len(costs))
	n, b := make([]float64, len(costs)), 0.0
	good := 0
	for i, c := range costs {
		if weights[i] = 1 - t/c; c < t {
			weights[i] = c/t - 1
			good++
		}
	}
	for i, x := range weights {
		if x < 0 {
			n[i] = 1 / float64(good)
			b += x / float64(good)
		}
	}
	for power := 1; power <= 64; power++ {
		p, sum, a := make([]float64, len(costs)), 0.0, 0.0
		for i, x := range weights {
			if x > 0 {
				p[i] = math.Pow(x, float64(power))
				sum += p[i]
				a += p[i] * x
			}
		}
		if a /= sum; !(a >= r && b <= r && a > b) {
			continue
		}
		mix := (r - b) / (a - b)
		u := make([]float64, len(costs))
		for i := range u {
			u[i] = (mix*p[i]/sum + (1-mix)*n[i]) * mean * float64(len(costs))
		}
		return u, nil
	}
	return nil, fmt.Errorf("no usage correlates %v with costs %v and threshold %v", r, costs, t)
}

// reference reads a table of the papers, without its header.
func reference(w *world, name string) [][]string {
	w.t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "..", "testdata", "reference", name))
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		w.t.Fatal(err)
	}
	return rows[1:]
}

// The construction behind the case studies, tested on its own.
func TestCorrelatedSeriesHaveTheCorrelationWanted(t *testing.T) {
	costs := []float64{1, 1.2, 0.8, 3, 2.2, 5}
	const limit = 2
	for _, r := range []float64{-0.4, -0.1, 0, 0.07, 0.35, 0.5, 0.58} {
		u, err := correlated(costs, limit, r, 0.5)
		if err != nil {
			t.Fatal(err)
		}
		sum, got := 0.0, 0.0
		for _, x := range u {
			if sum += x; x < 0 {
				t.Errorf("r %v: negative usage in %v", r, u)
			}
		}
		for i, c := range costs {
			if c > limit {
				got += u[i] / sum * (1 - limit/c)
			} else {
				got += u[i] / sum * (c/limit - 1)
			}
		}
		if math.Abs(got-r) > 1e-9 || math.Abs(sum/6-0.5) > 1e-9 {
			t.Errorf("wanted %v, got %v of mean %v", r, got, sum/6)
		}
	}
	if u, err := correlated(costs, limit, 0.7, 0.5); err == nil {
		t.Errorf("0.7 is out of reach, got %v", u)
	}
}
