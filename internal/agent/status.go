package agent

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
)

// view is what status, the list of tasks and the metrics read. It changes nothing.
type view struct {
	base
	started   sample.Millis
	scheduler *scheduler
	sampler   *sampler
	standing  *standing
	process   prometheus.Gatherer // of the process and of Go's runtime
	held      []heldMetrics       // ordered by from
}

// heldMetrics are the values of the metrics that are not prompt, after one window.
type heldMetrics struct {
	from     time.Time // when they may be shown
	families []*dto.MetricFamily
}

func (v *view) status() api.Status {
	s := api.Status{Version: v.Version, PID: os.Getpid(), Machine: v.sampler.machineName, Platform: v.Platform,
		Started: v.started, Now: sample.At(v.clock.now()), Rule: string(v.pipeline.Params().Method), Mode: v.pipeline.Policy().Mode,
		Signals: v.signals(), Usage: v.Parts.Usage, Tasks: len(v.tasks.byKey), Outside: v.sampler.window.outside, Caps: []api.CapView{}, Open: v.pipeline.OpenCount(), Intervals: v.stats.intervals}
	_, s.ModeFrom = v.standing.overrides.mode(v.standing.configured, s.Now)
	for _, c := range v.pipeline.Caps() {
		s.Caps = append(s.Caps, api.CapView{Task: c.Task.Name, CapState: c})
	}
	s.Overruled = v.standing.actor.overruled.recent(s.Now)
	s.Degraded = v.health.lines()
	return s
}

// decisions is what stands for this machine, the server's first. The caller writes it down while the
// loop goes on, so it is a copy.
func (v *view) decisions() []api.Decision {
	all := []api.Decision{}
	for _, d := range v.standing.overrides.server {
		one := api.Decision{Origin: api.Origin{From: api.ByDecision, Decision: &d}}
		if f := v.standing.followed[d.ID]; f != nil {
			one.OK, one.None, one.Outcome = f.reply.Ok, f.reply.None, f.reply.Message
		}
		all = append(all, one)
	}
	for _, d := range v.standing.overrides.Local {
		all = append(all, api.Decision{Origin: api.Origin{From: api.ByOverride, Decision: &d}, OK: true})
	}
	return all
}

func (v *view) offenders() []plan.Offender { return v.pipeline.Offenders(sample.At(v.clock.now())) }

// signals is the requested ones with the result of the newest window.
func (v *view) signals() []api.SignalStatus {
	all := slices.Clone(v.Signals)
	for _, g := range v.scheduler.all {
		j := slices.IndexFunc(all, func(s api.SignalStatus) bool { return s.Signal == g.info.Signal })
		if j >= 0 {
			all[j].Tasks, all[j].Counted, all[j].Within, all[j].Coverage = len(g.eligible), g.taken, g.wait, g.coverage
		}
	}
	return all
}

// note says what is not known of a task, and why.
func (v *view) note(t *task) string {
	var said []string
	for _, n := range t.notes {
		if n != "" {
			said = append(said, n)
		}
	}
	if v.standing.actor.overruled.lately(t.Name, sample.At(v.clock.now())) {
		said = append(said, "another program ended its cap (quell status)")
	}
	for i, s := range v.scheduler.sources {
		switch st := &t.seats[i]; {
		case st.lastErr != "":
			said = append(said, string(s.info.Signal)+": "+st.lastErr)
		case st.countedWindows < st.windows:
			said = append(said, fmt.Sprintf("%s: counted in %d of %d windows", s.info.Signal, st.countedWindows, st.windows))
		}
	}
	return strings.Join(said, "; ")
}

func (v *view) taskViews() []api.TaskView {
	views := make([]api.TaskView, 0, len(v.tasks.byKey))
	roles := v.pipeline.Roles()
	for _, t := range v.tasks.byKey {
		var costs []api.SignalView
		if t.judged != nil {
			costs = make([]api.SignalView, 0, len(t.judged))
		}
		for i := range t.judged {
			costs = append(costs, t.judged[i].view())
		}
		views = append(views, api.TaskView{Task: t.Task, CPU: t.cpu, Flags: t.flags.String(), Role: roles[t.Key],
			Capped: v.pipeline.Capped(t.Key), Note: v.note(t), Costs: costs,
			ClassWhy: t.found.Why, Proposed: t.found.Proposed, Labels: t.found.Labels()})
	}
	slices.SortFunc(views, func(x, y api.TaskView) int { return strings.Compare(string(x.Name), string(y.Name)) })
	return views
}
