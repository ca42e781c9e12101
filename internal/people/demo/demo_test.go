package demo

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/workload"
)

func TestTheVerdictFollowsFromWhatHappened(t *testing.T) {
	right := Result{Mode: plan.On, Antagonist: "/d/reports", Named: "/d/reports", Outcome: plan.TruePositive}
	for _, c := range []struct {
		name   string
		change func(*Result)
		ok     bool
	}{
		{"named, recovered, undone", func(*Result) {}, true},
		{"something left behind", func(r *Result) { r.LeftBehind = []string{"/sys/fs/cgroup/x"} }, false},
		{"wrong task", func(r *Result) { r.Named = "/d/encode" }, false},
		{"nobody", func(r *Result) { r.Named = "" }, false},
		{"no recovery", func(r *Result) { r.Outcome = plan.Noise }, false},
		{"advise: nothing to recover from", func(r *Result) { r.Mode, r.Outcome = plan.Advise, plan.WouldCap }, true},
		{"no antagonist, nobody accused", func(r *Result) { r.Antagonist, r.Named = "", "" }, true},
		{"no antagonist, somebody accused", func(r *Result) { r.Antagonist = "" }, false},
		{"the sharing flipped", func(r *Result) { r.Channel, r.Flips, r.Named = Cache, 1, "" }, false},
	} {
		r := right
		c.change(&r)
		if r.judge(); r.OK != c.ok || r.Verdict == "" {
			t.Errorf("%s: ok %v (%q), want %v", c.name, r.OK, r.Verdict, c.ok)
		}
	}
}

func TestTheAgentsConfigurationIsRightAndCoversTheSceneAlone(t *testing.T) {
	d := &demo{Options: Options{Mode: plan.On}, beat: cacheBeat}
	file := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(file, []byte(d.configuration("/quell-demo-1-2", sample.RunQ)), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for path, class := range map[string]sample.Class{
		"/quell-demo-1-2/web":     sample.LatencySensitive,
		"/quell-demo-1-2/reports": sample.Batch,
		"/quell-demo-1-2/encode":  sample.Batch,
	} {
		if v := c.Classify(path, nil); v.Rule == nil || v.Class != class || string(v.Job) != filepath.Base(path) {
			t.Errorf("%s: %+v", path, v)
		}
	}
	for _, path := range []string{"/quell-demo-1-2/quell-agent", "/quell-demo-1-2", "/system.slice/ssh.service"} {
		if c.Classify(path, nil).Rule != nil {
			t.Errorf("%s is a task", path)
		}
	}
}

// The scene relies on the order of the parts and on the counter-phase.
func TestOneInnocentIsLoudExactlyWhenTheAntagonistIsNot(t *testing.T) {
	for _, c := range []Channel{CPU, Cache} {
		d := &demo{Options: Options{Seed: 3}, victimCPU: 1, otherCPU: 0, beat: cpuBeat, setBytes: largestSet}
		cast := d.cast(c, 1000)
		antagonist, opposite := cast[len(cast)-1], cast[len(cast)-2]
		if antagonist.name != antagonistName || opposite.spec.Kind != workload.CounterPhase {
			t.Fatalf("%s: cast %+v", c, cast)
		}
		a, o := antagonist.spec, opposite.spec
		if a.Period != o.Period || a.Epoch != o.Epoch || a.Phase != o.Phase || o.Vary != 0 {
			t.Errorf("%s: out of step: %+v and %+v", c, a, o)
		}
		for _, p := range cast {
			if err := p.spec.Validate(); err != nil {
				t.Errorf("%s: %s: %v", c, p.name, err)
			}
			if victims := p.name == victimName || c == CPU && p.name == antagonistName; victims != (p.cpu == d.victimCPU) {
				t.Errorf("%s: %s is on CPU %d", c, p.name, p.cpu)
			}
		}
	}
}

func TestTheResultIsOneJSONObjectWithNullForWhatWasNotMeasured(t *testing.T) {
	r := Result{LeftBehind: []string{}, CostCapped: none(), RelativeCost: none()}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	for _, key := range strings.Fields("ok channel attempts flips victim antagonist named correlation runner_up seconds_to_incident " +
		"intervals_to_incident cost_alone cost_contended cost_capped relative_cost left_behind") {
		if _, ok := m[key]; !ok {
			t.Errorf("no %q in %s", key, text)
		}
	}
	if m["cost_capped"] != nil {
		t.Errorf("cost_capped is %v, want null", m["cost_capped"])
	}
}

func TestTheNextCycleIsAheadAndOnTheEpoch(t *testing.T) {
	s := &scene{demo: &demo{beat: cpuBeat}, epoch: 1_000_000}
	for _, ms := range []int64{1_000_000, 1_000_001, 1_005_999, 1_006_000, 1_234_567} {
		now := time.UnixMilli(ms)
		next := s.nextCycle(now)
		if d := next.Sub(now); d <= 0 || d > s.beat.cycle() || next.Sub(s.epoch.Time())%s.beat.cycle() != s.phase() {
			t.Errorf("from %d: %s ahead", ms, d)
		}
	}
}

func TestConstantsKeepThePapersOrder(t *testing.T) {
	for _, b := range []timescale{cpuBeat, cacheBeat} {
		c := []time.Duration{b.tick(), b.interval(), b.outlierWindow(), b.capFor(), b.window()}
		if !slices.IsSorted(c) || b.times(3) > b.outlierWindow() {
			t.Errorf("out of order: %v", c)
		}
	}
}
