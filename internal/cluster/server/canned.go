package server

import (
	"net/http"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/cluster/api"
)

// cannedQueries are the forensics of CPI², section 5, and typical queries of operators
// after an outage.
func cannedQueries() []cluster.Canned {
	return []cluster.Canned{
		{Name: "worst-antagonists", Params: []string{"job"}, Help: "worst antagonists of a job: incidents in which a suspect exceeded the threshold, and outcomes of caps",
			SQL: `SELECT suspect_job, count(*) AS incidents, count(DISTINCT machine) AS machines, avg(correlation) AS correlation,
       count(*) FILTER (outcome = 'true-positive') AS true_positives, count(*) FILTER (outcome = 'false-positive') AS false_positives,
       avg(relative_cost) AS relative_cost, max(updated) AS newest
FROM incidents WHERE victim_job = $job AND antagonists > 0
GROUP BY suspect_job ORDER BY incidents DESC, correlation DESC LIMIT 50`},
		{Name: "most-hurt-jobs", Help: "jobs by how long their tasks were victims of a neighbour",
			SQL: `SELECT victim_job, count(*) AS incidents, count(DISTINCT machine) AS machines,
       sum(epoch(coalesce(closed, updated) - began)) / 3600 AS hours, avg(cost / nullif(spec_mean, 0)) AS cost_over_mean
FROM incidents WHERE kind = 'neighbour' GROUP BY victim_job ORDER BY hours DESC LIMIT 50`},
		{Name: "worst-machines", Help: "machines with most incidents",
			SQL: `SELECT machine, count(*) AS incidents, count(*) FILTER (closed IS NULL) AS open, count(DISTINCT victim_job) AS jobs_hurt,
       count(*) FILTER (capped_task <> '') AS capped, max(updated) AS newest
FROM incidents GROUP BY machine ORDER BY incidents DESC LIMIT 50`},
		{Name: "cap-outcomes", Help: "outcomes of caps, by signal",
			SQL: `SELECT signal, outcome, count(*) AS caps, avg(relative_cost) AS relative_cost, median(relative_cost) AS median_relative_cost
FROM incidents WHERE capped_task <> '' GROUP BY signal, outcome ORDER BY signal, caps DESC`},
		{Name: "before-after", Params: []string{"incident"}, Help: "the victim's cost before, during and after an incident, by the incident's ID",
			SQL: `WITH i AS (SELECT * FROM incidents WHERE id = $incident)
SELECT CASE WHEN s.ts < i.began THEN '1 before' WHEN s.ts <= coalesce(i.closed, i.updated) THEN '2 in it' ELSE '3 after' END AS phase,
       count(s.cost) AS samples, avg(s.cost) AS cost, stddev_samp(s.cost) AS stddev, avg(s.cpu) AS cpu
FROM samples s JOIN i ON s.machine = i.machine AND s.task = i.victim_task AND s.signal = i.signal
WHERE s.ts BETWEEN i.began - INTERVAL 1 HOUR AND coalesce(i.closed, i.updated) + INTERVAL 1 HOUR
GROUP BY phase ORDER BY phase`},
		{Name: "interference-pairs", Help: "which jobs should not share a machine: pairs of victim and antagonist",
			SQL: `SELECT victim_job, suspect_job, count(*) AS incidents, count(DISTINCT machine) AS machines, avg(correlation) AS correlation,
       count(*) FILTER (outcome = 'true-positive') AS confirmed
FROM incidents WHERE antagonists > 0 GROUP BY victim_job, suspect_job ORDER BY confirmed DESC, incidents DESC LIMIT 200`},
	}
}

// cannedSQL returns a canned query with its parameters inserted as quoted text.
func cannedSQL(name string, params map[string]string) (string, error) {
	var names []string
	for _, c := range cannedQueries() {
		names = append(names, c.Name)
		if c.Name != name {
			continue
		}
		for p := range params {
			if !slices.Contains(c.Params, p) {
				return "", bad("%s has no parameter %.40q", name, p)
			}
		}
		text := c.SQL
		for _, p := range c.Params {
			v, ok := params[p]
			if !ok {
				return "", bad("%s needs the parameter %s", name, p)
			}
			text = strings.ReplaceAll(text, "$"+p, literal(v))
		}
		return text, nil
	}
	return "", bad("unknown canned query %.40q: want one of %s", name, strings.Join(names, ", "))
}

func (s *Server) listCanned(w http.ResponseWriter, _ *request) error {
	return reply(w, http.StatusOK, cannedQueries())
}
