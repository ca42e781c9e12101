package agent

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/enforce"
)

// bubble runs a test in a synctest bubble, which has its own clock.
func bubble(t *testing.T, f func(t *testing.T)) { synctest.Test(t, f) }

// The whole loop with the default rule and trials: at the third outlier the suspect is
// likely and limited by a trial; once the trial has enough data the suspect is proven
// and capped.
func TestLearnsDetectsCapsAndLifts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on")
		noisy, quiet := r.add("/batch/noisy-1", 0.05), r.add("/batch/quiet-1", 0.4)
		r.suffering(noisy)
		r.start()
		defer r.stop()
		r.learn()
		limited := func(when, want string) {
			t.Helper()
			if got := r.values[noisy.limit()]; got != want {
				t.Errorf("%s the limit is %q, want %q", when, got, want)
			}
			if got := r.values[quiet.limit()]; got != "max" {
				t.Errorf("%s the limit of an innocent task is %q", when, got)
			}
		}

		noisy.set(1.5)
		r.pass(2 * time.Minute) // two bad windows
		if got := r.incidents(); len(got) != 0 {
			t.Fatalf("two outliers made %d incidents", len(got))
		}
		// The third window closes 10 s into its minute. Just before that nothing is
		// known; that tick does everything.
		r.pass(39 * time.Second)
		if got := r.incidents(); len(got) != 0 {
			t.Fatalf("%d incidents before the third window was closed", len(got))
		}
		r.pass(time.Second)
		closed := sample.At(time.Now())
		all := r.incidents()
		if len(all) != 1 || all[0].Opened != closed || all[0].Victim.Name != "/web/1" || len(all[0].Rounds) != 1 || all[0].Antagonists != 1 || all[0].Suspects[0].Level != detect.Likely {
			t.Fatalf("at %d: %+v", closed, all)
		}
		round := all[0].Rounds[0]
		if round.Suspect.Name != "/batch/noisy-1" || round.Rate != 0.1 || round.Until != closed.Add(3*time.Minute) || round.By != "quell" || !round.Trial {
			t.Errorf("round %+v", round)
		}
		limited("in the trial", "0.1")
		if s := r.status(); len(s.Caps) != 1 || s.Open != 1 || s.Mode != plan.On {
			t.Errorf("status %+v", s)
		}
		if v := r.task("/batch/noisy-1"); !v.Capped {
			t.Errorf("task %+v", v)
		}
		r.pass(3*time.Minute - time.Second)
		limited("a second before the trial's end", "0.1")
		r.pass(time.Second)
		limited("at the trial's end", "max")

		began := r.accused(15 * time.Minute)
		if began.Suspect.Name != "/batch/noisy-1" || began.Rate != 0.1 || began.Until != began.From.Add(5*time.Minute) || began.From != sample.At(time.Now()) {
			t.Errorf("round %+v", began)
		}
		limited("accused,", "0.1")
		r.pass(5*time.Minute - time.Second)
		limited("a second before the lease's end", "0.1")
		r.pass(time.Second)
		limited("at the lease's end", "max")
		inc := r.incidents()[0]
		if len(inc.Rounds) < 2 || inc.Antagonists != 1 || inc.Outcome != plan.TruePositive {
			t.Errorf("outcome %s, incident %+v", inc.Outcome, inc)
		}
		for i, round := range inc.Rounds {
			if round.Trial != (i < len(inc.Rounds)-1) || round.Outcome != plan.TruePositive || round.RelativeCost > 0.6 {
				t.Errorf("round %d: %+v", i, round)
			}
		}
		noisy.set(0)
		r.pass(6 * time.Minute)
		if inc := r.incidents()[0]; inc.Closed == 0 {
			t.Errorf("the incident is still open: %+v", inc)
		}

		var did []string
		for _, e := range r.audit() {
			if e.Who != "quell" || e.Task != "/batch/noisy-1" {
				t.Errorf("audit %+v", e)
			}
			did = append(did, e.What+" "+e.Result)
		}
		if got, want := strings.Join(did, ", "), strings.Repeat(", cap ok, uncap ok", len(inc.Rounds))[2:]; got != want {
			t.Errorf("audit: %s; want %s", got, want)
		}
	})
}

func TestAdviseOnlySays(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		noisy := r.add("/left/noisy", 0.05)
		r.suffering(noisy)
		r.start()
		defer r.stop()
		r.learn()
		noisy.set(1.5)
		r.write = func(file, value string) error { t.Errorf("wrote %q to %s", value, file); return nil }
		r.pass(4 * time.Minute)
		all := r.incidents()
		if len(all) != 1 || all[0].Outcome != plan.WouldCap || len(all[0].Rounds) != 0 ||
			!strings.HasPrefix(all[0].Advice, "cap /left/noisy to 0.01 CPU-s/s for 3m0s as a trial: quell cap /left/noisy --rate 0.01 --for 3m ") {
			t.Errorf("incidents %+v", all)
		}
		if a := r.audit(); len(a) != 0 {
			t.Errorf("audit %+v", a)
		}
	})
}

// Samples taken in an incident do not enter the spec, nor does the cost of an
// antagonist while it is capped.
func TestWhatIncidentsTeach(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// The trial lasts as long as the story.
		r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on", "enforce.trial=5m", "spec.every=1m")
		noisy := r.add("/batch/noisy-1", 0.5)
		noisy.cost = func() float64 { return 2 + 3*max(0, 0.3-noisy.rate()) } // it suffers under a cap
		v := r.suffering(noisy)
		v.cost = func() float64 { return 1 + 0.001*float64(time.Now().Minute()%5) + max(0, noisy.rate()-0.5) }
		r.start()
		defer r.stop()
		r.learn()
		before, noisyBefore := r.spec("web").Samples, r.spec("noisy").Samples
		noisy.set(1.5)
		r.pass(3*time.Minute - 20*time.Second)
		if got := len(r.status().Caps); got != 1 {
			t.Fatalf("%d caps", got)
		}
		r.pass(4 * time.Minute) // four windows under the cap
		if s := r.spec("web"); s.Samples != before || s.Mean > 1.01 {
			t.Errorf("the victim's job has %d samples with mean %g; it had %d before the incident", s.Samples, s.Mean, before)
		}
		if s := r.spec("noisy"); s.Samples != noisyBefore+3 || s.Mean > 2.001 {
			t.Errorf("the antagonist's job has %d samples with mean %g; it had %d, and 3 more before it was capped", s.Samples, s.Mean, noisyBefore)
		}
		capped := 0
		for _, s := range r.samples {
			if s.Task == "/batch/noisy-1" && s.Flags&sample.Capped != 0 {
				capped++
			}
		}
		if capped != 4 {
			t.Errorf("%d samples are marked capped, want 4", capped)
		}
	})
}

// With spec.learn_from_incidents all samples enter the spec, as in the paper.
func TestIncidentsTeachIfAsked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir(), "spec.learn_from_incidents=true", "spec.every=1m")
		noisy := r.add("/batch/noisy-1", 0.05)
		r.suffering(noisy)
		r.start()
		defer r.stop()
		r.learn()
		before := r.spec("web").Samples
		noisy.set(1.5)
		r.pass(4 * time.Minute)
		if got := r.spec("web").Samples; got != before+4 {
			t.Errorf("%d samples, want 4 more than %d", got, before)
		}
	})
}

// An outlier without an anomaly enters the spec once it is too old to be part of one.
func TestALoneOutlierTeachesLater(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		noisy := r.add("/batch/noisy-1", 0.05)
		r.suffering(noisy)
		r.start()
		defer r.stop()
		r.learn()
		before := r.spec("web").Samples
		noisy.set(1.5)
		r.pass(time.Minute)
		noisy.set(0.05)
		r.pass(4 * time.Minute)
		if got := r.spec("web").Samples; got != before+4 {
			t.Errorf("%d samples, want 4 good ones more than %d", got, before)
		}
		r.pass(3 * time.Minute)
		if got := r.spec("web").Samples; got != before+8 {
			t.Errorf("%d samples, want 7 good ones and the outlier more than %d", got, before)
		}
	})
}

// A task that ends in a window yields its usage up to then. Its files are closed in the
// tick that finds it gone. The next task with the same path is a different task and is
// counted from the next window.
func TestTaskThatEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		g := r.add("/batch/job-1", 1)
		g.cost = func() float64 { return 3 }
		stays := r.add("/batch/job-2", 1)
		stays.cost = func() float64 { return 2 }
		r.start()
		defer r.stop()
		first := r.task("/batch/job-1")
		r.pass(5*time.Second + 500*time.Millisecond)
		g.remove()
		again := r.add("/batch/job-1", 0.7)
		again.cost = func() float64 { return 9 }
		r.pass(500 * time.Millisecond)
		if g.files != 0 {
			t.Errorf("%d files are open a tick after the end", g.files)
		}
		if again.files != 1 {
			t.Errorf("the new one has %d files open", again.files)
		}
		if got := r.agent.tasks.byKey[sample.TaskKey{Inode: g.inode, FirstSeen: r.agent.view.started}]; got == nil || !got.ended {
			t.Errorf("it is not kept until the window is closed: %+v", got)
		}
		r.do(capping(command.Target{Task: "job-1"}, 0.7, "2s", "the new one is meant"))
		if got := r.values[again.limit()]; got != "0.7" {
			t.Errorf("the new one's limit is %q", got)
		}
		if n := len(r.source.targets); n != 1 {
			t.Errorf("the source counts %d tasks, want only the one that stays: the new one has seen no window", n)
		}
		r.pass(4 * time.Second) // the window closes
		got := map[string][]sample.Sample{}
		for _, s := range r.samples {
			got[string(s.Task)] = append(got[string(s.Task)], s)
		}
		var last, fresh *sample.Sample
		for i := range got["/batch/job-1"] {
			if s := &got["/batch/job-1"][i]; s.Cost == 3 {
				last = s
			} else {
				fresh = s
			}
		}
		// It was last read in the tick at 5 s, half of the window.
		if last == nil || last.CPU < 0.49 || last.CPU > 0.51 {
			t.Errorf("the one that ended gave %+v", last)
		}
		if fresh == nil || fresh.Cost == fresh.Cost {
			t.Errorf("the new one was counted in a window that it was not in from the start: %+v", fresh)
		}
		if s := r.status(); s.Tasks != 2 {
			t.Errorf("%d tasks", s.Tasks)
		}
		r.pass(time.Minute)
		v := r.task("/batch/job-1")
		if v.Costs[0].Cost != 9 || v.CPU < 0.69 || v.CPU > 0.71 {
			t.Errorf("in the next window the new one gave %+v", v)
		}
		if first.Job != v.Job {
			t.Errorf("jobs %s and %s", first.Job, v.Job)
		}
		if n := r.spec("job").Samples; n != 4 {
			t.Errorf("the job learnt from %d samples, want one of each that was there once and two of the other", n)
		}
	})
}

// A task that ends between windows is forgotten at once, and its files are closed.
func TestTaskThatEndsBetweenWindows(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		g := r.add("/batch/job-1", 1)
		r.start()
		defer r.stop()
		r.pass(20 * time.Second)
		g.remove()
		r.pass(time.Second)
		if s := r.status(); s.Tasks != 0 || g.files != 0 || len(r.source.targets) != 0 {
			t.Errorf("%d tasks, %d files, %d targets", s.Tasks, g.files, len(r.source.targets))
		}
	})
}

func TestSourceThatFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		g := r.add("/batch/job-1", 1)
		g.cost = func() float64 { return 1 }
		r.source.start = errors.New("no counter is free")
		r.start()
		degraded := func(want string) {
			t.Helper()
			if got := strings.Join(r.status().Degraded, "|"); got != want {
				t.Errorf("degraded %q, want %q", got, want)
			}
		}
		degraded("counting cpi: no counter is free")
		r.pass(30 * time.Second)
		if got := len(r.samples); got != 0 {
			t.Errorf("%d samples of a signal that was not counted", got)
		}
		r.source.start = nil
		r.pass(time.Minute)
		degraded("")
		if got := len(r.samples); got != 1 {
			t.Errorf("%d samples after it worked again", got)
		}
		r.source.finish = errors.New("half of it was lost")
		r.pass(time.Minute)
		degraded("counting cpi: half of it was lost")
		r.source.finish = nil
		r.pass(time.Minute)
		degraded("")
		if log := r.log.String(); !strings.Contains(log, "no counter is free") || !strings.Contains(log, "works again") {
			t.Errorf("log:\n%s", log)
		}
		// Stop while the window is open but the source is not.
		r.source.start = errors.New("no counter is free")
		r.pass(35 * time.Second)
		r.stop()
	})
}

func TestOtherThingsThatFail(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.add("/batch/job-1", 1)
		r.start()
		defer r.stop()
		for _, c := range []struct {
			name, want string
			set        func(error)
		}{
			{"finding", "finding tasks: broken", func(err error) { r.finding = err }},
			{"CPU times", "reading CPU times: broken", func(err error) { r.reading = err }},
			{"a task", "monitoring /batch/job-9: broken", func(err error) {
				if r.opening["/batch/job-9"] = err; err != nil {
					r.add("/batch/job-9", 1)
				}
			}},
		} {
			c.set(errors.New("broken"))
			r.pass(time.Minute)
			if got := strings.Join(r.status().Degraded, "|"); got != c.want {
				t.Errorf("%s: degraded %q, want %q", c.name, got, c.want)
			}
			c.set(nil)
			r.pass(time.Minute)
			if got := r.status().Degraded; len(got) != 0 {
				t.Errorf("%s: still degraded %q", c.name, got)
			}
		}
		if got := r.status().Tasks; got != 2 {
			t.Errorf("%d tasks", got)
		}
		// A task that could not be followed and is gone is no longer a degradation.
		r.opening["/batch/job-8"] = errors.New("broken")
		g := r.add("/batch/job-8", 1)
		r.pass(2 * time.Second)
		g.remove()
		r.pass(2 * time.Second)
		if got := r.status().Degraded; len(got) != 0 {
			t.Errorf("degraded %q by a task that is gone", got)
		}
	})
}

func TestTasksThatCannotBeCounted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.source.adding = errors.New("not in cgroup2")
		g := r.add("/batch/job-1", 0.5)
		g.split = "process 1 is elsewhere"
		r.start()
		defer r.stop()
		r.pass(10 * time.Second)
		v := r.task("/batch/job-1")
		if v.Note != "split: process 1 is elsewhere; cpi: not in cgroup2" || v.Flags != "split" || v.CPU < 0.49 {
			t.Errorf("task %+v", v)
		}
		if got := r.refused(capping(command.Target{Task: "job-1"}, 0.1, "1m", "x"), 409); !strings.Contains(got, "in different cgroups") {
			t.Errorf("capping it: %s", got)
		}
		if len(r.samples) != 1 || r.samples[0].Cost == r.samples[0].Cost || r.samples[0].CPU < 0.49 {
			t.Errorf("samples %+v: want its usage and no cost", r.samples)
		}
		g.split = ""
		r.pass(2 * time.Minute)
		if v := r.task("/batch/job-1"); v.Flags != "" || v.Note != "cpi: not in cgroup2" {
			t.Errorf("together again: %+v", v)
		}
	})
}

// The cgroup of the agent itself is never capped.
func TestOwnCgroupIsNeverCapped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.own = r.add("/batch/agent-1", 1).path
		r.start()
		defer r.stop()
		if got := r.refused(capping(command.Target{Task: "agent-1"}, 1, "1m", "r"), 409); !strings.Contains(got, "never-cap") {
			t.Errorf("got %q", got)
		}
	})
}

// Changes that the planner does not know of also end with their lease, and with the agent.
func TestJournalHasTheLastWord(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		a, b := r.add("/batch/job-1", 1), r.add("/batch/job-2", 1)
		r.start()
		now := sample.At(time.Now())
		for i, g := range []*guest{a, b} {
			_, inode, w, err := r.CapWrites(g.path, 0.5, 0)
			if err != nil {
				t.Fatal(err)
			}
			c := enforce.Change{ID: g.path, Dir: "/cg" + g.path, Inode: inode, Writes: w, From: now, Until: now.Add(time.Duration(5+1000*i) * time.Second)}
			if err := r.agent.ask(t.Context(), func() { err = r.enforcer.Apply(now, c) }); err != nil {
				t.Fatal(err)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		r.pass(4 * time.Second)
		if x, y := r.values[a.limit()], r.values[b.limit()]; x != "0.5" || y != "0.5" {
			t.Errorf("limits %s and %s", x, y)
		}
		r.pass(time.Second)
		if x, y := r.values[a.limit()], r.values[b.limit()]; x != "max" || y != "0.5" {
			t.Errorf("after the first lease limits %s and %s", x, y)
		}
		r.stop()
		if y := r.values[b.limit()]; y != "max" {
			t.Errorf("after the stop the limit is %s", y)
		}
	})
}
