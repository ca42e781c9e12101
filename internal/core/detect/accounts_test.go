package detect

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
)

// queue is a minute of a victim (task 1) in the run queue, with the tasks that ran while it
// waited.
type queue struct {
	cpu, self, niced float64            // of the victim: CPU-s/s; ratio to it; s/s
	served           map[uint64]float64 // s/s, by task
	used             map[uint64]float64 // CPU-s/s
	nobodys          float64            // s/s of the wait that is not in served
	moved            bool               // task 2 ran on other CPUs when that was read
	bound            bool               // the victim and task 3 may run on one CPU only
}

// fairShare is the fair share of every task.
const fairShare = 0.4

// play gives a detector the given number of minutes of it and returns the last finding.
func (q queue) play(t *testing.T, d *Detector, from, minutes int) (f Finding, found bool) {
	t.Helper()
	for m := from; m < from+minutes; m++ {
		waited := q.nobodys
		var served []Served
		for _, who := range []uint64{2, 3} {
			if time := q.served[who]; time > 0 {
				served = append(served, Served{By: task(who, sample.Batch).Key, Time: time, Fair: fairShare})
				waited += time
			}
		}
		v := victim(1, waited/q.cpu).with(func(r *Reading) {
			r.CPU, r.Pressure, r.Self, r.Spec = q.cpu, q.cpu, q.self, ready(0.05, 0.02)
			r.OwnApart, r.Served = true, append([]Served{}, served...)
			r.Wanted, r.Waited, r.Niced, r.Demand = q.cpu+waited, waited, q.niced, q.cpu*(1+q.self)
		})
		second := suspect(2, q.used[2])
		if q.moved {
			v.Reach, second.Reach = sample.SetOf(0), sample.SetOf(1)
		}
		third := suspect(3, q.used[3])
		if q.bound {
			v.Reach, third.Reach = sample.SetOf(0), sample.SetOf(0)
		}
		at := sample.Millis(m+1) * minute
		d.Observe(signal(t, sample.RunQ), at, []Reading{v, second, third})
		for _, one := range drain(d, at) {
			f, found = one, true
		}
	}
	return f, found
}

// TestWhoWasServed: which task the accounts of a queue name, at which level, and why not
// higher.
func TestWhoWasServed(t *testing.T) {
	calm := queue{cpu: 0.2, served: map[uint64]float64{3: 0.004}, used: map[uint64]float64{2: 0.05, 3: 0.3}}
	for _, c := range []struct {
		name  string
		then  queue
		who   uint64 // inode of the first suspect
		level Level
		why   string
	}{
		{"a task arrives, stays, and gets more than its share", queue{cpu: 0.2, served: map[uint64]float64{2: 0.5, 3: 0.01}, used: map[uint64]float64{2: 0.8, 3: 0.3}}, 2, Proven, ""},
		{"a task that was moved to where the victim runs", queue{cpu: 0.2, moved: true, served: map[uint64]float64{2: 0.5, 3: 0.01}, used: map[uint64]float64{2: 0.8, 3: 0.3}}, 2, Proven, ""},
		{"it gets no more than its share", queue{cpu: 0.2, served: map[uint64]float64{2: 0.1, 3: 0.0045}, used: map[uint64]float64{2: 0.5, 3: 0.3}}, 2, Likely, "fair share"},
		{"two of them", queue{cpu: 0.1, served: map[uint64]float64{2: 0.5, 3: 0.5}, used: map[uint64]float64{2: 0.8, 3: 0.9}}, 2, Proven, ""},
		{"an innocent that another task displaced", queue{cpu: 0.2, served: map[uint64]float64{3: 0.5}, used: map[uint64]float64{2: 0.05, 3: 0.3}}, 3, Possible, "used no more than before"},
		{"a task that displaced an innocent", queue{cpu: 0.2, served: map[uint64]float64{3: 0.5}, used: map[uint64]float64{2: 0.8, 3: 0.3}}, 2, Likely, ""},
		{"a task that did more while one that cannot move was served", queue{cpu: 0.2, bound: true, served: map[uint64]float64{3: 0.5}, used: map[uint64]float64{2: 0.8, 3: 0.3}}, 3, Possible, "used no more than before"},
		{"a task that does a little more while an innocent arrives", queue{cpu: 0.2, served: map[uint64]float64{3: 0.5}, used: map[uint64]float64{2: 0.12, 3: 0.3}}, 3, Possible, "used no more than before"},
		{"a victim that frames others with many threads", queue{cpu: 0.2, self: 500, served: map[uint64]float64{2: 20, 3: 10}, used: map[uint64]float64{2: 0.8, 3: 0.3}}, 2, Possible, "times as much as usual"},
		{"a victim with low priority", queue{cpu: 0.2, niced: 0.4, served: map[uint64]float64{2: 0.5}, used: map[uint64]float64{2: 0.8, 3: 0.3}}, 2, Possible, "low priority"},
		{"a third of the wait is not attributed", queue{cpu: 0.2, nobodys: 0.25, served: map[uint64]float64{2: 0.5}, used: map[uint64]float64{2: 0.8, 3: 0.3}}, 2, Likely, "not attributed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := New(evident(t))
			if f, found := calm.play(t, d, 0, 30); found {
				t.Fatalf("before any task suffers: %+v", f)
			}
			f, found := c.then.play(t, d, 30, 4)
			if !found || len(f.Suspects) == 0 {
				t.Fatalf("no finding: %+v", f)
			}
			s := &f.Suspects[0]
			if s.Key.Inode != c.who || s.Level != c.level || s.Basis != ByAccounts || !strings.Contains(s.Why, c.why) {
				t.Errorf("task %d, %v by %s: %q; want task %d, %v: %q", s.Key.Inode, s.Level, s.Basis, s.Why, c.who, c.level, c.why)
			}
			waited := c.then.served[c.who] / (c.then.cpu + c.then.served[2] + c.then.served[3] + c.then.nobodys)
			fair, pushed := fairShare, 0.0
			if waited == 0 {
				fair, pushed = 0, 0.5/0.7-0.004/0.204
			}
			if math.Abs(s.Share-waited) > 1e-9 || math.Abs(s.FairShare-fair) > 1e-9 || math.Abs(s.Displaced-pushed) > 1e-9 {
				t.Errorf("share %v, fair %v, pushed %v; want %v, %v and %v", s.Share, s.FairShare, s.Displaced, waited, fair, pushed)
			}
			if named := f.Antagonists > 0; named != (c.level >= Likely) {
				t.Errorf("%d are named at level %v", f.Antagonists, c.level)
			}
		})
	}
}

// TestWithoutAGoodIntervalNoTaskIsProven: an agent starts while a victim suffers from task 2. Task 3 was
// always served as long, which the agent does not know.
func TestWithoutAGoodIntervalNoTaskIsProven(t *testing.T) {
	f, found := queue{cpu: 0.1, served: map[uint64]float64{2: 0.5, 3: 0.5}, used: map[uint64]float64{2: 0.8, 3: 0.8}}.play(t, New(evident(t)), 0, 4)
	if !found || len(f.Suspects) < 2 {
		t.Fatalf("no finding: %+v", f)
	}
	for _, s := range f.Suspects[:2] {
		if s.Level != Likely || s.Basis != ByAccounts || !strings.Contains(s.Why, "no good interval") {
			t.Errorf("task %d is %v by %s: %q", s.Key.Inode, s.Level, s.Basis, s.Why)
		}
	}
}

// TestWithoutAccountsStatisticsTell: if most of the wait is not attributed to tasks, the
// accounts are not sufficient.
func TestWithoutAccountsStatisticsTell(t *testing.T) {
	d := New(evident(t))
	queue{cpu: 0.2, served: map[uint64]float64{3: 0.004}, used: map[uint64]float64{2: 0.05, 3: 0.3}}.play(t, d, 0, 30)
	f, found := queue{cpu: 0.2, nobodys: 0.7, served: map[uint64]float64{2: 0.3}, used: map[uint64]float64{2: 0.8, 3: 0.3}}.play(t, d, 30, 4)
	if !found || f.Suspects[0].Basis != ByStatistics || f.Suspects[0].Level == Proven {
		t.Errorf("%+v", f.Suspects)
	}
}

// TestWhatRunsOutsideAnyTaskIsNobodys: the source counts a task that it does not follow as
// outside any task, so service outside is no evidence on the tasks that it follows.
func TestWhatRunsOutsideAnyTaskIsNobodys(t *testing.T) {
	for _, c := range []struct {
		outside float64 // s/s of the wait, of 1
		method  Basis
	}{{0.2, ByAccounts}, {0.8, ByStatistics}} {
		d := New(evident(t))
		var f Finding
		for m := range 34 {
			waited, used := 0.004, 0.05
			if m >= 30 {
				waited, used = 1, 0.8
			}
			v := victim(1, waited/0.2).with(func(r *Reading) {
				r.CPU, r.Pressure, r.Spec, r.OwnApart = 0.2, 0.2, ready(0.05, 0.02), true
				r.Wanted, r.Waited, r.Demand = 0.2+waited, waited, 0.2
				r.Served = []Served{{By: Outside().Key, Time: waited * c.outside}, {By: task(2, sample.Batch).Key, Time: waited * (1 - c.outside), Fair: 0.1}}
			})
			at := sample.Millis(m+1) * minute
			d.Observe(signal(t, sample.RunQ), at, []Reading{v, suspect(2, used), suspect(3, 0.3)})
			for _, one := range drain(d, at) {
				f = one
			}
		}
		if len(f.Suspects) == 0 || f.Suspects[0].Key.Inode != 2 || f.Suspects[0].Basis != c.method {
			t.Errorf("%g of the wait outside any task: %+v, want task 2 by %s", c.outside, f.Suspects, c.method)
		}
	}
}

// TestUsualSharesAreMeans: the usual shares are the means over the good intervals, even if
// tasks come and go.
func TestUsualSharesAreMeans(t *testing.T) {
	var u usual
	for i := range 40 {
		a := account{wanted: 1, waited: 0.1, demand: 0.5, served: []Served{{By: sample.TaskKey{Inode: 1}, Time: 0.1}}}
		if i%2 == 0 {
			a.waited, a.served = 0.3, append(a.served, Served{By: sample.TaskKey{Inode: 2}, Time: 0.2})
		}
		u.add(&a)
	}
	got := fmt.Sprintf("%.3f %.3f %.3f %.3f", u.waits, u.demand, u.of[sample.TaskKey{Inode: 1}], u.of[sample.TaskKey{Inode: 2}])
	if got != "0.200 0.500 0.100 0.100" {
		t.Errorf("waits, demand and two shares %s", got)
	}
}
