package segment

import (
	"strings"

	"github.com/parquet-go/parquet-go/format"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Series is the set of fields common to all samples of one task and signal, in the order
// by which files are sorted.
type Series [texts]string

// The indices into a Series.
const (
	Job = iota
	Platform
	Task
	Machine
	Signal
	Variant
	Class
	texts
)

// textNames returns the columns of a Series.
func textNames() [texts]string {
	return [texts]string{"job", "platform", "task", "machine", "signal", "variant", "class"}
}

// Compare orders series as files are sorted.
func Compare(a, b *Series) int {
	for i := range a {
		if d := strings.Compare(a[i], b[i]); d != 0 {
			return d
		}
	}
	return 0
}

// Of sets the series of a sample.
func (s *Series) Of(m *sample.Sample) {
	*s = Series{Job: string(m.Job), Platform: string(m.Platform), Task: string(m.Task), Machine: m.Machine,
		Signal: string(m.Signal), Variant: m.Variant, Class: m.Class.String()}
}

// Order returns the columns by which files are sorted.
func Order() []string { names := textNames(); return append(names[:], "ts") }

// sorting returns Order as the metadata of a row group.
func (l *layout) sorting() []format.SortingColumn {
	var by []format.SortingColumn
	for _, name := range Order() {
		by = append(by, format.SortingColumn{ColumnIdx: int32(l.at[name])})
	}
	return by
}
