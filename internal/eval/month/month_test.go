package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/dialect"
	"github.com/quell-dev/quell/internal/cluster/store/duck"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/eval/evaluation"
	"github.com/quell-dev/quell/internal/eval/rivals"
	"github.com/quell-dev/quell/internal/eval/sim"
	"github.com/quell-dev/quell/internal/people/report"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

var (
	monthDir = flag.String("month", "", "folder of a made month that TestMonthIsEvaluated evaluates; empty: a small one is made")
	pageFile = flag.String("page", "", "file to which TestMonthIsEvaluated writes its page (HTML)")
)

// TestMain makes the test binary the child of its queries.
func TestMain(m *testing.M) {
	quelltest.Command("query-child", func(dir string) error { return duck.Child(dir, os.Stdin, os.Stdout) })
	quelltest.Main(m)
}

// server answers queries as quell-server does, with its limits.
type server struct {
	store    *store.Store
	runner   *duck.Runner
	asked    int
	exceeded int // of them
}

func serve(t *testing.T, dir string, now time.Time) *server {
	t.Helper()
	s, err := store.Open(dir, store.Options{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	runner := duck.NewRunner(os.Args[0], "query-child", dir)
	t.Cleanup(runner.Close)
	return &server{s, runner, 0, 0}
}

func (s *server) ask(ctx context.Context, sql string, from, to sample.Millis) ([][]json.RawMessage, error) {
	s.asked++
	sn := s.store.Snapshot(from, to)
	defer sn.Close()
	job := &duck.Job{SQL: sql, From: from, To: to, Files: dialect.Files(sn),
		Limits: duck.Limits{Time: 30 * time.Second, MemoryMB: 256, Threads: 2, Rows: 100_000, Bytes: 64 << 20}}
	for source, m := range s.store.Marks() {
		job.Machines = append(job.Machines, duck.Machine{Machine: source.Machine, Boot: source.Boot, Stream: source.Stream, Batch: m.High, LastSeen: m.At})
	}
	a, err := s.runner.Query(ctx, job)
	if e, ok := errors.AsType[*duck.Error](err); ok && e.Kind == duck.Exceeded || err == nil && a.Truncated {
		s.exceeded++
		return nil, evaluation.ErrLimit
	}
	if err != nil {
		return nil, fmt.Errorf("%w in %s", err, sql)
	}
	rows := make([][]json.RawMessage, len(a.Rows))
	for i, r := range a.Rows {
		if err := json.Unmarshal(r, &rows[i]); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// small is a small month with many antagonists.
func small() order {
	victim, work := sim.Served(1)[0], sim.Others(sim.Visitors)
	g := sim.Guests{Victim: victim, Frequency: 40}
	for i := range g.Visitors {
		g.Visitors[i] = sim.Visitor{Job: work[i], Presses: true}
	}
	return order{Machines: 6, Days: 2, Every: 30 * time.Minute, Whole: 3, Seed: 1, Rule: detect.CPI2, scenario: sim.Placed(g)}
}

// simulator is that of the small month's seed. It is shared, since learning takes as long as playing
// a day.
var simulator = sync.OnceValue(func() *sim.Simulator { return sim.NewSimulator(small().Seed) })

// TestMonthIsEvaluated: all figures of a simulated month come from its tables. With -month it
// takes at most 60 s and 1 GB (make evaluate-month).
func TestMonthIsEvaluated(t *testing.T) {
	dir, o := *monthDir, small()
	if dir == "" {
		dir = t.TempDir()
		if err := o.make(filepath.Join(dir, "store"), func(int) {}); err != nil {
			t.Fatal(err)
		}
	} else {
		text, err := os.ReadFile(filepath.Join(dir, "month.json"))
		if err == nil {
			err = json.Unmarshal(text, &o)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("the month took %s to make", o.Took)
	}
	s := serve(t, filepath.Join(dir, "store"), o.ends())
	began := time.Now()
	e, err := evaluation.OfCluster(t.Context(), s.ask, sample.At(begins()), sample.At(o.ends()), func(part string) {
		t.Logf("%s after %s, %s of CPU time", part, time.Since(began).Round(100*time.Millisecond), spent(t))
	})
	if err != nil {
		t.Fatal(err)
	}
	r := e.Report()
	var page bytes.Buffer
	if err := report.EvaluationHTML(&page, &r, report.Style{}); err != nil {
		t.Fatal(err)
	}
	sheets := r.Sheets()
	took := time.Since(began)
	var text bytes.Buffer
	if err := report.EvaluationText(&text, &r, report.Style{}); err != nil {
		t.Fatal(err)
	}
	memory := peakMB(t, unix.RUSAGE_SELF) + peakMB(t, unix.RUSAGE_CHILDREN)
	st := s.store.Stats()
	t.Logf("%d rows, %d MB, %d queries, of which %d exceeded a limit: evaluated in %s and %s of CPU time, this process and its largest query took %d MB at most", st.Rows, st.Bytes>>20, s.asked, s.exceeded, took.Round(100*time.Millisecond), spent(t), memory)
	t.Logf("\n%s", text.String())
	if *pageFile != "" {
		if err := os.WriteFile(*pageFile, page.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if *monthDir != "" && (took > time.Minute || memory > 1024) {
		t.Errorf("want at most 60 s and 1,024 MB")
	}

	c := r.Cluster
	if want := float64(o.Machines * o.Days); math.Abs(r.Days-want) > 0.01*want {
		t.Errorf("%.2f machine-days, want %.0f", r.Days, want)
	}
	if c.Machines != o.Machines || c.Tasks.N != o.Machines || c.Threads.N != o.Machines || c.Tasks.Values[0] < 20 {
		t.Errorf("%d machines, tasks %+v, threads %+v", c.Machines, c.Tasks, c.Threads)
	}
	if c.Course == nil || len(c.Course.Hours) < o.Days*24-1 || !(c.Course.Variation > 0.01) {
		t.Errorf("course of %d hours", len(c.Course.Hours))
	}
	if len(c.Costs) == 0 || len(c.Costs[0].Fits) != 4 || len(c.Costs[0].Thresholds) != 3 {
		t.Errorf("costs %+v", c.Costs)
	}
	if r.Utilisation.N == 0 || r.Utilisation.N != r.Identified.K || c.Capped.Caps == 0 || c.Capped.Case == nil || c.Capped.MissesN == 0 {
		t.Errorf("utilisation of %d of %d, %+v", r.Utilisation.N, r.Identified.K, c.Capped)
	}
	for _, figure := range []string{"(figure 1)", "(figure 5)", "(figure 7)", "12b", "14a", "14b", "14c", "14d", "15a", "15b", "15c", "16a", "16b", "16c", "16d"} {
		if !strings.Contains(page.String(), figure) {
			t.Errorf("%s is not on the page", figure)
		}
	}
	if n := strings.Count(page.String(), "<svg"); n < 12 || strings.Contains(page.String(), "NaN") || len(sheets) < 9 {
		t.Errorf("%d plots, %d sheets", n, len(sheets))
	}
}

// spent is the CPU time of this process and of its queries.
func spent(t *testing.T) (sum time.Duration) {
	t.Helper()
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			t.Fatal(err)
		}
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum.Round(100 * time.Millisecond)
}

func peakMB(t *testing.T, who int) int64 {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(who, &u); err != nil {
		t.Fatal(err)
	}
	return u.Maxrss >> 10
}

// TestTablesAreCounted compares what is read from tables with cases that are counted by hand.
func TestTablesAreCounted(t *testing.T) {
	dir := t.TempDir()
	start := sample.At(begins())
	at := func(minutes int) sample.Millis { return start.Add(time.Duration(minutes) * time.Minute) }
	victim := sample.Task{Name: "/it's", Job: "web", Class: sample.LatencySensitive}
	hog := sample.Task{Name: "/hog", Job: "encode", Class: sample.Batch}
	row := func(id string, minute int, cost, correlation float64, accuses bool, rounds ...*incident.Round) store.Incident {
		inc := incident.Record{Incident: plan.Incident{ID: id, Machine: "m1", Signal: sample.CPI, Victim: victim, Began: at(100), Opened: at(101), Updated: at(minute),
			Busy: 8, SpecMean: 1, SpecStdDev: 0.1, Rounds: rounds,
			Analysis: plan.Analysis{Result: detect.Result{Kind: detect.Neighbour, Cost: cost, Threshold: 1.2, Suspects: []detect.Suspect{{Task: hog, Correlation: correlation}}}}}, CPUs: 16}
		if accuses {
			inc.Accused, inc.Antagonists = at(minute), 1
		}
		r, err := store.IncidentOf(&inc)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	capped := &incident.Round{ID: "c", Capped: plan.Capped{Suspect: hog, Correlation: 0.6}, From: at(110), Until: at(115), Ended: at(115), CostBefore: 2, CostUnder: 1, RelativeCost: 0.5, Outcome: plan.TruePositive, Samples: 4}
	trial := &incident.Round{ID: "t", Capped: plan.Capped{Suspect: hog}, Trial: true, From: at(105), Until: at(107), Ended: at(107), CostBefore: 2, CostUnder: 1, Outcome: plan.TruePositive}
	days := 26 * 60 // the last state is on the next day
	b := &store.Batch{Source: store.Source{Stream: "samples", Machine: "m1", Boot: "b"}, N: uint64(days + 60), Incidents: []store.Incident{
		row("one", 101, 1.5, 0.2, false), row("one", 104, 2, 0.5, true), row("one", 111, 3, 0.9, true, trial, capped), row("one", days, 1, 0.1, true, trial, capped),
		row("two", 101, 1.4, 0.3, false), row("two", 120, 1.6, 0.3, false),
	}}
	add := func(task sample.Task, minute int, cost, cpu, misses, threads float64) {
		s := sample.Sample{TS: at(minute), Machine: "m1", Job: task.Job, Task: task.Name, Platform: "p", Signal: sample.CPI, Variant: "v", Class: task.Class, CPU: float32(cpu), Cost: float32(cost), Coverage: 1}
		s.Extras.Set(sample.Instructions, 1000)
		s.Extras.Set(sample.LLCMisses, misses)
		s.Extras.Set(sample.Threads, threads)
		b.Samples = append(b.Samples, s)
	}
	for minute := 1; minute <= days+60; minute++ {
		cost, misses, threads := 1+0.001*float64(minute%100), 10.0, 8.0
		switch {
		case minute >= 100 && minute <= 110:
			misses = 30
		case minute > 110 && minute <= 115:
			threads = 80
		case minute > 115 && minute < 140:
			threads = 2
		}
		add(victim, minute, cost, 1, misses, 5)
		add(hog, minute, 2, 0.5, 1, threads)
	}
	now := begins().Add(time.Duration(days+60) * time.Minute)
	s := serve(t, dir, now)
	if !s.store.Add(b) {
		t.Fatal("not new")
	}
	if err := s.store.Flush(); err != nil {
		t.Fatal(err)
	}
	e, err := evaluation.OfCluster(t.Context(), s.ask, start, sample.At(now), nil)
	if err != nil {
		t.Fatal(err)
	}
	r := e.Report()
	if r.Incidents != 2 || r.Identified.K != 1 || math.Abs(r.Days-float64(days+60)/1440) > 1e-6 {
		t.Errorf("%d incidents, %d identified, %v days", r.Incidents, r.Identified.K, r.Days)
	}
	// Frozen at the first accusation, or at the beginning: not as they ended.
	if m := r.Moments; len(m) != 2 || m[0] != (evaluation.Moment{Identified: true, Utilisation: 0.5, Correlation: 0.5, Degradation: 2}) || m[1].Degradation != 1.4 || m[1].Identified {
		t.Errorf("moments %+v", m)
	}
	if len(r.Caps) != 1 || r.Caps[0].RelativeCost != 0.5 || math.Abs(r.Caps[0].Misses-1.0/3) > 1e-9 || r.Offenders[0].Accused != 1 || r.Offenders[0].Antagonist != "encode" {
		t.Errorf("caps %+v, offenders %+v", r.Caps, r.Offenders)
	}
	c := r.Cluster
	if c.Machines != 1 || c.Tasks.Values[3] != 2 || c.Threads.Values[3] != 13 {
		t.Errorf("tasks %+v, threads %+v", c.Tasks, c.Threads)
	}
	if c.Capped.Under != 10 || !(c.Capped.After < 0.8) || c.Capped.Case == nil || len(c.Capped.Case.Points) != 65 || c.Capped.Case.Task != "/hog" {
		t.Errorf("capped %+v", c.Capped)
	}
	if c.Course == nil || c.Course.Of.Job != "web" || len(c.Course.Hours) != 28 || c.Course.Hours[1].Samples != 60 || math.Abs(c.Course.Hours[1].Mean-1.0562) > 0.005 {
		t.Errorf("course %+v", c.Course)
	}
	if len(c.Costs) != 2 || c.Costs[0].Samples != int64(days+60) || math.Abs(c.Costs[0].Mean-1.0495) > 0.003 {
		t.Errorf("costs of %d jobs", len(c.Costs))
	}
}

// TestAMonthIsTheSameAgain: an order gives as many rows each time, and the same samples and incidents.
func TestAMonthIsTheSameAgain(t *testing.T) {
	dir := t.TempDir()
	o := small()
	o.Machines, o.Days = 2, 1
	all := map[string]bool{}
	for _, name := range []string{"one", "two"} {
		if err := o.make(filepath.Join(dir, name), func(int) {}); err != nil {
			t.Fatal(err)
		}
		sn, err := store.Read(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		rows := int64(0)
		for _, seg := range sn.Segments {
			rows += seg.Rows
		}
		if err := o.identify(simulator()); err != nil {
			t.Fatal(err)
		}
		if rows < int64(o.Machines*24*60) {
			t.Errorf("%d rows", rows)
		}
		all[fmt.Sprint(rows, o.First)] = true
	}
	if len(all) != 1 {
		t.Errorf("two makings have %v", all)
	}
}

// TestWhatAMonthIsOf: a month that is kept is of the simulator and the rule that made it.
func TestWhatAMonthIsOf(t *testing.T) {
	first := func(rule detect.Method, change func(*order)) string {
		o := small()
		o.Rule = rule
		change(&o)
		if err := o.identify(simulator()); err != nil {
			t.Fatal(err)
		}
		return o.First
	}
	same := first(detect.CPI2, func(*order) {})
	if len(same) != 16 || first(detect.CPI2, func(o *order) { o.Days, o.Machines = 30, 1000 }) != same {
		t.Errorf("%q, and another one of a longer month", same)
	}
	for name, other := range map[string]string{
		"another rule":            first(rivals.CPI2Sigma3, func(*order) {}),
		"another kind of machine": first(detect.CPI2, func(o *order) { o.scenario = sim.Fleet() }),
	} {
		if other == same {
			t.Errorf("%s: the same", name)
		}
	}
}
