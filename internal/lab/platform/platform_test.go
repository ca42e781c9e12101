package platform

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/machine/host"
)

// machine has cores of two threads each, in packages with one cache each.
func machine(packages, cores int) host.Topology {
	var t host.Topology
	for p := range packages {
		for c := range cores {
			for range 2 {
				id := len(t.CPUs)
				t.CPUs = append(t.CPUs, host.CPU{ID: id, Package: p, Core: c, LLC: host.Cache{ID: p, Size: 32 << 20}})
				t.Online = t.Online.With(id)
			}
		}
	}
	for i := range t.CPUs {
		t.CPUs[i].Siblings = sample.SetOf(i&^1, i|1)
	}
	return t
}

func TestStudiesAreRight(t *testing.T) {
	for _, c := range []struct {
		name      string
		top       host.Topology
		relations string
	}{
		{"a laptop", machine(1, 2), "same-llc smt-sibling same-thread"},
		{"a server", machine(2, 48), "cross-package same-llc smt-sibling same-thread"},
	} {
		files, err := Studies(c.top, c.top.Online, 3, 5)
		if err != nil || len(files) != 4 {
			t.Fatalf("%s: %d studies, %v", c.name, len(files), err)
		}
		for _, f := range files {
			s, err := study.Parse(f.Name, f.Text, study.Known{Builtins: workload.KernelNames(), Parsers: workload.ParserNames(), Options: func(builtin string, flags []string) error {
				_, err := workload.ParseKernel(append([]string{builtin}, flags...))
				return err
			}})
			if err != nil {
				t.Fatalf("%s: %v\n%s", c.name, err, f.Text)
			}
			if s.Name != f.Name || s.Design.Repetitions != 3 || len(s.Plan()) == 0 {
				t.Errorf("%s: study %s, %d repetitions", c.name, s.Name, s.Design.Repetitions)
			}
			switch f.Name {
			case Pairs, Network:
				var got []string
				for _, p := range s.Factor("placement").Placements {
					got = append(got, p.Relation)
				}
				if strings.Join(got, " ") != c.relations {
					t.Errorf("%s: relations %v, want %s", c.name, got, c.relations)
				}
			case Threads:
				levels := s.Factor("threads").Levels
				if n := len(levels); n > mostLevels || levels[0] != "1" {
					t.Errorf("%s: levels %v", c.name, levels)
				}
			}
		}
	}
	// The knee of 96 CPUs is between 48 and 49, and both are tried.
	if got := levels(96); !slices.Contains(got, 48) || !slices.Contains(got, 49) || got[len(got)-1] != 96 {
		t.Errorf("levels of 96: %v", got)
	}
}

func around(v float64) analyse.Interval {
	return analyse.Interval{Value: v, Low: v - 1, High: v + 1, Level: 0.95, N: 3}
}

func TestPage(t *testing.T) {
	top := machine(1, 2)
	at := func(relation string) []study.Level { return []study.Level{{Factor: "placement", Value: relation}} }
	results := map[string]*analyse.Results{
		Threads: {Noise: &analyse.Noise{Floor: 0.01}, Doses: []analyse.Dose{{Full: around(50), Cores: &analyse.Cores{CPUs: 4, Least: 2, Most: 2, Knee: &analyse.Knee{Before: 2, After: 3, Step: around(25)}},
			Points: []analyse.DosePoint{{Threads: 1}, {Threads: 2, Longer: around(0)}, {Threads: 3, Longer: around(25)}, {Threads: 4, Longer: around(50)}}}}},
		Memory: {Scores: []analyse.Score{{Workload: "chase-16KiB", Value: around(1e-9)}, {Workload: "chase-2MiB", Value: around(1.2e-9)}, {Workload: "chase-128MiB", Value: around(90e-9)}, {Workload: "triad", Value: around(12e9)}}},
		Pairs: {Noise: &analyse.Noise{Floor: 0.02}, Degradations: []analyse.Degradation{
			{Workload: "compute", Partners: []string{"compute"}, Levels: at("smt-sibling"), Percent: around(45)},
			{Workload: "cache", Partners: []string{"stream"}, Levels: at("smt-sibling"), Percent: around(95)},
			{Workload: "compute", Partners: []string{"compute"}, Levels: at("same-llc"), Percent: around(0)},
			{Workload: "cache", Partners: []string{"stream"}, Levels: at("same-llc"), Percent: around(60)},
			{Workload: "compute", Partners: []string{"compute"}, Levels: at("same-thread"), Percent: around(100)},
			{Workload: "cache", Partners: []string{"stream"}, Levels: at("same-thread"), Percent: around(140)}}},
		Network: {Tenants: &analyse.Tenants{Latencies: []analyse.Latency{
			{Levels: at("same-llc"), P50: analyse.Interval{Value: 41e-6}, P99: analyse.Interval{Value: 88e-6}},
			{Levels: at("same-thread"), P50: analyse.Interval{Value: 20e-6}, P99: analyse.Interval{Value: 30e-6}}}}},
	}
	var b strings.Builder
	page := NewPage(top, results)
	if err := page.Markdown(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Cores: 2, by a step of 25.0 % (24.0 to 26.0) from 2 to 3 busy threads (the kernel reports 2 cores and 4 CPUs).",
		"2MiB 1.2 ns → 128MiB 90.0 ns",
		"is 95.0 % (94.0 to 96.0), cache next to stream at smt-sibling",
		"Pinning: same-llc is best by the average loss of pairs: same-llc 30 %, smt-sibling 70 %, same-thread 120 % (noise floor 2.0 %)",
		"reaches 12.0 GB/s", "| 4 | 50.0 % (49.0 to 51.0) |", "Network cards, which need a second machine",
		"back takes 41 µs (99th percentile 88 µs) at same-llc, 20 µs (99th percentile 30 µs) at same-thread.", "| same-llc | 41 µs | 88 µs |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "16KiB 1.0 ns →") {
		t.Error("a step that is none")
	}
	// A step that is significant and small is not that of a shared core.
	small := analyse.Dose{Full: around(3), Knee: &analyse.Knee{Before: 1, After: 2, Step: analyse.Interval{Value: 0.3, Low: 0.2, High: 0.4}},
		Cores: &analyse.Cores{CPUs: 4, Least: 4, Most: 4}, Points: []analyse.DosePoint{{Threads: 1}, {Threads: 2}, {Threads: 4}}}
	if said := NewPage(top, map[string]*analyse.Results{Threads: {Doses: []analyse.Dose{small}}}).Findings; !strings.HasPrefix(said[0], "Cores: no step of 2 % or more up to 4 busy threads") {
		t.Error(said)
	}
	// The page says where there is no difference, and nothing about studies that were
	// not run.
	quiet := map[string]*analyse.Results{Pairs: {Noise: &analyse.Noise{Floor: 0.1}, Degradations: []analyse.Degradation{
		{Workload: "compute", Partners: []string{"compute"}, Levels: at("same-llc"), Percent: around(1)},
		{Workload: "compute", Partners: []string{"compute"}, Levels: at("cross-package"), Percent: around(-1)}}}}
	said := strings.Join(NewPage(top, quiet).Findings, "\n")
	if !strings.Contains(said, "makes no difference above the noise floor of 10.0 %") || strings.Contains(said, "Cores") || strings.Contains(said, "Memory") {
		t.Error(said)
	}
	// For a study without valid runs the page says that, and the reason.
	busy := NewPage(top, map[string]*analyse.Results{Threads: {Reasons: map[result.Reason]int{result.Steal: 2, result.ForeignCPU: 7}}})
	if said := strings.Join(busy.Findings, "\n"); said != "Cores: unknown, because no run of platform-threads is valid (foreign-cpu 7 times, steal 2 times)." {
		t.Error(said)
	}
	if none := NewPage(top, nil); len(none.Findings) != 0 || !math.IsNaN(none.Bandwidth.Value) {
		t.Errorf("out of nothing: %+v", none)
	}
}
