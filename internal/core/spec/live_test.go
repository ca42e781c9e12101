package spec

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// liveSample is what a server receives for one of job's samples.
func liveSample(s seen) *sample.Sample {
	return &sample.Sample{TS: s.at, Machine: machineName(s.machine), Job: key.Job, Platform: key.Platform, Signal: key.Signal, Variant: key.Variant,
		Task: taskName(s.task), CPU: s.cpu, Cost: s.cost, Coverage: 1}
}

func machineName(n uint64) string {
	if n == 0 {
		return "m"
	}
	return "m" + string(rune('0'+n))
}

func taskName(n uint64) sample.TaskName { return sample.TaskName([]byte{'/', byte('a' + n)}) }

// named gives job's samples their tasks' hashes, as the store returns them.
func named(all []seen) []seen {
	out := make([]seen, len(all))
	for i, s := range all {
		s.task, s.machine = HashTask(machineName(s.machine), string(taskName(s.task))), HashMachine(machineName(s.machine))
		out[i] = s
	}
	return out
}

const hold = sample.Millis(LiveHold)

// Between two computations the spec is what a computation would give.
func TestLiveGivesWhatAComputationWould(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	all := job(r, 1, began, began+2*day, steady(1))
	change := began + 2*day
	all = append(all, job(r, 1, change, change+5*HourMS, steady(1.5))...)
	cut := change - 1
	var before []seen
	l := NewLive(Paper(), hold, 1<<20)
	for _, s := range all {
		if s.at <= cut {
			before = append(before, s)
		}
	}
	l.Rebase(cut, []Computed{Learn(Paper(), key, hoursOf(1, named(before)...), cut)})
	told := 0
	for _, s := range all {
		l.Add(liveSample(s)) // also samples that are in the base already
		l.Advance(s.at)
		told += len(l.Changed(s.at))
	}
	end := change + 5*HourMS
	l.Advance(end + hold + minuteMS)
	want := Learn(Paper(), key, hoursOf(1, named(all)...), end)
	got := l.keys[0].merged(Paper(), end)
	if math.Abs(got.Mean-want.Mean) > 1e-9 || math.Abs(got.StdDev-want.StdDev) > 1e-9 || math.Abs(got.CPUMean-want.CPUMean) > 1e-9 || got.Samples != want.Samples || got.State != Ready || got.Last != want.Last {
		t.Errorf("live %+v\nwant %+v", got.Spec, want.Spec)
	}
	if told < 2 || told > 50 {
		t.Errorf("%d versions were told of in 5 hours in which the mean moved by half: want some, not one a sample", told)
	}
	if st := l.Stats(); st.Taken != 250 || st.Missed != uint64(len(before)) || st.Held != 0 {
		t.Errorf("%+v: want the 250 samples after the computation", st)
	}
}

// A spec becomes ready as soon as there are enough samples, and not before.
func TestLiveBecomesReadyBetweenComputations(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	l := NewLive(Paper(), hold, 1<<20)
	l.Rebase(began-1, nil)
	var states []State
	for _, s := range job(r, 1, began, began+11*HourMS, steady(1)) {
		l.Add(liveSample(s))
		l.Advance(s.at)
		for _, n := range l.Changed(s.at) {
			if len(states) == 0 || states[len(states)-1] != n.State {
				states = append(states, n.State)
			}
			if n.State == Ready && n.Tasks < 5 {
				t.Fatalf("ready with %+v", n.Spec)
			}
		}
	}
	if want := []State{Insufficient, Learning, Ready}; len(states) < 2 || states[len(states)-1] != Ready || states[len(states)-2] != Learning {
		t.Errorf("went through %v, want %v", states, want)
	}
}

// TestLiveKnowsBatchesAgain: batches whose shape says that they have the names of the one before
// give what their samples give one by one, also after names, their order or the number of samples
// have changed, after a new base, and over limits.
func TestLiveKnowsBatchesAgain(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	one, all := NewLive(Paper(), hold, 150), NewLive(Paper(), hold, 150)
	one.Rebase(began-1, nil)
	all.Rebase(began-1, nil)
	jobs := []sample.JobName{key.Job, "other", "/own", ""}
	shape := uint64(1)
	names := map[string][]seen{}
	for at := began; at < began+3*HourMS; at += 30_000 {
		for m := range uint64(3) {
			machine := machineName(m)
			if len(names[machine]) == 0 || r.IntN(10) == 0 { // other tasks
				shape++
				names[machine] = nil
				for range 1 + r.IntN(5) {
					names[machine] = append(names[machine], seen{task: r.Uint64N(6), machine: m})
				}
			}
			var batch []sample.Sample
			for i, s := range names[machine] {
				s.at, s.cpu, s.cost = at+sample.Millis(i)-sample.Millis(r.IntN(2))*11*60_000, r.Float32(), 1+r.Float32()
				one := liveSample(s)
				one.Job = jobs[s.task%4]
				batch = append(batch, *one)
			}
			for i := range batch {
				one.Add(&batch[i])
			}
			all.AddAll(machine, shape<<2|m, batch)
		}
		for _, l := range []*Live{one, all} {
			l.Advance(at)
		}
		if r.IntN(50) == 0 {
			cut := at - hold
			for _, l := range []*Live{one, all} { // each continues with its own
				l.Rebase(cut, []Computed{Learn(Paper(), key, hoursOf(1, named(job(rand.New(rand.NewPCG(1, 2)), 1, began, at, steady(1)))...), cut)})
			}
		}
		if want, got := fmt.Sprintf("%+v", one.Changed(at)), fmt.Sprintf("%+v", all.Changed(at)); want != got {
			t.Fatalf("at %d: %s, want %s", at, got, want)
		}
	}
	if want, got := one.Stats(), all.Stats(); want != got || want.Taken == 0 || want.Missed == 0 {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// A long incident does not distort the spec: no sample enters from before it is reported,
// as far back as samples are held, none while it lasts, and none under a cap. The same
// change without an incident is followed.
func TestIncidentsDoNotPoisonTheLiveSpec(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	base := Learn(Paper(), key, hoursOf(1, named(job(r, 1, began, began+day, steady(1)))...), began+day)
	cut := began + day
	hurt := job(r, 1, cut+HourMS, cut+6*HourMS, steady(3))
	after := job(r, 1, cut+6*HourMS, cut+7*HourMS, steady(1))
	play := func(incident func(l *Live, s seen)) (Spec, LiveStats) {
		l := NewLive(Paper(), hold, 1<<20)
		l.Rebase(cut, []Computed{base})
		for _, s := range append(append([]seen(nil), hurt...), after...) {
			l.Add(liveSample(s))
			incident(l, s)
			l.Advance(s.at)
			l.Changed(s.at)
		}
		l.Advance(cut + 9*HourMS)
		l.Changed(cut + 9*HourMS)
		return l.keys[0].reported, l.Stats()
	}
	for name, c := range map[string]struct {
		tell    func(l *Live, s seen)
		refused uint64
		mean    float64
	}{
		// It is reported 6 minutes after its first bad sample, and again at its end.
		"incidents": {func(l *Live, s seen) {
			switch s.at {
			case cut + HourMS + HourMS/10:
				l.Incident("m", "1", taskName(s.task), key.Signal, cut+HourMS, 0, false)
			case cut + 6*HourMS:
				l.Incident("m", "1", taskName(s.task), key.Signal, cut+HourMS, cut+6*HourMS-1, false)
			}
		}, 250, 1},
		"another machine's incidents": {func(l *Live, s seen) {
			l.Incident("n", "1", taskName(s.task), key.Signal, cut+HourMS, 0, false)
		}, 0, 0},
		"another signal's incidents": {func(l *Live, s seen) {
			l.Incident("m", "1", taskName(s.task), sample.RunQ, cut+HourMS, 0, false)
		}, 0, 0},
		"incidents that turn out to be a lasting change": {func(l *Live, s seen) {
			l.Incident("m", "1", taskName(s.task), key.Signal, cut+HourMS, 0, s.at > cut+2*HourMS)
		}, 50, 0},
		"none": {func(*Live, seen) {}, 0, 0},
	} {
		got, stats := play(c.tell)
		if c.mean > 0 && math.Abs(got.Mean-c.mean) > 0.02 || c.mean == 0 && got.Mean < 1.2 {
			t.Errorf("%s: mean %v, want %v (0: it follows)", name, got.Mean, c.mean)
		}
		if d := int(stats.Refused) - int(c.refused); d > 10 || d < -10 {
			t.Errorf("%s: %d samples refused, want about %d", name, stats.Refused, c.refused)
		}
	}
	l := NewLive(Paper(), hold, 1<<20)
	l.Rebase(cut, nil)
	for _, s := range hurt {
		x := liveSample(s)
		x.Flags = sample.Capped
		l.Add(x)
	}
	l.Advance(cut + day)
	if st := l.Stats(); st.Taken != 0 {
		t.Errorf("%d samples under a cap taught", st.Taken)
	}
}

// Held samples are bounded. A late sample is left to the next computation.
func TestLiveHoldsNoMoreThanItMay(t *testing.T) {
	l := NewLive(Paper(), hold, 10)
	l.Rebase(began-1, nil)
	for i := range 25 {
		l.Add(liveSample(seen{at: began + sample.Millis(i), machine: uint64(i), cpu: 1, cost: 1}))
	}
	if st := l.Stats(); st.Held != 10 || st.Missed != 15 {
		t.Errorf("%+v: want 10 held and 15 missed", st)
	}
	l.Advance(began + 2*hold)
	l.Add(liveSample(seen{at: began, task: 1, cpu: 1, cost: 1}))
	if st := l.Stats(); st.Held != 0 || st.Taken != 10 || st.Missed != 16 {
		t.Errorf("%+v: want 10 taken and a late one missed", st)
	}
}

// TestAttackIncidentsThatNeverEnd: a machine that reports ever new incidents has so many remembered, and
// those of others count.
func TestAttackIncidentsThatNeverEnd(t *testing.T) {
	l := NewLive(Paper(), LiveHold, 1000)
	l.Rebase(1, nil)
	windows := func() (n int) {
		for _, all := range l.windows {
			n += len(all)
		}
		return n
	}
	report := func(machine string, ended sample.Millis) {
		for i := range 2 * maxLiveWindows {
			l.Incident(machine, fmt.Sprint(i), "/a", key.Signal, 1, ended, false)
		}
	}
	report("liar", 0)
	l.Incident("m", "1", "/a", key.Signal, 1, 0, false)
	if got := windows(); got != maxLiveWindows+1 {
		t.Errorf("%d are remembered", got)
	}
	l.Advance(hold + 10*minuteMS)
	report("liar", 5) // they have ended
	if got := windows(); got != 1 || len(l.marked) != 1 {
		t.Errorf("%d are remembered, of %d machines, after those of one have ended", got, len(l.marked))
	}
}

// TestAttackSamplesThatAreHeld: one machine's samples do not take all the room for those that are held back.
func TestAttackSamplesThatAreHeld(t *testing.T) {
	l := NewLive(Paper(), hold, 900)
	l.Rebase(began-1, nil)
	add := func(machine uint64, n int) {
		for i := range n {
			l.Add(liveSample(seen{at: began + sample.Millis(i), machine: machine, cpu: 1, cost: 1}))
		}
	}
	add(1, 2000)
	if held := l.Stats().Held; held != 100 {
		t.Errorf("%d samples of one machine are held back, want a ninth of 900", held)
	}
	for machine := range uint64(40) {
		add(2+machine, 10)
	}
	if held := l.Stats().Held; held != 500 {
		t.Errorf("%d are, want 400 of others too", held)
	}
	l.Advance(began + 2*hold)
	if s := l.Stats(); s.Held != 0 || s.Taken != 500 || len(l.by) != 0 {
		t.Errorf("%+v, %d machines are remembered", s, len(l.by))
	}
}

// TestAttackKeysOfOneMachine: one machine's made-up jobs do not take all the room for new keys.
func TestAttackKeysOfOneMachine(t *testing.T) {
	l := NewLive(Paper(), hold, 1_000_000)
	l.Rebase(began-1, nil)
	add := func(machine string, jobs int) {
		for i := range jobs {
			job := sample.JobName(fmt.Sprintf("%s-%d", machine, i))
			l.Add(&sample.Sample{TS: began, Machine: machine, Job: job, Task: "/a", Platform: key.Platform, Signal: key.Signal, Variant: key.Variant, CPU: 1, Cost: 1})
		}
	}
	add("liar", 2*maxLiveKeys)
	begun := len(l.keys)
	if begun != maxLiveKeys/(heldShare+1) {
		t.Errorf("one machine began %d of %d keys, want a ninth", begun, maxLiveKeys)
	}
	add("m", 1000)
	if got := len(l.keys) - begun; got != 1000 {
		t.Errorf("another began %d of 1,000", got)
	}
	l.Rebase(began, nil)
	if len(l.brought) != 0 {
		t.Errorf("%d machines are remembered after a computation", len(l.brought))
	}
}

// TestAttackIncidentsOfOneTask: a machine reports 10,000 incidents of one task, and as many samples of it as are held back.
// These are released while the server takes in no samples, and each was compared with all incidents: minutes.
func TestAttackIncidentsOfOneTask(t *testing.T) {
	release := func(incidents int) (took time.Duration, s LiveStats) {
		l := NewLive(Paper(), LiveHold, 1_000_000)
		l.Rebase(1, nil)
		for i := range incidents {
			at := hold + sample.Millis(i)*10 // of each ten milliseconds the second half
			l.Incident("m", fmt.Sprint(i), "/a", key.Signal, at+5, at+9, false)
		}
		for i := range 100_000 {
			l.Add(&sample.Sample{TS: hold + sample.Millis(i), Machine: "m", Job: key.Job, Task: "/a", Platform: key.Platform, Signal: key.Signal, Variant: key.Variant, CPU: 1, Cost: 1})
		}
		begun := time.Now()
		l.Advance(3*hold + 10*minuteMS)
		return time.Since(begun), l.Stats()
	}
	var all, half LiveStats
	without := quelltest.Fastest(func() (took time.Duration) { took, all = release(0); return took })
	with := quelltest.Fastest(func() (took time.Duration) { took, half = release(maxLiveWindows); return took })
	if all.Taken != 100_000 || half.Taken != 50_000 || half.Refused != 50_000 {
		t.Fatalf("%+v without incidents, %+v with", all, half)
	}
	if with > 10*without+200*time.Millisecond {
		t.Errorf("to release 100,000 samples took %s, without incidents %s", with, without)
	}
}

// TestSpans: joined spans have the times that any of them has.
func TestSpans(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		all := make([]Span, r.IntN(8))
		for i := range all {
			from := sample.Millis(r.IntN(40) - 20)
			all[i] = Span{from, from + sample.Millis(r.IntN(9)-2)}
		}
		joined := SpansOf(slices.Clone(all))
		for at := sample.Millis(-25); at < 25; at++ {
			if want := slices.ContainsFunc(all, func(x Span) bool { return x.From <= at && at <= x.To }); joined.Has(at) != want {
				t.Fatalf("%v of %v has %d: %v", joined, all, at, !want)
			}
		}
	}
}

// A server whose first computation fails, or takes longer than samples are held back, tells of no
// specs: they would be of a few minutes, and replace those that agents have. The samples are not lost.
func TestLiveWaitsForTheFirstComputation(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	all := job(r, 1, began, began+11*HourMS, steady(1))
	cut, end := began+10*HourMS-1, began+11*HourMS
	l := NewLive(Paper(), hold, 1<<20)
	var before []seen
	for _, s := range all {
		l.Add(liveSample(s))
		l.Advance(s.at)
		if told := l.Changed(s.at); len(told) > 0 {
			t.Fatalf("it tells of %+v", told[0].Spec)
		}
		if s.at <= cut {
			before = append(before, s)
		}
	}
	l.Rebase(cut, []Computed{Learn(Paper(), key, hoursOf(1, named(before)...), cut)})
	l.Advance(end + hold + minuteMS)
	want, got := Learn(Paper(), key, hoursOf(1, named(all)...), end), l.keys[0].merged(Paper(), end)
	if got.State != Ready || math.Abs(got.Mean-want.Mean) > 1e-9 || math.Abs(got.StdDev-want.StdDev) > 1e-9 || got.Samples != want.Samples || got.Last != want.Last {
		t.Errorf("live %+v\nwant %+v", got.Spec, want.Spec)
	}
	if st := l.Stats(); st.Taken != 50 || st.Missed != 0 || st.Held != 0 {
		t.Errorf("%+v: want the 50 samples since the computation", st)
	}
}
