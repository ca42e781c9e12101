package duck

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/spec"
	"github.com/quell-dev/quell/internal/store"
)

// SpecSQL is the paper's aggregation (CPI², section 3.1) over the table of
// samples: for each job, platform, signal and what was counted, the mean and the
// standard deviation of the cost, each sample weighted by AgeWeight to the power
// of its age in days, and over the sum of the weights, not of the samples.
//
// What detection would not judge does not teach (detect.Observe): tasks that
// hardly ran (by their CPU usage; for a signal whose activity is another, the
// sample does not tell), split ones, costs out of the signal's range, samples under a cap,
// and those of a victim from the first bad interval of an incident to its end;
// unless the incident is a change that lasts, which the spec follows.
//
// One pass: sums for each task, then their moments merged (Chan, Golub and
// LeVeque, 1979), as stat.Moments does it.
func SpecSQL(p spec.Params, now sample.Millis) string {
	return fmt.Sprintf(`WITH victims AS MATERIALIZED (
  SELECT machine, victim_task AS task, signal, began, coalesce(closed, updated) AS ended FROM incidents WHERE NOT follows
), teaching AS (
  SELECT s.job, s.platform, s.signal, s.variant, s.machine, s.task, s.ts,
         s.cpu::DOUBLE AS cpu, s.cost::DOUBLE AS cost,
         exp(%[2]s * (%[1]d - epoch_ms(s.ts))) AS w
  FROM samples s JOIN signals g ON g.signal = s.signal
  ANTI JOIN victims i ON i.machine = s.machine AND i.task = s.task AND i.signal = s.signal AND s.ts >= i.began AND s.ts <= i.ended
  WHERE s.cost >= g.least_cost AND (g.most_cost IS NULL OR s.cost <= g.most_cost)
    AND (g.least_cpu IS NULL OR s.cpu >= g.least_cpu)
    AND s.flags & %[3]d = 0
    AND s.ts <= make_timestamptz(%[1]d * 1000)
), tasks AS (
  SELECT job, platform, signal, variant, count(*) AS n, sum(w) AS sw, sum(w * w) AS sw2,
         sum(w * cpu) AS swu, sum(w * cost) AS swc, sum(w * cost * cost) AS swcc, max(ts) AS newest
  FROM teaching GROUP BY job, platform, signal, variant, machine, task
), keys AS (
  SELECT job, platform, signal, variant, count(*) AS tasks, count(*) FILTER (n >= %[4]d) AS enough,
         sum(n) AS n, sum(sw) AS w, sum(sw2) AS w2, sum(swu) / sum(sw) AS cpu, sum(swc) / sum(sw) AS mean,
         sum(greatest(swcc - swc * swc / sw, 0)) AS inner_m2,
         sum(swc * swc / sw) - sum(swc) * sum(swc) / sum(sw) AS outer_m2, max(newest) AS newest
  FROM tasks GROUP BY job, platform, signal, variant
)
SELECT job, platform, signal, variant,
       CASE WHEN tasks < %[5]d THEN 'insufficient'
            WHEN enough < %[5]d THEN 'learning'
            WHEN %[1]d - epoch_ms(newest) > %[6]d THEN 'stale'
            ELSE 'ready' END AS state,
       enough AS tasks, n::BIGINT AS num_samples, cpu AS cpu_usage_mean, mean AS cost_mean,
       CASE WHEN n < 2 OR w - w2 / w <= 0 THEN 0
            ELSE sqrt(greatest(inner_m2 + outer_m2, 0) / (w - w2 / w)) END AS cost_stddev,
       epoch_ms(newest) AS last
FROM keys ORDER BY job, platform, signal, variant`,
		int64(now), decay(p), int(sample.Capped|sample.Split), p.MinSamples, p.MinTasks, p.StaleAfter.Milliseconds())
}

// decay is the natural logarithm of what a weight loses in a millisecond.
func decay(p spec.Params) string {
	return fmt.Sprintf("(ln(%s::DOUBLE) / %d)", strconv.FormatFloat(p.AgeWeight, 'g', -1, 64), (24 * time.Hour).Milliseconds())
}

// SpecsOf reads the answer to SpecSQL; of kept ones when they were computed and
// their version follow.
func SpecsOf(a *Answer, now sample.Millis) ([]store.Spec, error) {
	all := make([]store.Spec, 0, len(a.Rows))
	for _, row := range a.Rows {
		s := store.Spec{At: int64(now)}
		into := []any{&s.Job, &s.Platform, &s.Signal, &s.Variant, &s.State, &s.Tasks, &s.Samples, &s.CPUMean, &s.Mean, &s.StdDev, &s.Last, &s.At, &s.Version}
		if err := json.Unmarshal(row, &into); err != nil {
			return nil, fmt.Errorf("read specs: %w", err)
		}
		all = append(all, s)
	}
	if a.Truncated {
		return nil, fmt.Errorf("read specs: there are more than the %d that fit the limits", len(all))
	}
	return all, nil
}
