// Package parquet writes a study's values as Parquet, for column-oriented readers. It is
// separate from render, so that programs that need no Parquet, such as the agent, do not
// link it.
package parquet

import (
	"fmt"
	"io"
	"math"

	"github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/render"
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
