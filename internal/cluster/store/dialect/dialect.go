// Package dialect defines in SQL the tables of a store and the computation of specs, for
// each supported query engine. It runs nothing.
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

// Dialect is the set of differences between engines for the same statement.
type Dialect struct {
	Name string
	// format strings of expressions
	millis string // of a timestamp: ms since 1970
	at     string // of such a number: the timestamp
}

// DuckDB is the dialect of users' queries (docs/sql.md).
func DuckDB() Dialect { return Dialect{"DuckDB", "epoch_ms(%s)", "make_timestamptz(%s * 1000)"} }

// Spark is the dialect of Apache Spark from version 4 on.
func Spark() Dialect { return Dialect{"Spark", "unix_millis(%s)", "timestamp_millis(%s)"} }

// Quote returns a text as a literal.
func (d Dialect) Quote(s string) string {
	if d.Name == "Spark" { // in which a backslash escapes
		s = strings.ReplaceAll(s, `\`, `\\`)
		return "'" + strings.ReplaceAll(s, "'", `\'`) + "'"
	}
	return "'" + strings.ReplaceAll(s, "'", "''") + "'"
}

// At returns a time as an expression.
func (d Dialect) At(t sample.Millis) string {
	return fmt.Sprintf(d.at, strconv.FormatInt(int64(t), 10))
}

// Between returns the conditions on a sample's time; none for a bound of 0.
func (d Dialect) Between(from, to sample.Millis) string {
	var where []string
	if from > 0 {
		where = append(where, "ts >= "+d.At(from))
	}
	if to > 0 {
		where = append(where, "ts <= "+d.At(to))
	}
	if len(where) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(where, " AND ")
}

// View is a table for users' queries that is derived from another.
type View struct {
	Name, Query string
}

// Views returns the tables derived from those with history: the current states.
func (d Dialect) Views() []View {
	return []View{
		{"incidents", "SELECT * FROM incident_history QUALIFY row_number() OVER (PARTITION BY machine, id ORDER BY updated DESC, closed DESC NULLS LAST) = 1"},
		{"specs", "SELECT * FROM spec_history QUALIFY row_number() OVER (PARTITION BY job, platform, signal, variant ORDER BY version DESC) = 1"},
		{"signals", d.signals()},
	}
}

// Files returns a snapshot's segments by table. The first of each has no rows and defines
// the columns.
func Files(sn *store.Snapshot) map[string][]string {
	files := map[string][]string{}
	for _, table := range store.Tables() {
		files[table] = append([]string{store.SchemaFile(sn.Dir, table)}, sn.Files(table)...)
	}
	return files
}

// Table returns the name of a store's table in users' queries.
func Table(name string) string {
	switch name {
	case store.Incidents:
		return "incident_history"
	case store.Specs:
		return "spec_history"
	}
	return name
}

func (d Dialect) signals() string {
	var rows []string
	for _, s := range sample.Signals() {
		rows = append(rows, fmt.Sprintf("(%s, %s, %s, %s, %s, %s)", d.Quote(string(s.Name)), d.Quote(s.Unit), d.Quote(s.Cost), number(s.LeastCPU), number(s.Min), number(s.Max)))
	}
	return "SELECT * FROM (VALUES " + strings.Join(rows, ", ") + ") AS signals(signal, unit, cost, least_cpu, least_cost, most_cost)"
}

// number formats a bound; an unreachable one is null. (The signal io has such a minimum
// CPU usage: its activity is measured differently.)
func number(v float64) string {
	if math.IsInf(v, 0) || v == math.MaxFloat64 {
		return "CAST(NULL AS DOUBLE)"
	}
	return double(v)
}

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

func double(v float64) string {
	return "CAST(" + strconv.FormatFloat(v, 'g', -1, 64) + " AS DOUBLE)"
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
