package spark

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"google.golang.org/protobuf/proto"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/dialect"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// Tables creates the tables for users' queries (docs/sql.md) from a store's files, under
// the paths that Spark's executors use; samples are limited to from…to, 0 being no bound.
// There is no table machines: it is not in the files.
func (s *Session) Tables(ctx context.Context, files map[string][]string, from, to sample.Millis) error {
	d := dialect.Spark()
	for _, table := range store.Tables() {
		name, options := dialect.Table(table), map[string]string{"mergeSchema": "true"} // old files may lack columns
		if table == store.Samples {
			name, options = storedSamples, nil // too many to inspect each
		}
		read := &Relation{Read: &Read{DataSource: &Read_DataSource{Format: proto.String("parquet"), Options: options, Paths: files[table]}}}
		if err := s.view(ctx, name, read); err != nil {
			return err
		}
	}
	views := append([]dialect.View{{Name: store.Samples, Query: "SELECT * FROM " + storedSamples + d.Between(from, to)}}, d.Views()...)
	for _, v := range views {
		if err := s.view(ctx, v.Name, &Relation{Sql: &SQL{Query: v.Query}}); err != nil {
			return err
		}
	}
	return nil
}

// Files returns a snapshot's segments by table, as Spark's executors find them: in the
// store's bucket, or its folder. For a table without any it is the store's file without
// rows, which defines the columns.
func Files(sn *store.Snapshot) map[string][]string {
	files := map[string][]string{}
	for _, table := range store.Tables() {
		of := sn.URLs(table)
		if len(of) == 0 {
			of = []string{sn.SchemaURL(table)}
		}
		for i, f := range of {
			if whole, err := filepath.Abs(f); err == nil && !strings.Contains(f, "://") {
				of[i] = whole
			}
		}
		files[table] = of
	}
	return files
}

// storedSamples is the table of all samples in the given files.
const storedSamples = "stored_samples"

func (s *Session) view(ctx context.Context, name string, of *Relation) error {
	c := &Command{CreateDataframeView: &CreateDataFrameViewCommand{Input: of, Name: name, Replace: true}}
	if err := s.execute(ctx, &Plan{Command: c}, func(*ExecutePlanResponse) error { return nil }); err != nil {
		return fmt.Errorf("make table %s: %w", name, err)
	}
	return nil
}

// errEnough ends a query that has returned enough rows.
var errEnough = errors.New("rows enough")

// Query executes a statement and returns at most rows rows of its answer.
func (s *Session) Query(ctx context.Context, text string, rows int) (*dialect.Answer, error) {
	a := &dialect.Answer{Columns: []dialect.Column{}, Rows: []json.RawMessage{}}
	err := s.execute(ctx, &Plan{Root: &Relation{Sql: &SQL{Query: text}}}, func(part *ExecutePlanResponse) error {
		if b := part.GetArrowBatch(); b != nil {
			return addBatch(a, b.GetData(), rows)
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	return a, nil
}

// addBatch reads a batch, which is a complete Arrow stream.
func addBatch(a *dialect.Answer, data []byte, most int) error {
	r, err := ipc.NewReader(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("read Spark's answer: %w", err)
	}
	defer r.Release()
	if len(a.Columns) == 0 {
		for _, f := range r.Schema().Fields() {
			a.Columns = append(a.Columns, dialect.Column{Name: f.Name, Type: typeName(f.Type)})
		}
	}
	for r.Next() {
		batch := r.RecordBatch()
		row := make([]any, batch.NumCols())
		for i := range int(batch.NumRows()) {
			if len(a.Rows) == most {
				a.Truncated = true
				return errEnough
			}
			for j, column := range batch.Columns() {
				row[j] = jsonValue(column, i)
			}
			text, err := json.Marshal(row)
			if err != nil {
				return fmt.Errorf("read Spark's answer: %w", err)
			}
			a.Rows = append(a.Rows, text)
		}
	}
	if err := r.Err(); err != nil {
		return fmt.Errorf("read Spark's answer: %w", err)
	}
	return nil
}

var typeNames = map[arrow.Type]string{
	arrow.INT8: "TINYINT", arrow.INT16: "SMALLINT", arrow.INT32: "INTEGER", arrow.INT64: "BIGINT", arrow.FLOAT32: "FLOAT", arrow.FLOAT64: "DOUBLE",
	arrow.STRING: "VARCHAR", arrow.LARGE_STRING: "VARCHAR", arrow.BOOL: "BOOLEAN", arrow.TIMESTAMP: "TIMESTAMPTZ",
}

// typeName returns DuckDB's name of a type, so that answers are uniform.
func typeName(t arrow.DataType) string {
	switch t := t.(type) {
	case arrow.DecimalType:
		return fmt.Sprintf("DECIMAL(%d,%d)", t.GetPrecision(), t.GetScale())
	case arrow.ListLikeType:
		return typeName(t.Elem()) + "[]"
	}
	if name, ok := typeNames[t.ID()]; ok {
		return name
	}
	return strings.ToUpper(t.Name())
}

// jsonValue converts a value for JSON as store/duck does: NaN and infinities become null, a
// time is UTC to the millisecond.
func jsonValue(column arrow.Array, i int) any {
	if column.IsNull(i) {
		return nil
	}
	switch c := column.(type) {
	case *array.Float64, *array.Float32:
		if v, isText := c.GetOneForMarshal(i).(string); isText && slices.Contains([]string{"NaN", "+Inf", "-Inf"}, v) {
			return nil
		}
	case *array.Timestamp:
		if t, ok := c.DataType().(*arrow.TimestampType); ok {
			return c.Value(i).ToTime(t.Unit).UTC().Format("2006-01-02T15:04:05.999Z")
		}
	case *array.Decimal128:
		return json.RawMessage(c.ValueStr(i))
	}
	return column.GetOneForMarshal(i)
}

// Learner computes specs of a store's samples on Spark, in a session for each computation.
type Learner struct {
	Address, Token string
}

// maxSpecs bounds the result of a computation.
const maxSpecs = 5_000_000

// Learn computes the specs of a snapshot's samples between from and now. It omits
// quantiles, levels of usage, the names of machines that were left out, and whether the
// distribution has shifted. It finds the windows of victims itself, among the snapshot's
// incidents.
func (l *Learner) Learn(ctx context.Context, sn *store.Snapshot, from sample.Millis, windows []store.Window, p spec.Params, now sample.Millis) (learnt []spec.Computed, err error) {
	s, err := Open(ctx, l.Address, l.Token)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.Tables(ctx, Files(sn), from, now); err != nil {
		return nil, err
	}
	a, err := s.Query(ctx, dialect.Spark().Specs(p, windows, now), maxSpecs)
	if err != nil {
		return nil, err
	}
	if a.Truncated {
		return nil, fmt.Errorf("too many specs from Spark: more than %d", maxSpecs)
	}
	all, err := dialect.SpecsOf(a.Rows, now)
	for i := range all {
		learnt = append(learnt, spec.Computed{Spec: dialect.SpecOf(&all[i]), Last: sample.Millis(all[i].Last), Machines: int(all[i].Machines), OutCount: int(all[i].MachinesOut)})
	}
	return learnt, err
}
