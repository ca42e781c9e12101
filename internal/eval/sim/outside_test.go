package sim

import (
	"reflect"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
)

// family returns the scenario of the given name.
func family(t *testing.T, name string) *Scenario {
	t.Helper()
	all := Scenarios()
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	t.Fatalf("unknown scenario %s", name)
	return nil
}

// TestWhoHurtsThroughADiskCanBeHeld: with the model's limits an antagonist of a disk or an
// interface can be tried; with the paper's, which have no limits for those, it cannot.
func TestWhoHurtsThroughADiskCanBeHeld(t *testing.T) {
	player := simulator()
	for _, name := range []string{"io/onset/strong/plain", "net/onset/strong/plain"} {
		for _, c := range []struct {
			policy plan.Policy
			held   bool
		}{{Policy(), true}, {plan.Paper(), false}} {
			s := setup(t, detect.EvidenceMethod, 90)
			s.Policy = c.policy
			s.Policy.Mode, s.Policy.Trial = plan.On, 3*time.Minute
			k := player.Run(family(t, name), 2, s)
			if len(k.Victims) == 0 {
				t.Fatalf("%s: the case has no victim", name)
			}
			if held := k.Trials > 0; held != c.held {
				t.Errorf("%s: %d trials with limits %+v, %d", name, k.Trials, c.policy.IO, c.policy.Net)
			}
		}
	}
	for _, c := range []struct {
		action plan.Action
		want   float64
	}{
		{plan.Action{Rate: 0.1}, 0.1},
		{plan.Action{IO: plan.IORate{Ops: 20}}, 20},
		{plan.Action{Net: 30000}, 20},
	} {
		if got := limitOf(&c.action); got != c.want {
			t.Errorf("%+v holds to %v, want %v", c.action, got, c.want)
		}
	}
}

// TestOutsideChangesNothingElse: with the load outside any task the machine is otherwise
// the same; and an antagonist that cannot be seen uses CPU time there if CPU time is the
// channel.
func TestOutsideChangesNothingElse(t *testing.T) {
	player := simulator()
	for _, name := range []string{"cpu/turns/strong/plain", "llc/bursts/strong/plain"} {
		s := setup(t, detect.Quell, 90)
		s.Policy.Mode = plan.Off
		without := player.Run(family(t, name), 3, s)
		s.Outside = true
		with := player.Run(family(t, name), 3, s)
		if len(with.Labels) == 0 || !reflect.DeepEqual(with.Labels, without.Labels) || with.Samples != without.Samples {
			t.Errorf("%s: %d labels, %d samples; %d and %d without", name, len(with.Labels), with.Samples, len(without.Labels), without.Samples)
		}
	}
	m := newMachine(*family(t, "free/unseen/crowded/steady/uneven"), 1, player.shape, player.specs)
	if m.scenario.Channel != CPU {
		t.Fatalf("the scenario's channel is %s", m.scenario.Channel)
	}
	o := newOutside(m, 1)
	usual := o.usage(m)
	m.extra = 1
	if busy := o.usage(m); busy < usual+0.4*float64(m.platform.CPUs) {
		t.Errorf("it uses %.2f CPU-s/s, %.2f usually", busy, usual)
	}
}
