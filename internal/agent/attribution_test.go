package agent

import (
	"context"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
)

// The tasks that were served while a task waited are in the trace by name and in
// detection by key, each with its fair share by weight; also one that ended in the
// window, one that the signal does not judge, and usage outside any task.
func TestWhoWasServedIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=advise", "signals=runq")
		r.source = r.machine.source(sample.RunQ)
		r.source.info.Accounts = true
		for i := range r.config.Rules {
			if r.config.Rules[i].Class == sample.BestEffort {
				r.config.Rules[i].Signals = []string{"cpi"}
			}
		}
		r.weights = weights{"/web": 100, "/web/1": 100, "/batch": 300, "/batch/a-1": 100, "/batch/b-1": 200, "/left": 50}
		web := r.add("/web/1", 0.5)
		web.cost = func() float64 { return 0.1 }
		r.add("/batch/a-1", 0.5)
		ends := r.add("/batch/b-1", 0.5)
		r.add("/left/x", 0.5) // its weight is not known
		key := func(path string) sample.TaskKey {
			for k, f := range r.source.targets {
				if f.path == path {
					return k
				}
			}
			t.Errorf("%s is not monitored", path)
			return sample.TaskKey{}
		}
		var keys map[string]sample.TaskKey
		r.source.change = func(path string, c *counter.Reading) {
			if path != web.path {
				c.Served = []counter.Served{} // counted, and no task was served
				return
			}
			c.Served = []counter.Served{{By: keys["/batch/b-1"], Time: 4 * time.Second}, {By: keys["/batch/a-1"], Time: 3 * time.Second},
				{By: sample.TaskKey{}, Time: 2 * time.Second}, {By: keys["/left/x"], Time: time.Second}, {By: sample.TaskKey{Inode: 999}, Time: time.Second / 2}}
		}
		r.source.starting = func() {
			if keys == nil {
				keys = map[string]sample.TaskKey{}
				for _, p := range []string{"/batch/a-1", "/batch/b-1", "/left/x"} {
					keys[p] = key(p)
				}
			}
		}
		r.start()
		r.pass(time.Minute + 5*time.Second) // into the second window
		ends.remove()
		r.pass(20 * time.Second)

		last := map[sample.TaskName]sample.Sample{}
		for _, s := range r.samples {
			last[s.Task] = s
		}
		const batch = 300. / 400
		want := []sample.Served{{By: "/batch/b-1", Time: 4, Fair: batch * 200 / 300}, {By: "/batch/a-1", Time: 3, Fair: batch * 100 / 300},
			{By: detect.OutsideName, Time: 2.5}, {By: "/left/x", Time: 1}}
		same := func(a, b sample.Served) bool {
			return a.By == b.By && a.Time == b.Time && math.Abs(a.Fair-b.Fair) < 1e-12
		}
		if got := last["/web/1"].Served; !slices.EqualFunc(got, want, same) {
			t.Errorf("the trace has %v, want %v", got, want)
		}
		if got := last["/batch/a-1"].Served; got == nil || len(got) != 0 {
			t.Errorf("of one that did not wait the trace has %v", got)
		}
		err := r.agent.ask(context.Background(), func() {
			name := func(t *task, d sample.Domain, all []counter.Served) ([]sample.Served, []detect.Served) {
				return r.agent.sampler.window.served.name(r.agent.tasks.byKey, &r.agent.sampler.placement.groups, t, d, all)
			}
			task := r.agent.tasks.byKey[key("/web/1")]
			names, got := name(task, sample.SharedCPU, []counter.Served{{By: keys["/batch/a-1"], Time: time.Second}, {Time: 2 * time.Second}})
			if len(got) != 2 || got[0] != (detect.Served{Time: 2}) || got[1] != (detect.Served{By: keys["/batch/a-1"], Time: 1, Fair: batch}) {
				t.Errorf("detection is told %+v", got)
			}
			if len(names) != 2 || names[0].By != detect.OutsideName {
				t.Errorf("and the trace %+v", names)
			}
			if _, got := name(task, sample.SharedDevice, []counter.Served{{By: keys["/batch/a-1"], Time: time.Second}}); len(got) != 1 || got[0].Fair != 0 {
				t.Errorf("of a disk detection is told %+v, by weights of the CPU's", got)
			}
			if names, got := name(task, sample.SharedCPU, nil); names != nil || got != nil {
				t.Errorf("of what was not counted: %v, %v", names, got)
			}
			if n := len(r.agent.sampler.placement.groups.byPath); n != 6 { // the one of the ended task is removed
				t.Errorf("%d groups are kept, want 6", n)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		r.stop()
	})
}
