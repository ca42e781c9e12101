package spec

import (
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

var key = Key{Job: "search", Platform: "p", Signal: sample.CPI, Variant: "ref-cycles"}

func task(n uint64) sample.TaskKey { return sample.TaskKey{Inode: n} }

const minute = sample.Millis(60_000)

// feed adds n samples a minute apart, alternating around mean by spread.
func feed(h *History, t sample.TaskKey, from sample.Millis, n int, mean, spread float64) sample.Millis {
	for i := range n {
		h.Add(key, t, from, 0.5, mean+spread*float64(1-2*(i%2)), 0)
		from += minute
	}
	return from
}

func TestSpecNeedsFiveTasksWithAHundredSamplesEach(t *testing.T) {
	h := NewHistory(Paper())
	now := sample.Millis(0)
	if s, ok := h.Lookup(key, now); ok || s.State != Learning {
		t.Errorf("unknown key: %v %v", s.State, ok)
	}
	for n := range uint64(4) {
		now = feed(h, task(n), now, 100, 1.8, 0.16)
	}
	if s, _ := h.Lookup(key, now); s.State != Insufficient {
		t.Errorf("four tasks: %v, want insufficient", s.State)
	}
	now = feed(h, task(4), now, 99, 1.8, 0.16)
	if s, _ := h.Lookup(key, now); s.State != Learning {
		t.Errorf("fifth task at 99 samples: %v, want learning", s.State)
	}
	now = feed(h, task(4), now, 1, 1.8, 0.16)
	s, _ := h.Lookup(key, now)
	if s.State != Ready || s.Tasks != 5 || s.Samples != 500 || s.Own {
		t.Errorf("got %+v, want ready with 5 tasks, 500 samples", s)
	}
	if math.Abs(s.Mean-1.8) > 0.01 || math.Abs(s.StdDev-0.16) > 0.01 || s.CPUMean != 0.5 {
		t.Errorf("got mean %v sd %v cpu %v", s.Mean, s.StdDev, s.CPUMean)
	}
}

// What is missing is what the task lacks that will complete the number of tasks.
func TestMissing(t *testing.T) {
	h := NewHistory(Params{MinTasks: 2, MinSamples: 10, AgeWeight: 0.9, Every: time.Hour, StaleAfter: 24 * time.Hour})
	missing := func(what string, want int) {
		t.Helper()
		if got := h.Find(key).Missing(); got != want {
			t.Errorf("%s: %d missing, want %d", what, got, want)
		}
	}
	now := feed(h, task(1), 0, 4, 1, 0.1)
	missing("one task of two", 10)
	now = feed(h, task(2), now, 7, 1, 0.1)
	missing("4 and 7 of 10", 6)
	now = feed(h, task(2), now, 3, 1, 0.1)
	missing("4 and 10", 6)
	feed(h, task(1), now, 6, 1, 0.1)
	missing("both have given enough", 0)
}

func TestReadySpecStandsUntilItIsRecomputed(t *testing.T) {
	h := NewHistory(OwnHistory())
	now := feed(h, task(1), 0, 100, 1, 0.1)
	first, _ := h.Lookup(key, now)
	if first.State != Ready || !first.Own {
		t.Fatalf("got %+v", first)
	}
	feed(h, task(1), now, 30, 9, 0)
	if s, _ := h.Lookup(key, now+30*minute); s.Mean != first.Mean {
		t.Errorf("moved within the hour: %v -> %v", first.Mean, s.Mean)
	}
	if s, _ := h.Lookup(key, now+60*minute); s.Mean <= first.Mean {
		t.Errorf("not recomputed after an hour: %v", s.Mean)
	}
}

func TestOldSamplesWeighNineTenthsADay(t *testing.T) {
	h := NewHistory(OwnHistory())
	for range 100 {
		h.Add(key, task(1), 0, 1, 10, 0)
	}
	day := sample.Millis(0).Add(24 * time.Hour)
	for range 100 {
		h.Add(key, task(1), day, 1, 20, 0)
	}
	s, _ := h.Lookup(key, day)
	if want := (0.9*10 + 20) / 1.9; math.Abs(s.Mean-want) > 1e-9 {
		t.Errorf("mean %v, want %v", s.Mean, want)
	}
}

func TestStaleSpecIsNotReadyAndComesBack(t *testing.T) {
	h := NewHistory(OwnHistory())
	now := feed(h, task(1), 0, 100, 1, 0.1)
	h.Lookup(key, now)
	later := now.Add(8 * 24 * time.Hour)
	if s, _ := h.Lookup(key, later); s.State != Stale {
		t.Fatalf("after 8 days: %v", s.State)
	}
	h.Add(key, task(1), later, 1, 1, 0)
	if s, _ := h.Lookup(key, later); s.State != Ready {
		t.Errorf("after a new sample: %v", s.State)
	}
}

func TestHistorySurvivesARestart(t *testing.T) {
	h := NewHistory(OwnHistory())
	now := feed(h, task(1), 0, 100, 1.5, 0.2)
	before, _ := h.Lookup(key, now)
	text, err := json.Marshal(h.Records())
	if err != nil {
		t.Fatal(err)
	}
	var records []Record
	if err := json.Unmarshal(text, &records); err != nil {
		t.Fatal(err)
	}
	again := NewHistory(OwnHistory())
	again.Restore(records)
	after, ok := again.Lookup(key, now+minute)
	if diff := cmp.Diff(before, after); !ok || diff != "" {
		t.Errorf("spec changed over a restart:\n%s", diff)
	}
}

// A task that continues over a restart of the agent is the same task: its samples
// continue to count, and it counts once towards the tasks that a spec needs.
func TestATaskCountsOnceOverARestart(t *testing.T) {
	p := OwnHistory()
	p.MinTasks = 3
	restart := func(h *History) *History {
		text, err := json.Marshal(h.Records())
		if err != nil {
			t.Fatal(err)
		}
		var records []Record
		if err := json.Unmarshal(text, &records); err != nil {
			t.Fatal(err)
		}
		again := NewHistory(p)
		again.Restore(records)
		return again
	}
	// After a restart the same cgroup is first seen at another time.
	seen := func(n uint64, at sample.Millis) sample.TaskKey { return sample.TaskKey{Inode: n, FirstSeen: at} }
	h := NewHistory(p)
	now := feed(h, seen(1, 0), 0, 100, 1, 0.1)
	now = feed(h, seen(2, 0), now, 60, 1, 0.1)
	for range 2 {
		h = restart(h)
		now = feed(h, seen(1, now), now, 100, 1, 0.1)
		if s, _ := h.Lookup(key, now); s.Tasks != 1 || s.State == Ready {
			t.Fatalf("one task with samples enough, restarted: %d tasks, %v", s.Tasks, s.State)
		}
	}
	second := seen(2, now)
	now = feed(h, second, now, 39, 1, 0.1)
	if s, _ := h.Lookup(key, now); s.Tasks != 1 {
		t.Errorf("the second at 99 samples: %d tasks", s.Tasks)
	}
	now = feed(h, second, now, 1, 1, 0.1)
	if s, _ := h.Lookup(key, now); s.Tasks != 2 {
		t.Errorf("the second at 100 samples, 60 of them before two restarts: %d tasks", s.Tasks)
	}
	now = feed(h, seen(3, now), now, 100, 1, 0.1)
	if s, _ := h.Lookup(key, now); s.Tasks != 3 || s.State != Ready {
		t.Errorf("a third: %d tasks, %v", s.Tasks, s.State)
	}
}

// Tasks that are not seen again are not kept forever.
func TestTasksThatNeverComeBackAreDropped(t *testing.T) {
	h := NewHistory(OwnHistory())
	feed(h, task(1), 0, 5, 1, 0)
	for range maxMissed {
		if n := len(h.Records()[0].Tasks); n != 1 {
			t.Fatalf("%d tasks are kept, want 1", n)
		}
		again := NewHistory(OwnHistory())
		again.Restore(h.Records())
		h = again
	}
	if n := len(h.Records()[0].Tasks); n != 0 {
		t.Errorf("%d tasks are kept after %d restarts without them", n, maxMissed)
	}
}

// A machine's own history is a provisional spec before there are enough samples. It stands until
// there are half as many more, and is no longer provisional when the spec is ready.
func TestAProvisionalSpecIsOfFewSamples(t *testing.T) {
	p := OwnHistory()
	p.Provisional = 20
	h := NewHistory(p)
	now := sample.Millis(0)
	type seen struct {
		State       State
		Provisional bool
		Mean        float64
	}
	for _, c := range []struct {
		n    int // samples, of this cost
		cost float64
		want seen
	}{
		{19, 1, seen{Learning, false, 0}},
		{1, 1, seen{Learning, true, 1}},
		{9, 4, seen{Learning, true, 1}}, // 29 samples: it stands
		{1, 4, seen{Learning, true, 2}}, // 20 of 1 and 10 of 4
		{69, 1, seen{Learning, true, 130. / 100}},
		{1, 1, seen{Ready, false, 130. / 100}},
	} {
		now = feed(h, task(1), now, c.n, c.cost, 0)
		s, _ := h.Lookup(key, now)
		if s.Provisional != c.want.Provisional || s.State != c.want.State || math.Abs(s.Mean-c.want.Mean) > 0.02 || s.Provisional && !s.Own {
			t.Errorf("after %d more of %v: %+v, want %+v", c.n, c.cost, s, c.want)
		}
	}
	for name, change := range map[string]func(*Params){"off": func(p *Params) { p.Provisional = 0 }, "of a job": func(p *Params) { p.MinTasks = 2 }} {
		other := p
		change(&other)
		h := NewHistory(other)
		feed(h, task(1), feed(h, task(2), 0, 50, 1, 0), 50, 1, 0)
		if s, _ := h.Lookup(key, 100*minute); s.Provisional || s.State != Learning {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// After a restart a spec is provisional again with the task's next sample.
func TestAProvisionalSpecSurvivesARestart(t *testing.T) {
	p := OwnHistory()
	p.Provisional = 20
	h := NewHistory(p)
	now := feed(h, task(1), 0, 40, 1.5, 0.1)
	again := NewHistory(p)
	if refused := again.Restore(h.Records()); refused != 0 {
		t.Fatalf("%d records refused", refused)
	}
	now = feed(again, task(1), now, 1, 1.5, 0.1)
	if s, _ := again.Lookup(key, now); !s.Provisional || s.Samples != 41 || math.Abs(s.Mean-1.5) > 0.02 {
		t.Errorf("%+v", s)
	}
}

// A machine's clock was a year ahead until its agent was restarted. What it stored then holds up
// nothing: the spec is computed anew, ages, and becomes stale.
func TestAClockThatWasAheadHoldsUpNothing(t *testing.T) {
	const day, year = 24 * 60 * minute, 365 * 24 * 60 * minute
	h := NewHistory(OwnHistory())
	end := feed(h, task(1), year, 100, 1, 0.1)
	if s, _ := h.Lookup(key, end); s.State != Ready || s.Updated != end {
		t.Fatalf("got %+v", s)
	}
	again := NewHistory(OwnHistory())
	if refused := again.Restore(h.Records()); refused > 0 {
		t.Fatalf("%d records were refused", refused)
	}
	now := feed(again, task(2), 0, 100, 3, 0.1)
	if s, _ := again.Lookup(key, now); s.Updated != now || math.Abs(s.Mean-2) > 0.01 {
		t.Errorf("after as many samples: %+v, want a mean of 2", s)
	}
	if s, _ := again.Lookup(key, now+8*day); s.State != Stale {
		t.Errorf("after a week without samples: %+v", s)
	}
	feed(again, task(2), now+5*day, 1, 3, 0.1)
	if w := again.Records()[0].Cost.W; math.Abs(w-(1+200*math.Pow(0.9, 5))) > 1 {
		t.Errorf("five days later all of it weighs %v", w)
	}
}

// A sample that was held back while its task slept for days is not a clock that was ahead: what the
// job's other tasks have taught meanwhile keeps its weight.
func TestASampleOfDaysAgoAgesNothing(t *testing.T) {
	const day = 24 * 60 * minute
	h := NewHistory(OwnHistory())
	now := feed(h, task(1), 3*day, 50, 1, 0.1)
	h.Lookup(key, now)
	before := h.Records()[0].Cost.W
	feed(h, task(2), minute, 1, 1, 0)
	feed(h, task(1), now, 1, 1, 0)
	if w := h.Records()[0].Cost.W; math.Abs(w-before-2) > 0.5 {
		t.Errorf("with two samples more all of it weighs %v, and %v before", w, before)
	}
}

// A machine on which new jobs come and go keeps the histories of the jobs that live, and of those that
// ended last. A job that was forgotten and gives samples again is learnt again.
func TestJobsThatEndedAreNotKeptForEver(t *testing.T) {
	of := func(i int) Key { return Key{Job: sample.JobName(fmt.Sprint("build-", i)), Signal: sample.CPI} }
	play := func(h *History, from, to int) {
		for i := from; i < to; i++ {
			h.Add(of(i), task(2), sample.Millis(i), 1, 1, 0)
			clear(h.Find(of(i)).tasks) // it ends; Forget searches all keys
		}
	}
	h := NewHistory(OwnHistory())
	h.Add(key, task(1), 0, 1, 1, 0)
	play(h, 0, 3*maxKeys)
	all := h.Records()
	if len(all) > maxKeys || len(all) < maxKeys/2 || h.Find(of(0)) != nil {
		t.Errorf("%d histories are kept", len(all))
	}
	if h.Find(key) == nil || h.Find(of(3*maxKeys-1)) == nil {
		t.Error("the job that lives, or the one that ended last, is forgotten")
	}
	again := NewHistory(OwnHistory())
	again.Restore(all)
	kept := again.Find(of(3*maxKeys - 1))
	if play(again, 3*maxKeys, 4*maxKeys); again.Find(kept.Key) != nil {
		t.Fatal("a job that ended long ago is kept")
	}
	kept.Add(task(4), 5*maxKeys, 1, 1, 0)
	if got := again.Find(kept.Key); got != kept || kept.Cost.N != 2 {
		t.Errorf("it gives samples again: %+v", got)
	}
}

// The jobs of a machine with more tasks than that all live: none is forgotten at a restart, before its task
// has given a sample again.
func TestJobsThatLiveOutliveARestart(t *testing.T) {
	const n = maxKeys + 500
	h := NewHistory(OwnHistory())
	for i := range n {
		h.Add(Key{Job: sample.JobName(fmt.Sprint("job-", i)), Signal: sample.CPI}, task(uint64(i+1)), sample.Millis(i), 1, 1, 0)
	}
	again := NewHistory(OwnHistory())
	again.Restore(h.Records())
	if got := len(again.Records()); got != n {
		t.Errorf("%d histories of %d", got, n)
	}
}

// The jobs of a machine with thousands of tasks all live: they are not looked at again for each that comes, or is
// restored.
func TestManyJobsThatLive(t *testing.T) {
	const n = 4 * maxKeys
	h := NewHistory(OwnHistory())
	allocated := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.TotalAlloc
	}
	before := allocated()
	for i := range n {
		h.Add(Key{Job: sample.JobName(fmt.Sprint("job-", i)), Signal: sample.CPI}, task(uint64(i+1)), sample.Millis(i), 1, 1, 0)
	}
	if each := (allocated() - before) / n; len(h.keys) != n || each > 20_000 {
		t.Errorf("%d histories of %d, %d bytes for each", len(h.keys), n, each)
	}
	// If they end together, no more are kept than of others.
	for _, b := range h.keys {
		clear(b.tasks)
	}
	for i := range maxKeys / 4 {
		h.Add(Key{Job: sample.JobName(fmt.Sprint("later-", i)), Signal: sample.CPI}, task(uint64(i+1)), n+sample.Millis(i), 1, 1, 0)
	}
	if len(h.keys) > maxKeys {
		t.Errorf("%d histories after their jobs have ended", len(h.keys))
	}
}

// TestAttackTasksThatEnd: the end of a task takes no longer if thousands of jobs ran before it, as those that a tenant makes up.
func TestAttackTasksThatEnd(t *testing.T) {
	const ends = 2000
	took := func(jobs int) time.Duration {
		h := NewHistory(Paper())
		for i := range max(jobs, ends) {
			k := key
			k.Job = sample.JobName(fmt.Sprint("job-", i%jobs))
			h.Add(k, task(uint64(i)), minute, 1, 1, 0)
		}
		begun := time.Now()
		for i := range ends {
			h.Forget(task(uint64(i)))
		}
		return time.Since(begun)
	}
	few := quelltest.Fastest(func() time.Duration { return took(10) })
	many := quelltest.Fastest(func() time.Duration { return took(maxKeys) })
	if many > 10*few+20*time.Millisecond {
		t.Errorf("the end of %d tasks takes %s with 10 jobs, %s with %d", ends, few, many, maxKeys)
	}
}
