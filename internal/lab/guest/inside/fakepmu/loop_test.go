//go:build inguest

package fakepmu

import (
	"bytes"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/people/report"
)

// noLimit is the default cpu.max of the kernel.
const noLimit = "max 100000"

// TestLoop is the paper's system, sections 3 to 5, on a real kernel. The names of the
// tasks do not show their roles:
//
//	web       the victim, on CPU 0
//	encode    innocent, steady
//	backfill  innocent, loud when the antagonist is not
//	reports   the antagonist, intermittent; these three on CPU 1
func TestLoop(t *testing.T) {
	s := newScene(t)
	s.agent.start()
	alone := s.learn()
	s.story("%s costs %.3f ± %.3f cycles per instruction alone (%d samples, %s)", "web", alone.Mean, alone.StdDev, alone.Samples, alone.Variant)
	if !near(alone.Mean, 1.21, 0.02) || alone.Samples < samples || alone.Variant != "ref-cycles" {
		t.Errorf("learnt %+v, want 1.21 from %d samples", alone, samples)
	}

	begin(t, s.reports)
	round := s.accused()
	s.capExpired(round)
	s.killedUnderTheCap("", noLimit, "restored")
	s.killedUnderTheCap("25000 100000", "25000 100000", "taken-over")
	s.after(alone.Mean)
	s.ownQuota()

	if err := s.agent.end(syscall.SIGTERM); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	if said := s.agent.restore(); said != "nothing to undo" {
		t.Errorf("after it all restore says %q", said)
	}
	for _, task := range []string{"encode", "backfill", "reports", "compress"} {
		if got := read(t, s.limit(task)); got != noLimit {
			t.Errorf("%s is left with cpu.max %q", task, got)
		}
	}
}

type scene struct {
	t       *testing.T
	tree    *workload.Tree
	agent   *agent
	reports *workload.Proc
	began   time.Time
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{t: t, tree: openTree(t), began: time.Now()}
	shape := func(k workload.Kind, every time.Duration, duty float64) workload.Spec {
		w := workload.Default(k)
		w.Period, w.Duty, w.Vary, w.Epoch = every, duty, 0, workload.Epoch()
		return w
	}
	// The antagonist runs every 12 intervals, for 5 of them.
	cycle := 12 * period
	noisy := workload.Default(workload.Hog)
	noisy.Period, noisy.Work, noisy.Pause, noisy.Vary, noisy.Epoch = cycle, 5*period, 0, 0.1, workload.Epoch()
	// web's bursts drift relative to the kernel's quota periods of 100 ms: with the same
	// period it would overlap with the capped antagonist always or never, depending on
	// the start of the cap.
	begin(t, play(t, s.tree, "web", shape(workload.Spin, 70*time.Millisecond, 0.35), 0))
	begin(t, play(t, s.tree, "encode", shape(workload.Spin, 100*time.Millisecond, 0.1), 1))
	begin(t, play(t, s.tree, "backfill", shape(workload.CounterPhase, cycle, 0.6), 1))
	s.reports = play(t, s.tree, "reports", noisy, 1)
	for task, m := range map[string]model{
		"web":      {CPI: 1.2, MPKI: 2, Sens: 1.5, Noise: 0.03},
		"encode":   {CPI: 0.7, MPKI: 0.5, Pressure: 0.02},
		"backfill": {CPI: 1, MPKI: 1, Pressure: 0.02},
		"reports":  {CPI: 0.9, MPKI: 30, Pressure: 1},
	} {
		m.set(t, s.dir(task))
	}
	s.agent = newAgent(t, s.tree.Top())
	return s
}

func (s *scene) dir(task string) string   { return cgroupRoot + s.tree.Path(task) }
func (s *scene) limit(task string) string { return s.dir(task) + "/cpu.max" }

// story logs a line about the events, for people.
func (s *scene) story(format string, args ...any) {
	s.t.Helper()
	s.t.Logf("figure: %4.0f s: %s", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// learn waits for the victim's spec. backfill is quiet for 4 of 12 intervals.
func (s *scene) learn() (alone spec.Spec) {
	s.t.Helper()
	wait(s.t, period, 150*period, "the agent has learnt what web costs", func() bool {
		v, ok := s.agent.cost(s.tree.Path("web"))
		alone = v.Spec
		return ok && alone.State == spec.Ready
	})
	return alone
}

// accused waits for the first cap and checks which task is capped.
func (s *scene) accused() incident.Record {
	t := s.t
	t.Helper()
	inc := s.agent.incident(40*period, "a task is capped", func(inc *incident.Record) bool { return len(inc.Rounds) > 0 })
	first := inc.Suspects[0]
	s.story("with an antagonist %.3f, over the threshold of %.3f; accused %s, correlation %.2f", inc.Cost, inc.Threshold, first.Name, first.Correlation)
	for _, other := range inc.Suspects[1:] {
		s.story("  not %s, correlation %.2f %s", other.Name, other.Correlation, other.Excluded)
	}
	if string(first.Name) != s.tree.Path("reports") || inc.Antagonists != 1 || first.Correlation < 0.35 || len(inc.Suspects) < 3 ||
		inc.Kind != detect.Neighbour || string(inc.Victim.Name) != s.tree.Path("web") || string(inc.Rounds[0].Suspect.Name) != s.tree.Path("reports") {
		t.Errorf("incident %+v", inc)
	}
	if got := read(t, s.limit("reports")); got != "10000 100000" {
		t.Errorf("the cap's cpu.max is %q", got)
	}
	return inc
}

// capExpired waits for the end of the incident's cap.
func (s *scene) capExpired(inc incident.Record) {
	t := s.t
	t.Helper()
	var r *incident.Round
	s.agent.incident(15*period, "the cap is over", func(later *incident.Record) bool {
		if later.ID == inc.ID {
			r = later.Rounds[0]
		}
		return r != nil && r.Ended != 0
	})
	s.story("capped to %g CPU-s/s for %s: %.3f, %.2f of the %.3f before (%s)", r.Rate, time.Duration(r.Ended-r.From)*time.Millisecond,
		float64(r.CostUnder), float64(r.RelativeCost), float64(r.CostBefore), r.Outcome)
	// 1.2 + 1.8 × the share of web's time in which the antagonist runs, by the model: 1.2
	// for none, 3 for all, 1.4 for the cap's tenth. The uncapped share depends on the
	// other tasks on its CPU (agent and test too), but is enough to be accused.
	if before, under := float64(r.CostBefore), float64(r.CostUnder); before < inc.Threshold || before > 3.05 || under < 1.15 || under > 1.5 || r.Outcome != plan.TruePositive {
		t.Errorf("round %+v", r)
	}
	if got := read(t, s.limit("reports")); got != noLimit {
		t.Errorf("after the cap cpu.max is %q", got)
	}
	if st, err := s.agent.Status(t.Context()); err != nil || len(st.Caps) != 0 {
		t.Errorf("after the cap: caps %+v, %v", st.Caps, err)
	}
}

// killedUnderTheCap kills the agent at its next cap, sets the limit to meanwhile, if
// given, as another program might, runs restore, and starts an agent again, which uses
// the specs saved by the killed one.
func (s *scene) killedUnderTheCap(meanwhile, want, result string) {
	t := s.t
	t.Helper()
	wait(t, period/4, 60*period, "reports is capped again", func() bool { return read(t, s.limit("reports")) != noLimit })
	s.agent.end(syscall.SIGKILL)
	killed := read(t, s.limit("reports"))
	if meanwhile != "" {
		write(t, s.limit("reports"), meanwhile)
	}
	said := s.agent.restore()
	got := read(t, s.limit("reports"))
	s.story("capped again; kill -9: cpu.max %q, set to %q meanwhile; restore: %s; cpu.max %q", killed, meanwhile, said, got)
	if killed != "10000 100000" || got != want || !strings.HasPrefix(said, s.tree.Path("reports")+": "+result) {
		t.Errorf("cpu.max %q, want %q and %q", got, want, result)
	}
	write(t, s.limit("reports"), noLimit)
	s.agent.start()
}

// after ends the antagonist and checks the victim's cost.
func (s *scene) after(alone float64) {
	t := s.t
	t.Helper()
	if err := s.reports.Stop(); err != nil {
		t.Error(err)
	}
	var last float64
	good := 0
	wait(t, period, 20*period, "web costs what it did alone", func() bool {
		v, ok := s.agent.cost(s.tree.Path("web"))
		last = float64(v.Cost)
		if ok && near(last, alone, 0.1) {
			good++
		} else {
			good = 0
		}
		return good == 5
	})
	s.story("after the antagonist has ended: %.3f", last)
}

// ownQuota makes the victim demand more than its own cpu.max allows. After each
// throttling its caches are cold, so its CPI doubles. At the same time an innocent task
// begins, which would be accused if throttling were not detected.
func (s *scene) ownQuota() {
	t := s.t
	t.Helper()
	// Wait until earlier effects are over and there are good intervals to compare with.
	<-time.After(10 * period)
	before := time.Now()
	busy := workload.Default(workload.Spin)
	busy.Duty = 1
	// Less than it gets of its CPU while the agent measures, more than the rule's minimum
	// usage of a victim.
	write(t, s.limit("web"), "30000 100000")
	// It must use the whole quota in every period. Otherwise it is not throttled in a
	// window that is busy with other work, although the model makes it slow there too. So
	// its weight is above that of the agent, the test and the kernel's threads.
	for _, dir := range []string{cgroupRoot + s.tree.Top(), s.dir("web")} {
		write(t, dir+"/cpu.weight", "10000")
	}
	begin(t, play(t, s.tree, "web", busy, 0))
	compress := play(t, s.tree, "compress", busy, 1)
	throttled := func() (n int) {
		_, rest, _ := strings.Cut(read(t, s.dir("web")+"/cpu.stat"), "nr_throttled ")
		if _, err := fmt.Sscan(rest, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	wait(t, period/4, 20*period, "web is throttled in every period", func() bool { return throttled() >= 20 })
	begin(t, compress)
	model{CPI: 2.4, MPKI: 4, Sens: 1.5}.set(t, s.dir("web"))
	inc := s.agent.incident(20*period, "web's own quota is found", func(inc *incident.Record) bool { return inc.Kind == detect.OwnQuota })
	var text bytes.Buffer
	if err := report.Incident(&text, inc, report.Style{}); err != nil {
		t.Error(err)
	}
	words := "own-quota: the task ran into its own CPU quota; no neighbour is to blame"
	if inc.Cost <= inc.Threshold || !strings.Contains(strings.Join(strings.Fields(text.String()), " "), words) {
		t.Errorf("incident %+v:\n%s", inc, text.String())
	}
	// The model may change in the middle of the interval that opens the incident.
	var cost float64
	wait(t, period, 20*period, "web costs what the model says", func() bool {
		v, ok := s.agent.cost(s.tree.Path("web"))
		cost = float64(v.Cost)
		return ok && near(cost, 2.4, 0.1)
	})
	<-time.After(6 * period)
	for _, inc := range s.agent.incidents() {
		if inc.Opened.Time().After(before) && (inc.Antagonists != 0 || len(inc.Rounds) != 0) {
			t.Errorf("a neighbour is blamed: %+v", inc)
		}
	}
	s.story("throttled by its own cpu.max: %.3f, over the threshold of %.3f; %s", cost, inc.Threshold, words)
}
