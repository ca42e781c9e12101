// Fit estimates the coefficients by which rule evidence computes a suspect's probability
// (package detect, statistics.go). It uses findings with known antagonists: those of labelled
// recordings of CPI, given as STEP:FILE, of such recordings with innocent tasks of others
// added (quell replay --innocents … --save), given as innocents:STEP:FILE, of scenes of the
// corpus, given as corpus:FILE, and of the simulator's tuning half. Tuning scenes of the
// corpus and half of the other machines are for the fit, the rest for the judgement; a machine
// to which innocents were added goes with the same machine without them. It also prints the
// calibration of the built-in probabilities.
//
//	fit -seeds 2 -days 100 5s:TRACE … innocents:5s:TRACE … corpus:testdata/corpus/tuning-01.csv.gz …
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/eval/quality"
	"github.com/quell-dev/quell/internal/eval/replay"
	"github.com/quell-dev/quell/internal/eval/rivals"
	"github.com/quell-dev/quell/internal/eval/sim"
	"github.com/quell-dev/quell/internal/eval/stat"
	"github.com/quell-dev/quell/internal/format/trace/recording"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "fit:", err)
		os.Exit(1)
	}
}

// sources are the sources of findings, with the total weight that the findings of each have
// in the fit: the more it is like a machine on which the rule runs, and the more in it only
// statistics can tell, the higher. In recordings without innocents nearly every finding is
// right.
var sources = []struct {
	name   string
	weight float64
}{{"recording", 0.5}, {"innocents", 6}, {"corpus", 2}, {"sim", 4}, {"everyday", 2}}

// finding is one whose antagonists are known.
type finding struct {
	source, machine string          // machine: with the file that it is in
	recorded        string          // the machine as recordings call it, the same with innocents added
	victim, first   sample.TaskName // first: the suspect with the highest score
	began, at       sample.Millis
	step            time.Duration
	features        []float64
	p               float64 // by the built-in coefficients
	// decided: the finding's statement is that probability, and not accounts of a queue, a
	// change of the victim itself or the load outside, and the first suspect is not
	// excluded.
	decided bool
	right   bool // the first is an antagonist
	weight  float64
}

type findings struct {
	mu  sync.Mutex
	all []finding
}

// add adds a finding, with the features of its best suspect.
func (d *findings) add(source, machine string, f *pipeline.Finding) *finding {
	if len(f.Statistics) == 0 || f.Kind == detect.OwnQuota || f.Kind == detect.SelfWait || f.Kind == detect.Steal {
		return nil
	}
	w := slices.MaxFunc(f.Statistics, func(a, b detect.SuspectStatistics) int { return cmp.Compare(a.Score, b.Score) })
	d.all = append(d.all, finding{source: source, machine: machine, recorded: machine, victim: f.Victim.Name, first: w.Task.Name, began: f.First, at: f.At, features: w.Features(), p: w.Probability(),
		decided: f.Change == "" && len(f.Suspects) > 0 && f.Suspects[0].Key == w.Task.Key && f.Suspects[0].Excluded == "" &&
			w.Task.Name != detect.OutsideName && f.Suspects[0].Basis == detect.ByStatistics})
	return &d.all[len(d.all)-1]
}

func run() error {
	seeds := flag.Int("seeds", 0, "cases of each of the simulator's tuning scenarios")
	days := flag.Int("days", 0, "days of an everyday machine in the simulator")
	flag.Parse()
	var d findings
	for _, arg := range flag.Args() {
		source, file, _ := strings.Cut(arg, ":")
		step := source
		switch source {
		case "innocents":
			step, file, _ = strings.Cut(file, ":")
		case "corpus":
			step = "1s"
		default:
			source = "recording"
		}
		if err := d.recording(source, step, file); err != nil {
			return err
		}
	}
	if *seeds+*days > 0 {
		if err := d.simulate(*seeds, *days); err != nil {
			return err
		}
	}
	d.order()
	// Findings of one victim repeat each other: which suspect is named counts, not how
	// often.
	recent := map[string][]sample.Millis{}
	key := func(f *finding) string {
		return f.source + "\n" + f.machine + "\n" + string(f.victim) + "\n" + string(f.first)
	}
	total := map[string]float64{} // weight of a source's findings of the fit
	for i := range d.all {
		f := &d.all[i]
		k := key(f)
		before := slices.DeleteFunc(recent[k], func(at sample.Millis) bool { return f.at.Sub(at) > 30*f.step })
		f.weight = 1 / float64(1+len(before))
		recent[k] = append(before, f.at)
		if fitted(f) {
			total[f.source] += f.weight
		}
	}
	var x [][]float64
	var y []bool
	var w []float64
	const weights = 1000 // total for a source of weight 1, much more than the fit's ridge
	for _, source := range sources {
		for i := range d.all {
			if f := &d.all[i]; f.source == source.name && fitted(f) {
				x, y, w = append(x, f.features), append(y, f.right), append(w, f.weight*weights*source.weight/total[f.source])
			}
		}
	}
	l, ok := stat.FitLogistic(x, y, w)
	if !ok {
		return fmt.Errorf("%d findings: the regression has no solution", len(x))
	}
	fmt.Printf("intercept %.3f\ncoefficients %.3f\n", l.Intercept, l.Coef)
	for _, source := range sources {
		err := errors.Join(
			d.calibration(source.name, "these coefficients, machines of the fit", func(f *finding) (float64, bool) { return l.P(f.features), fitted(f) }),
			d.calibration(source.name, "these coefficients, other machines", func(f *finding) (float64, bool) { return l.P(f.features), f.decided && !fitted(f) }),
			d.calibration(source.name, "built-in coefficients", func(f *finding) (float64, bool) { return f.p, f.decided }))
		if err != nil {
			return err
		}
	}
	return nil
}

// order sorts the findings by machine, so that neither the sums of the fit nor the drawn groups of an
// interval depend on which of the machines that are simulated in parallel was faster.
func (d *findings) order() {
	slices.SortStableFunc(d.all, func(a, b finding) int {
		return cmp.Or(cmp.Compare(a.source, b.source), cmp.Compare(a.machine, b.machine))
	})
}

// calibration prints the calibration of the probabilities of a source's findings, where
// probability also returns true.
func (d *findings) calibration(source, what string, probability func(*finding) (float64, bool)) error {
	var said []quality.Forecast
	for i := range d.all {
		f := &d.all[i]
		if p, counts := probability(f); counts && f.source == source {
			said = append(said, quality.Forecast{P: p, Right: f.right, Weight: f.weight, Group: f.group()})
		}
	}
	c, ok := quality.Calibrate(said)
	if !ok {
		return nil
	}
	fmt.Printf("\n%s, %s: ", source, what)
	return c.Write(os.Stdout)
}

// group is that of the findings which are not independent of this one: those of the victim, whatever
// innocents were added to its machine.
func (f *finding) group() string { return f.recorded + " " + string(f.victim) }

// fitted reports whether a finding is for the fit.
func fitted(f *finding) bool {
	if !f.decided {
		return false
	}
	if f.source == "corpus" {
		return strings.HasPrefix(f.recorded, "tuning")
	}
	h := fnv.New32a()
	fmt.Fprint(h, f.recorded)
	return h.Sum32()&1 == 0
}

func (d *findings) recording(source, step, name string) error {
	o, err := replay.Default(detect.EvidenceMethod)
	if err != nil {
		return err
	}
	length, err := time.ParseDuration(step)
	if err != nil {
		return fmt.Errorf("%s: step: %w", name, err)
	}
	o.ScaleTo(length)
	if source == "corpus" {
		o.Spec.MinSamples = 30
	} else {
		cpi, _ := sample.LookupSignal(sample.CPI)
		cpi.LeastCPU, cpi.Min, cpi.Max = 0, 0.1, 20
		o.Signals, o.ByTask = map[sample.SignalName]sample.Signal{sample.CPI: cpi}, true
	}
	o.Detect.Explain = true
	begin := len(d.all)
	o.Found = func(machine string, f *pipeline.Finding) { d.add(source, machine, f) }
	rec, err := recording.Open(name, recording.Options{})
	if err != nil {
		return err
	}
	defer rec.Close()
	if _, err = replay.Run(context.Background(), rec, o, 1); err != nil {
		return err
	}
	labels, _ := rec.Labels()
	kept := d.all[:begin]
next:
	for _, f := range d.all[begin:] {
		for _, u := range rec.Unlabelled() {
			if u.Machine == f.machine && u.Victim == f.victim && f.at >= u.From && f.at <= u.To {
				continue next
			}
		}
		for _, l := range labels {
			// The finding covers all of the anomaly, as in replay.Judge.
			if l.Machine == f.machine && l.Victim == f.victim && f.at >= l.From && f.began <= l.To {
				f.right = f.right || l.Antagonist == f.first
			}
		}
		f.machine, f.step = name+" "+f.machine, length
		kept = append(kept, f)
	}
	d.all = kept
	return nil
}

func (d *findings) simulate(seeds, days int) error {
	player := sim.NewSimulator(1)
	scenarios := sim.Scenarios()
	var orders, daily []sim.Order
	for i := range scenarios {
		if scenarios[i].Half != sim.Tuning {
			continue
		}
		for n := range seeds {
			orders = append(orders, sim.Order{Scenario: &scenarios[i], Seed: 1 + uint64(n)})
		}
	}
	everyday := sim.Everyday()
	for n := range days {
		daily = append(daily, sim.Order{Scenario: &everyday, Seed: 1 + uint64(n)})
	}
	p, err := rivals.Load(detect.EvidenceMethod)
	if err != nil {
		return err
	}
	p.Explain = true
	policy := sim.Policy()
	policy.Mode = plan.Advise
	source := "sim"
	setup := sim.Setup{Rule: p, Policy: policy, Minutes: 150}
	setup.Found = func(machine string, f *pipeline.Finding, hurts func(sample.TaskKey) bool) {
		d.mu.Lock()
		defer d.mu.Unlock()
		one := d.add(source, machine, f)
		if one == nil {
			return
		}
		one.step = time.Minute
		for i := range f.Statistics {
			if w := &f.Statistics[i]; hurts(w.Task.Key) {
				one.right = one.right || w.Task.Name == one.first
			}
		}
	}
	player.RunAll(orders, setup, 0, func(sim.Case) {})
	setup.Minutes, source = 24*60, "everyday"
	player.RunAll(daily, setup, 0, func(sim.Case) {})
	return nil
}
