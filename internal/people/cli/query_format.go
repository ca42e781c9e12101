package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/cluster/api"
)

// valueKind is how a file holds a column's values.
type valueKind int

const (
	asText  valueKind = iota // also lists, structs and numbers that no 64 bits hold, as JSON
	asInt                    // int64
	asFloat                  // double
	asBool
	asTime // UTC, µs
)

// kindOf interprets the type names of DuckDB and of Spark, which are alike but for case.
func kindOf(name string) valueKind {
	name = strings.ToUpper(name)
	switch {
	case strings.HasSuffix(name, "]"):
		return asText
	case strings.HasPrefix(name, "TIMESTAMP"):
		return asTime
	}
	switch strings.TrimPrefix(name, "U") {
	case "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "INT", "LONG", "SHORT", "BYTE":
		if name != "UBIGINT" {
			return asInt
		}
	case "FLOAT", "DOUBLE":
		return asFloat
	case "BOOLEAN":
		return asBool
	}
	return asText
}

// typed are the values of a column: nil, string, int64, float64, bool or time.Time. A column of
// which one value is not what its type says is text.
func typed(answer *cluster.Answer, column int) (valueKind, []any) {
	kind := kindOf(answer.Columns[column].Type)
	values := make([]any, len(answer.Rows))
	for i, r := range answer.Rows {
		if column >= len(r) || string(r[column]) == "null" {
			continue
		}
		v, err := typedValue(kind, r[column])
		if err != nil {
			kind = asText
			for i, r := range answer.Rows {
				values[i] = nil
				if column < len(r) && string(r[column]) != "null" {
					values[i] = plainText(r[column], "")
				}
			}
			break
		}
		values[i] = v
	}
	return kind, values
}

func typedValue(kind valueKind, raw json.RawMessage) (any, error) {
	text := plainText(raw, "")
	switch kind {
	case asInt:
		return strconv.ParseInt(text, 10, 64)
	case asFloat:
		return strconv.ParseFloat(text, 64)
	case asBool:
		return strconv.ParseBool(text)
	case asTime:
		return time.Parse(time.RFC3339Nano, text)
	}
	return text, nil
}

// writeArrow writes an Arrow IPC stream.
func writeArrow(w io.Writer, answer *cluster.Answer) error {
	var fields []arrow.Field
	var columns []arrow.Array
	for i, c := range answer.Columns {
		kind, values := typed(answer, i)
		of := [...]arrow.DataType{asText: arrow.BinaryTypes.String, asInt: arrow.PrimitiveTypes.Int64, asFloat: arrow.PrimitiveTypes.Float64,
			asBool: arrow.FixedWidthTypes.Boolean, asTime: arrow.FixedWidthTypes.Timestamp_us}[kind]
		b := array.NewBuilder(memory.DefaultAllocator, of)
		defer b.Release()
		for _, v := range values {
			switch v := v.(type) {
			case nil:
				b.AppendNull()
			case string:
				b.(*array.StringBuilder).Append(strings.ToValidUTF8(v, "\uFFFD"))
			case int64:
				b.(*array.Int64Builder).Append(v)
			case float64:
				b.(*array.Float64Builder).Append(v)
			case bool:
				b.(*array.BooleanBuilder).Append(v)
			case time.Time:
				b.(*array.TimestampBuilder).Append(arrow.Timestamp(v.UnixMicro()))
			}
		}
		made := b.NewArray()
		defer made.Release()
		fields, columns = append(fields, arrow.Field{Name: c.Name, Type: of, Nullable: true}), append(columns, made)
	}
	schema := arrow.NewSchema(fields, nil)
	rows := array.NewRecordBatch(schema, columns, int64(len(answer.Rows)))
	defer rows.Release()
	out := ipc.NewWriter(w, ipc.WithSchema(schema))
	if err := out.Write(rows); err != nil {
		return fmt.Errorf("write Arrow: %w", err)
	}
	return out.Close()
}

// inOrder is a group whose fields have the order of names; a parquet.Group sorts them.
type inOrder struct {
	parquet.Group
	names []string
}

func (g inOrder) Fields() []parquet.Field {
	all := g.Group.Fields()
	slices.SortFunc(all, func(x, y parquet.Field) int { return slices.Index(g.names, x.Name()) - slices.Index(g.names, y.Name()) })
	return all
}

// writeParquet writes a Parquet file.
func writeParquet(w io.Writer, answer *cluster.Answer) error {
	root := inOrder{Group: parquet.Group{}}
	rows := make([]parquet.Row, len(answer.Rows))
	for i, c := range answer.Columns {
		if _, twice := root.Group[c.Name]; twice {
			return fmt.Errorf("write Parquet: two columns are named %q; name one with AS", c.Name)
		}
		kind, values := typed(answer, i)
		of := [...]parquet.Node{asText: parquet.String(), asInt: parquet.Int(64), asFloat: parquet.Leaf(parquet.DoubleType), asBool: parquet.Leaf(parquet.BooleanType),
			asTime: parquet.Timestamp(parquet.Microsecond)}[kind]
		root.Group[c.Name], root.names = parquet.Compressed(parquet.Optional(of), &parquet.Snappy), append(root.names, c.Name)
		for r, v := range values {
			if at, ok := v.(time.Time); ok {
				v = at.UnixMicro()
			}
			present := 1
			if v == nil {
				present = 0
			}
			rows[r] = append(rows[r], parquet.ValueOf(v).Level(0, present, i))
		}
	}
	out := parquet.NewWriter(w, parquet.NewSchema("query", root))
	if _, err := out.WriteRows(rows); err != nil {
		return fmt.Errorf("write Parquet: %w", err)
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("write Parquet: %w", err)
	}
	return nil
}
