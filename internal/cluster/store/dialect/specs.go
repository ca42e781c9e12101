package dialect

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// Specs is the paper's aggregation (CPI², section 3.1) over the table of samples. For
// each job, platform, signal and variant it returns the mean and standard deviation of
// the cost. The weight of each sample is AgeWeight to the power of its hour's age in
// days, and the divisor is the sum of the weights, not the number of samples. SpecsOf
// reads the result.
//
// Samples that detection would not judge are not learnt from (spec.Filter), nor are samples
// of a victim from the first bad interval of an incident to its end, unless the incident
// is a lasting change, which the spec follows.
//
// Spark executes it (specs.engine: sc://…). In DuckDB only tests do, which compare its
// result with that of package digest.
//
// One pass: sums for each task, whose moments are then merged (Chan, Golub and LeVeque,
// 1979), as in stat.Moments.
func (d Dialect) Specs(p spec.Params, now sample.Millis) string {
	millis := func(column string) string { return fmt.Sprintf(d.millis, column) }
	return fmt.Sprintf(`WITH victims AS (
  SELECT machine, victim_task AS task, signal, began, coalesce(closed, updated) AS ended FROM incidents WHERE NOT follows
), teaching AS (
  SELECT s.job, s.platform, s.signal, s.variant, s.machine, s.task, s.ts,
         CAST(s.cpu AS DOUBLE) AS cpu, CAST(s.cost AS DOUBLE) AS cost,
         exp(%[2]s * (%[3]d - floor(%[7]s / %[8]d))) AS w
  FROM samples s
  ANTI JOIN victims i ON i.machine = s.machine AND i.task = s.task AND i.signal = s.signal AND s.ts >= i.began AND s.ts <= i.ended
  WHERE (s.flags & %[4]d) = 0 AND s.ts <= %[9]s
    AND (%[12]s)
), tasks AS (
  SELECT job, platform, signal, variant, count(*) AS n, sum(w) AS sw, sum(w * w) AS sw2,
         sum(w * cpu) AS swu, sum(w * cost) AS swc, sum(w * cost * cost) AS swcc, max(ts) AS newest
  FROM teaching GROUP BY job, platform, signal, variant, machine, task
), keys AS (
  SELECT job, platform, signal, variant, count(*) AS tasks, count(*) FILTER (WHERE n >= %[5]d) AS enough,
         sum(n) AS n, sum(sw) AS w, sum(sw2) AS w2, sum(swu) / sum(sw) AS cpu, sum(swc) / sum(sw) AS mean,
         sum(greatest(swcc - swc * swc / sw, 0e0)) AS inner_m2,
         sum(swc * swc / sw) - sum(swc) * sum(swc) / sum(sw) AS outer_m2, max(newest) AS newest
  FROM tasks GROUP BY job, platform, signal, variant
)
SELECT job, platform, signal, variant,
       CASE WHEN tasks < %[6]d THEN 'insufficient'
            WHEN enough < %[6]d THEN 'learning'
            WHEN %[1]d - %[10]s > %[11]d THEN 'stale'
            ELSE 'ready' END AS state,
       enough AS tasks, CAST(n AS BIGINT) AS num_samples, cpu AS cpu_usage_mean, mean AS cost_mean,
       CASE WHEN n < 2 OR w - w2 / w <= 0 THEN 0e0
            ELSE sqrt(greatest(inner_m2 + outer_m2, 0e0) / (w - w2 / w)) END AS cost_stddev,
       %[10]s AS newest_sample
FROM keys ORDER BY job, platform, signal, variant`,
		int64(now), decay(p), int64(now)/spec.HourMS, int(spec.ExcludedFlags), p.MinSamples, p.MinTasks,
		millis("s.ts"), spec.HourMS, d.At(now), millis("newest"), p.StaleAfter.Milliseconds(), d.sampleFilter())
}

// sampleFilter is spec.Filter of each signal. A join with the table of signals would lose the
// dictionaries by which DuckDB groups: five times as long.
func (d Dialect) sampleFilter() string {
	var all []string
	for _, s := range sample.Signals() {
		rule, _ := spec.FilterOf(s.Name) // it is one of those
		c := fmt.Sprintf("s.signal = %s AND s.cost >= %s", d.Quote(string(s.Name)), double(rule.Least))
		if rule.Most < math.MaxFloat64 {
			c += " AND s.cost <= " + double(rule.Most)
		}
		if !math.IsInf(rule.LeastCPU, -1) {
			c += " AND s.cpu >= " + double(rule.LeastCPU)
		}
		all = append(all, c)
	}
	return strings.Join(all, "\n      OR ")
}

// decay is the natural logarithm of the factor by which a weight decreases per hour.
func decay(p spec.Params) string {
	return fmt.Sprintf("(ln(CAST(%s AS DOUBLE)) / 24)", strconv.FormatFloat(p.AgeWeight, 'g', -1, 64))
}

// SpecsOf reads the rows of the result of Specs, each a JSON list. Stored specs also have
// the time of their computation and their version.
func SpecsOf(rows []json.RawMessage, now sample.Millis) ([]store.Spec, error) {
	all := make([]store.Spec, 0, len(rows))
	for _, row := range rows {
		s := store.Spec{At: int64(now)}
		into := []any{&s.Job, &s.Platform, &s.Signal, &s.Variant, &s.State, &s.Tasks, &s.Samples, &s.CPUMean, &s.Mean, &s.StdDev, &s.Last, &s.At, &s.Version,
			&s.Since, &s.P50, &s.P90, &s.P99, &s.Usage}
		if err := json.Unmarshal(row, &into); err != nil {
			return nil, fmt.Errorf("read specs: %w", err)
		}
		all = append(all, s)
	}
	return all, nil
}

// KeyOf returns the key of a stored version.
func KeyOf(v *store.Spec) spec.Key {
	return spec.Key{Job: sample.JobName(v.Job), Platform: sample.Platform(v.Platform), Signal: sample.SignalName(v.Signal), Variant: v.Variant}
}

// SpecOf converts a stored version to a spec.Spec.
func SpecOf(v *store.Spec) spec.Spec {
	out := spec.Spec{Key: KeyOf(v), Samples: v.Samples, Tasks: int(v.Tasks), CPUMean: v.CPUMean, Mean: v.Mean, StdDev: v.StdDev, Updated: sample.Millis(v.At)}
	if out.State.UnmarshalText([]byte(v.State)) != nil {
		out.State = spec.Insufficient
	}
	return out
}
