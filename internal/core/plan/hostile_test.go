package plan_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
)

// TestAttackCapWithoutReasonOrEnd: a cap of ten years, without a reason or without a name
// is refused by the planner itself, whatever door it came through.
func TestAttackCapWithoutReasonOrEnd(t *testing.T) {
	task := sample.Task{Key: sample.TaskKey{Inode: 1}, Name: "/batch/1", Job: "batch", Class: sample.Batch}
	for name, c := range map[string]struct {
		terms   command.Terms
		by, why string
		ok      bool
	}{
		"a cap":           {command.Terms{Rate: 0.1, For: command.Duration(24 * time.Hour)}, "anna", "r", true},
		"no reason":       {command.Terms{Rate: 0.1, For: command.Duration(time.Hour)}, "anna", "", false},
		"a blank reason":  {command.Terms{Rate: 0.1, For: command.Duration(time.Hour)}, "anna", " \t\n", false},
		"no operator":     {command.Terms{Rate: 0.1, For: command.Duration(time.Hour)}, " ", "r", false},
		"no end":          {command.Terms{Rate: 0.1}, "anna", "r", false},
		"ten years":       {command.Terms{Rate: 0.1, For: command.Duration(87_600 * time.Hour)}, "anna", "r", false},
		"99,999 hours":    {command.Terms{Rate: 0.1, For: command.Duration(99_999 * time.Hour)}, "anna", "r", false},
		"a day and a bit": {command.Terms{Rate: 0.1, For: command.Duration(24*time.Hour + 1)}, "anna", "r", false},
		"the longest":     {command.Terms{Rate: 0.1, For: math.MaxInt64}, "anna", "r", false},
		"before its time": {command.Terms{Rate: 0.1, For: -command.Duration(time.Hour)}, "anna", "r", false},
	} {
		p := plan.New("machine", detect.Quell, plan.Paper())
		_, err := p.CapFor(1000, task, c.terms, "", c.by, c.why, none)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, plan.ErrRefused) || len(p.Caps()) != map[bool]int{true: 1}[c.ok] {
			t.Errorf("%s: %v, %d caps", name, err, len(p.Caps()))
		}
	}
}
