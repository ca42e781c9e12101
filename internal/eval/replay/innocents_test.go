package replay

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// recordedBy makes a recording with a sample of each task every second. The map's functions
// return a task's usage and cost in the n-th second; usage 0 means that it is not present.
func recordedBy(seconds int, tasks map[sample.TaskName]func(n int) (cpu, cost float64)) []sample.Sample {
	var all []sample.Sample
	for n := range seconds {
		for name, of := range tasks {
			cpu, cost := of(n)
			if cpu == 0 {
				continue
			}
			s := sample.Sample{TS: sample.Millis(1_000_000 + 1000*n), Machine: "elsewhere", Job: "job", Task: name, Signal: sample.CPI, Variant: "v",
				Coverage: 1, CPU: float32(cpu), Cost: float32(cost)}
			s.Extras.Set(sample.Instructions, cpu*1e9/cost)
			s.Extras.Set(sample.Threads, 7)
			all = append(all, s)
		}
	}
	return all
}

func innocents(t *testing.T, number, most int, all []sample.Sample) *Innocents {
	t.Helper()
	in, err := LoadInnocents(number, most, func(take func(*sample.Sample)) error {
		for i := range all {
			take(&all[i])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func steady(cpu, cost float64) func(int) (float64, float64) {
	return func(int) (float64, float64) { return cpu, cost }
}

// splice adds innocents to tasks "/a" and "/b" of machines, in signals, at the given number
// of times.
func splice(t *testing.T, step time.Duration, times int, machines []string, signals []sample.SignalName, all ...*Innocents) []sample.Sample {
	t.Helper()
	p := NewSplicer(step, all...)
	var got []sample.Sample
	for at := range times {
		for _, m := range machines {
			for _, sig := range signals {
				for _, task := range []sample.TaskName{"/a", "/b"} {
					some, err := p.Add([]sample.Sample{{TS: sample.At(time.Unix(0, 0).Add(step * time.Duration(at+1))), Machine: m, Task: task, Signal: sig, Coverage: 1, CPU: 1, Cost: 1}})
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, slices.Clone(some)...)
				}
			}
		}
	}
	return got
}

func only(all []sample.Sample, which func(*sample.Sample) bool) []sample.Sample {
	return slices.DeleteFunc(slices.Clone(all), func(s sample.Sample) bool { return !which(&s) })
}

func isInnocent(s *sample.Sample) bool { return strings.HasPrefix(string(s.Task), innocentPrefix) }

func TestInnocentsAreTheBiggest(t *testing.T) {
	all := recordedBy(100, map[sample.TaskName]func(int) (float64, float64){
		"/small": steady(0.1, 1), "/big": steady(2, 1), "middle": steady(1, 1), detect.OutsideName: steady(9, 1)})
	in := innocents(t, 3, 2, all)
	if in.Tasks() != 2 || in.Length() != 100*time.Second || math.Abs(in.Usage()-3) > 1e-9 {
		t.Errorf("%d tasks of %v with %v CPU-s/s", in.Tasks(), in.Length(), in.Usage())
	}
	got := splice(t, 5*time.Second, 4, []string{"m"}, []sample.SignalName{sample.CPI}, in)
	names := map[sample.TaskName]int{}
	for i := range got {
		if isInnocent(&got[i]) {
			names[got[i].Task]++
			if got[i].Job != "innocents/3/job" {
				t.Errorf("%+v", got[i])
			}
		}
	}
	if diff := cmp.Diff(map[sample.TaskName]int{"/innocents/3-1/big": 4, "/innocents/3-2/middle": 4}, names); diff != "" || len(got) != 8+8 {
		t.Error(len(got), diff)
	}
	if _, err := LoadInnocents(1, 5, func(func(*sample.Sample)) error { return nil }); !errors.Is(err, errNoInnocents) {
		t.Errorf("no samples: %v", err)
	}
	broken := errors.New("disk on fire")
	if _, err := LoadInnocents(1, 5, func(func(*sample.Sample)) error { return broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
}

// Usage over an interval is its mean, cost is the mean cost of its work, counts are summed.
func TestInnocentsAreResampled(t *testing.T) {
	// Alternately 1 s of 2 CPUs at cost 4 and 1 s of 1 CPU at cost 1.
	in := innocents(t, 1, 5, recordedBy(100, map[sample.TaskName]func(int) (float64, float64){"/x": func(n int) (float64, float64) {
		if n%2 == 0 {
			return 2, 4
		}
		return 1, 1
	}}))
	for _, s := range only(splice(t, 10*time.Second, 30, []string{"m"}, []sample.SignalName{sample.CPI}, in), isInnocent) {
		instructions, _ := s.Extras.Get(sample.Instructions)
		threads, _ := s.Extras.Get(sample.Threads)
		// 15 CPU-s; 5 s × (2 ÷ 4 + 1 ÷ 1) of work.
		if s.CPU != 1.5 || math.Abs(float64(s.Cost)-15/7.5) > 1e-6 || math.Abs(instructions-7.5e9) > 1 || threads != 7 || s.Flags != 0 || s.Coverage != 1 {
			t.Fatalf("%+v", s)
		}
	}
	// The same step as the recording: its own samples, in order, repeated from the
	// beginning.
	got := only(splice(t, time.Second, 250, []string{"m"}, []sample.SignalName{sample.CPI}, in), isInnocent)
	if len(got) != 250 {
		t.Fatalf("%d samples", len(got))
	}
	for i := range got {
		if got[i].CPU != 1 && got[i].CPU != 2 || i > 0 && got[i].CPU == got[i-1].CPU || got[i].CPU != got[i%100].CPU {
			t.Fatalf("sample %d: %v", i, got[i].CPU)
		}
	}
	// Longer than the recording: the mean of all of it.
	for _, s := range only(splice(t, 200*time.Second, 3, []string{"m"}, []sample.SignalName{sample.CPI}, in), isInnocent) {
		if math.Abs(float64(s.CPU)-1.5) > 1e-6 {
			t.Errorf("%+v", s)
		}
	}
}

// Tasks that came and went do so again; a task has no samples at times without any.
func TestInnocentsComeAndGo(t *testing.T) {
	in := innocents(t, 1, 5, recordedBy(60, map[sample.TaskName]func(int) (float64, float64){
		"/stays": steady(1, 1), "/comes": func(n int) (float64, float64) {
			if n >= 20 && n < 40 {
				return 1, 1
			}
			return 0, 0
		}}))
	got := only(splice(t, time.Second, 240, []string{"m"}, []sample.SignalName{sample.CPI}, in), isInnocent)
	count := map[sample.TaskName]int{}
	for i := range got {
		count[got[i].Task]++
	}
	if count["/innocents/1-1/stays"] != 240 || count["/innocents/1-2/comes"] != 80 {
		t.Errorf("%v", count)
	}
	// Also if it is the only selected task.
	in = innocents(t, 1, 1, recordedBy(60, map[sample.TaskName]func(int) (float64, float64){
		"/stays": steady(0.1, 1), "/comes": func(n int) (float64, float64) {
			if n < 10 || n >= 40 && n < 50 {
				return 1, 1
			}
			return 0, 0
		}}))
	if n := len(only(splice(t, time.Second, 240, []string{"m"}, []sample.SignalName{sample.CPI}, in), isInnocent)); n != 80 || math.Abs(in.Usage()-20./60) > 1e-9 {
		t.Errorf("%d samples, %v CPU-s/s", n, in.Usage())
	}
}

// Innocents are in every signal's intervals, but have a cost only in the signals that they
// were recorded in.
func TestInnocentsInSignals(t *testing.T) {
	in := innocents(t, 1, 5, recordedBy(60, map[sample.TaskName]func(int) (float64, float64){"/x": steady(1, 2)}))
	got := only(splice(t, time.Second, 10, []string{"m"}, []sample.SignalName{sample.CPI, sample.RunQ, sample.Probe}, in), isInnocent)
	for i := range got {
		s := &got[i]
		if s.CPU != 1 || s.Signal == sample.CPI && s.Cost != 2 || s.Signal == sample.RunQ && !math.IsNaN(float64(s.Cost)) || s.Signal == sample.Probe {
			t.Errorf("%+v", s)
		}
	}
	if len(got) != 20 {
		t.Errorf("%d samples", len(got))
	}
}

// Each machine begins at another offset, the same in every run; innocents of one recording
// stay together.
func TestInnocentsAreShifted(t *testing.T) {
	ramp := func(n int) (float64, float64) { return 1 + float64(n), 1 }
	in := innocents(t, 1, 5, recordedBy(1000, map[sample.TaskName]func(int) (float64, float64){"/x": ramp, "/y": ramp}))
	var machines []string
	for i := range 20 {
		machines = append(machines, fmt.Sprintf("m%d", i))
	}
	got := splice(t, time.Second, 3, machines, []sample.SignalName{sample.CPI}, in)
	if diff := cmp.Diff(got, splice(t, time.Second, 3, machines, []sample.SignalName{sample.CPI}, in), cmp.AllowUnexported(sample.Extras{})); diff != "" {
		t.Error(diff)
	}
	begin := map[float32]bool{}
	for _, m := range machines {
		some := only(got, func(s *sample.Sample) bool { return isInnocent(s) && s.Machine == m && s.TS == 1000 })
		if len(some) != 2 || some[0].CPU != some[1].CPU {
			t.Fatalf("%s: %+v", m, some)
		}
		begin[some[0].CPU] = true
	}
	if len(begin) < 18 {
		t.Errorf("%d of 20 machines begin at different offsets", len(begin))
	}
}

func TestInnocentsTwice(t *testing.T) {
	p := NewSplicer(time.Second, innocents(t, 1, 5, recordedBy(60, map[sample.TaskName]func(int) (float64, float64){"/x": steady(1, 2)})))
	if _, err := p.Add([]sample.Sample{{TS: 1, Task: "/innocents/1-1/x", Signal: sample.CPI}}); !errors.Is(err, ErrInnocents) {
		t.Error(err)
	}
}

// With innocents on the machine, the antagonist is still told from them; an accusation of
// an innocent would be wrong.
func TestReplayWithInnocents(t *testing.T) {
	samples, labels := noisy(2, 240, 130, 220)
	in := innocents(t, 1, 10, recordedBy(100, map[sample.TaskName]func(int) (float64, float64){
		"/x": steady(2, 1.5), "/y": func(n int) (float64, float64) { return 1 + float64(n*n%17)/20, 1.2 }}))
	p := NewSplicer(time.Minute, in)
	some, err := p.Add(samples)
	if err != nil || len(some) != len(samples)+2*2*240 || p.Longest() != 240*time.Minute {
		t.Fatalf("%v, %d samples, %v", err, len(some), p.Longest())
	}
	r := run(t, some, byDefault(t, detect.Quell), 2)
	s := Judge(labels, nil, r.Accusations)
	if r.Late != 0 || r.UnknownSignal != 0 || s.Recall.K != 2 || s.Precision.K != s.Precision.N {
		t.Errorf("%d late, %+v, wrong %+v", r.Late, s.Shares, s.Wrong())
	}
	jobs := map[sample.JobName]Job{}
	for _, j := range r.Jobs {
		jobs[j.Job] = j
	}
	if j := jobs["innocents/1/job"]; j.Tasks != 4 || j.Samples != 4*240 || j.Judged == 0 {
		t.Errorf("%+v", j)
	}
}
