package detect

import (
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

const minute = sample.Millis(60_000)

func paper(t testing.TB, r Method) Params {
	t.Helper()
	p, err := Paper(r)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// only returns the paper's parameters with the given switches.
func only(t testing.TB, sw Switches) Params {
	p := paper(t, CPI2)
	p.Switches = sw
	return p
}

func signal(t testing.TB, name sample.SignalName) sample.Signal {
	t.Helper()
	s, ok := sample.LookupSignal(name)
	if !ok {
		t.Fatalf("signal %q is not known", name)
	}
	return s
}

func task(inode uint64, class sample.Class) *sample.Task {
	return &sample.Task{Key: sample.TaskKey{Inode: inode}, Name: sample.TaskName(fmt.Sprintf("/task-%d", inode)), Class: class}
}

func ready(mean, stddev float64) *spec.Spec {
	return &spec.Spec{State: spec.Ready, Mean: mean, StdDev: stddev}
}

// victim returns a latency-sensitive task's reading with threshold 2 (1 ± 0.5).
func victim(inode uint64, cost float64) Reading {
	return Reading{Task: task(inode, sample.LatencySensitive), Cost: cost, CPU: 1, Pressure: 1, Spec: ready(1, 0.5)}
}

// suspect returns the reading of a batch task of which only the usage is known.
func suspect(inode uint64, usage float64) Reading {
	return Reading{Task: task(inode, sample.Batch), Cost: math.NaN(), CPU: usage, Pressure: usage}
}

// with returns the changed reading.
func (r Reading) with(change func(*Reading)) Reading {
	change(&r)
	return r
}

// findings observes one row a minute and returns the findings after each.
func findings(d *Detector, sig sample.Signal, rows ...[]Reading) []Finding {
	var all []Finding
	for i, row := range rows {
		at := sample.Millis(i+1) * minute
		d.Observe(sig, at, row)
		all = append(all, drain(d, at)...)
	}
	return all
}

// drain returns the queued findings, at the detector's pace.
func drain(d *Detector, now sample.Millis) []Finding {
	var all []Finding
	for {
		f, ok := d.Next(now)
		if !ok {
			return all
		}
		f.Suspects = slices.Clone(f.Suspects)
		all = append(all, f)
		now = now.Add(d.Params().Pace)
	}
}

// last returns the newest of the findings, which must exist.
func last(t testing.TB, all []Finding) Finding {
	t.Helper()
	if len(all) == 0 {
		t.Fatal("nothing was found")
	}
	return all[len(all)-1]
}

// of returns a task's entry among the suspects.
func (f Finding) of(t testing.TB, inode uint64) Suspect {
	t.Helper()
	for _, s := range f.Suspects {
		if s.Key.Inode == inode {
			return s
		}
	}
	t.Fatalf("task %d is not among the suspects %v", inode, f.Suspects)
	return Suspect{}
}

// order lists the suspects' inodes in their ranking.
func (f Finding) order() []uint64 {
	var all []uint64
	for _, s := range f.Suspects {
		all = append(all, s.Key.Inode)
	}
	return all
}

// reference reads a table of the reference papers, without its header.
func reference(t testing.TB, name string) [][]string {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "..", "testdata", "reference", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return rows[1:]
}

func near(a, b, tolerance float64) bool { return math.Abs(a-b) <= tolerance }
