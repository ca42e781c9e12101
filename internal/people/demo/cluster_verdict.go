package demo

import (
	"fmt"
	"math"
	"strings"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
)

// judge sets the verdict.
func (r *ClusterResult) judge() {
	switch {
	case len(r.LeftBehind) > 0:
		r.Verdict = "left something behind"
	case len(r.Accused) > 0:
		r.Verdict = "accused an innocent: " + strings.Join(r.Accused, "; ")
	case r.Named == "":
		r.Verdict = "abstained: no task was capped"
		if r.Why != "" {
			r.Verdict += ": " + r.Why
		}
	case r.Named != r.Antagonist || r.On != machineNames[0]:
		r.Verdict = "capped the wrong task"
	case r.Outcome != plan.TruePositive:
		r.Verdict = fmt.Sprintf("capped the right task, but the victim did not recover (%s)", r.Outcome)
	case r.Twice > 0 || r.Missing > 0:
		r.Verdict = "samples were lost or stored twice"
	default:
		r.OK, r.Verdict = true, "one machine's agent handled its noisy neighbour with the cluster's spec, without the server; the server then received everything once"
	}
}

// costStats is the agent's view of its victim over the intervals.
type costStats struct {
	costs mean
	most  float64
	over  int     // intervals whose cost was over the limit
	limit float64 // the newest; 0: it was never judged
}

// look adds the agent's current view; the agent may have reported it before.
func (s *costStats) look(v *api.SignalView) {
	before := s.costs.n
	if s.costs.add(float64(v.Cost)); s.costs.n == before {
		return
	}
	s.most = max(s.most, float64(v.Cost))
	if limit := float64(v.Limit); !math.IsNaN(limit) {
		s.limit = limit
	}
	if v.Outlier {
		s.over++
	}
}

func (s *costStats) String() string {
	if s.costs.n == 0 {
		return "its agent measured no cost"
	}
	text := fmt.Sprintf("mean cost %.3g s/CPU-s of %d intervals, maximum %.3g", s.costs.value(), s.costs.n, s.most)
	if s.limit == 0 {
		return text + ", and it had no threshold"
	}
	return text + fmt.Sprintf("; %d of them over the threshold, %.3g", s.over, s.limit)
}

// whyNotCapped says why no antagonist of a victim was capped: what the agent found, and what
// was missing for a cap.
func whyNotCapped(all []incident.Record, victim sample.TaskName, seen *costStats) string {
	var inc *incident.Record // the one that got furthest
	for i := range all {
		if x := &all[i]; x.Victim.Name == victim && (inc == nil || len(x.Named()) >= len(inc.Named())) {
			inc = x
		}
	}
	if inc == nil {
		return fmt.Sprintf("no anomaly of %s: %s", short(victim), seen)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "an incident of %s (%s), %s", short(victim), inc.Kind, joined(inc.Reason, inc.NotDone))
	switch {
	case len(inc.Suspects) == 0:
		text.WriteString("; no suspects")
	default:
		best := &inc.Suspects[0]
		fmt.Fprintf(&text, "; the first suspect of %d intervals is %s, %s", inc.Pairs, short(best.Name), best.Level)
		if best.Excluded != "" {
			fmt.Fprintf(&text, " (%s)", best.Excluded)
		}
	}
	return text.String() + "; " + seen.String()
}
