// Package dialect defines in SQL the tables of a store and the computation of specs, for
// each supported query engine. It runs nothing.
package dialect

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Dialect is the set of differences between engines for the same statement.
type Dialect struct {
	Name string
	// format strings of expressions
	millis string // of a timestamp: ms since 1970
	at     string // of such a number: the timestamp
	// matches is a condition on a text and a regular expression that matches a part of it.
	matches string
}

// DuckDB is the dialect of users' queries (docs/sql.md).
func DuckDB() Dialect {
	return Dialect{"DuckDB", "epoch_ms(%s)", "make_timestamptz(%s * 1000)", "regexp_matches(%s, %s)"}
}

// Spark is the dialect of Apache Spark from version 4 on.
func Spark() Dialect {
	return Dialect{"Spark", "unix_millis(%s)", "timestamp_millis(%s)", "(%s RLIKE %s)"}
}

// Quote returns a text as a literal. U+FFFD stands for a zero byte: DuckDB takes a statement up to
// the first.
func (d Dialect) Quote(s string) string {
	s = strings.ReplaceAll(s, "\x00", "\uFFFD")
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

// Column is a column of an answer.
type Column struct {
	Name string `json:"name"`
	Type string `json:"type"` // DuckDB's name, for every engine
}

// Answer is the result of a query.
type Answer struct {
	Columns   []Column          `json:"columns"`
	Rows      []json.RawMessage `json:"rows"`                // each a JSON list with a value for each column
	Truncated bool              `json:"truncated,omitempty"` // there are more rows
}

// View is a table for users' queries that is derived from another.
type View struct {
	Name, Query string
}

// Views returns the tables derived from those with history: the current states.
func (d Dialect) Views() []View {
	return []View{
		{"incidents", "SELECT * FROM incident_history QUALIFY row_number() OVER (PARTITION BY machine, id ORDER BY updated DESC, closed DESC NULLS LAST) = 1"},
		{"rounds", "SELECT * FROM round_history QUALIFY row_number() OVER (PARTITION BY machine, incident, id, task ORDER BY updated DESC, ended DESC NULLS LAST) = 1"},
		{"suspects", "SELECT * FROM suspect_history QUALIFY row_number() OVER (PARTITION BY machine, incident, task ORDER BY updated DESC, analysed DESC NULLS LAST) = 1"},
		{"specs", "SELECT * FROM spec_history QUALIFY row_number() OVER (PARTITION BY job, platform, signal, variant ORDER BY \"at\" DESC, version DESC) = 1"},
		{"signals", d.signals()},
	}
}

// Lab is the folder in a store, and the table, of the lab's results: the Parquet files of
// reports, which operators put there. They are not segments, and a store may have none.
const Lab = "lab"

// Files returns a snapshot's segments by table. The first of each has no rows and defines
// the columns. Lab's are those that are there now.
func Files(sn *store.Snapshot) map[string][]string {
	files := map[string][]string{}
	for _, table := range store.Tables() {
		files[table] = append([]string{store.SchemaFile(sn.Dir, table)}, sn.Files(table)...)
	}
	if results, err := filepath.Glob(filepath.Join(sn.Dir, Lab, "*.parquet")); err == nil && len(results) > 0 { // the pattern is valid
		files[Lab] = results
	}
	return files
}

// Table returns the name of a store's table in users' queries.
func Table(name string) string {
	switch name {
	case store.Incidents:
		return "incident_history"
	case store.Rounds:
		return "round_history"
	case store.Suspects:
		return "suspect_history"
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

func double(v float64) string {
	return "CAST(" + strconv.FormatFloat(v, 'g', -1, 64) + " AS DOUBLE)"
}
