package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/spec"
)

// A task is judged by a provisional spec: the incident says so, nothing is capped, and learning
// goes on. With the spec ready the same antagonist is capped.
func TestAProvisionalSpecCapsNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on", "spec.min_samples=60", "spec.provisional_samples=10", "detect.rule=cpi2")
		loud := r.add("/batch/loud-1", 0)
		r.suffering(loud)
		r.start()
		defer r.stop()
		r.pass(12*time.Minute - 30*time.Second)
		if s := r.spec("web"); s.State != spec.Learning || !s.Provisional || s.Samples != 12 {
			t.Fatalf("after 12 samples the spec is %+v", s)
		}
		loud.set(1.2)
		r.pass(8 * time.Minute)
		all := r.incidents()
		if len(all) != 1 || all[0].Kind != detect.Neighbour || all[0].Suspects[0].Name != "/batch/loud-1" {
			t.Fatalf("found %+v", all)
		}
		if i := all[0]; i.SpecSamples < 10 || i.SpecSamples > 20 || !strings.Contains(i.NotDone, "its normal cost is provisional, of only ") || len(i.Rounds) > 0 || r.values[loud.limit()] != "max" {
			t.Errorf("%d samples, not done: %q, rounds %+v, limit %s", i.SpecSamples, i.NotDone, i.Rounds, r.values[loud.limit()])
		}
		if s := r.spec("web"); s.Samples != 20 {
			t.Errorf("in the incident it does not learn: %d samples", s.Samples)
		}
		if text, _ := r.scrape(); strings.Contains(text, "\nquell_pair_incidents_open{") {
			t.Error("alerts may fire for it")
		}
		loud.set(0)
		r.pass(60 * time.Minute)
		if s := r.spec("web"); s.State != spec.Ready || s.Provisional {
			t.Fatalf("the spec is %+v", s)
		}
		loud.set(3)
		r.accused(10 * time.Minute)
		if text, _ := r.scrape(); !strings.Contains(text, "\nquell_pair_incidents_open{") {
			t.Error("no alert can fire for one by a ready spec")
		}
	})
}
