package agent

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/plan"
)

func (r *rig) offenders() (all []plan.Offender) {
	r.t.Helper()
	r.get(api.PathOffenders, &all)
	return all
}

// A repeat offender is remembered over a restart, and is capped for longer only if the
// configuration says so, until an operator pardons it.
func TestRepeatOffenders(t *testing.T) {
	for _, c := range []struct {
		settings []string
		confined bool
		lease    time.Duration
	}{
		{nil, false, 5 * time.Minute},
		{[]string{"enforce.confine=2", "enforce.confine_for=20m"}, true, 20 * time.Minute},
		{[]string{"enforce.confine=3", "enforce.confine_for=20m"}, false, 5 * time.Minute},
	} {
		t.Run(strings.Join(c.settings, ","), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				dir, m := t.TempDir(), newMachine(t)
				settings := append([]string{"enforce.mode=on"}, c.settings...)
				r := newRig(t, m, dir, settings...)
				noisy := r.add("/batch/encode-1", 0.05)
				r.suffering(noisy)
				r.start()
				r.learn()
				if all := r.offenders(); len(all) != 0 {
					t.Fatalf("offenders before anything happened: %+v", all)
				}
				noisy.set(1.5)
				for n := 0; n < 80 && (len(r.offenders()) == 0 || len(r.offenders()[0].Helped) < 2); n++ {
					r.pass(30 * time.Second)
				}
				all := r.offenders()
				if len(all) != 1 || all[0].Job != "encode" || all[0].Task != "/batch/encode-1" || all[0].Victim != "/web/1" || len(all[0].Helped) != 2 || all[0].Confined != c.confined {
					t.Fatalf("after two caps: %+v", all)
				}
				r.stop()

				noisy.set(0.05)
				r = newRig(t, m, dir, settings...)
				r.start()
				if again := r.offenders(); len(again) != 1 || len(again[0].Helped) != 2 || again[0].Helped[1] != all[0].Helped[1] || again[0].Confined != c.confined {
					t.Errorf("after the restart: %+v", again)
				}
				r.pass(12 * time.Minute) // good samples to distinguish suspects: evidence needs twelve intervals
				noisy.set(1.5)
				r.accused(20 * time.Minute)
				caps := r.status().Caps
				if len(caps) != 1 || caps[0].Until.Sub(caps[0].From) != c.lease {
					t.Errorf("caps %+v, want one for %s", caps, c.lease)
				}
				newest := r.incidents()[len(r.incidents())-1]
				if says := strings.Contains(newest.Advice, "encode is confined: 2 caps on it helped within 24h"); says != c.confined {
					t.Errorf("the incident says %q", newest.Advice)
				}

				r.do(command.Command{Why: "it was moved", Pardon: &command.Pardon{Job: "encode"}})
				if left := r.offenders(); len(left) != 0 || len(r.status().Caps) != 1 {
					t.Errorf("after the pardon: %+v, caps %+v", left, r.status().Caps)
				}
				if why := r.refused(command.Command{Why: "again", Pardon: &command.Pardon{Job: "encode"}}, http.StatusConflict); !strings.Contains(why, "no cap on it is known to have helped") {
					t.Error(why)
				}
				var told []string
				for _, e := range r.audit() {
					if e.What == "pardon" {
						told = append(told, e.Who+" "+string(e.Task)+" "+e.Result)
					}
				}
				if len(told) != 2 || told[0] != "ann job encode ok" || !strings.HasPrefix(told[1], "ann job encode pardon encode: refused") {
					t.Errorf("the audit log has %q", told)
				}
				r.stop() // ends the cap, which perhaps helped
				if got := slurp(t, dir, "offenders.json"); strings.Count(got, `"helped":[`) > 1 {
					t.Errorf("offenders.json is %s", got)
				}
			})
		})
	}
}

// A cap that helps is prolonged if the configuration permits it, through the journal as
// every change, and ends when it no longer has an effect.
func TestACapThatHelpsGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on", "enforce.longest=30m")
		noisy := r.add("/batch/noisy-1", 0.05)
		r.suffering(noisy)
		r.start()
		defer r.stop()
		r.learn()
		noisy.set(1.5)
		r.accused(20 * time.Minute)
		caps := r.status().Caps
		if len(caps) != 1 {
			t.Fatalf("caps %+v", caps)
		}
		first := caps[0]
		r.pass(12 * time.Minute)
		caps = r.status().Caps
		if len(caps) != 1 || caps[0].ID != first.ID || caps[0].Until <= first.Until || caps[0].Rate != first.Rate {
			t.Fatalf("12 minutes later: %+v, was %+v", caps, first)
		}
		if active := r.enforcer.Active(); len(active) != 1 || active[0].Until != caps[0].Until || r.values[noisy.limit()] != "0.1" {
			t.Errorf("the journal holds %+v, the limit is %q", active, r.values[noisy.limit()])
		}
		noisy.set(0.01)
		r.pass(4 * time.Minute)
		if caps := r.status().Caps; len(caps) != 0 || r.values[noisy.limit()] != "max" {
			t.Errorf("it sleeps, and is held by %+v, limit %q", caps, r.values[noisy.limit()])
		}
		inc := r.incidents()[0]
		if last := inc.Rounds[len(inc.Rounds)-1]; last.ID != first.ID || last.Outcome != plan.TruePositive {
			t.Errorf("%d rounds, the last %+v", len(inc.Rounds), last)
		}
	})
}
