package spec

import (
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
)

// cluster are the samples of a job on some machines, two tasks each, for twelve hours.
func cluster(r *rand.Rand, machines uint64, cost func(machine uint64) float64) (all []seen) {
	for at := began; at < began+12*HourMS; at += HourMS / 10 {
		for m := uint64(1); m <= machines; m++ {
			for task := range uint64(2) {
				all = append(all, seen{at, 10*m + task, 1, float32(cost(m) + 0.1*r.NormFloat64()), m})
			}
		}
	}
	return all
}

// madeUp are the samples of six tasks that one machine makes up, many times as many as
// of any other task.
func madeUp(machine uint64, cost float32) (all []seen) {
	for i := range 6000 {
		all = append(all, seen{began + sample.Millis(i*7200), 1000 + uint64(i%6), 1, cost, machine})
	}
	return all
}

func clusterParams() Params {
	p := Paper()
	p.MinMachines = 3
	return p
}

// TestOneMachineMakesNoSpec: six made-up tasks of one machine made a ready spec of a job that
// runs nowhere, and the spec of any job that runs on few machines.
func TestOneMachineMakesNoSpec(t *testing.T) {
	now := began + 12*HourMS
	if l := Learn(clusterParams(), key, hoursOf(1, madeUp(1, 5)...), now); l.State != Insufficient || l.Machines != 1 {
		t.Errorf("one machine's tasks: %v with %d tasks of %d machines, want insufficient", l.State, l.Tasks, l.Machines)
	}
	two := append(madeUp(1, 5), madeUp(2, 5)...)
	for i := range two {
		two[i].task += two[i].machine << 32
	}
	if l := Learn(clusterParams(), key, hoursOf(1, two...), now); l.State != Insufficient {
		t.Errorf("two machines' tasks: %v, want insufficient", l.State)
	}
	live := NewLive(clusterParams(), hold, 1<<20)
	live.Rebase(began-1, nil)
	for _, s := range madeUp(1, 5) {
		live.Add(liveSample(seen{s.at, s.task % 16, s.cpu, s.cost, 0}))
	}
	live.Advance(now + 2*hold)
	for _, n := range live.Changed(now) {
		if n.State == Ready {
			t.Errorf("between computations: %+v", n.Spec)
		}
	}
	// Three machines make one, each with a task of enough samples.
	if l := Learn(clusterParams(), key, hoursOf(1, cluster(rand.New(rand.NewPCG(1, 2)), 3, func(uint64) float64 { return 1 })...), now); l.State != Ready || l.Machines != 3 || l.Tasks != 6 {
		t.Errorf("three machines: %v with %d tasks of %d machines", l.State, l.Tasks, l.Machines)
	}
}

// TestALyingMachineMovesNoSpec: whatever one machine reports about a job of others, and
// however much of it, the spec stays where the others have it, and names the machine.
func TestALyingMachineMovesNoSpec(t *testing.T) {
	now := began + 12*HourMS
	for _, machines := range []uint64{3, 4, 9, 30} {
		honest := cluster(rand.New(rand.NewPCG(3, machines)), machines, func(m uint64) float64 { return 1 + 0.01*float64(m%3) })
		want := Learn(clusterParams(), key, hoursOf(1, honest...), now)
		for _, lie := range []float32{0.02, 0.5, 1.2, 2, 5, 900} {
			l := Learn(clusterParams(), key, hoursOf(1, append(slices.Clone(honest), madeUp(99, lie)...)...), now)
			// Within the fence it weighs as one machine.
			if math.Abs(l.Mean-want.Mean) > 0.35*math.Abs(float64(lie)-want.Mean) && math.Abs(l.Mean-want.Mean) > 0.02 || math.Abs(l.Mean-want.Mean) > 0.1 || l.StdDev > 2*want.StdDev {
				t.Errorf("%d machines, one reports %v: mean %.3f σ %.3f, without it %.3f and %.3f", machines, lie, l.Mean, l.StdDev, want.Mean, want.StdDev)
			}
			if far := math.Abs(float64(lie)-1) > 0.45; far != (l.OutCount == 1) || far && l.Out[0] != 99 || l.State != Ready {
				t.Errorf("%d machines, one reports %v: %v, left out %v", machines, lie, l.State, l.Out)
			}
		}
	}
}

// Machines that differ for good reasons all count: a fifth of them at most is left out, and a
// large minority is part of the distribution.
func TestDifferentMachinesCount(t *testing.T) {
	now := began + 12*HourMS
	for name, c := range map[string]struct {
		cost func(uint64) float64
		out  int
	}{
		"two kinds, half each":       {func(m uint64) float64 { return 1 + float64(m%2) }, 0},
		"one of three costs more":    {func(m uint64) float64 { return 1 + float64(m%3/2) }, 4},
		"each is different":          {func(m uint64) float64 { return 1 + 0.1*float64(m) }, 0},
		"one is different":           {func(m uint64) float64 { return 1 + 4*float64(m/20) }, 1},
		"less than the least effect": {func(m uint64) float64 { return 1 + 0.04*float64(m/20) }, 0},
	} {
		all := cluster(rand.New(rand.NewPCG(5, 6)), 20, c.cost)
		l := Learn(clusterParams(), key, hoursOf(1, all...), now)
		if l.OutCount != c.out && !(c.out == 4 && l.OutCount <= 4) || l.Machines != 20-l.OutCount || l.State != Ready {
			t.Errorf("%s: %d of 20 left out, want %d; %v", name, l.OutCount, c.out, l.State)
		}
	}
}

// TestAFloodDropsNoHistory: one machine's flood of other costs for two days is no shift of the
// job's distribution, which would drop the history of all.
func TestAFloodDropsNoHistory(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	var all []seen
	for m := range uint64(4) {
		for _, s := range job(r, 100*m, began, began+6*day, steady(1)) {
			s.machine = m + 1
			all = append(all, s)
		}
	}
	honest := len(all)
	for at := began + 3*day; at < began+6*day; at += HourMS / 200 {
		all = append(all, seen{at, 1000 + uint64(at%6), 1, 5, 9})
	}
	l := Learn(clusterParams(), key, hoursOf(1, all...), began+6*day)
	if l.Since != 0 || l.Samples != int64(honest) || math.Abs(l.Mean-1) > 0.01 {
		t.Errorf("since %v, %d samples, mean %v: want all of the others' history", l.Since.Time(), l.Samples, l.Mean)
	}
}

// Between two computations several machines, one of them lying, give what a computation would.
func TestLiveIsRobust(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	all := cluster(r, 5, func(m uint64) float64 { return 1 })
	for i := 0; i < 6000; i++ {
		all = append(all, seen{began + 6*HourMS + sample.Millis(i*3000), 70, 1, 7, 8})
	}
	slices.SortStableFunc(all, func(a, b seen) int { return int(a.at - b.at) })
	cut := began + 6*HourMS
	var before []seen
	for _, s := range all {
		if s.at <= cut {
			before = append(before, s)
		}
	}
	p := clusterParams()
	p.MinSamples = 50
	l := NewLive(p, hold, 1<<20)
	l.Rebase(cut, []Computed{Learn(p, key, hoursOf(1, named(before)...), cut)})
	for _, s := range all {
		l.Add(liveSample(s))
	}
	end := began + 12*HourMS
	l.Advance(end + hold + minuteMS)
	got, want := l.keys[0].merged(p, end), Learn(p, key, hoursOf(1, named(all)...), end)
	// The lying machine's task is new: between computations it has no vote yet, and is left out.
	if math.Abs(got.Mean-want.Mean) > 1e-9 || math.Abs(got.StdDev-want.StdDev) > 1e-9 || got.Samples != want.Samples || got.OutCount != 1 || want.OutCount != 1 || got.State != Ready {
		t.Errorf("live %+v %v\nwant %+v %v", got.Spec, got.Out, want.Spec, want.Out)
	}
}

// TestRevokedSamplesDoNotTeach: neither those that are held back nor those to come.
func TestRevokedSamplesDoNotTeach(t *testing.T) {
	l := NewLive(Paper(), hold, 1<<20)
	l.Rebase(began-1, nil)
	for i, machine := range []uint64{1, 2, 1, 2} {
		l.Add(liveSample(seen{began + sample.Millis(i), 1, 1, 1, machine}))
	}
	l.Revoke([]Revocation{{Machine: "m1", To: began + 10}, {Job: "other", To: math.MaxInt64}})
	l.Add(liveSample(seen{began + 4, 1, 1, 1, 1}))
	l.Add(liveSample(seen{began + 20, 1, 1, 1, 1})) // after it
	l.Advance(began + 2*hold)
	if st := l.Stats(); st.Taken != 3 || st.Refused != 3 {
		t.Errorf("%+v: want 3 taken and 3 refused", st)
	}
}

// TestLiveForgetsKeys: a key that a computation does not have any more is not kept, unless
// samples of it are held back; and there is a limit.
func TestLiveForgetsKeys(t *testing.T) {
	l := NewLive(Paper(), hold, 1<<20)
	l.Rebase(began-1, nil)
	add := func(job string, at sample.Millis) {
		s := liveSample(seen{at: at, cpu: 1, cost: 1})
		s.Job = sample.JobName(job)
		l.Add(s)
	}
	for i := range 1000 {
		add("gone-"+string(rune('a'+i%26))+string(rune('a'+i/26)), began)
	}
	l.Advance(began + 2*hold)
	add("held", began+3*hold)
	l.Rebase(began+2*hold, []Computed{{Spec: Spec{Key: key}}})
	if len(l.keys) != 2 || len(l.ids) != 2 {
		t.Errorf("%d keys are left, want the computed one and the held one", len(l.keys))
	}
	l.Advance(began + 5*hold)
	if st := l.Stats(); st.Taken != 1001 || l.keys[l.ids[Key{"held", key.Platform, key.Signal, key.Variant}]].merged(Paper(), began+5*hold).Samples != 1 {
		t.Errorf("%+v: the held sample is lost", st)
	}
	// The names of instances are no jobs.
	add("cri-containerd-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.scope", began+6*hold)
	if len(l.keys) != 2 {
		t.Error("a container's identifier became a key")
	}
}

func TestShared(t *testing.T) {
	for name, want := range map[string]bool{
		"web": true, "": true, "cafe-babe-dead-beef": true, "feedface": true, "encode-7d4b9c6f5": true,
		"cri-containerd-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.scope": false,
		"0123456789ABCDEF0123456789abcdef":                                 false,
		"0123456789abcdef0123456789abcde":                                  true,
		"pod5e9b1f5c_7f3c_4a44_9d5a_b7f7c0c7a001":                          false,
		"kubepods-burstable-pod5e9b1f5c-7f3c-4a44-9d5a-b7f7c0c7a001.slice": false,
		"5e9b1f5c-5e9b1f5c-7f3c-4a44-9d5a-b7f7c0c7a001":                    false,
		"5e9b1f5c-7f3c-4a44-9d5a-b7f7c0c7a00":                              true,
		"5e9b1f5c-7f3c-4a449-9d5a-b7f7c0c7a001":                            true,
	} {
		if got := Shared(sample.JobName(name)); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	// The SQL statement has the same as a regular expression.
	pattern := regexp.MustCompile(InstancePattern)
	r := rand.New(rand.NewPCG(11, 12))
	no := 0
	for range 20_000 {
		var b []byte
		for range r.IntN(7) {
			for range []int{4, 8, 12, 4, 9, 16, 31, 3}[r.IntN(8)] {
				b = append(b, "0a9F"[r.IntN(4)])
			}
			b = append(b, "--__-g"[r.IntN(6)])
		}
		got := Shared(sample.JobName(b))
		if got == pattern.Match(b) {
			t.Fatalf("%s: %v, the pattern says otherwise", b, got)
		}
		if !got {
			no++
		}
	}
	if no < 10 {
		t.Errorf("only %d names of instances: the test shows little", no)
	}
}
