package replay

import (
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
)

// TestTasksInTasks: a replay knows from the names which tasks are in which, as the agent does.
func TestTasksInTasks(t *testing.T) {
	m := &machine{tasks: map[sample.TaskName]*task{}}
	named := map[sample.TaskName]*task{}
	for _, n := range []sample.TaskName{"/a/web", "/a", "/a/web/x", "/ab", "/b", "/b/job", "(other)"} {
		named[n] = m.create(sample.Task{Name: n, Class: sample.Batch})
	}
	holds := func(want map[sample.TaskName]sample.TaskName) {
		t.Helper()
		for n, o := range named {
			if got := o.holds(); got != want[n] {
				t.Errorf("%s holds %q, want %q", n, got, want[n])
			}
		}
	}
	holds(nil)
	named["/a/web"].id.Class = sample.LatencySensitive
	holds(map[sample.TaskName]sample.TaskName{"/a": "/a/web"})
	named["/a/web/x"].id.Class = sample.LatencySensitive
	holds(map[sample.TaskName]sample.TaskName{"/a": "/a/web", "/a/web": "/a/web/x"})
}
