package cli

import (
	"encoding/json"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

const phaseConfig = `
signals: [cpt]
sampling: {duration: 200ms, period: 250ms}
spec: {min_samples: 20}
detect: {outlier_window: 2500ms, window: 5s, look_back: 1m}
enforce: {mode: on, for: 3s, calm: 2500ms, settle: 30s}
`

// Real processes: a victim that changes to requests ten times as expensive, at the same
// CPU usage, next to a constantly loud innocent. The incident is reported as a phase
// change, or attributed to the rest of the machine if that changed at the same moment. No
// task is accused, although enforcement is on. If other processes kept the innocent from
// the CPU until just then, it seems to arrive then, and may be tried, without effect.
// (Results for given readings are tested in internal/core/detect.)
func TestARealVictimThatChangesItsWorkIsNamed(t *testing.T) {
	var light, heavy *workload.Proc
	tree, env, _, _ := startAgentOver(t, phaseConfig, 100, func(tree *workload.Tree) {
		cheap, dear := workload.Default(workload.Serve), workload.Default(workload.Serve)
		dear.Work, dear.Pause = 10*cheap.Work, 10*cheap.Pause
		loud := workload.Default(workload.Spin)
		loud.Duty = 0.5 // its usage must not depend on what else runs here
		light, heavy = begin(t, tree, "victim", cheap), begin(t, tree, "victim", dear)
		begin(t, tree, "loud", loud)
		send(t, heavy, syscall.SIGSTOP)
	})
	all := func() (all []incident.Record) {
		t.Helper()
		if err := json.Unmarshal([]byte(quell(t, env, "incidents", "--json").Out), &all); err != nil {
			t.Fatal(err)
		}
		return all
	}
	defer func() {
		if t.Failed() {
			t.Log(quell(t, env, "top", "--once").Out, quell(t, env, "incidents", "--json").Out)
		}
	}()
	learnt(t, env)
	send(t, light, syscall.SIGSTOP)
	send(t, heavy, syscall.SIGCONT)
	changed := time.Now()
	paper, err := detect.Paper("")
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := func(inc incident.Record) bool {
		is := func(s detect.Suspect) bool {
			return s.Name == detect.OutsideName && float64(s.Correlation) >= paper.Correlation
		}
		return inc.Kind == detect.Nobody && slices.ContainsFunc(inc.Suspects, is) ||
			inc.Kind == detect.Neighbour && inc.Antagonists == 1 && is(inc.Suspects[0])
	}
	quelltest.Until(t, "the change is explained", quelltest.Paced(func() bool {
		return slices.ContainsFunc(all(), func(inc incident.Record) bool { return inc.Kind == detect.PhaseChange || elsewhere(inc) })
	}))
	t.Logf("named %v after the change", time.Since(changed).Round(time.Millisecond))
	// The result of a trial is known only at its end. A trial without effect withdraws
	// the accusation of its suspect.
	quelltest.Until(t, "no trial goes on", quelltest.Paced(func() bool {
		return !slices.ContainsFunc(all(), func(inc incident.Record) bool {
			return slices.ContainsFunc(inc.Rounds, func(r *incident.Round) bool { return r.Outcome == "" })
		})
	}))
	for _, inc := range all() {
		t.Logf("%s (%s): cost %.3g over %.3g, %s", inc.Kind, inc.Change, inc.Cost, inc.Threshold, inc.Reason)
		for _, s := range inc.Suspects {
			t.Logf("  %s: correlation %.2f, %.2f CPU-s/s, %s", s.Name, s.Correlation, s.Usage, s.Excluded)
		}
		for _, r := range inc.Rounds {
			if !r.Trial || r.Outcome == plan.TruePositive {
				t.Errorf("somebody was capped: %+v", r)
			}
		}
		for _, f := range inc.Findings {
			if f.Suspect.Name != detect.OutsideName && f.Suspect.Level >= detect.Likely {
				t.Errorf("accused: %+v", f.Suspect)
			}
		}
	}
	quelltest.Until(t, "the innocent has no limit", quelltest.Paced(func() bool {
		got := strings.Fields(limit(t, tree, "loud"))[0]
		return got == "-1" || got == "max"
	}))
}

func send(t *testing.T, p *workload.Proc, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(p.PID, s); err != nil {
		t.Fatal(err)
	}
}
