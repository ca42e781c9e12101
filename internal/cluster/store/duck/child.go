package duck

import (
	"bufio"
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"strings"
	"time"

	duckdb "github.com/duckdb/duckdb-go/v2"

	"github.com/quell-dev/quell/internal/cluster/store/dialect"
)

// Child is the main function of the process that Runner starts. It sandboxes itself,
// opens DuckDB, waits for one Job, and writes the answer. dir is the store's folder.
func Child(dir string, in io.Reader, out io.Writer) error {
	fences, err := sandbox(dir) // the first call does not return: the process re-executes itself inside
	if err != nil {
		return fmt.Errorf("sandbox the query: %w", err)
	}
	e, err := open(context.Background())
	if err != nil {
		return err
	}
	var job Job
	switch err := json.NewDecoder(in).Decode(&job); {
	case errors.Is(err, io.EOF):
		return e.Close() // no query came
	case err != nil:
		return fmt.Errorf("read query: %w", errors.Join(err, e.Close()))
	}
	if err := limit(&job.Limits); err != nil {
		return fmt.Errorf("limit the query: %w", errors.Join(err, e.Close()))
	}
	return e.answer(&job, append(fences, "limits"), out)
}

// answer writes the active fences and the answer, and closes the engine.
func (e *engine) answer(job *Job, fences []string, out io.Writer) error {
	w := bufio.NewWriterSize(out, 1<<16)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(line{Fences: fences}); err != nil {
		return err
	}
	a := &answer{limits: job.Limits, enc: enc}
	if err := errors.Join(e.run(context.Background(), job, a), e.Close()); err != nil {
		bad, own := errors.AsType[*Error](err)
		if !own {
			bad = &Error{Broken, err.Error()}
		}
		if err := enc.Encode(line{Err: bad}); err != nil {
			return err
		}
	} else if err := enc.Encode(line{End: &a.truncated}); err != nil {
		return err
	}
	return w.Flush()
}

// answer writes columns and rows up to the limits.
type answer struct {
	limits    Limits
	enc       *json.Encoder
	truncated bool
}

func (e *engine) run(ctx context.Context, job *Job, a *answer) (err error) {
	if err := e.restrict(ctx, job); err != nil {
		return err
	}
	// DuckDB nearly always stops itself in time; otherwise the parent kills the process.
	ctx, cancel := context.WithTimeout(ctx, job.Limits.Time)
	defer cancel()
	stmt, err := e.prepare(ctx, job.SQL, job.Limits.Rows)
	if err != nil {
		return classify(err)
	}
	defer func() { err = errors.Join(err, stmt.Close()) }()
	rows, err := stmt.QueryContext(ctx, nil)
	if err != nil {
		return classify(err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	return a.write(rows)
}

// classify classifies an error of a statement by its cause.
func classify(err error) error {
	if own, ok := errors.AsType[*Error](err); ok {
		return own
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &Error{Exceeded, "the query exceeded its time limit"}
	}
	kind := Wrong
	if e, ok := errors.AsType[*duckdb.Error](err); ok {
		switch e.Type {
		case duckdb.ErrorTypeOutOfMemory, duckdb.ErrorTypeInterrupt:
			kind = Exceeded
		case duckdb.ErrorTypePermission:
			kind = Refused
		case duckdb.ErrorTypeIO, duckdb.ErrorTypeInternal, duckdb.ErrorTypeFatal:
			kind = Broken
		}
	}
	return &Error{kind, strings.TrimSpace(err.Error())}
}

func (a *answer) write(rows driver.Rows) error {
	var columns []dialect.Column
	typed, _ := rows.(driver.RowsColumnTypeDatabaseTypeName)
	for i, name := range rows.Columns() {
		c := dialect.Column{Name: name}
		if typed != nil {
			c.Type = typed.ColumnTypeDatabaseTypeName(i)
		}
		columns = append(columns, c)
	}
	if err := a.enc.Encode(line{Columns: columns}); err != nil {
		return err
	}
	values, row := make([]driver.Value, len(columns)), make([]any, len(columns))
	n, size := 0, int64(0)
	for {
		err := rows.Next(values)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return classify(err)
		}
		for i, v := range values {
			row[i] = jsonValue(v)
		}
		text, err := json.Marshal(row)
		if err != nil {
			return &Error{Wrong, "a value of the result cannot be encoded: " + err.Error()}
		}
		if len(text) > maxRow {
			return &Error{Exceeded, fmt.Sprintf("a row of the result is larger than %d MB", maxRow>>20)}
		}
		n, size = n+1, size+int64(len(text))
		if n > a.limits.Rows || size > a.limits.Bytes {
			a.truncated = true
			return nil
		}
		if err := a.enc.Encode(line{Row: text}); err != nil {
			return err
		}
	}
}

// jsonValue converts DuckDB's values for JSON. NaN and infinities become null, a time is UTC
// to the millisecond.
func jsonValue(v any) any {
	switch v := v.(type) {
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil
		}
	case float32:
		if v != v || math.IsInf(float64(v), 0) {
			return nil
		}
	case time.Time:
		return v.UTC().Format("2006-01-02T15:04:05.999Z")
	case []byte:
		return fmt.Sprintf("%x", v)
	case *big.Int:
		return json.Number(v.String())
	case duckdb.Decimal:
		return json.Number(v.String())
	case duckdb.UUID:
		return v.String()
	case []any:
		for i := range v {
			v[i] = jsonValue(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = jsonValue(v[k])
		}
	case duckdb.Map:
		m := make(map[string]any, len(v))
		for k, x := range v {
			m[fmt.Sprint(k)] = jsonValue(x)
		}
		return m
	case nil, bool, string, int8, int16, int32, int64, uint8, uint16, uint32, uint64, int, uint:
	default:
		return fmt.Sprint(v)
	}
	return v
}
