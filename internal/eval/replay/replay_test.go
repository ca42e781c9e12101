package replay

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace"
)

// list is a Source that returns pieces of different lengths.
type list []sample.Sample

func (l *list) Next() ([]sample.Sample, error) {
	if len(*l) == 0 {
		return nil, io.EOF
	}
	n := min(len(*l), 1+len(*l)%97)
	some := (*l)[:n]
	*l = (*l)[n:]
	return some, nil
}

const minute = sample.Millis(60_000)

// noisy makes the given number of minutes of machines with a victim, an antagonist that is
// active between two minutes, three minutes on and three off, and bystanders.
func noisy(machines, minutes, from, to int) (samples []sample.Sample, labels []trace.Label) {
	r := rand.New(rand.NewPCG(1, 2))
	for at := range minutes {
		for m := range machines {
			name := fmt.Sprintf("m%d", m)
			works := at >= from && at < to && at/3%2 == 0
			add := func(task string, class sample.Class, cpu, cost float64) {
				samples = append(samples, sample.Sample{TS: sample.Millis(at+1) * minute, Machine: name, Job: sample.JobName(task[1:]), Task: sample.TaskName(task),
					Platform: "p", Signal: sample.CPI, Variant: "v", Class: class, Coverage: 1, CPU: float32(cpu), Cost: float32(cost)})
			}
			cost, used := 1.5+0.05*r.NormFloat64(), 0.05
			if works {
				cost, used = cost*2.5, 3
			}
			add("/web", sample.LatencySensitive, 1, cost)
			add("/encode", sample.Batch, used, math.NaN())
			add("/log", sample.Batch, 0.5+0.1*r.Float64(), math.NaN())
			add("/cron", sample.BestEffort, 0.3*r.Float64(), 2)
		}
	}
	for m := range machines {
		labels = append(labels, trace.Label{Machine: fmt.Sprintf("m%d", m), Victim: "/web", Antagonist: "/encode",
			From: sample.Millis(from+1) * minute, To: sample.Millis(to) * minute, Cause: "cache"})
	}
	return samples, labels
}

func run(t *testing.T, samples []sample.Sample, o Options, workers int) *Result {
	t.Helper()
	l := list(samples)
	r, err := Run(context.Background(), &l, o, workers)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func byDefault(t *testing.T, rule detect.Method) Options {
	t.Helper()
	o, err := Default(rule)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestAntagonistIsAccused(t *testing.T) {
	samples, labels := noisy(3, 200, 130, 160)
	r := run(t, samples, byDefault(t, detect.Quell), 2)
	if len(r.Accusations) != 3 || r.Machines != 3 || r.From != minute || r.To != 200*minute || r.Watched != 3*199*minute {
		t.Fatalf("%d machines, %d to %d, %+v", r.Machines, r.From, r.To, r.Accusations)
	}
	s := Judge(labels, nil, r.Accusations)
	if s.Precision.Value() != 1 || s.Recall.Value() != 1 || s.Top1.Value() != 1 || s.Found[0].After() < 2*time.Minute || s.Found[2].After() > 15*time.Minute {
		t.Errorf("%+v", s)
	}
	for _, inc := range r.Incidents {
		if inc.Outcome != plan.WouldCap || inc.Closed == 0 || inc.Suspects[0].Name != "/encode" || len(inc.Times) == 0 {
			t.Errorf("%+v", inc)
		}
	}
	jobs := map[sample.JobName]Job{}
	for _, j := range r.Jobs {
		jobs[j.Job] = j
	}
	web, encode := jobs["web"], jobs["encode"]
	if web.Tasks != 3 || web.Samples != 600 || web.Judged < 250 || web.Judged > 310 || web.Outliers < 40 || web.Accusing != 3 || encode.Accused != 3 || encode.Samples != 0 {
		t.Errorf("%+v %+v", web, encode)
	}
	if r.Samples != 600+jobs["cron"].Samples || r.Usage != 4*600-r.Samples {
		t.Errorf("%d samples, %d of usage", r.Samples, r.Usage)
	}
}

// The result depends neither on the number of workers nor on the pieces of the source.
func TestWorkersAgree(t *testing.T) {
	samples, _ := noisy(7, 180, 120, 150)
	ignore := cmpopts.EquateNaNs()
	want := run(t, samples, byDefault(t, detect.CPI2), 1)
	for _, workers := range []int{2, 5} {
		if diff := cmp.Diff(want, run(t, samples, byDefault(t, detect.CPI2), workers), ignore); diff != "" {
			t.Errorf("%d workers: %s", workers, diff)
		}
	}
	var other []sample.Sample // one machine after the other
	for m := range 7 {
		for _, s := range samples {
			if s.Machine == fmt.Sprintf("m%d", m) {
				other = append(other, s)
			}
		}
	}
	if diff := cmp.Diff(want, run(t, other, byDefault(t, detect.CPI2), 2), ignore); diff != "" {
		t.Errorf("machine after machine: %s", diff)
	}
}

// The rule's windows are a number of samples, independent of the time between them.
func TestStep(t *testing.T) {
	samples, _ := noisy(1, 200, 130, 160)
	want := run(t, samples, byDefault(t, detect.Quell), 1)
	for i := range samples {
		samples[i].TS /= 60
	}
	o := byDefault(t, detect.Quell)
	o.ScaleTo(time.Second)
	got := run(t, samples, o, 1)
	if got.Outliers != want.Outliers || got.Anomalies != want.Anomalies || len(got.Accusations) != len(want.Accusations) || len(got.Incidents) != len(want.Incidents) {
		t.Errorf("every second %d outliers, %d anomalies, %d accusations, %d incidents; every minute %d, %d, %d, %d",
			got.Outliers, got.Anomalies, len(got.Accusations), len(got.Incidents), want.Outliers, want.Anomalies, len(want.Accusations), len(want.Incidents))
	}
}

func TestWholeSpecs(t *testing.T) {
	samples, _ := noisy(2, 60, 30, 40) // too short to learn from during the replay
	o := byDefault(t, detect.CPI2)
	if r := run(t, samples, o, 1); r.Judged != 0 {
		t.Errorf("%d judged", r.Judged)
	}
	for _, byTask := range []bool{false, true} {
		o.ByTask = byTask
		l := NewLearner(&o)
		for i := range samples {
			l.Add(&samples[i])
		}
		o.Specs = l.Specs(2)
		want := 2 // web, cron
		if byTask {
			want = 4
		}
		if r := run(t, samples, o, 1); len(o.Specs) != want || r.Judged != r.Samples {
			t.Errorf("by task %v: %d specs, %d of %d judged", byTask, len(o.Specs), r.Judged, r.Samples)
		}
	}
}

func TestWhatIsSkipped(t *testing.T) {
	samples, _ := noisy(1, 10, 5, 6)
	late := samples[0]
	unknown := samples[len(samples)-1]
	unknown.Signal = "weather"
	again := samples[len(samples)-4:] // the newest interval's
	r := run(t, append(slices.Concat(samples, again), late, unknown), byDefault(t, detect.Quell), 1)
	if r.Late != 1 || r.Twice != len(again) || r.UnknownSignal != 1 || r.Samples+r.Usage != 40 {
		t.Errorf("%+v", r)
	}
}

// A task that has ended is forgotten and is no longer a suspect: memory does not grow with
// ended tasks.
func TestGoneTasksAreForgotten(t *testing.T) {
	p := New(byDefault(t, detect.Quell))
	for at := range 500 {
		for k := range 3 {
			p.Add(&sample.Sample{TS: sample.Millis(at) * minute, Machine: "m", Job: "j", Signal: sample.CPI, Coverage: 1, CPU: 1, Cost: 1,
				Task: sample.TaskName(fmt.Sprintf("/%d/%d", at/20, k))})
		}
	}
	m := p.machines["m"]
	if len(m.tasks) > 9 || len(m.order) != len(m.tasks) {
		t.Errorf("%d tasks are known, %d in order", len(m.tasks), len(m.order))
	}
	if r := p.Finish(); r.Jobs[0].Tasks != 75 || r.Samples != 1500 {
		t.Errorf("%+v", r.Jobs)
	}
}

// A task of which several signals are recorded is one.
func TestATaskOfTwoSignalsIsOne(t *testing.T) {
	p := New(byDefault(t, detect.Quell))
	for at := range 3 {
		for _, sig := range []sample.SignalName{sample.CPI, sample.RunQ} {
			p.Add(&sample.Sample{TS: sample.Millis(at+1) * minute, Machine: "m", Job: "j", Task: "/a", Signal: sig, Coverage: 1, CPU: 1, Cost: 1})
		}
	}
	if r := p.Finish(); r.Jobs[0].Tasks != 1 || r.Samples != 6 {
		t.Errorf("%d samples, %+v", r.Samples, r.Jobs)
	}
}

// Two machines on two days are two days of machines, not two of all the time between them.
func TestMachineDays(t *testing.T) {
	const hours = 24
	var samples []sample.Sample
	for m, from := range []int{0, 30 * hours} {
		for at := range hours + 1 {
			samples = append(samples, sample.Sample{TS: sample.Millis(1+60*(from+at)) * minute, Machine: fmt.Sprint("m", m), Job: "j", Task: "/a", Signal: sample.CPI, Coverage: 1, CPU: 1, Cost: 1})
		}
	}
	if s := run(t, samples, byDefault(t, detect.Quell), 2).Summary(nil); s.Days != 2 || s.Machines != 2 {
		t.Errorf("%+v", s)
	}
}

func TestCancel(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	stop()
	samples, _ := noisy(1, 10, 5, 6)
	l := list(samples)
	if _, err := Run(ctx, &l, byDefault(t, detect.Quell), 2); err != context.Canceled {
		t.Error(err)
	}
}

// The first incidents keep their charts, the same ones with any number of workers.
func TestTheSameChartsWithAnyWorkers(t *testing.T) {
	drawn := func(workers int) (names []string) {
		players := make([]*Replayer, workers)
		for i := range players {
			players[i] = New(Options{})
		}
		r := rand.New(rand.NewPCG(1, 2))
		for i := range 5 * maxCharts {
			machine := fmt.Sprintf("m%d", i%7)
			c := pipeline.Change{Incident: plan.Incident{ID: fmt.Sprint(i), Machine: machine, Opened: sample.Millis(r.IntN(maxCharts))}}
			c.Chart.Times = []sample.Millis{1}
			players[worker(machine, workers)].closed(&c)
		}
		result := players[0].Finish()
		for _, p := range players[1:] {
			result.Merge(p.Finish())
		}
		for i, inc := range result.Incidents {
			if (len(inc.Chart.Times) > 0) != (i < maxCharts) {
				t.Fatalf("%d workers: incident %d has a chart of %d points", workers, i, len(inc.Chart.Times))
			}
			names = append(names, inc.ID)
		}
		return names
	}
	if one, three := drawn(1), drawn(3); !slices.Equal(one, three) || len(one) != 5*maxCharts {
		t.Errorf("%d incidents, and %d with three workers, in another order", len(one), len(three))
	}
}
