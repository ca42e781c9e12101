// Month plays a month of a simulated cluster and stores what its agents would have sent, for
// quell evaluate --cluster (make evaluate-month, docs/evaluation.md).
package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/eval/rivals"
	"github.com/quell-dev/quell/internal/eval/sim"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "month:", err)
		os.Exit(1)
	}
}

// order is what to play.
type order struct {
	Machines int           `json:"machines"`
	Distinct int           `json:"distinct"` // machines that are played; each other one stores the same as one of them
	Days     int           `json:"days"`
	Every    time.Duration `json:"every"` // between two stored samples of a task
	Whole    int           `json:"whole"` // of every so many machines one stores all samples
	Seed     uint64        `json:"seed"`
	Rule     detect.Method `json:"rule"`
	First    string        `json:"first_day"`      // hash of what a machine sends in its first day: another simulator or rule sends other rows
	Took     string        `json:"took,omitempty"` // playing and storing it

	scenario sim.Scenario
}

// begins is the first moment of every month.
func begins() time.Time { return time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC) }

func (o *order) ends() time.Time { return begins().AddDate(0, 0, o.Days) }

func run() error {
	o := order{Rule: detect.CPI2}
	out := flag.String("out", "", "state directory of a quell-server, made if it does not exist")
	flag.IntVar(&o.Machines, "machines", 1000, "machines")
	flag.IntVar(&o.Distinct, "distinct", 0, "machines to play; each other one stores the same rows as one of them, which shows what the rows of many machines take in less time; 0: all")
	flag.IntVar(&o.Days, "days", 30, "days")
	flag.DurationVar(&o.Every, "every", 30*time.Minute, "time between two stored samples of a task")
	flag.IntVar(&o.Whole, "whole", 50, "of every so many machines one stores all samples: caps are seen in those")
	flag.Uint64Var(&o.Seed, "seed", 1, "random seed of the first machine")
	flag.Parse()
	if o.Distinct == 0 {
		o.Distinct = o.Machines
	}
	if *out == "" || o.Machines < 1 || o.Distinct < 1 || o.Distinct > o.Machines || o.Days < 1 || o.Whole < 1 || o.Every < time.Minute || o.Every > time.Hour {
		return errors.New("want -out DIR, at least one machine, day and -whole, at most as many -distinct as -machines, and -every from 1m to 1h")
	}
	o.scenario = sim.Fleet()
	if err := o.identify(sim.NewSimulator(o.Seed)); err != nil {
		return err
	}
	done := filepath.Join(*out, "month.json")
	if text, err := os.ReadFile(done); err == nil {
		var had order
		if err := json.Unmarshal(text, &had); err != nil {
			return fmt.Errorf("read %s: %w", done, err)
		}
		took := had.Took
		had.Took, had.scenario = "", o.scenario
		if had != o {
			return fmt.Errorf("%s has another month, or one of another simulator or rule, %s: remove it", *out, text)
		}
		fmt.Printf("%s has that month; it took %s\n", *out, took)
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	began := time.Now()
	if err := o.make(filepath.Join(*out, "store"), func(done int) {
		fmt.Fprintf(os.Stderr, "%d of %d machines, %s\n", done, o.Machines, time.Since(began).Round(time.Second))
	}); err != nil {
		return err
	}
	o.Took = time.Since(began).Round(time.Second).String()
	text, err := json.Marshal(&o)
	if err != nil {
		return err
	}
	fmt.Printf("made %s\n", text)
	return os.WriteFile(done, text, 0o600)
}

// identify plays a machine for a day and notes what it sends.
func (o *order) identify(simulator *sim.Simulator) error {
	rule, err := rivals.Load(o.Rule)
	if err != nil {
		return err
	}
	day, hash := *o, sha256.New()
	day.Days, day.Whole, day.Every = 1, 2, 10*time.Minute // the second machine, which does not send all samples
	err = day.play(simulator, rule, 1, func(b store.Batch) {
		fmt.Fprint(hash, b.Samples)
		for i := range b.Incidents {
			fmt.Fprintln(hash, b.Incidents[i].Doc)
		}
	})
	o.First = fmt.Sprintf("%.8x", hash.Sum(nil))
	return err
}

// perCommit is the number of machines whose month is stored with one commit.
const perCommit = 50

// make plays the machines and stores their months.
func (o *order) make(dir string, progress func(done int)) (err error) {
	rule, err := rivals.Load(o.Rule)
	if err != nil {
		return err
	}
	now := o.ends()
	s, err := store.Open(dir, store.Options{Now: func() time.Time { return now }})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	simulator := sim.NewSimulator(o.Seed)
	distinct := o.Distinct
	if distinct == 0 {
		distinct = o.Machines
	}
	copies := (o.Machines + distinct - 1) / distinct
	step := max(1, perCommit/copies)
	for first := 0; first < distinct; first += step {
		last := min(first+step, distinct)
		failed := make([]error, last-first)
		var playing sync.WaitGroup
		next := make(chan int)
		for range runtime.GOMAXPROCS(0) {
			playing.Go(func() {
				for i := range next {
					failed[i-first] = o.play(simulator, rule, i, func(b store.Batch) {
						for k := i; k < o.Machines; k += distinct {
							rename(&b, o.name(k))
							s.Add(&b)
						}
					})
				}
			})
		}
		for i := first; i < last; i++ {
			next <- i
		}
		close(next)
		playing.Wait()
		if err := errors.Join(append(failed, s.Flush())...); err != nil {
			return err
		}
		progress(last * copies)
	}
	now = now.Add(time.Hour) // hours that have ended are merged into one segment
	for more := true; more && err == nil; {
		more, err = s.Compact()
	}
	now = now.Add(time.Hour) // and the segments that they replace are removed
	return errors.Join(err, s.Sweep())
}

// name is that of the i-th machine.
func (o *order) name(i int) string { return fmt.Sprintf("%s-%d", o.scenario.Name, o.Seed+uint64(i)) }

// rename makes a batch that of another machine.
func rename(b *store.Batch, machine string) {
	was := b.Source.Machine
	if was == machine {
		return
	}
	b.Source.Machine = machine
	for i := range b.Samples {
		b.Samples[i].Machine = machine
	}
	for i := range b.Incidents {
		inc := &b.Incidents[i]
		inc.Machine, inc.Doc = machine, strings.Replace(inc.Doc, strconv.Quote(was), strconv.Quote(machine), 1)
	}
}

// play plays the i-th machine and passes on what its agent would have sent.
func (o *order) play(simulator *sim.Simulator, rule rivals.Rule, i int, add func(store.Batch)) error {
	policy := sim.Policy()
	policy.Mode = plan.On
	seed := o.Seed + uint64(i)
	r := &recorder{machine: o.name(i), start: sample.At(begins()), tick: sample.Millis(o.Every.Milliseconds()), add: add, open: map[string]seen{}}
	setup := sim.Setup{Rule: rule, Policy: policy, Minutes: o.Days * 24 * 60, Start: r.start, Record: r.sample, Changed: r.changed}
	if i%o.Whole != 0 {
		setup.RecordEvery = int(o.Every.Minutes())
	}
	simulator.Run(&o.scenario, seed, setup)
	r.flush(sample.Millis(o.Days) * dayMS)
	return r.err
}
