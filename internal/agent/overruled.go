package agent

import (
	"cmp"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/enforce"
	"github.com/quell-dev/quell/internal/machine/origin"
)

const (
	// maxOverruled and overruledFor bound what is remembered of caps that others ended.
	maxOverruled = 20
	overruledFor = 24 * time.Hour
	// resetAgain: a limit that is reset a second time within this time is another program's.
	resetAgain = time.Hour

	overruledWhy = "another process changed the limit, or the task ended"
	resetResult  = "reset" // of a cap: all files held their old values, and quell had not written them
)

// overruled are caps whose limit another program changed, ordered by time.
type overruled []api.Overruled

// add remembers a cap that has ended, if another program changed its limit. It reports whether that
// program has the last word: it set a limit of its own, or put the old one back again and again.
func (all *overruled) add(now sample.Millis, why string, o *enforce.Outcome, tasks *taskSet) (result string, theirs bool) {
	result = o.Result.String()
	switch {
	case o.Result == enforce.TakenOver:
		theirs = true
	case o.Result == enforce.Restored && why == overruledWhy:
		result = resetResult
		theirs = all.lately(o.Change.Task, now)
	default:
		return result, false
	}
	lost := api.Overruled{Task: o.Change.Task, ID: o.Change.ID, At: now, By: o.Change.Who, Result: result, Note: o.Note}
	if result == resetResult {
		lost.Note = "another program reset the limit to what it was before the cap"
	}
	for _, t := range tasks.byKey {
		if t.Name == lost.Task {
			lost.Likely = limitsOf(t)
		}
	}
	*all = append(*all, lost)
	*all = slices.Delete(*all, 0, max(0, len(*all)-maxOverruled))
	return result, theirs
}

// lately reports whether a cap of a task was overruled within resetAgain.
func (all overruled) lately(task sample.TaskName, now sample.Millis) bool {
	return slices.ContainsFunc(all, func(c api.Overruled) bool { return c.Task == task && now.Sub(c.At) < resetAgain })
}

// recent is what is remembered, without what is too old.
func (all overruled) recent(now sample.Millis) []api.Overruled {
	i, _ := slices.BinarySearchFunc(all, now.Add(-overruledFor), func(c api.Overruled, t sample.Millis) int { return cmp.Compare(c.At, t) })
	return slices.Clone(all[i:])
}

// limitsOf says which program sets limits of such a task, "" if that is not known.
func limitsOf(t *task) string {
	runtime := origin.Parse(t.found.Path).Runtime
	if t.found.Facts != nil && t.found.Facts.Runtime != "" {
		runtime = t.found.Facts.Runtime
	}
	switch runtime {
	case "":
		return ""
	case origin.Kubernetes:
		return "the kubelet sets a pod's limits, for example when the Vertical Pod Autoscaler resizes it"
	case origin.Systemd, origin.Machined:
		return "systemd sets a unit's limits, for example at daemon-reload"
	}
	return string(runtime) + " sets its limits"
}
