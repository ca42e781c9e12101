package parquet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace"
)

// The keys of the file's metadata: the version of the format; in a labelled trace its
// labels, as a JSON list of trace.Label; and the stretches that are left out of that,
// as a JSON list of trace.Stretch.
const (
	formatKey     = "quell.trace"
	labelsKey     = "quell.labels"
	unlabelledKey = "quell.unlabelled"
	version       = "1"
)

const (
	// batch is the number of rows that go to and from the library at once.
	batch = 1024
	// groupRows bounds a row group, and with it what Write holds in memory: some
	// 20 MB. Readers skip by row groups.
	groupRows = 1 << 18
	// pageBytes bounds a page, and with it what Read holds in memory for each column.
	pageBytes = 1 << 18
)

// Options returns the options of writing: compressed with zstd, in row groups and pages
// of quell's size.
func Options() []parquet.WriterOption {
	return []parquet.WriterOption{parquet.Compression(&parquet.Zstd), parquet.MaxRowsPerRowGroup(groupRows),
		parquet.PageBufferSize(pageBytes), parquet.KeyValueMetadata(formatKey, version)}
}

// Writer writes samples as Parquet. The file cannot be read before Close. A Writer is
// not safe for use from several goroutines.
type Writer struct {
	w          *parquet.GenericWriter[tracedRow]
	samples    []sample.Sample
	rows       []tracedRow
	values     []float64
	labels     []trace.Label
	unlabelled []trace.Stretch
	labelled   bool
}

// NewWriter returns a Writer to w, which stays the caller's to close.
func NewWriter(w io.Writer) *Writer {
	extras := len(sample.AllExtras())
	return &Writer{w: parquet.NewGenericWriter[tracedRow](w, Options()...), samples: make([]sample.Sample, 0, batch),
		rows: make([]tracedRow, batch), values: make([]float64, 0, batch*extras)}
}

// Write adds one sample. One that could not be read back is refused with
// trace.ErrSample and nothing is written.
func (w *Writer) Write(s *sample.Sample) error {
	if err := trace.Check(s); err != nil {
		return err
	}
	for _, e := range sample.AllExtras() {
		if v, ok := s.Extras.Get(e); ok && (math.IsNaN(v) || math.IsInf(v, 0)) {
			return fmt.Errorf("%w: %v %v", trace.ErrSample, e, v)
		}
	}
	w.samples = append(w.samples, *s)
	if s.Served != nil {
		w.samples[len(w.samples)-1].Served = slices.Clone(s.Served)
	}
	if len(w.samples) < batch {
		return nil
	}
	return w.flush()
}

func (w *Writer) flush() error {
	w.values = w.values[:0]
	for i := range w.samples {
		w.values = w.rows[i].set(&w.samples[i], w.values)
	}
	_, err := w.w.Write(w.rows[:len(w.samples)])
	w.samples = w.samples[:0]
	if err != nil {
		return fmt.Errorf("write trace as Parquet: %w", err)
	}
	return nil
}

// Labels marks the trace as labelled, and adds labels.
func (w *Writer) Labels(labels ...trace.Label) error {
	for i := range labels {
		if err := labels[i].Check(); err != nil {
			return err
		}
	}
	w.labels, w.labelled = append(w.labels, labels...), true
	return nil
}

// Unlabelled marks the trace as labelled except for stretches.
func (w *Writer) Unlabelled(stretches ...trace.Stretch) error {
	for i := range stretches {
		if err := stretches[i].Check(); err != nil {
			return err
		}
	}
	w.unlabelled, w.labelled = append(w.unlabelled, stretches...), true
	return nil
}

// Close writes what is left, and the file's end.
func (w *Writer) Close() error {
	if err := w.flush(); err != nil {
		return err
	}
	var err error
	describe := func(key string, list any) {
		text, e := json.Marshal(list)
		w.w.SetKeyValueMetadata(key, string(text))
		err = errors.Join(err, e)
	}
	if w.labelled {
		describe(labelsKey, append([]trace.Label{}, w.labels...))
	}
	if len(w.unlabelled) > 0 {
		describe(unlabelledKey, w.unlabelled)
	}
	if err = errors.Join(err, w.w.Close()); err != nil {
		return fmt.Errorf("write trace as Parquet: %w", err)
	}
	return nil
}
