// Noise prints the variation of tasks' cost and usage outside labelled stretches, in
// recordings of CPI and in traces of the simulator, to fit the simulator to the recordings
// (docs/sim.md).
//
//	noise 5s:TRACE 2s:TRACE … 1s:FILE.parquet …
//	quell sim --scenario everyday --for 24h --trace sim.csv && noise 60s:sim.csv
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/format/trace"
	"github.com/quell-dev/quell/internal/format/trace/recording"
)

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "noise:", err)
		os.Exit(1)
	}
}

// window is the length of a sample, as in the paper (CPI², table 2). Shorter samples are
// averaged.
const window = 10 * time.Second

// least is the least number of samples of a task that is evaluated.
const least = 12

func run(w io.Writer, files []string) error {
	if len(files) == 0 {
		return errors.New("want STEP:FILE …")
	}
	fmt.Fprint(w, "Medians over tasks, with quartiles; samples of 10 s.\n\n| recording | tasks | samples | σ ÷ mean of cost | correlation with 10 s before | with 60 s before | above mean + 2σ | σ ÷ mean of usage |\n|---|---|---|---|---|---|---|---|\n")
	for _, name := range files {
		step, file, ok := strings.Cut(name, ":")
		every, err := time.ParseDuration(step)
		if !ok || err != nil || every <= 0 {
			return fmt.Errorf("%q: want STEP:FILE", name)
		}
		tasks, err := read(file, every)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		fmt.Fprintln(w, row(file, tasks))
	}
	return nil
}

// point is a sample of a task, over window or the recording's step, whichever is longer.
type point struct {
	at          time.Duration
	cost, usage float64
}

type taskKey struct {
	machine string
	task    sample.TaskName
}

// read returns the samples of each task of a recording except those in labelled or unknown
// stretches.
func read(file string, step time.Duration) (map[taskKey][]point, error) {
	r, err := recording.Open(file, recording.Options{})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	labels, _ := r.Labels()
	left := r.Unlabelled()
	for _, l := range labels {
		left = append(left, trace.Stretch{Machine: l.Machine, Victim: l.Victim, From: l.From, To: l.To})
	}
	raw := map[taskKey][]point{}
	for {
		some, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		for i := range some {
			s := &some[i]
			cost := float64(s.Cost)
			if s.Signal != sample.CPI || !(cost >= 0.1 && cost <= 20) || s.CPU <= 0 {
				continue
			}
			in := func(l trace.Stretch) bool {
				return l.Machine == s.Machine && l.Victim == s.Task && l.From < s.TS && s.TS <= l.To
			}
			if slices.ContainsFunc(left, in) {
				continue
			}
			k := taskKey{s.Machine, s.Task}
			raw[k] = append(raw[k], point{time.Duration(s.TS) * time.Millisecond, cost, float64(s.CPU)})
		}
	}
	for k, all := range raw {
		raw[k] = averaged(all, step)
	}
	return raw, nil
}

// averaged merges shorter samples into samples of a window: the cost of all work in it. A
// window with a gap is left out.
func averaged(all []point, step time.Duration) (out []point) {
	n := int(window / step)
	if n <= 1 {
		return all
	}
	for i := 0; i+n <= len(all); {
		some := all[i : i+n]
		if some[n-1].at-some[0].at >= window {
			i++
			continue
		}
		var cycles, work, usage float64
		for _, p := range some {
			cycles, work, usage = cycles+p.usage, work+p.usage/p.cost, usage+p.usage
		}
		out = append(out, point{some[0].at, cycles / work, usage / float64(n)})
		i += n
	}
	return out
}

// row returns the table row of a recording.
func row(file string, tasks map[taskKey][]point) string {
	var spread, near, far, above, usage []float64
	samples := 0
	for _, all := range tasks {
		if len(all) < least {
			continue
		}
		samples += len(all)
		cost, used := of(all, func(p point) float64 { return p.cost }), of(all, func(p point) float64 { return p.usage })
		m := moments(cost)
		over := 0
		for _, c := range cost {
			if c > m.Mean+2*m.StdDev() {
				over++
			}
		}
		spread, above = append(spread, m.StdDev()/m.Mean), append(above, float64(over)/float64(len(cost)))
		m = moments(used)
		usage = append(usage, m.StdDev()/m.Mean)
		if r, ok := correlation(all, window); ok {
			near = append(near, r)
		}
		if r, ok := correlation(all, time.Minute); ok {
			far = append(far, r)
		}
	}
	return fmt.Sprintf("| %s | %d | %d | %s | %s | %s | %s | %s |", file, len(spread), samples, quartiles(spread), quartiles(near), quartiles(far), quartiles(above), quartiles(usage))
}

func of(all []point, f func(point) float64) (x []float64) {
	for _, p := range all {
		x = append(x, f(p))
	}
	return x
}

// moments returns the moments of x, each value with weight 1.
func moments(x []float64) (m stat.Moments) {
	for _, v := range x {
		m.Add(v, 1)
	}
	return m
}

// correlation returns the correlation of a cost with the cost one lag earlier, over the
// available pairs; false if they are fewer than least.
func correlation(all []point, lag time.Duration) (float64, bool) {
	m := moments(of(all, func(p point) float64 { return p.cost }))
	sum, n := 0.0, 0
	for i, j := 0, 0; j < len(all); j++ {
		for all[j].at-all[i].at > lag+lag/4 {
			i++
		}
		if i < j && all[j].at-all[i].at >= lag-lag/4 {
			sum, n = sum+(all[i].cost-m.Mean)*(all[j].cost-m.Mean), n+1
		}
	}
	if n < least || m.StdDev() == 0 {
		return 0, false
	}
	return sum / float64(n) / (m.StdDev() * m.StdDev()), true
}

func quartiles(x []float64) string {
	if len(x) == 0 {
		return "-"
	}
	slices.Sort(x)
	at := func(share float64) float64 { return x[min(len(x)-1, int(share*float64(len(x))))] }
	return fmt.Sprintf("%.3f (%.3f to %.3f)", at(0.5), at(0.25), at(0.75))
}
