package evaluation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Ask runs a SELECT over the tables of a store (docs/sql.md). Only rows of the given time
// need be read. It returns all rows, or ErrLimit.
type Ask func(ctx context.Context, sql string, from, to sample.Millis) ([][]json.RawMessage, error)

// ErrLimit means that an answer exceeds a limit of the server: of rows, bytes, memory or time.
var ErrLimit = errors.New("the answer exceeds the server's limits; raise query.rows, query.max_mb, query.memory_mb or query.time")

// The statements that read the tables of incidents. No other file knows their columns.
const (
	// plain is true for incidents that began and ended in the time and named no antagonist:
	// nearly all of them.
	plain = `max(antagonists) = 0 AND min(opened) >= {from} AND bool_or(closed IS NOT NULL)`
	// plainSQL selects the figures of their first states, in lists of equal length for each hour,
	// since a row for each takes longer to write and to read than all the rest. −2 and −1 stand
	// for what is not known.
	plainSQL = `SELECT kind, victim_class, list(coalesce(correlation, -2)), list(degradation), list(coalesce(busy, -1)), list(coalesce(cpus, -1)) FROM (
  SELECT unnest(state), updated FROM (
    SELECT min(updated) AS updated, arg_min({'kind': kind, 'victim_class': victim_class, 'correlation': correlation, 'degradation': cost / spec_mean, 'busy': busy, 'cpus': cpus}, updated) AS state
    FROM incident_history WHERE updated >= {from} AND updated < {to} AND spec_mean > 0 GROUP BY machine, id HAVING ` + plain + `)
) GROUP BY kind, victim_class, time_bucket(INTERVAL 1 HOUR, updated)`
	// statesSQL selects for each other incident the first state of the time that names an
	// antagonist, and the first that names none; and whether the incident ended in that time.
	statesSQL = `SELECT machine, id, epoch_ms(updated), kind, victim_class, victim_job, suspect_job, antagonists > 0 AS accuses, correlation, cost, spec_mean, busy, cpus,
  bool_or(closed IS NOT NULL) OVER (PARTITION BY machine, id)
FROM incident_history SEMI JOIN (
  SELECT machine, id FROM incident_history WHERE updated >= {from} AND updated < {to} AND spec_mean > 0 GROUP BY machine, id HAVING NOT (` + plain + `)) USING (machine, id)
WHERE updated >= {from} AND updated < {to} AND spec_mean > 0
QUALIFY row_number() OVER (PARTITION BY machine, id, antagonists > 0 ORDER BY updated) = 1`

	// roundsSQL selects the newest state of each incident for which a task was capped, with
	// its rounds. Only documents of these states are read, and none is held.
	roundsSQL = `SELECT * FROM (SELECT machine, id, epoch_ms(updated), kind, signal, victim_class, victim_job, victim_task, epoch_ms(began), spec_mean, spec_stddev,
  CASE WHEN json_valid(doc) THEN CAST(json_extract(doc, '$.rounds') AS VARCHAR) END
FROM incident_history SEMI JOIN (
  SELECT machine, id, max(updated) AS updated FROM incident_history WHERE updated >= {from} AND updated < {to} AND capped_task <> '' AND spec_mean > 0 GROUP BY machine, id) USING (machine, id, updated)
WHERE updated >= {from} AND updated < {to} AND capped_task <> '' AND spec_mean > 0)
QUALIFY row_number() OVER (PARTITION BY machine, id) = 1`

	// largestSQL selects the machine whose documents are the largest together.
	largestSQL = `SELECT machine FROM incident_history WHERE updated >= {from} AND updated < {to} GROUP BY machine ORDER BY sum(strlen(doc)) DESC, machine LIMIT 1`
)

// The time that one statement covers at first: a day, or a week if it has few rows. It becomes
// no shorter than shortest.
const (
	day      = 24 * time.Hour
	week     = 7 * day
	shortest = time.Minute
	// mostLeftOut is the number of machines whose incidents are left out of a page.
	mostLeftOut = 10
)

// LeftOut is a machine of which no incidents were read in some minutes of a time: with them, an answer exceeded the
// server's limits.
type LeftOut struct {
	Machine string        `json:"machine"`
	From    sample.Millis `json:"from"`
	To      sample.Millis `json:"to"`
}

// tables reads a store's tables between two times.
type tables struct {
	ctx      context.Context
	ask      Ask
	from, to sample.Millis
	left     []LeftOut
}

// pages runs a statement page by page, in the order of time, and passes on its rows. {from}
// and {to} in it are replaced by the page's bounds. Pages become shorter where an answer
// exceeds the server's limits, and longer again later, so those do not limit the evaluation. Of a
// page that cannot become shorter, the incidents of the machines that reported most are left out.
// After each page it calls end, if that is not nil.
func (t *tables) pages(length time.Duration, sql string, end func(), use func(row []json.RawMessage) error) error {
	return t.pagesOf(length, []statement{{sql, use}}, end)
}

// statement is one of several that are run for each page.
type statement struct {
	sql string
	use func(row []json.RawMessage) error
}

// pagesOf is pages of several statements. A page's rows are used after all of them were read.
func (t *tables) pagesOf(length time.Duration, all []statement, end func()) error {
	answers, longest, read := make([][][]json.RawMessage, len(all)), length, 0
	var without []string
	for from := t.from; from < t.to; {
		to := min(from.Add(length), t.to)
		var err error
		for i := 0; i < len(all) && err == nil; i++ {
			answers[i], err = t.rows(all[i].sql, from, to, without...)
		}
		if errors.Is(err, ErrLimit) && length > shortest {
			length, read = length/2, 0
			continue
		}
		if errors.Is(err, ErrLimit) && len(without) < mostLeftOut && strings.Contains(all[0].sql, "incident_history") {
			if machine := t.largest(from, to, without); machine != "" {
				without = append(without, machine)
				continue
			}
		}
		if err != nil {
			return err
		}
		if read++; read%32 == 0 {
			length = min(2*length, longest)
		}
		t.leaveOut(without, from, to)
		without = nil
		for i, rows := range answers {
			if err := use(rows, all[i].use); err != nil {
				return err
			}
			answers[i] = nil
		}
		if end != nil {
			end()
		}
		from = to
	}
	return nil
}

// once runs a statement over a time. After an error no row was passed on, unless use failed.
func (t *tables) once(sql string, from, to sample.Millis, take func(row []json.RawMessage) error) error {
	rows, err := t.rows(sql, from, to)
	if err != nil {
		return err
	}
	return use(rows, take)
}

// largest is the machine that reported most in a page; "" if that cannot be found out.
func (t *tables) largest(from, to sample.Millis, without []string) (machine string) {
	rows, err := t.rows(largestSQL, from, to, without...)
	if err == nil {
		err = use(rows, func(row []json.RawMessage) error { return scan(row, &machine) })
	}
	if err != nil {
		return ""
	}
	return machine
}

// leaveOut records that a page has no incidents of some machines.
func (t *tables) leaveOut(machines []string, from, to sample.Millis) {
	for _, m := range machines {
		i := slices.IndexFunc(t.left, func(l LeftOut) bool { return l.Machine == m })
		if i < 0 {
			i, t.left = len(t.left), append(t.left, LeftOut{Machine: m, From: from})
		}
		t.left[i].From, t.left[i].To = min(t.left[i].From, from), max(t.left[i].To, to)
	}
}

func (t *tables) rows(sql string, from, to sample.Millis, without ...string) ([][]json.RawMessage, error) {
	rows, err := t.ask(t.ctx, bounded(sql, from, to, without), from, to)
	if err != nil {
		return nil, fmt.Errorf("read the tables from %s to %s: %w", from.Time().UTC().Format(time.RFC3339), to.Time().UTC().Format(time.RFC3339), err)
	}
	return rows, nil
}

func use(rows [][]json.RawMessage, take func(row []json.RawMessage) error) error {
	for _, row := range rows {
		if err := take(row); err != nil {
			return fmt.Errorf("read the tables: %w", err)
		}
	}
	return nil
}

// bounded replaces the bounds in a statement, each of which is the last part of a condition.
func bounded(sql string, from, to sample.Millis, without []string) string {
	until := instant(to)
	for _, machine := range without {
		until += " AND machine <> " + quote(machine)
	}
	return strings.NewReplacer("{from}", instant(from), "{to}", until).Replace(sql)
}

func instant(at sample.Millis) string { return fmt.Sprintf("make_timestamptz(%d)", int64(at)*1000) }

// quote returns a text as an SQL literal.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// scan reads the values of a row. A null leaves its target as it is, except pointers.
func scan(row []json.RawMessage, into ...any) error {
	if len(row) != len(into) {
		return fmt.Errorf("a row has %d columns, want %d", len(row), len(into))
	}
	for i, to := range into {
		if err := json.Unmarshal(row[i], to); err != nil {
			return fmt.Errorf("column %d: %w", i+1, err)
		}
	}
	return nil
}
