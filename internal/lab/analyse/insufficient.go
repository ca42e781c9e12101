package analyse

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// fewest is the least number of steps in a half of a staircase for a line with an error
// estimate.
const fewest = 3

// insufficient says what an analysis without a result needs.
func insufficient(s *study.Study, kind string, good []*result.Run) string {
	is := func(k study.CellKind) func(*result.Run) bool {
		return func(r *result.Run) bool { return r.Cell.Kind == k }
	}
	if !slices.ContainsFunc(good, is(study.Main)) {
		return "no valid run of a main cell"
	}
	f := s.Staircase()
	switch kind {
	case "interference":
		if f == nil {
			return "the study has no staircase: define one for the background's load (factors, staircase)"
		}
		st := f.Staircase
		levels := len(st.Targets())
		switch {
		case st.Direction != "up-down":
			return fmt.Sprintf("the staircase goes %s only: the metric is the mean of a rising and a falling half (direction: up-down)", st.Direction)
		case levels < fewest:
			return fmt.Sprintf("the staircase has %d levels in a half: a line with an interval needs %d or more (use a smaller step)", levels, fewest)
		}
		return "no valid run has three steps or more in both halves"
	case "throughput", "energy":
		if f == nil {
			return "the study has no staircase: the work of all parts is measured at each step (factors, staircase)"
		}
		return "no valid run of a part alone, which is needed for pairs of different workloads (controls, solo)"
	case "degradation":
		if !slices.ContainsFunc(good, is(study.Solo)) {
			return "no valid run of a measured role alone (controls, solo)"
		}
		return "no measured role has a valid run both alone and with others at one placement"
	}
	needs := map[string]string{
		"net-io":          "no valid run of a role that sends requests to a web server (builtin: http-client)",
		"net-tenants":     "no valid run of a command that reports datagrams (parse: iperf3, with -u) or round trips (parse: sockperf)",
		"mapping":         "no valid run has a level of the mappings factor and iterations in its window",
		"correlation":     "no event was counted in a valid run: check observe.events, and which events the machine supports",
		"migration":       "no placement was audited in a valid run (observe, placement)",
		"variation":       "fewer than two levels of the instances factor have a valid run",
		"signal-validity": "no signal was counted in a valid run: check observe.signals, and which signals the machine supports",
	}
	return cmp.Or(needs[kind], "no valid runs to compute it from")
}
