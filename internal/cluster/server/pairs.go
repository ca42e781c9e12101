package server

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/cluster/store/duck"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
)

// pairsSQL aggregates what incidents say of pairs of jobs on one machine, and what caps gave.
// A pair is advice if an incident says to its end that the suspect is the antagonist: proven,
// or likely and a cap helped. One that caps mostly clear is none. Each cap counts for the job
// that was capped. Tasks that hurt only together are no pair: neither hurts the victim alone. Of more than are listed,
// those beyond 100 that a machine alone reports are left out first: it reports as many as it likes. What says nothing of a
// pair is left out before the newest states are found: a query cannot hold all suspects.
const pairsSQL = `WITH i AS (SELECT machine, id AS incident, cost, threshold FROM incidents WHERE %[1]s),
named AS (
  SELECT s.victim_job, s.job, count(*) AS incidents, count(DISTINCT s.machine) AS machines, min(s.machine) AS machine, median(i.cost / nullif(i.threshold, 0)) AS strength, avg(s.correlation) AS correlation,
    count(*) FILTER (s.level = 'proven') AS proven, count(*) FILTER (s.level = 'proven' AND s.method = 'accounting') AS accounted, max(s.updated) AS newest
  FROM (SELECT * FROM suspect_history WHERE named_from IS NOT NULL QUALIFY row_number() OVER (PARTITION BY machine, incident, task ORDER BY updated DESC, analysed DESC NULLS LAST) = 1) s
    JOIN i USING (machine, incident) WHERE s.level IN ('proven', 'likely') AND s.method IS DISTINCT FROM '%[5]s' GROUP BY s.victim_job, s.job
), tried AS (
  SELECT r.victim_job, r.job, count(DISTINCT (r.machine, r.id)) AS caps, count(DISTINCT (r.machine, r.id)) FILTER (r.outcome = '%[2]s') AS helped,
    median(r.relative_cost) AS relative_cost, median(1 - r.usage_under / nullif(r.usage_before, 0)) AS usage_lost
  FROM (SELECT * FROM round_history WHERE outcome IN ('%[2]s', '%[3]s', '%[4]s') AND tasks = 1 QUALIFY row_number() OVER (PARTITION BY machine, incident, id, task ORDER BY updated DESC, ended DESC NULLS LAST) = 1) r
    JOIN i USING (machine, incident) GROUP BY r.victim_job, r.job
), advice AS (
  SELECT victim_job, job, incidents, machines, strength, correlation, proven, accounted, coalesce(caps, 0) AS capped, coalesce(helped, 0) AS good, relative_cost, usage_lost, epoch_ms(newest) AS ms,
    if(machines = 1, machine, '') AS alone
  FROM named LEFT JOIN tried USING (victim_job, job)
  WHERE job <> '' AND (proven > 0 OR helped > 0) AND 2 * coalesce(helped, 0) >= coalesce(caps, 0)
), ranked AS (
  SELECT *, machines = 1 AND row_number() OVER (PARTITION BY alone ORDER BY proven DESC, good DESC, incidents DESC, victim_job, job) > 100 AS further FROM advice
)
SELECT * EXCLUDE (alone, further) FROM ranked
ORDER BY further, proven DESC, good DESC, incidents DESC, victim_job, job LIMIT 1001`

func (s *Server) listPairs(w http.ResponseWriter, r *request) error {
	where, from, err := s.incidentsWhere(r, [][2]string{{"job", "victim_job = %s"}})
	if err != nil {
		return err
	}
	a := s.answer(w, r, listForm(pairOf))
	job := &duck.Job{SQL: fmt.Sprintf(pairsSQL, where, plan.TruePositive, plan.FalsePositive, plan.Noise, detect.ByGroup), From: from, Limits: duck.Limits{Rows: 1000}}
	sum, err := s.ask(r.Context(), s.forLists, job, a, a)
	return a.finish(sum.Truncated, err)
}

// pairOf converts a row of pairsSQL.
func pairOf(row json.RawMessage) (json.RawMessage, error) {
	var p cluster.Pair
	var strength, correlation *float64 // null if no incident has one
	accounted := 0
	if err := json.Unmarshal(row, &[]any{&p.Victim, &p.Antagonist, &p.Incidents, &p.Machines, &strength, &correlation, &p.Proven, &accounted, &p.Caps, &p.Helped,
		&p.RelativeCost, &p.UsageLost, &p.Newest}); err != nil {
		return nil, fmt.Errorf("read pairs: %w", err)
	}
	if strength != nil {
		p.Strength = *strength
	}
	if correlation != nil {
		p.Correlation = *correlation
	}
	p.Confidence = atLeast(p.Helped+accounted, p.Caps+accounted)
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
