package server

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/cluster/store/duck"
	"github.com/quell-dev/quell/internal/core/plan"
)

// pairsSQL aggregates incidents by pairs of jobs on one machine. An incident counts if a
// suspect was named or capped. The job that was capped last is used, since its outcome is
// known.
const pairsSQL = `SELECT victim_job, coalesce(nullif(capped_job, ''), suspect_job) AS antagonist, count(*), count(DISTINCT machine),
  median(cost / nullif(threshold, 0)), avg(correlation),
  count(*) FILTER (capped_job <> '' AND outcome IN ('%[2]s', '%[3]s', '%[4]s')), count(*) FILTER (capped_job <> '' AND outcome = '%[2]s'),
  max(epoch_ms(updated))
FROM incidents WHERE (antagonists > 0 OR capped_job <> '') AND %[1]s
GROUP BY ALL HAVING antagonist <> '' ORDER BY 8 DESC, 3 DESC, 1, 2 LIMIT 1000`

func (s *Server) listPairs(w http.ResponseWriter, r *request) error {
	where, from, err := s.incidentsWhere(r, [][2]string{{"job", "victim_job = %s"}})
	if err != nil {
		return err
	}
	a := s.answer(w, r, listForm(pairOf))
	job := &duck.Job{SQL: fmt.Sprintf(pairsSQL, where, plan.TruePositive, plan.FalsePositive, plan.Noise), From: from}
	sum, err := s.ask(r.Context(), s.forLists, r.caller.key, job, a)
	return a.finish(sum.Truncated, err)
}

// pairOf converts a row of pairsSQL.
func pairOf(row json.RawMessage) (json.RawMessage, error) {
	var p cluster.Pair
	var strength, correlation *float64 // null if no incident has one
	if err := json.Unmarshal(row, &[]any{&p.Victim, &p.Antagonist, &p.Incidents, &p.Machines, &strength, &correlation, &p.Caps, &p.Helped, &p.Newest}); err != nil {
		return nil, fmt.Errorf("read pairs: %w", err)
	}
	if strength != nil {
		p.Strength = *strength
	}
	if correlation != nil {
		p.Correlation = *correlation
	}
	p.Confidence = atLeast(p.Helped, p.Caps)
	return json.Marshal(p)
}

// atLeast is the lower bound of the 95 % confidence interval of a proportion, for k of n
// observed (Wilson 1927); 0 for n = 0.
func atLeast(k, n int) float64 {
	if n == 0 {
		return 0
	}
	const z = 1.959964 // of the normal distribution, two-sided 95 %
	p, m := float64(k)/float64(n), float64(n)
	return max(0, (p+z*z/(2*m)-z*math.Sqrt(p*(1-p)/m+z*z/(4*m*m)))/(1+z*z/m))
}
