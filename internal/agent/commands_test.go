package agent

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
)

// A command about many tasks is carried out on each task that permits it. The others
// are named in the answer, and each is in the audit log.
func TestCommandsAboutMany(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := crowd(t, "enforce.mode=off")
		r.add("/batch/job-2", 0.5)
		r.start()
		defer r.stop()
		job := string(r.task("/batch/job-1").Job)
		if other := string(r.task("/batch/job-2").Job); other != job {
			t.Fatalf("jobs %s and %s", job, other)
		}
		d := r.do(capping(command.Target{Job: job}, 0.25, "3m", "both"))
		if d.Tasks != 2 || len(d.Refused) != 0 || r.values["/cg/batch/job-1/cpu.max"] != "0.25" || r.values["/cg/batch/job-2/cpu.max"] != "0.25" {
			t.Errorf("%+v, limits %s, %s", d, r.values["/cg/batch/job-1/cpu.max"], r.values["/cg/batch/job-2/cpu.max"])
		}
		// Of all tasks some may never be capped, and these two are capped already.
		d = r.do(capping(command.Target{All: true}, 0.25, "3m", "all"))
		all := strings.Join(d.Refused, "\n")
		for _, want := range []string{"/web/1: refused: it is latency-sensitive", "/batch/job-1: refused: it is capped already", "/sys/sshd: refused: it is marked never-cap"} {
			if !strings.Contains(all, want) {
				t.Errorf("%q is not in %q", want, all)
			}
		}
		if n := len(r.status().Caps); n != d.Tasks+2 || d.Tasks == 0 {
			t.Errorf("%d caps, %+v", n, d)
		}
		refused := 0
		for _, e := range r.audit() {
			if e.What == "cap" && e.Result != "ok" && e.Why == "all" {
				refused++
			}
		}
		if refused != len(d.Refused) {
			t.Errorf("%d refusals in the audit log, %d told", refused, len(d.Refused))
		}
		d = r.do(uncapping(command.Target{Job: job}, "enough"))
		if d.Tasks != 2 || r.values["/cg/batch/job-1/cpu.max"] != "max" || r.values["/cg/batch/job-2/cpu.max"] != "max" {
			t.Errorf("%+v, limit %s", d, r.values["/cg/batch/job-1/cpu.max"])
		}
		if text := r.refused(uncapping(command.Target{Job: job}, "again"), http.StatusNotFound); !strings.Contains(text, "has a cap") {
			t.Errorf("none is capped: %s", text)
		}
		r.do(uncapping(command.Target{All: true}, "end"))
		if n := len(r.status().Caps); n != 0 {
			t.Errorf("%d caps are left", n)
		}
		if d := r.do(uncapping(command.Target{All: true}, "again")); d.Message != "nothing is capped on this machine" {
			t.Errorf("none is capped: %+v", d)
		}
		if text := r.refused(capping(command.Target{Job: "nothing"}, 1, "1m", "r"), http.StatusNotFound); !strings.Contains(text, "no task on this machine matches job nothing") {
			t.Errorf("a job that is not here: %s", text)
		}
	})
}

// A protection of a task takes precedence over one of its job, that over its class,
// that over all. It applies to future tasks and survives a restart.
func TestProtectMany(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir, m := t.TempDir(), newMachine(t)
		r := newRig(t, m, dir)
		for _, p := range []string{"/web/1", "/batch/job-1", "/batch/job-2", "/left/over"} {
			r.add(p, 0.5)
		}
		r.start()
		helped := func(want ...string) {
			t.Helper()
			var got []string
			for _, p := range []string{"/web/1", "/batch/job-1", "/batch/job-2", "/left/over"} {
				if v := r.task(p); v.MayBeHelped() {
					got = append(got, p)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("helped are %q, want %q", got, want)
			}
		}
		helped("/web/1")
		r.do(protecting(command.Target{All: true}, false, "r"))
		helped()
		r.do(protecting(command.Target{Class: "batch"}, true, "r"))
		helped("/batch/job-1", "/batch/job-2")
		job := string(r.task("/batch/job-1").Job)
		r.do(protecting(command.Target{Job: job}, false, "r"))
		helped()
		r.do(protecting(command.Target{Task: "job-2"}, true, "r"))
		helped("/batch/job-2")
		r.stop()
		r = newRig(t, m, dir)
		r.start()
		defer r.stop()
		helped("/batch/job-2")
		r.do(protecting(command.Target{Task: "job-2"}, false, "r")) // same as its job: no entry is needed
		if kept := r.agent.operator.standing.overrides.Local; len(kept) != 3 {
			t.Errorf("%d are kept, want those of all, the class and the job: %+v", len(kept), kept)
		}
		r.do(protecting(command.Target{Job: "later"}, true, "r"))
		r.add("/batch/later-1", 0.5)
		r.pass(time.Minute)
		if v := r.task("/batch/later-1"); string(v.Job) != "later" || !v.MayBeHelped() {
			t.Errorf("one that came later: %+v", v)
		}
	})
}

// What an operator ends for a time holds again afterwards.
func TestAProtectionHoldsAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.add("/batch/job-1", 0.5)
		r.start()
		defer r.stop()
		r.do(protecting(command.Target{Task: "job-1"}, true, "r"))
		end := protecting(command.Target{Task: "job-1"}, false, "load test")
		end.For = command.Duration(time.Hour)
		r.do(end)
		if r.task("/batch/job-1").Protected {
			t.Error("its protection was ended, and it is protected")
		}
		r.pass(time.Hour + time.Minute)
		if !r.task("/batch/job-1").Protected {
			t.Error("an hour later it is not protected again")
		}
	})
}

// No task is capped for a victim whose protection an operator has ended.
func TestNobodyIsCappedForTheUnprotected(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on")
		noisy := r.add("/batch/noisy-1", 0.05)
		r.suffering(noisy)
		r.start()
		defer r.stop()
		r.do(protecting(command.Target{Class: "latency-sensitive"}, false, "load test"))
		r.learn()
		noisy.set(1.5)
		r.pass(4 * time.Minute)
		found := r.incidents()
		if len(found) == 0 || len(found[0].Rounds) != 0 || !strings.Contains(found[0].NotDone, "ended the victim's protection") {
			t.Errorf("incidents %+v", found)
		}
		if got := r.values[noisy.limit()]; got != "max" {
			t.Errorf("the limit is %s", got)
		}
	})
}

// A cap in force for a victim ends when an operator ends the victim's protection, and not only at the
// end of its lease.
func TestEndedProtectionEndsCaps(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on", "detect.rule=cpi2")
		noisy := r.add("/batch/noisy-1", 0.05)
		r.suffering(noisy)
		r.start()
		defer r.stop()
		r.learn()
		noisy.set(1.5)
		r.accused(10 * time.Minute)
		r.do(protecting(command.Target{Task: "/web/1"}, false, "load test"))
		if got := r.values[noisy.limit()]; got != "max" {
			t.Errorf("the limit is %s", got)
		}
		if log := r.audit(); !slices.ContainsFunc(log, func(e auditEntry) bool {
			return e.What == "uncap" && strings.Contains(e.Why, "ended the victim's protection")
		}) {
			t.Errorf("audit %+v", log)
		}
	})
}
