package agent

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/wire"
)

// governed is an agent with a server. What its operators decide is in list.
type governed struct {
	*rig
	way  *way
	list []command.Decision
	made int
}

func govern(r *rig) *governed {
	s := &governed{rig: r, way: &way{}}
	r.uplink = s.way
	return s
}

// again is the next run of the agent, with what the uplink has kept.
func (s *governed) again(dir string, settings ...string) *governed {
	s.stop()
	n := &governed{rig: newRig(s.t, s.machine, dir, settings...), way: &way{decisions: s.way.decisions}, list: s.list, made: s.made}
	n.uplink = n.way
	n.start()
	return n
}

// decided is a decision of a command now, which the agent is not told of.
func (s *governed) decided(c command.Command) string {
	s.made++
	d := command.Decide(fmt.Sprint("d", s.made), "anna", sample.At(time.Now()), c)
	s.list = command.Add(s.list, d)
	return d.ID
}

// tell gives the agent what stands, as the uplink does, and returns what it says of one.
func (s *governed) tell(id string) *wire.Reply {
	s.t.Helper()
	var all []*wire.Command
	for i := range s.list {
		all = append(all, wire.EncodeDecision(&s.list[i]))
	}
	if err := s.agent.ask(s.t.Context(), func() { s.way.decisions = all }); err != nil {
		s.t.Fatal(err)
	}
	s.agent.Decided(s.t.Context())
	return s.outcome(id)
}

// outcome is what the agent has said of a decision.
func (s *governed) outcome(id string) *wire.Reply {
	s.t.Helper()
	var found *wire.Reply
	if err := s.agent.ask(s.t.Context(), func() {
		if s.way.state == nil {
			return
		}
		if i := slices.IndexFunc(s.way.state.Outcomes, func(r *wire.Reply) bool { return r.Id == id }); i >= 0 {
			found = s.way.state.Outcomes[i]
		}
	}); err != nil {
		s.t.Fatal(err)
	}
	if found == nil {
		found = &wire.Reply{}
	}
	return found
}

func (s *governed) decide(c command.Command) *wire.Reply {
	s.t.Helper()
	return s.tell(s.decided(c))
}

// A decision of the server does the same as a command at the socket, and is audited with the
// operator and the reason.
func TestDecisionsOfTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := govern(newRig(t, newMachine(t), t.TempDir()))
		r.add("/batch/noisy-1", 1)
		r.add("/batch/noisy-2", 1)
		r.start()
		defer r.stop()
		r.pass(time.Minute)
		limit := func(task string) string { return r.values["/cg/batch/"+task+"/cpu.max"] }
		task, job := command.Target{Task: "noisy-1"}, command.Target{Job: "noisy"}
		if got := r.decide(capping(task, 0.1, "5m", "a test")); !got.Ok || got.Cap == "" || got.Tasks != 1 || limit("noisy-1") != "0.1" {
			t.Errorf("cap: %v, limit %s", got, limit("noisy-1"))
		}
		if got := r.decide(uncapping(task, "a test")); !got.Ok || limit("noisy-1") != "max" {
			t.Errorf("uncap: %v, limit %s", got, limit("noisy-1"))
		}
		if got := r.decide(protecting(task, true, "a test")); !got.Ok || !r.task("/batch/noisy-1").Protected || r.task("/batch/noisy-2").Protected {
			t.Errorf("protect: %v", got)
		}
		if got := r.decide(enforcing("on", "a test")); !got.Ok || r.status().Mode != plan.On || r.way.state.Mode != "on" || r.way.state.From != "decision" {
			t.Errorf("enforcement: %v, %v", got, r.way.state)
		}
		if got := r.decide(capping(job, 0.2, "5m", "a test")); !got.Ok || got.Tasks != 2 || limit("noisy-2") != "0.2" {
			t.Errorf("cap of a job: %v", got)
		}
		if got := r.decide(capping(command.Target{Job: "nothing"}, 0.2, "5m", "a test")); got.Ok || !got.None {
			t.Errorf("cap of no task: %v", got)
		}
		if got := r.decide(capping(command.Target{All: true}, 0.2, "5m", "a test")); got.Ok || got.None || !strings.Contains(got.Message+strings.Join(got.Refused, ""), "capped already") {
			t.Errorf("cap of what is capped: %v", got)
		}
		if got := r.decide(uncapping(command.Target{Class: "batch"}, "a test")); !got.Ok || got.Tasks != 2 || limit("noisy-2") != "max" {
			t.Errorf("uncap of a class: %v", got)
		}
		if got := r.decide(command.Command{Why: "a test", Pardon: &command.Pardon{Job: "noisy"}}); got.Ok || !got.None {
			t.Errorf("pardon of no offender: %v", got)
		}
		if got := r.decide(command.Command{Why: "a test", Enforcement: &command.Enforcement{Mode: "hard"}}); got.Ok || !strings.Contains(got.Message, "want off, advise or on") {
			t.Errorf("an invalid one: %v", got)
		}
		byAnna := map[string]bool{}
		for _, e := range r.audit() {
			if e.Who == "anna (server)" && e.Why == "a test" {
				byAnna[e.What] = true
			}
		}
		for _, what := range []string{"cap", "uncap", "protect", "enforcement on", "pardon", unknown} {
			if !byAnna[what] {
				t.Errorf("%s is not in the audit log: %+v", what, r.audit())
			}
		}
	})
}

// A decision of a newer server, and text that would rewrite a terminal.
func TestDecisionsThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := govern(newRig(t, newMachine(t), t.TempDir()))
		r.start()
		defer r.stop()
		if got := r.decide(capping(command.Target{Task: "\x1b[2J\u009bnone"}, 1, "1m", "a test")); got.Ok || got.Message == "" || strings.ContainsAny(got.Message, "\x1b\u009b") {
			t.Errorf("an odd name: %v", got)
		}
		if err := r.agent.ask(t.Context(), func() { r.way.decisions = []*wire.Command{{Id: "new", Who: "anna", Why: "r"}} }); err != nil {
			t.Fatal(err)
		}
		r.agent.Decided(t.Context())
		if got := r.outcome("new"); got.Ok || !strings.Contains(got.Message, "upgrade") {
			t.Errorf("of a newer server: %v", got)
		}
	})
}

// A cap that was decided reaches tasks that start later, ends when it was to end, is not set
// again on a task that an operator has uncapped, and ends when it is revoked.
func TestDecidedCaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		r := govern(newRig(t, newMachine(t), dir))
		one := r.add("/batch/noisy-1", 1)
		r.start()
		defer func() { r.stop() }()
		r.pass(time.Minute)
		job := command.Target{Job: "noisy"}
		id := r.decided(capping(job, 0.1, "30m", "a test"))
		r.tell(id)
		two := r.add("/batch/noisy-2", 1)
		r.pass(time.Minute)
		if got := r.outcome(id); r.values[one.limit()] != "0.1" || r.values[two.limit()] != "0.1" || got.Tasks != 2 {
			t.Fatalf("limits %s, %s; %v", r.values[one.limit()], r.values[two.limit()], got)
		}
		r.do(uncapping(command.Target{Task: "noisy-1"}, "it is needed"))
		r.pass(5 * time.Minute)
		if r.values[one.limit()] != "max" || r.values[two.limit()] != "0.1" {
			t.Errorf("uncapped here, the limits are %s, %s", r.values[one.limit()], r.values[two.limit()])
		}
		r = r.again(dir) // without the server
		r.pass(time.Minute)
		if r.values[one.limit()] != "max" || r.values[two.limit()] != "0.1" {
			t.Errorf("after a restart the limits are %s, %s", r.values[one.limit()], r.values[two.limit()])
		}
		for _, c := range r.status().Caps {
			if c.Until != r.list[0].Until {
				t.Errorf("the cap ends at %v, want %v", c.Until.Time(), r.list[0].Until.Time())
			}
		}
		r.pass(25 * time.Minute)
		if r.values[two.limit()] != "max" || len(r.decisions()) != 1 { // the uncap here
			t.Errorf("after its end the limit is %s; %+v", r.values[two.limit()], r.decisions())
		}
		r = r.again(dir)
		r.pass(time.Minute)
		if r.values[two.limit()] != "max" {
			t.Error("a decision that had ended was followed")
		}
		r.list = nil
		id = r.decided(capping(job, 0.3, "1h", "a test"))
		if got := r.tell(id); got.Tasks != 2 { // it is newer than the uncap
			t.Errorf("a new cap: %v", got)
		}
		r.list = nil
		r.tell("")
		if r.values[one.limit()] != "max" || r.values[two.limit()] != "max" || len(r.status().Caps) != 0 {
			t.Errorf("revoked, and the limits are %s, %s", r.values[one.limit()], r.values[two.limit()])
		}
	})
}

// An uncap that an agent gets late removes the caps of before, and no later one; nor does a
// late pardon forget what came after it.
func TestLateUncap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := govern(newRig(t, newMachine(t), t.TempDir()))
		one, two := r.add("/batch/noisy-1", 1), r.add("/batch/noisy-2", 1)
		r.start()
		defer r.stop()
		r.pass(time.Minute)
		r.do(capping(command.Target{Task: "noisy-1"}, 0.1, "1h", "r"))
		id := r.decided(uncapping(command.Target{All: true}, "a test"))
		r.pass(10 * time.Minute)
		r.do(capping(command.Target{Task: "noisy-2"}, 0.1, "1h", "r"))
		if got := r.tell(id); !got.Ok || got.Tasks != 1 || r.values[one.limit()] != "max" || r.values[two.limit()] != "0.1" {
			t.Errorf("%v; limits %s, %s", got, r.values[one.limit()], r.values[two.limit()])
		}
	})
}

// The newer of an override and a decision holds, whose it is can be seen, each can be taken
// back, and each ends when it was to end; also over a restart.
func TestWhereTheModeComesFrom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir := t.TempDir()
		r := govern(newRig(t, newMachine(t), dir, "enforce.mode=advise"))
		r.start()
		defer func() { r.stop() }()
		holds := func(mode plan.Mode, from api.Source, who string) {
			t.Helper()
			s := r.status()
			by := ""
			if s.ModeFrom.Decision != nil {
				by = s.ModeFrom.Decision.Who
			}
			if s.Mode != mode || s.ModeFrom.From != from || !strings.HasPrefix(by, who) || r.way.state != nil && r.way.state.Mode != mode.String() {
				t.Errorf("%s from %s of %q; reported %v; want %s from %s of %q", s.Mode, s.ModeFrom.From, by, r.way.state, mode, from, who)
			}
		}
		holds(plan.Advise, api.Configuration, "")
		r.decide(enforcing("on", "release"))
		holds(plan.On, api.ByDecision, "anna")
		r.pass(time.Minute)
		off := enforcing("off", "maintenance")
		off.For = command.Duration(time.Hour)
		if d := r.do(off); d.Message != "enforcement is off" {
			t.Errorf("%+v", d)
		}
		mine := r.status().ModeFrom.Decision.Who
		holds(plan.Off, api.ByOverride, mine)
		r = r.again(dir, "enforce.mode=advise")
		holds(plan.Off, api.ByOverride, mine)
		if log := r.log.String(); !strings.Contains(log, "mode=off") || !strings.Contains(log, "(maintenance)") || !strings.Contains(log, "configured=advise") {
			t.Errorf("the log does not say where the mode comes from:\n%s", log)
		}
		r.pass(time.Hour)
		holds(plan.On, api.ByDecision, "anna")
		r.do(enforcing("off", "again"))
		r.pass(time.Minute)
		r.decide(enforcing("advise", "too many caps"))
		holds(plan.Advise, api.ByDecision, "anna")
		r.list = nil
		r.tell("")
		holds(plan.Off, api.ByOverride, mine)
		reset := command.Command{Why: "r", Reset: &command.Reset{Enforcement: true}}
		if d := r.do(reset); !strings.Contains(d.Message, "advise (configuration)") {
			t.Errorf("%+v", d)
		}
		holds(plan.Advise, api.Configuration, "")
		r.refused(reset, http.StatusNotFound)
		r = r.again(dir, "enforce.mode=on")
		holds(plan.On, api.Configuration, "")
	})
}

// Overrides of agents that did not keep who and why are read, shown, and can be reset.
func TestOldOverrides(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir := t.TempDir()
		put(t, dir, overridesFile, `{"mode":"on","protect":[{"job":"job","on":true},{"all":true,"on":false},{"on":true}]}`)
		r := newRig(t, newMachine(t), dir)
		r.add("/batch/job-1", 1)
		r.start()
		defer r.stop()
		if d := r.status().Degraded; len(d) != 1 || !strings.Contains(d[0], "1 overrides are invalid") {
			t.Errorf("degraded: %q", d)
		}
		if s := r.status(); s.Mode != plan.On || s.ModeFrom.Decision.Who != unknownOperator || !r.task("/batch/job-1").Protected {
			t.Errorf("%+v", s)
		}
		r.do(command.Command{Why: "r", Reset: &command.Reset{Enforcement: true}})
		r.do(command.Command{Why: "r", Reset: &command.Reset{Protect: &command.Target{Job: "job"}}})
		if s := r.status(); s.Mode != plan.Advise || r.task("/batch/job-1").Protected || !r.task("/batch/job-1").Unprotected {
			t.Errorf("%+v, %+v", s, r.task("/batch/job-1"))
		}
	})
}

// A roll-out that has not reached this machine leaves what held before.
func TestRolloutElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := govern(newRig(t, newMachine(t), t.TempDir(), "enforce.mode=advise"))
		r.start()
		defer r.stop()
		id := r.decided(enforcing("on", "r"))
		d := r.list[0]
		r.list[0] = d.Begin(0, nil, command.Duration(time.Hour), d.At)
		if got := r.tell(id); got.Ok || !got.None || r.status().Mode != plan.Advise {
			t.Errorf("%v, %v", got, r.status().Mode)
		}
		r.list[0] = d.Begin(0, []string{"m1"}, command.Duration(time.Hour), d.At)
		if got := r.tell(id); !got.Ok || r.status().Mode != plan.On {
			t.Errorf("%v, %v", got, r.status().Mode)
		}
		r.list[0].Rollout.Stopped = "caps did not help"
		if got := r.tell(id); !got.None || !strings.Contains(got.Message, "caps did not help") || r.status().Mode != plan.Advise {
			t.Errorf("%v, %v", got, r.status().Mode)
		}
	})
}

// An answer is written down while the loop goes on: what ends then, or gets its whole name, stays in
// the answer as it was.
func TestDecisionsAreCopied(t *testing.T) {
	ts := newTaskSet()
	ts.add(&task{Task: sample.Task{Name: "/web/shop", Key: sample.TaskKey{Inode: 1}}})
	ends := command.Decision{ID: "ends", Who: "anna", At: 1, Until: 50, Command: enforcing("on", "r")}
	stays := command.Decide("stays", "anna", 1, protecting(command.Target{Task: "shop"}, true, "r"))
	sd := &standing{base: base{tasks: ts}, followed: map[string]*outcome{}, overrides: &overrides{server: []command.Decision{ends, stays}, Local: []command.Decision{ends, stays}}}
	v := view{standing: sd}
	got := v.decisions()
	sd.overrides.forgetEnded(100)
	left := &sd.overrides.server[0]
	sd.followProtect(left, left.Protect, &outcome{})
	if len(sd.overrides.all()) != 2 || left.Protect.Task != "/web/shop" {
		t.Fatalf("left is %+v", sd.overrides)
	}
	for i, want := range []string{"ends", "stays", "ends", "stays"} {
		d := got[i].Decision
		if d.ID != want || d.Protect != nil && d.Protect.Task != "shop" {
			t.Errorf("%d: %+v, want %s", i, d, want)
		}
	}
}

// decisions asks the socket for what stands.
func (s *governed) decisions() (all []api.Decision) {
	s.t.Helper()
	s.get(api.PathDecisions, &all)
	return all
}
