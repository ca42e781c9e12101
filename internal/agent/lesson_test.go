package agent

import (
	"maps"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
)

// A cap that cannot be set fails alone: no partial state is left, the loop continues,
// the next suspect is capped, and the same task can be capped as soon as the kernel
// accepts the write.
func TestAfterACapThatFailsTheNextRoundWorks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on")
		first, second := r.add("/batch/first-1", 0.05), r.add("/batch/second-1", 0.05)
		r.suffering(first)
		r.start()
		defer r.stop()
		r.learn()
		before := maps.Clone(r.values)

		refused := 0
		r.write = func(file, value string) error {
			if file == first.limit() && value != "max" {
				refused++
				return syscall.EINVAL
			}
			return nil
		}
		first.set(1.5)
		second.set(1.4)
		r.pass(3 * time.Minute)
		all := r.incidents()
		if len(all) != 1 || len(all[0].Rounds) == 0 || all[0].Rounds[0].Outcome != plan.CapFailed || refused != 1 {
			t.Fatalf("%d writes refused; %+v", refused, all)
		}
		if !maps.Equal(r.values, before) || len(r.enforcer.Active()) != 0 {
			t.Errorf("left behind: %v, active %v", r.values, r.enforcer.Active())
		}
		// The victim stays bad, so the next round begins with its next anomaly.
		r.pass(5 * time.Minute)
		rounds := r.incidents()[0].Rounds
		if len(rounds) != 2 || rounds[1].Suspect.Name != "/batch/second-1" || refused != 1 {
			t.Errorf("%d writes refused, rounds %+v; want a second one against the next suspect", refused, rounds)
		}
		if s := r.status(); s.Intervals == 0 || len(s.Degraded) != 0 {
			t.Errorf("status %+v", s)
		}
		r.write = nil
		done := r.do(capping(command.Target{Task: "first-1"}, 0.1, "1m", "the kernel is well again"))
		if got := r.values[first.limit()]; got != "0.1" || done.ID == "" {
			t.Errorf("the limit is %q", got)
		}
		r.pass(2 * time.Minute)
		if got := r.values[first.limit()]; got != "max" {
			t.Errorf("a minute after its end the limit is %q", got)
		}
	})
}

// Stopping restores what quell changed and nothing else: a limit that another process
// has set on a task that was never capped is not written at all.
func TestAStopWritesOnlyWhatQuellChanged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		capped, free, was := r.add("/batch/capped-1", 1), r.add("/batch/free-1", 1), r.add("/batch/was-1", 1)
		r.start()
		r.pass(time.Second)
		r.do(capping(command.Target{Task: "was-1"}, 0.1, "10m", "x"))
		r.do(uncapping(command.Target{Task: "was-1"}, "x"))
		r.do(capping(command.Target{Task: "capped-1"}, 0.1, "10m", "x"))
		r.values[free.limit()], r.values[was.limit()] = "0.5", "0.6"
		var wrote []string
		r.write = func(file, value string) error { wrote = append(wrote, file+"="+value); return nil }
		r.pass(time.Second)
		r.stop()
		if len(wrote) != 1 || wrote[0] != capped.limit()+"=max" {
			t.Errorf("wrote %q", wrote)
		}
		if r.values[free.limit()] != "0.5" || r.values[was.limit()] != "0.6" {
			t.Errorf("files hold %v", r.values)
		}
	})
}

// One signal stops the agent, also with caps in force and a window open: everything is
// undone and closed at once, not at the next tick or the window's end.
func TestAStopWaitsForNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		g := r.add("/batch/job-1", 1)
		r.start()
		r.pass(5*time.Second + 100*time.Millisecond)
		r.do(capping(command.Target{Task: "job-1"}, 0.1, "10m", "x"))
		if !r.source.open {
			t.Error("no window is open")
		}
		begin := time.Now()
		r.stop()
		if took := time.Since(begin); took != 0 || r.source.open || r.values[g.limit()] != "max" {
			t.Errorf("it took %v; window open: %v, limit %q", took, r.source.open, r.values[g.limit()])
		}
		if err := r.agent.ask(t.Context(), func() {}); err != ErrStopped {
			t.Errorf("a request to an agent that has ended: %v", err)
		}
	})
}

// half is a source that could count half of the time only.
type half struct{ *source }

func (h half) Stop(end counter.WindowEnd, yield func(sample.TaskKey, counter.Reading)) error {
	return h.source.Stop(end, func(k sample.TaskKey, r counter.Reading) {
		r.Coverage = 0.5
		yield(k, r)
	})
}

// The coverage is stored with the sample: a reader of the trace can distinguish a value
// that was counted all the time from one that was scaled up from half of it.
func TestCoverageIsKeptWithTheSample(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		g := r.add("/batch/job-1", 1)
		g.cost = func() float64 { return 1 }
		r.start()
		defer r.stop()
		r.pass(11 * time.Second)
		if err := r.agent.ask(t.Context(), func() { r.agent.sampler.scheduler.sources[0].Source = half{r.source} }); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Minute)
		if len(r.samples) != 2 || r.samples[0].Coverage != 1 || r.samples[1].Coverage != 0.5 {
			t.Errorf("samples %+v; want coverages of 1 and 0.5", r.samples)
		}
	})
}
