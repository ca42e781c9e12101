//go:build inguest

package fakepmu

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/machine/counter"
)

// The victim of both tests has CPI 1.2 alone and 3 together with the antagonist.
var (
	victimModel     = model{CPI: 1.2, MPKI: 2, Sens: 1.5}
	antagonistModel = model{CPI: 0.9, MPKI: 30, Pressure: 1}
)

// near reports whether got differs from want by at most the given share.
func near(got, want, share float64) bool { return math.Abs(got-want) <= share*want }

// pair is a victim on CPU 0 and an antagonist on CPU 1, both busy all the time.
type pair struct {
	t      *testing.T
	tree   *workload.Tree
	antDir string
}

func newPair(t *testing.T) *pair {
	t.Helper()
	tree := openTree(t)
	p := &pair{t: t, tree: tree}
	busy := workload.Default(workload.Spin)
	busy.Duty = 1
	for cpu, name := range []string{"victim", "antagonist"} {
		begin(t, play(t, tree, name, busy, cpu))
	}
	for _, name := range []string{"victim", "antagonist"} {
		wait(t, 50*time.Millisecond, time.Minute, name+" is at work", func() bool { return usage(t, p.dir(name)) >= 300*time.Millisecond })
	}
	p.antDir, _ = tree.CPUDir("antagonist")
	victimModel.set(t, p.dir("victim"))
	antagonistModel.set(t, p.antDir)
	return p
}

func (p *pair) dir(task string) string { return cgroupRoot + p.tree.Path(task) }

// follow opens the product's CPI source for one task.
func (p *pair) follow(task string) *counter.Perf {
	p.t.Helper()
	src, err := counter.OpenCPI(sample.SetOf(0, 1), cgroupRoot)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { src.Close() })
	if err := src.Add(counter.Target{Key: sample.TaskKey{Inode: 1}, PerfDir: p.dir(task)}); err != nil {
		p.t.Fatal(err)
	}
	return src
}

// window counts for the given guest time.
func (p *pair) window(long time.Duration, sources ...*counter.Perf) (all []counter.Reading) {
	p.t.Helper()
	for _, s := range sources {
		if err := s.Start(); err != nil {
			p.t.Fatal(err)
		}
	}
	<-time.After(long)
	for _, s := range sources {
		if err := s.Stop(counter.WindowEnd{}, func(_ sample.TaskKey, r counter.Reading) { all = append(all, r) }); err != nil {
			p.t.Fatal(err)
		}
	}
	return all
}

func perKilo(r counter.Reading) float64 {
	misses, _ := r.Extras.Get(sample.LLCMisses)
	instructions, _ := r.Extras.Get(sample.Instructions)
	return 1000 * misses / instructions
}

// The victim's CPI follows what really runs on the other CPU: the antagonist, less of it
// under a real cpu.max, nothing of it while it is frozen. A share p of full pressure
// gives 1 ÷ CPI = p/3 + (1-p)/1.2.
func TestCPIAnswersToTheNeighbour(t *testing.T) {
	p := newPair(t)
	src := p.follow("victim")
	if src.Info().Variant != "ref-cycles" || len(src.Info().Missing) != 0 {
		t.Errorf("variant %s, missing %v", src.Info().Variant, src.Info().Missing)
	}
	for _, c := range []struct {
		name, file, value string
		cpi, share        float64
	}{
		{"frozen", "cgroup.freeze", "1", 1.2, 0.005},
		{"running", "cgroup.freeze", "0", 3, 0.06},
		{"capped at 20 %", "cpu.max", "20000 100000", 1.364, 0.04},
		{"capped at 10 %", "cpu.max", "10000 100000", 1.277, 0.04},
		{"free again", "cpu.max", "max 100000", 3, 0.06},
	} {
		write(t, p.antDir+"/"+c.file, c.value)
		<-time.After(200 * time.Millisecond) // the remaining quota is used up
		r := p.window(time.Second, src)[0]
		t.Logf("figure: antagonist %s: victim's CPI measured / modelled %.3f / %.3f, %.2f LLC misses per 1000 instructions, coverage %.2f", c.name, r.Cost, c.cpi, perKilo(r), r.Coverage)
		if !near(r.Cost, c.cpi, c.share) {
			t.Errorf("antagonist %s: CPI %.4f, want %.3f within %g %%", c.name, r.Cost, c.cpi, 100*c.share)
		}
		if !near(perKilo(r)/2, r.Cost/1.2, 0.03) { // both depend on the pressure
			t.Errorf("antagonist %s: %.3f misses per 1000 instructions at CPI %.3f", c.name, perKilo(r), r.Cost)
		}
	}
}

// A PMU without the last-level event loses only that; one without reference cycles counts
// core cycles; one without instructions counts no CPI. Each case is reported.
func TestWhatThePMULacksIsSaid(t *testing.T) {
	for _, c := range []struct {
		params, variant string
		missing         int
		llc             bool
	}{
		{"evmask=0x0023f", "ref-cycles", 1, false}, // no LLC
		{"evmask=0x1003f", "core-cycles", 1, true}, // no reference cycles
		{"evmask=0x0003f", "core-cycles", 2, false},
		{"ncnt=2", "ref-cycles", 1, false}, // no counter for it
	} {
		t.Run(c.params, func(t *testing.T) {
			pmu(t, c.params)
			p := newPair(t)
			write(t, p.antDir+"/cgroup.freeze", "1")
			src := p.follow("victim")
			r := p.window(300*time.Millisecond, src)[0]
			_, llc := r.Extras.Get(sample.LLCMisses)
			if src.Info().Variant != c.variant || len(src.Info().Missing) != c.missing || llc != c.llc || !near(r.Cost, 1.2, 0.005) {
				t.Errorf("variant %s, LLC misses %v, CPI %v, missing %v", src.Info().Variant, llc, r.Cost, src.Info().Missing)
			}
			src.Close()
		})
	}
	t.Run("no instructions", func(t *testing.T) {
		pmu(t, "evmask=0x1023d")
		var missing *counter.NotSupportedError
		if _, err := counter.OpenCPI(sample.SetOf(0, 1), cgroupRoot); !errors.As(err, &missing) {
			t.Errorf("error %v, want a NotSupportedError", err)
		}
	})
}

// Three groups of three events on a PMU with six counters are multiplexed; each count is
// scaled to the same value.
func TestGroupsTakeTurns(t *testing.T) {
	pmu(t, "ncnt=6")
	p := newPair(t)
	write(t, p.antDir+"/cgroup.freeze", "1")
	all := p.window(2*time.Second, p.follow("victim"), p.follow("victim"), p.follow("victim"))
	for _, r := range all {
		cycles, ok := r.Extras.Get(sample.Cycles)
		// 2000 MHz for 2 s of a CPU.
		if !ok || !near(r.Coverage, 2./3, 0.1) || !near(cycles, 4e9, 0.08) || !near(r.Cost, 1.2, 0.01) {
			t.Errorf("coverage %.3f, cycles %.4g, CPI %.4f: want 0.67, 4e9, 1.2", r.Coverage, cycles, r.Cost)
		}
	}
	t.Logf("figure: three groups on counters for two: coverage %.2f %.2f %.2f, CPI %.3f %.3f %.3f of 1.200",
		all[0].Coverage, all[1].Coverage, all[2].Coverage, all[0].Cost, all[1].Cost, all[2].Cost)
}
