package agent

import (
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
)

// What a task is when the limit is set counts, and not what it was when that was decided: the
// planner keeps the tasks of a group for hours.
func TestNoLimitOnATaskThatHasBecomeSpared(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on")
		cases := []struct {
			id     string
			guest  *guest
			spared bool
		}{{"cap-1", r.add("/web/1", 0.5), true}, {"cap-2", r.add("/sys/1", 0.5), true}, {"cap-3", r.add("/batch/job-1", 0.5), false}}
		r.start()
		defer r.stop()
		r.pass(12 * time.Second)
		for _, c := range cases {
			var refused error
			err := r.agent.ask(t.Context(), func() {
				found, err := r.agent.tasks.find(c.guest.path)
				if err != nil {
					t.Error(err)
					return
				}
				was, now := found.Task, sample.At(time.Now())
				was.Class, was.NeverCap = sample.Batch, false
				refused = r.agent.actor.act(now, plan.Action{Kind: plan.Cap, ID: c.id, Task: was, Rate: 0.1, Until: now.Add(time.Minute), By: "quell", Why: "r"})
			})
			if limited := r.values[c.guest.limit()] != "max"; err != nil || limited == c.spared || (refused != nil) != c.spared {
				t.Errorf("%s: limited: %v, refused: %v, %v", c.guest.path, limited, refused, err)
			}
		}
	})
}
