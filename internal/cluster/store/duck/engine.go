package duck

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	duckdb "github.com/duckdb/duckdb-go/v2"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/dialect"
)

// engine is an in-memory DuckDB.
type engine struct {
	db   *sql.DB
	conn *sql.Conn
}

func open(ctx context.Context) (*engine, error) {
	connector, err := duckdb.NewConnector("", nil)
	if err != nil {
		return nil, fmt.Errorf("open DuckDB: %w", err)
	}
	e := &engine{db: sql.OpenDB(connector)}
	if e.conn, err = e.db.Conn(ctx); err != nil {
		return nil, fmt.Errorf("open DuckDB: %w", errors.Join(err, e.db.Close()))
	}
	return e, nil
}

// restrict creates the views over a job's segments, and then restricts DuckDB to them.
func (e *engine) restrict(ctx context.Context, job *Job) error {
	statements := []string{
		fmt.Sprintf("SET memory_limit='%dMB'", job.Limits.MemoryMB),
		fmt.Sprintf("SET threads=%d", max(1, job.Limits.Threads)),
		"SET temp_directory=''", // nothing is written, even if it does not fit in memory
		"SET autoinstall_known_extensions=false", "SET autoload_known_extensions=false",
		"SET allow_community_extensions=false", "SET TimeZone='UTC'", "SET preserve_insertion_order=false",
		"SET errors_as_json=false",
	}
	statements = append(statements, views(job)...)
	statements = append(statements, "SET allowed_paths="+list(slices.Concat(slices.Collect(maps.Values(job.Files))...)), "SET enable_external_access=false", "SET lock_configuration=true")
	for _, s := range statements {
		if _, err := e.conn.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("prepare DuckDB: %.80s: %w", s, err)
		}
	}
	return nil
}

func (e *engine) Close() error { return errors.Join(e.conn.Close(), e.db.Close()) }

func list(texts []string) string {
	quoted := make([]string, len(texts))
	for i, s := range texts {
		quoted[i] = dialect.DuckDB().Quote(s)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// views returns the statements that create the tables for users' queries (docs/sql.md).
func views(job *Job) []string {
	d := dialect.DuckDB()
	all := []string{"CREATE TABLE machines (machine VARCHAR, boot VARCHAR, stream VARCHAR, batch UBIGINT, last_seen TIMESTAMPTZ)"}
	for _, table := range store.Tables() {
		scan := "SELECT * FROM read_parquet(" + list(job.Files[table])
		if table == store.Samples {
			scan += ")" + d.Between(job.From, job.To)
		} else {
			scan += ", union_by_name = true)" // few files; old ones may lack columns
		}
		all = append(all, "CREATE VIEW "+dialect.Table(table)+" AS "+scan)
	}
	// The file's name is the study's; a report of an older quell may lack columns.
	lab := "CREATE TABLE lab (study VARCHAR, analysis VARCHAR, quantity VARCHAR, cell VARCHAR, part VARCHAR, \"at\" VARCHAR, unit VARCHAR, value DOUBLE, low DOUBLE, high DOUBLE, level DOUBLE, method VARCHAR, n INTEGER)"
	if len(job.Files[dialect.Lab]) > 0 {
		lab = "CREATE VIEW lab AS SELECT parse_filename(filename, true) AS study, * EXCLUDE (filename) FROM read_parquet(" + list(job.Files[dialect.Lab]) + ", union_by_name = true, filename = true)"
	}
	all = append(all, lab)
	for _, v := range d.Views() {
		all = append(all, "CREATE VIEW "+v.Name+" AS "+v.Query)
	}
	var rows []string
	for _, m := range job.Machines {
		rows = append(rows, fmt.Sprintf("(%s, %s, %s, %d, %s)", d.Quote(m.Machine), d.Quote(m.Boot), d.Quote(m.Stream), m.Batch, d.At(m.LastSeen)))
	}
	if len(rows) > 0 {
		all = append(all, "INSERT INTO machines VALUES "+strings.Join(rows, ", "))
	}
	return all
}

// explain matches the prefix of a SELECT that is to be explained. With ANALYZE the
// statement is executed, so it must be a SELECT.
var explain = regexp.MustCompile(`(?is)^\s*explain\s+(?:analyze\s+)?`)

// barred matches in a parsed statement the functions that take another statement as a text, whose functions are not
// in it, and what only these can call. json_execute_serialized_sql and json_deserialize_sql take a parsed statement,
// with values of types that SQL has no names for: arrow_scan calls functions at the addresses that it is given.
var barred = regexp.MustCompile(`(?i)"function_name":"(json_execute_serialized_sql|json_deserialize_sql|json_serialize_plan|query|arrow_scan|arrow_scan_dumb)"`)

// check returns why a text is no SELECT, or no EXPLAIN of one, that may be prepared: to prepare one calls its table
// functions. It is only parsed, by DuckDB itself, which writes it as JSON; in that no text of a user looks like a key.
func (e *engine) check(ctx context.Context, text string) error {
	if strings.ContainsRune(text, 0) {
		return refused("a statement has no zero byte") // what follows is not prepared
	}
	var parsed string
	if err := e.conn.QueryRowContext(ctx, "SELECT CAST(json_serialize_sql(CAST(? AS VARCHAR)) AS VARCHAR)", explain.ReplaceAllString(text, "")).Scan(&parsed); err != nil {
		return err
	}
	var of struct {
		Kind       string            `json:"error_type"`
		Message    string            `json:"error_message"`
		Statements []json.RawMessage `json:"statements"`
	}
	if err := json.Unmarshal([]byte(parsed), &of); err != nil {
		return refused("the statement is nested too deeply")
	}
	switch found := barred.FindStringSubmatch(parsed); {
	case of.Kind == "parser":
		return &Error{Wrong, "Parser Error: " + of.Message}
	case len(of.Statements) != 1:
		return refused("only one SELECT is allowed, or an EXPLAIN of one")
	case found != nil:
		return refused("the function %s is not allowed", found[1])
	}
	return nil
}

// prepare prepares a statement if it is allowed. It returns at most one row more than
// rows.
func (e *engine) prepare(ctx context.Context, text string, rows int) (stmt *duckdb.Stmt, err error) {
	if err := e.check(ctx, text); err != nil {
		return nil, err
	}
	err = e.conn.Raw(func(c any) error {
		conn, ok := c.(*duckdb.Conn)
		if !ok {
			return errors.New("the connection is not DuckDB's")
		}
		if stmt, err = typed(conn, text); err != nil {
			return err
		}
		kind, err := stmt.StatementType()
		if err != nil {
			return errors.Join(err, stmt.Close())
		}
		switch kind {
		case duckdb.STATEMENT_TYPE_SELECT:
			// DuckDB materialises an answer completely before the first row is read.
			if cut, err := typed(conn, fmt.Sprintf("SELECT * FROM (%s\n) LIMIT %d", strings.TrimRight(text, "; \t\r\n"), rows+1)); err == nil {
				err = stmt.Close()
				stmt = cut
				return err
			}
			return nil
		case duckdb.STATEMENT_TYPE_EXPLAIN:
			inner, err := typed(conn, explain.ReplaceAllString(text, ""))
			if err != nil {
				return errors.Join(refused("only SELECT can be explained: %v", err), stmt.Close())
			}
			kind, err := inner.StatementType()
			if err = errors.Join(err, inner.Close()); err == nil && kind == duckdb.STATEMENT_TYPE_SELECT {
				return nil
			}
			return errors.Join(refused("only SELECT can be explained"), stmt.Close())
		}
		return errors.Join(refused("only SELECT is allowed"), stmt.Close())
	})
	return stmt, err
}

// typed prepares a statement without running anything.
func typed(conn *duckdb.Conn, text string) (*duckdb.Stmt, error) {
	s, err := conn.Prepare(text) // PrepareContext would execute all of several statements but the last
	if err != nil {
		return nil, err
	}
	stmt, ok := s.(*duckdb.Stmt)
	if !ok {
		return nil, errors.Join(errors.New("the statement is not DuckDB's"), s.Close())
	}
	return stmt, nil
}

var _ driver.Stmt = (*duckdb.Stmt)(nil)
