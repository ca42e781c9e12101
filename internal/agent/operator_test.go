package agent

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/origin"
)

// crowd is a machine with tasks to send commands about.
func crowd(t *testing.T, settings ...string) *rig {
	r := newRig(t, newMachine(t), t.TempDir(), settings...)
	for _, p := range []string{"/web/1", "/kept/a/x", "/kept/b/x", "/batch/job-1", "/sys/sshd", "/left/over"} {
		r.add(p, 0.5)
	}
	return r
}

func TestOperatorsCapAndUncap(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := crowd(t, "enforce.mode=off") // operators need no mode
		r.start()
		defer r.stop()
		at := sample.At(time.Now())
		d := r.do(capping(command.Target{Task: "job-1"}, 0.25, "3m", "too loud"))
		if d.ID == "" || !strings.Contains(d.Message, "/batch/job-1 to 0.25 CPU-s/s until 2000-01-01T00:03:00Z") {
			t.Errorf("answer %+v", d)
		}
		if got := r.values["/cg/batch/job-1/cpu.max"]; got != "0.25" {
			t.Errorf("the limit is %q", got)
		}
		want := api.CapView{Task: "/batch/job-1", CapState: plan.CapState{From: at,
			Action: plan.Action{ID: d.ID, Rate: 0.25, Until: at.Add(3 * time.Minute), By: "ann", Why: "too loud"}}}
		if s := r.status(); len(s.Caps) != 1 || s.Caps[0] != want {
			t.Errorf("caps %+v, want %+v", s.Caps, want)
		}
		r.refused(capping(command.Target{Task: "job-1"}, 0.1, "3m", "louder"), http.StatusConflict)
		r.do(uncapping(command.Target{Task: "/batch/job-1"}, "quiet now"))
		if got := r.values["/cg/batch/job-1/cpu.max"]; got != "max" || len(r.status().Caps) != 0 {
			t.Errorf("after the uncap the limit is %q", got)
		}
		r.refused(uncapping(command.Target{Task: "/batch/job-1"}, "again"), http.StatusConflict)

		// A lease expires by itself, whatever the mode.
		r.do(capping(command.Target{Task: "/left/over"}, 0.25, "90s", "x"))
		r.pass(89 * time.Second)
		if got := r.values["/cg/left/over/cpu.max"]; got != "0.25" {
			t.Errorf("a second before its end the limit is %q", got)
		}
		r.pass(time.Second)
		if got := r.values["/cg/left/over/cpu.max"]; got != "max" {
			t.Errorf("at its end the limit is %q", got)
		}
	})
}

// TestAnyNameCanBeCapped: a task whose name is no UTF-8, or has escape codes, is capped, found
// by its text form, audited with it, and protected; and its name is printed safely.
func TestAnyNameCanBeCapped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=off")
		names := []sample.TaskName{"/batch/a\xff-1", "/batch/\x1b[2J-1", "/batch/\"q\"-1"}
		for _, n := range names {
			r.add(string(n), 0.5)
		}
		r.start()
		defer r.stop()
		for _, n := range names {
			for _, text := range []string{n.Text(), n.String()} {
				d := r.do(capping(command.Target{Task: text}, 0.25, "3m", "too loud"))
				if got := r.values["/cg"+string(n)+"/cpu.max"]; got != "0.25" {
					t.Errorf("%s: the limit is %q", n, got)
				}
				if !strings.Contains(d.Message, "capped "+n.String()+" to") {
					t.Errorf("%s: answer %q", n, d.Message)
				}
				r.do(uncapping(command.Target{Task: text}, "quiet now"))
				if got := r.values["/cg"+string(n)+"/cpu.max"]; got != "max" {
					t.Errorf("%s: after the uncap the limit is %q", n, got)
				}
				lines := r.audit()
				if e := lines[len(lines)-1]; e.Task != n || e.Result != "ok" {
					t.Errorf("%s: audit %+v", n, e)
				}
			}
			r.do(protecting(command.Target{Task: n.Text()}, true, "r"))
			var views []api.TaskView
			if _, body := r.call("GET", api.PathTasks, nil); json.Unmarshal(body, &views) != nil || len(views) != len(names) {
				t.Fatalf("tasks: %s", body)
			}
			for _, v := range views {
				if v.Protected != (v.Name == n) {
					t.Errorf("%s protects %s: %v", n, v.Name, v.Protected)
				}
			}
			r.do(protecting(command.Target{Task: n.Text()}, false, "r"))
		}
	})
}

// Every refusal has a reason, and a line in the audit log with the operator, the
// command and the operator's reason.
func TestRefusalsAreAudited(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := crowd(t)
		r.start()
		defer r.stop()
		r.write = func(file, value string) error { t.Errorf("wrote %q to %s", value, file); return nil }
		task := func(name string) command.Target { return command.Target{Task: name} }
		for _, c := range []struct {
			in     command.Command
			status int
			want   string // in the answer and in the audit's result
		}{
			{capping(task("nobody"), 1, "1m", "r"), 404, `unknown task "nobody"`},
			{capping(task("/"), 1, "1m", "r"), 404, `unknown task`},
			{capping(task("ob-1"), 1, "1m", "r"), 404, `unknown task`}, // part of a name
			{capping(task("x"), 1, "1m", "r"), 404, `it matches /kept/a/x, /kept/b/x`},
			{capping(task("/web/1"), 1, "1m", "r"), 409, "latency-sensitive"},
			{capping(task("sshd"), 1, "1m", "r"), 409, "never-cap"},
			{capping(task("job-1"), 0, "1m", "r"), 400, "rate 0"},
			{capping(task("job-1"), 1, "99999h", "r"), 400, "for 99999h"},
			{uncapping(task("job-1"), "r"), 409, "no cap set by quell"},
			{uncapping(task("nobody"), "r"), 404, "unknown task"},
			{protecting(task("nobody"), true, "r"), 404, "unknown task"},
			{protecting(task("nobody"), false, "r"), 404, "unknown task"},
			{enforcing("maximal", "r"), 400, "want off, advise or on"},
			{command.Command{Why: "r", Pardon: &command.Pardon{Job: "nobody"}}, 409, "no cap on it is known to have helped"},
		} {
			before := len(r.audit())
			if got := r.refused(c.in, c.status); !strings.Contains(got, c.want) {
				t.Errorf("%s: %q, want %q", c.in.String(), got, c.want)
			}
			lines := r.audit()
			if len(lines) != before+1 {
				t.Fatalf("%s: %d lines in the audit log", c.in.String(), len(lines)-before)
			}
			e := lines[before]
			if e.Who != "ann" || e.What != c.in.Kind() || e.Why != "r" || e.At != sample.At(time.Now()) || !strings.Contains(e.Result, c.want) {
				t.Errorf("%s: audit %+v", c.in.String(), e)
			}
		}
		// A body that is no command is not carried out either, and is audited.
		for _, body := range []string{"", "{", "[]", `{"why":"r","cap":{"task":"job-1","rate":"fast"}}`, `{"why":"r","cap":{"task":"job-1","for":"soon"}}`, `{"whys":"r"}`, strings.Repeat(" ", 1<<17)} {
			before := len(r.audit())
			got := r.refused(body, http.StatusBadRequest)
			lines := r.audit()
			if len(lines) != before+1 {
				t.Fatalf("%.40s: %d lines in the audit log", body, len(lines)-before)
			}
			if e := lines[before]; e.Who != "ann" || e.What != "unknown command" || e.Result != got {
				t.Errorf("%.40s: audit %+v, answer %s", body, e, got)
			}
		}
		if status, _ := r.call("GET", api.PathCommands, nil); status != http.StatusMethodNotAllowed {
			t.Errorf("GET %s: %d", api.PathCommands, status)
		}
		// An older quell gets an error that says so.
		if status, body := r.call("POST", "/v1/cap", `{"task":"job-1","rate":0.1,"for":"5m","reason":"r"}`); status != http.StatusNotFound || !strings.Contains(string(body), "the agent's version, test") {
			t.Errorf("POST /v1/cap: %d %s", status, body)
		}
	})
}

// Whatever is sent, an entry of the audit log is short and can be written.
func TestEntriesOfInvalidCommands(t *testing.T) {
	long := strings.Repeat("é", 30000)
	c := capping(command.Target{Task: long, Job: long}, math.Inf(1), "1m", long)
	for _, e := range []auditEntry{invalidEntry("ann", &c), unreadEntry("ann", long)} {
		if text, err := json.Marshal(e); err != nil || len(text) > 2000 {
			t.Errorf("%d bytes, %v", len(text), err)
		}
	}
}

// A cap that cannot be applied is refused with its cause, and audited.
func TestCapThatFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := crowd(t)
		r.start()
		defer r.stop()
		r.write = func(string, string) error { return errors.New("disk on fire") }
		if got := r.refused(capping(command.Target{Task: "job-1"}, 1, "1m", "r"), 409); !strings.Contains(got, "disk on fire") {
			t.Errorf("got %q", got)
		}
		if a := r.audit(); len(a) != 1 || a[0].Who != "ann" || !strings.Contains(a[0].Result, "disk on fire") {
			t.Errorf("audit %+v", a)
		}
		if s := r.status(); len(s.Caps) != 0 {
			t.Errorf("caps %+v", s.Caps)
		}
	})
}

// An operator's cap that names an open incident is a round of it, and one that names none is
// not, also if the task is a suspect.
func TestOperatorsCapIsARound(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		noisy := r.add("/batch/noisy-1", 0.05)
		r.suffering(noisy)
		r.start()
		defer r.stop()
		r.learn()
		noisy.set(1.5)
		r.pass(3 * time.Minute)
		r.do(capping(command.Target{Task: "noisy-1"}, 0.1, "10m", "for no incident"))
		r.do(uncapping(command.Target{Task: "noisy-1"}, "done"))
		if inc := r.incidents()[0]; len(inc.Rounds) != 0 {
			t.Fatalf("a cap for no incident is a round: %+v", inc.Rounds[0])
		}
		c := capping(command.Target{Task: "noisy-1"}, 0.1, "10m", "advice taken")
		c.Cap.Incident = r.incidents()[0].ID
		d := r.do(c)
		r.pass(4 * time.Minute)
		r.do(uncapping(command.Target{Task: "noisy-1"}, "done"))
		inc := r.incidents()[0]
		if len(inc.Rounds) != 1 || inc.Rounds[0].ID != d.ID || inc.Rounds[0].By != "ann" || inc.Outcome != plan.TruePositive {
			t.Errorf("incident %+v, round %+v", inc, inc.Rounds)
		}
	})
}

func TestProtect(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir, m := t.TempDir(), newMachine(t)
		r := newRig(t, m, dir)
		r.add("/batch/job-1", 0.5)
		r.add("/left/over", 0.5)
		r.start()
		r.do(protecting(command.Target{Task: "job-1"}, true, "r"))
		r.do(protecting(command.Target{Task: "job-1"}, true, "again"))
		r.do(protecting(command.Target{Task: "over"}, true, "r"))
		r.do(protecting(command.Target{Task: "over"}, false, "r"))
		check := func() {
			t.Helper()
			if !r.task("/batch/job-1").Protected || r.task("/left/over").Protected {
				t.Errorf("tasks %+v, %+v", r.task("/batch/job-1"), r.task("/left/over"))
			}
		}
		check()
		r.stop()
		r = newRig(t, m, dir) // the next agent
		r.start()
		defer r.stop()
		check()
		r.do(protecting(command.Target{Task: "job-1"}, false, "r"))
		if r.task("/batch/job-1").Protected {
			t.Error("still protected")
		}
		if got := r.agent.operator.standing.overrides.Local; len(got) != 0 {
			t.Errorf("still kept: %+v", got)
		}
	})
}

// Leaving mode on lifts quell's own caps and keeps operators' caps; the mode survives a
// restart, whatever the configuration file says.
func TestMode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir, m := t.TempDir(), newMachine(t)
		r := newRig(t, m, dir, "enforce.mode=advise")
		noisy, other := r.add("/batch/noisy-1", 0.05), r.add("/batch/other-1", 0.2)
		r.suffering(noisy)
		r.start()
		r.do(enforcing("on", "r"))
		r.learn()
		r.do(capping(command.Target{Task: "other-1"}, 0.1, "1h", "r"))
		noisy.set(1.5)
		r.pass(3 * time.Minute)
		if got := r.status(); len(got.Caps) != 2 || got.Mode != plan.On {
			t.Fatalf("status %+v", got)
		}
		r.do(enforcing("off", "r"))
		if n, o := r.values[noisy.limit()], r.values[other.limit()]; n != "max" || o != "0.1" {
			t.Errorf("limits %q of quell's, %q of ann's", n, o)
		}
		r.stop()
		if o := r.values[other.limit()]; o != "max" {
			t.Errorf("after the stop ann's limit is %q", o)
		}
		a := r.audit()
		if last := a[len(a)-1]; last.What != "uncap" || last.Task != "/batch/other-1" || last.Why != "the agent stops: restored" {
			t.Errorf("audit %+v", last)
		}
		r = newRig(t, m, dir, "enforce.mode=on")
		r.start()
		defer r.stop()
		if got := r.status().Mode; got != plan.Off {
			t.Errorf("mode %v after the restart", got)
		}
		if log := r.log.String(); !strings.Contains(log, "not the configured one") || !strings.Contains(log, "configured=on") {
			t.Errorf("the log does not tell:\n%s", log)
		}
	})
}

// A cap that cannot be undone is retried after a pause and reported meanwhile.
func TestUndoThatFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := crowd(t)
		r.start()
		defer r.stop()
		d := r.do(capping(command.Target{Task: "job-1"}, 0.25, "10s", "r"))
		tries := 0
		r.write = func(string, string) error { tries++; return errors.New("stuck") }
		r.pass(15 * time.Second)
		if s := r.status(); len(s.Caps) != 1 || len(s.Degraded) != 1 ||
			!strings.HasPrefix(s.Degraded[0], "undoing cap "+d.ID+": ") || !strings.Contains(s.Degraded[0], "stuck") {
			t.Errorf("status %+v", s)
		}
		if tries < 2 || tries > 4 {
			t.Errorf("tried %d times in 6 ticks", tries)
		}
		r.write = nil
		r.pass(4 * time.Second)
		if s := r.status(); len(s.Caps) != 0 || len(s.Degraded) != 0 {
			t.Errorf("status %+v", s)
		}
		if got := r.values["/cg/batch/job-1/cpu.max"]; got != "max" {
			t.Errorf("the limit is %q", got)
		}
		a := r.audit()
		if last := a[len(a)-1]; len(a) != 2 || last.What != "uncap" || !strings.HasSuffix(last.Why, "restored") {
			t.Errorf("audit %+v", a)
		}
	})
}

// A cap of a killed agent that the next one could not undo at its start is undone as
// soon as possible, long before its lease expires.
func TestLeftOverCapThatCouldNotBeUndone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := crowd(t)
		r.start()
		r.do(capping(command.Target{Task: "job-1"}, 0.25, "10h", "r"))
		r.write = func(string, string) error { return errors.New("stuck") }
		if err := r.end(); err == nil {
			t.Error("a stop that leaves a cap in force says nothing")
		}
		r.start()
		defer r.stop()
		tries := 0
		r.write = func(string, string) error { tries++; return errors.New("stuck") }
		r.pass(10 * time.Minute)
		if s := r.status(); len(s.Degraded) != 1 || !strings.Contains(s.Degraded[0], "stuck") {
			t.Errorf("degraded %q", s.Degraded)
		}
		if tries < 20 || tries > 30 { // 1 s apart at first, 30 s in the end
			t.Errorf("tried %d times in 10 minutes", tries)
		}
		if _, got := r.scrape(); got["quell_caps_stuck"] != "1" || got["quell_cap_undo_failures_total"] == "0" {
			t.Errorf("quell_caps_stuck is %s, quell_cap_undo_failures_total %s", got["quell_caps_stuck"], got["quell_cap_undo_failures_total"])
		}
		r.write = nil
		r.pass(30 * time.Second)
		if got := r.values["/cg/batch/job-1/cpu.max"]; got != "max" {
			t.Errorf("the limit is %q", got)
		}
		if s := r.status(); len(s.Degraded) != 0 {
			t.Errorf("degraded %q", s.Degraded)
		}
	})
}

// An uncap that fails is refused, and carried out as soon as possible.
func TestUncapThatFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := crowd(t)
		r.start()
		defer r.stop()
		r.do(capping(command.Target{Task: "job-1"}, 0.25, "1h", "r"))
		r.write = func(string, string) error { return errors.New("stuck") }
		if got := r.refused(uncapping(command.Target{Task: "job-1"}, "r"), 409); !strings.Contains(got, "stuck") {
			t.Errorf("got %q", got)
		}
		r.write = nil
		r.pass(time.Second)
		if got := r.values["/cg/batch/job-1/cpu.max"]; got != "max" {
			t.Errorf("the limit is %q", got)
		}
	})
}

// A limit that another process changed is left as it is; the cap is over and its round
// says why.
func TestTakenOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on")
		noisy := r.add("/batch/noisy-1", 0.05)
		r.suffering(noisy)
		r.start()
		defer r.stop()
		r.learn()
		noisy.set(1.5)
		r.pass(3 * time.Minute)
		if len(r.status().Caps) != 1 {
			t.Fatal("no cap")
		}
		r.settle()
		r.values[noisy.limit()] = "0.7"
		r.pass(time.Second)
		if got := r.values[noisy.limit()]; got != "0.7" {
			t.Errorf("the limit is %q", got)
		}
		s := r.status()
		if len(s.Caps) != 0 {
			t.Errorf("caps %+v", s.Caps)
		}
		inc := r.incidents()[0]
		if inc.Outcome != plan.CapTakenOver || inc.Rounds[0].Ended == 0 {
			t.Errorf("incident %+v", inc)
		}
		if len(s.Overruled) != 1 || s.Overruled[0].Task != "/batch/noisy-1" || s.Overruled[0].Result != "taken-over" || !strings.Contains(s.Overruled[0].Note, `holds "0.7"`) {
			t.Errorf("overruled %+v", s.Overruled)
		}
		a := r.audit()
		if last := a[len(a)-1]; last.What != "uncap" || !strings.Contains(last.Why, "another process") || !strings.Contains(last.Why, "taken-over") {
			t.Errorf("audit %+v", last)
		}
		// The limit stays untouched: no other cap on this task in this incident.
		r.pass(10 * time.Minute)
		if got := r.values[noisy.limit()]; got != "0.7" || len(r.incidents()[0].Rounds) != 1 {
			t.Errorf("later the limit is %q, rounds %d", got, len(r.incidents()[0].Rounds))
		}
	})
}

// A limit that another program resets, as systemd does at daemon-reload, ends the cap, visibly. The
// task may be capped once more in the incident; after the second reset the other program has the
// last word.
func TestReset(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on")
		noisy := r.add("/batch/noisy-1", 0.05)
		noisy.facts = &origin.Facts{Origin: origin.Origin{Runtime: origin.Systemd}}
		r.suffering(noisy)
		r.start()
		defer r.stop()
		r.learn()
		noisy.set(1.5)
		for n := 1; n <= 2; n++ {
			for i := 0; len(r.status().Caps) == 0; i++ {
				if i == 20 {
					t.Fatalf("no cap before reset %d", n)
				}
				r.pass(time.Minute)
			}
			r.settle()
			r.values[noisy.limit()] = "max"
			r.pass(time.Second)
			s := r.status()
			if len(s.Caps) != 0 || len(s.Overruled) != n || s.Overruled[n-1].Result != "reset" || !strings.Contains(s.Overruled[n-1].Likely, "daemon-reload") {
				t.Fatalf("reset %d: caps %+v, overruled %+v", n, s.Caps, s.Overruled)
			}
			if got := r.values[noisy.limit()]; got != "max" {
				t.Errorf("the limit is %q", got)
			}
		}
		if inc := r.incidents()[0]; inc.Outcome != plan.CapTakenOver || len(inc.Rounds) != 2 {
			t.Errorf("incident %+v", inc)
		}
		r.pass(10 * time.Minute)
		if got := r.values[noisy.limit()]; got != "max" || len(r.incidents()[0].Rounds) != 2 {
			t.Errorf("later the limit is %q, rounds %d", got, len(r.incidents()[0].Rounds))
		}
		if note := r.task("/batch/noisy-1").Note; !strings.Contains(note, "another program ended its cap") {
			t.Errorf("note %q", note)
		}
		if _, now := r.scrape(); now[`quell_caps_ended_total{result="reset"}`] != "2" {
			t.Errorf("%v", now)
		}
		before := r.status()
		r.jump(25 * time.Hour)
		r.pass(time.Minute)
		s := r.status()
		if s.Now.Sub(before.Now) < 25*time.Hour || slices.ContainsFunc(s.Overruled, func(c api.Overruled) bool { return s.Now.Sub(c.At) > 24*time.Hour }) {
			t.Errorf("at %d, overruled %+v; at %d %+v", before.Now, before.Overruled, s.Now, s.Overruled)
		}
	})
}

// A capped task that ends also ends its cap; so does a victim that ends.
func TestCapsEndWithTheirTasks(t *testing.T) {
	for _, who := range []string{"/batch/noisy-1", "/web/1"} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on")
			noisy := r.add("/batch/noisy-1", 0.05)
			victim := r.suffering(noisy)
			r.start()
			defer r.stop()
			r.learn()
			noisy.set(1.5)
			r.pass(3 * time.Minute)
			if len(r.status().Caps) != 1 {
				t.Fatal("no cap")
			}
			if who == victim.path {
				victim.remove()
			} else {
				noisy.remove()
			}
			r.pass(time.Second)
			if s := r.status(); len(s.Caps) != 0 || len(s.Degraded) != 0 || len(r.enforcer.Active()) != 0 {
				t.Errorf("%s ended: status %+v, active %v", who, s, r.enforcer.Active())
			}
			inc := r.incidents()[0]
			want := plan.SuspectExited
			if who == victim.path {
				want = plan.VictimExited
				if got := r.values[noisy.limit()]; got != "max" {
					t.Errorf("the limit is %q", got)
				}
			}
			if inc.Outcome != want || inc.Rounds[0].Ended == 0 {
				t.Errorf("%s ended: incident %+v", who, inc)
			}
		})
	}
}

func TestAsking(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		noisy := r.add("/batch/noisy-1", 0.05)
		r.suffering(noisy)
		r.start()
		r.learn()
		noisy.set(1.5)
		r.pass(3 * time.Minute)
		listed := func(query string) []incident.Record {
			var found api.Incidents
			r.get(api.PathIncidents+query, &found)
			return found.Incidents
		}
		open := listed("?open=true")
		if len(open) != 1 || open[0].Times != nil {
			t.Fatalf("open incidents %+v", open)
		}
		var inc incident.Record
		if r.get(api.PathIncidents+"?id="+open[0].ID, &inc); inc.ID != open[0].ID || inc.Victim.Name != "/web/1" || len(inc.Times) == 0 {
			t.Errorf("incident %+v", inc)
		}
		if status, _ := r.call("GET", api.PathIncidents+"?limit=-1", nil); status != http.StatusBadRequest {
			t.Errorf("a limit below 0: %d", status)
		}
		if status, _ := r.call("GET", api.PathIncidents+"?id=inc-0", nil); status != http.StatusNotFound {
			t.Errorf("an incident that does not exist: %d", status)
		}
		v := r.task("/web/1")
		if c := v.Costs[0]; c.Signal != sample.CPI || !c.Outlier || c.Cost < 3 || c.Limit > 1.2 || c.Coverage != 1 || v.CPU < 0.49 || v.Role != plan.Victim {
			t.Errorf("task %+v", v)
		}
		if v := r.task("/batch/noisy-1"); v.Role != plan.Suspect {
			t.Errorf("the accused is %+v", v)
		}
		if v := r.task("/batch/noisy-1"); !math.IsNaN(float64(v.Costs[0].Cost)) || !math.IsNaN(float64(v.Costs[0].Limit)) {
			t.Errorf("a cost that is not known is %+v", v.Costs)
		}
		noisy.set(0)
		r.pass(10 * time.Minute)
		if open = listed("?open=true"); len(open) != 0 {
			t.Errorf("open incidents %+v", open)
		}
		if all := listed(""); len(all) != 1 || all[0].Closed == 0 {
			t.Errorf("incidents %+v", all)
		}
		if n := len(r.agent.stats.seen); n != 0 {
			t.Errorf("%d closed incidents are still kept for the counters", n)
		}
		var s map[string]any
		if r.get(api.PathStatus, &s); s["machine"] != "m1" || s["version"] != "test" {
			t.Errorf("status %v", s)
		}
		r.stop()
		status, body := r.call("GET", api.PathStatus, nil)
		var f api.Failure
		if err := json.Unmarshal(body, &f); status != http.StatusServiceUnavailable || err != nil || f.Error != ErrStopped.Error() {
			t.Errorf("after the end: %d %s", status, body)
		}
	})
}
