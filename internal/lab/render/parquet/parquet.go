// Package parquet writes a study's values and samples as Parquet, for column-oriented
// readers. It is separate from render, so that programs that need no Parquet, such as the
// agent, do not link it.
package parquet

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/render"
	"github.com/quell-dev/quell/internal/lab/result"
)

// ValueRow is the row of a render.Value in a file; null means not known.
type ValueRow struct {
	Analysis string   `parquet:"analysis,dict"`
	Quantity string   `parquet:"quantity,dict"`
	Cell     string   `parquet:"cell,dict"`
	Part     string   `parquet:"part,dict"`
	At       string   `parquet:"at,dict"`
	Unit     string   `parquet:"unit,dict"`
	Value    *float64 `parquet:"value"`
	Low      *float64 `parquet:"low"`
	High     *float64 `parquet:"high"`
	Level    float64  `parquet:"level"`
	Method   string   `parquet:"method,dict"`
	N        int32    `parquet:"n"`
}

// SampleRow is one value of one second of a run.
type SampleRow struct {
	Cell  string  `parquet:"cell,dict"` // the cell's key
	N     int32   `parquet:"n"`
	Try   int32   `parquet:"try"`
	AtNs  int64   `parquet:"at_ns,delta"` // end of the second, after the run's start
	Name  string  `parquet:"name,dict"`
	Value float64 `parquet:"value"`
}

// Values writes all numbers of a study's results. The stamps are in the file's
// metadata under "stamps".
func Values(w io.Writer, results *analyse.Results) error {
	var rows []ValueRow
	for _, v := range render.Values(results) {
		rows = append(rows, ValueRow{v.Analysis, v.Quantity, v.Cell, v.Part, v.At, v.Unit, null(v.Value), null(v.Low), null(v.High), v.Level, v.Method, int32(v.N)})
	}
	f := parquet.NewGenericWriter[ValueRow](w, parquet.Compression(&parquet.Zstd), parquet.KeyValueMetadata("stamps", fmt.Sprint(results.Stamps)))
	_, err := f.Write(rows)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return fmt.Errorf("write values as Parquet: %w", err)
	}
	return nil
}

func null(n stat.Float) *float64 {
	v := float64(n)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

// Samples writes every second of the given runs, run after run. It holds one run in
// memory at a time.
func Samples(w io.Writer, f *result.Folder, runs []result.Run) error {
	out := parquet.NewGenericWriter[SampleRow](w, parquet.Compression(&parquet.Zstd))
	var rows []SampleRow
	for i := range runs {
		r := &runs[i]
		seconds, err := f.Samples(r)
		if err != nil {
			return fmt.Errorf("write samples as Parquet: %w", err)
		}
		rows = rows[:0]
		for _, s := range seconds {
			for _, name := range slices.Sorted(maps.Keys(s.Values)) {
				rows = append(rows, SampleRow{r.CellKey, int32(r.N), int32(r.Try), int64(s.At / time.Nanosecond), name, s.Values[name]})
			}
		}
		if _, err := out.Write(rows); err != nil {
			return fmt.Errorf("write samples as Parquet: %w", err)
		}
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("write samples as Parquet: %w", err)
	}
	return nil
}
