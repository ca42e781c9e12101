package replay

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// A served task is found by its name, whether its own row came before, comes later, or does
// not come.
func TestServedAreTasks(t *testing.T) {
	p := New(byDefault(t, detect.Quell))
	served := []sample.Served{{By: "/b", Time: 3, Fair: 0.5}, {By: detect.OutsideName, Time: 2}, {By: "/a", Time: 1}, {By: "/gone", Time: 0.5}}
	var keys [40][]sample.TaskKey
	for at := range keys {
		add := func(name sample.TaskName, served ...sample.Served) {
			var x sample.Extras
			x.Set(sample.WaitOther, 10) // of a window of 10 s, which converts served to s/s
			p.Add(&sample.Sample{Extras: x, TS: sample.Millis(at+1) * minute, Machine: "m", Job: sample.JobName(name), Task: name, Signal: sample.RunQ, Coverage: 1,
				CPU: 1, Cost: 1, Class: sample.Batch, Served: served})
		}
		add("/a", sample.Served{By: "/b", Time: 7})
		add("/victim", served...)
		add("/b")
		add("/quiet", []sample.Served{}...)
		iv := p.machines["m"].streams[0].interval
		if iv.Len() != 4 {
			t.Fatalf("%d readings", iv.Len())
		}
		if n := len(p.machines["m"].served); n != 5 {
			t.Fatalf("%d are held as served in an interval with 5", n)
		}
		a, victim, b := iv.Reading(0), iv.Reading(1), iv.Reading(2)
		gone := victim.Served[3].By
		want := []detect.Served{{By: b.Task.Key, Time: 0.3, Fair: 0.5}, {By: detect.Outside().Key, Time: 0.2}, {By: a.Task.Key, Time: 0.1}, {By: gone, Time: 0.05}}
		if diff := cmp.Diff(want, victim.Served); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]detect.Served{{By: b.Task.Key, Time: 0.7}}, a.Served); diff != "" {
			t.Error(diff)
		}
		if b.Served != nil || b.Task.Name != "/b" || b.Task.Job != "/b" || b.Task.Class != sample.Batch {
			t.Errorf("%+v", b)
		}
		keys[at] = []sample.TaskKey{a.Task.Key, b.Task.Key, victim.Task.Key, gone}
		for i, k := range keys[at] {
			if k != keys[0][i] {
				t.Errorf("interval %d: task %d has another key than before", at, i)
			}
			for _, other := range keys[at][:i] {
				if k == other {
					t.Errorf("two tasks have one key: %v", keys[at])
				}
			}
		}
	}
	// A task that no row mentions any more is forgotten.
	for at := range 80 {
		p.Add(&sample.Sample{TS: sample.Millis(at+50) * minute, Machine: "m", Task: "/a", Signal: sample.RunQ, Coverage: 1, CPU: 1, Cost: 1})
	}
	if m := p.machines["m"]; len(m.tasks) != 1 || len(m.order) != 1 {
		t.Errorf("%d tasks are known, %d in order", len(m.tasks), len(m.order))
	}
}

// An empty list of served tasks, which was counted, differs from none.
func TestServedNobody(t *testing.T) {
	p := New(byDefault(t, detect.Quell))
	for task, served := range map[sample.TaskName][]sample.Served{"/a": nil, "/b": {}} {
		p.Add(&sample.Sample{TS: minute, Machine: "m", Task: task, Signal: sample.RunQ, Coverage: 1, CPU: 1, Cost: 1, Served: served})
	}
	iv := p.machines["m"].streams[0].interval
	for i := range 2 {
		if r := iv.Reading(i); (r.Served != nil) != (r.Task.Name == "/b") {
			t.Errorf("%s: %v", r.Task.Name, r.Served)
		}
	}
}
