package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/cluster/store/segment"
	"github.com/quell-dev/quell/internal/core/sample"
	trace "github.com/quell-dev/quell/internal/format/trace/parquet"
)

// The tables, as folders and in SQL.
const (
	Samples     = "samples"
	Incidents   = "incidents"
	Rounds      = "rounds"
	Suspects    = "suspects"
	Actions     = "actions"
	AuditLog    = "audit"
	Specs       = "specs"
	Revocations = "revocations"
)

// Tables lists them.
func Tables() []string {
	return []string{Samples, Incidents, Rounds, Suspects, Actions, AuditLog, Specs, Revocations}
}

// Segment is one immutable Parquet file.
type Segment struct {
	File  string        `json:"file"` // relative to the store's folder, with slashes
	Rows  int64         `json:"rows"`
	Bytes int64         `json:"bytes"`
	From  sample.Millis `json:"from"` // of its rows
	To    sample.Millis `json:"to"`
	Tier  int           `json:"tier,omitempty"` // how often its rows were merged
	// Layout is the version of the store that its rows are complete for (upgrade.go).
	Layout int `json:"layout,omitempty"`
}

// Table returns the name of its table.
func (s *Segment) Table() string {
	table, _, _ := strings.Cut(s.File, "/")
	return table
}

// folder returns its folder in the store.
func (s *Segment) folder() string { return path.Dir(s.File) }

// partition returns the folder for a time.
func partition(table string, at sample.Millis) string {
	t := at.Time()
	if table == Samples {
		return fmt.Sprintf("%s/day=%s/hour=%02d", table, t.Format(time.DateOnly), t.Hour())
	}
	return fmt.Sprintf("%s/day=%s", table, t.Format(time.DateOnly))
}

// order returns the columns by which a table's segments are sorted.
func order(table string) []parquet.SortingColumn {
	var by []parquet.SortingColumn
	for _, c := range map[string][]string{
		Samples:   segment.Order(),
		Incidents: {"updated"}, Rounds: {"updated"}, Suspects: {"updated"}, Actions: {"at"}, AuditLog: {"at"}, Specs: {"at"}, Revocations: {"at"},
	}[table] {
		by = append(by, parquet.Ascending(c))
	}
	return by
}

// options returns the writer options of every segment. The library would write the least and the greatest document of
// each page and row group again, not compressed.
func options(table string) []parquet.WriterOption {
	return append(trace.Options(), parquet.DataPageStatistics(false), parquet.SkipPageBounds("doc"), parquet.SortingWriterConfig(parquet.SortingColumns(order(table)...)))
}

// writeRecords writes rows of a table that are already sorted.
func writeRecords[T any](w io.Writer, table string, rows []T) error {
	schema := parquet.SchemaOf(new(T))
	g := &rowGroups{out: parquet.NewWriter(w, append(options(table), schema)...)}
	for i := range rows {
		if _, err := g.WriteRows([]parquet.Row{schema.Deconstruct(nil, &rows[i])}); err != nil {
			return err
		}
	}
	return g.out.Close()
}

// mergeRows writes the rows of several sorted segments as one. It is used for records and
// for samples that another program wrote.
func mergeRows(w io.Writer, table string, files []segment.Input) error {
	var groups []parquet.RowGroup
	for _, f := range files {
		if table == Samples {
			groups = append(groups, f.File.RowGroups()...)
		} else { // one row group's rows of each file are held, not those of all that overlap
			groups = append(groups, parquet.MultiRowGroup(f.File.RowGroups()...))
		}
	}
	merged, err := parquet.MergeRowGroups(groups, parquet.SortingRowGroupConfig(parquet.SortingColumns(order(table)...)))
	if err != nil {
		return err
	}
	out := parquet.NewWriter(w, append(options(table), merged.Schema())...)
	if table == Samples {
		_, err = out.WriteRowGroup(merged)
	} else {
		rows := merged.Rows()
		_, err = parquet.CopyRows(&rowGroups{out: out}, rows)
		err = errors.Join(err, rows.Close())
	}
	if err != nil {
		return err
	}
	return out.Close()
}

// groupText bounds the texts in a row group of records, bytes: a query holds those of 2,048 of its rows, and each may
// have 1 MB.
const groupText = 16 << 20

// rowGroups writes rows in row groups of at most groupText.
type rowGroups struct {
	out interface {
		parquet.RowWriter
		Flush() error
		Close() error
	}
	text int
}

// WriteRows implements parquet.RowWriter.
func (g *rowGroups) WriteRows(rows []parquet.Row) (n int, err error) {
	for ; n < len(rows) && err == nil; n++ {
		text := 0
		for _, v := range rows[n] {
			if v.Kind() == parquet.ByteArray {
				text += len(v.ByteArray())
			}
		}
		if g.text += text; g.text > groupText {
			err, g.text = g.out.Flush(), text
		}
		if err == nil {
			_, err = g.out.WriteRows(rows[n : n+1])
		}
	}
	return n, err
}

// SchemaFile returns the name of a table's file without rows. It gives readers the columns before there is a segment.
func SchemaFile(dir, table string) string { return folder{dir}.path(schemaName(table)) }

func schemaName(table string) string { return "schema/" + table + ".parquet" }

// writeSchemas rewrites the schema files with this version's columns.
func writeSchemas(dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "schema"), 0o700); err != nil {
		return fmt.Errorf("write schemas: %w", err)
	}
	for table, fill := range map[string]func(io.Writer) error{
		Samples:     func(w io.Writer) error { return writeRecords[trace.Row](w, Samples, nil) },
		Incidents:   func(w io.Writer) error { return writeRecords[Incident](w, Incidents, nil) },
		Rounds:      func(w io.Writer) error { return writeRecords[Round](w, Rounds, nil) },
		Suspects:    func(w io.Writer) error { return writeRecords[Suspect](w, Suspects, nil) },
		Actions:     func(w io.Writer) error { return writeRecords[Action](w, Actions, nil) },
		AuditLog:    func(w io.Writer) error { return writeRecords[Audit](w, AuditLog, nil) },
		Specs:       func(w io.Writer) error { return writeRecords[Spec](w, Specs, nil) },
		Revocations: func(w io.Writer) error { return writeRecords[Revocation](w, Revocations, nil) },
	} {
		if _, err := create(SchemaFile(dir, table), fill); err != nil {
			return err
		}
	}
	return nil
}
