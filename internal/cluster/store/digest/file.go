package digest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/format/atomicfile"
)

// row is a key's hour as stored in a digest.
type row struct {
	Job      string  `parquet:"job,dict"`
	Platform string  `parquet:"platform,dict"`
	Signal   string  `parquet:"signal,dict"`
	Variant  string  `parquet:"variant,dict"`
	Hour     int64   `parquet:"hour,timestamp(millisecond)"`
	Newest   int64   `parquet:"newest,timestamp(millisecond)"`
	CPU      float64 `parquet:"cpu_mean"`
	// Costs by level of usage: samples, mean, sum of squared differences from it.
	Level   []int32   `parquet:"level"`
	Samples []int64   `parquet:"level_samples"`
	Mean    []float64 `parquet:"level_mean"`
	M2      []float64 `parquet:"level_m2"`
	// Tasks, as spec.HashTask, and their samples.
	Task        []int64 `parquet:"task"`
	TaskSamples []int32 `parquet:"task_samples"`
	// The distribution of costs, as stat.Sketch.
	Bin        []int32 `parquet:"bin"`
	BinSamples []int64 `parquet:"bin_samples"`
}

func (r *row) key() spec.Key {
	return spec.Key{Job: sample.JobName(r.Job), Platform: sample.Platform(r.Platform), Signal: sample.SignalName(r.Signal), Variant: r.Variant}
}

// set sets the row to an hour and reuses its slices.
func (r *row) set(k spec.Key, h *spec.Hour) {
	*r = row{Job: string(k.Job), Platform: string(k.Platform), Signal: string(k.Signal), Variant: k.Variant,
		Hour: int64(h.Start), Newest: int64(h.Newest), CPU: h.CPU, Level: r.Level[:0], Samples: r.Samples[:0], Mean: r.Mean[:0], M2: r.M2[:0],
		Task: r.Task[:0], TaskSamples: r.TaskSamples[:0], Bin: r.Bin[:0], BinSamples: r.BinSamples[:0]}
	for i := range h.Usage {
		if m := &h.Usage[i]; m.N > 0 {
			r.Level, r.Samples, r.Mean, r.M2 = append(r.Level, int32(i)), append(r.Samples, m.N), append(r.Mean, m.Mean), append(r.M2, m.M2)
		}
	}
	for _, t := range h.Tasks {
		r.Task, r.TaskSamples = append(r.Task, int64(t.Task)), append(r.TaskSamples, int32(t.N))
	}
	for _, b := range h.Sketch.Bins() {
		r.Bin, r.BinSamples = append(r.Bin, b.Bin), append(r.BinSamples, int64(b.Count))
	}
}

var errDamaged = errors.New("a digest is damaged")

// hour returns the hour in a row.
func (r *row) hour() (h spec.Hour, err error) {
	if len(r.Samples) != len(r.Level) || len(r.Mean) != len(r.Level) || len(r.M2) != len(r.Level) || len(r.TaskSamples) != len(r.Task) || len(r.BinSamples) != len(r.Bin) {
		return h, errDamaged
	}
	h = spec.Hour{Start: sample.Millis(r.Hour), Newest: sample.Millis(r.Newest), CPU: r.CPU, Tasks: make([]spec.TaskSamples, len(r.Task))}
	for i, level := range r.Level {
		m := stat.Moments{N: r.Samples[i], W: float64(r.Samples[i]), W2: float64(r.Samples[i]), Mean: r.Mean[i], M2: r.M2[i]}
		if level < 0 || int(level) >= spec.UsageBins || m.N <= 0 || !m.Sane() {
			return h, errDamaged
		}
		h.Usage[level] = m
		h.Cost.Merge(m)
	}
	for i := range r.Task {
		h.Tasks[i] = spec.TaskSamples{Task: uint64(r.Task[i]), N: int64(r.TaskSamples[i])}
	}
	for i := range r.Bin {
		h.Sketch.AddBin(r.Bin[i], float64(r.BinSamples[i]))
	}
	if h.Cost.N == 0 {
		return h, errDamaged
	}
	return h, nil
}

// write makes a digest, completely or not at all. fill passes it the hours, by key.
func write(path string, fill func(emit func(spec.Key, *spec.Hour) error) error) error {
	var b bytes.Buffer
	w := parquet.NewGenericWriter[row](&b, parquet.Compression(&parquet.Zstd))
	one := make([]row, 1)
	err := fill(func(k spec.Key, h *spec.Hour) error {
		one[0].set(k, h)
		_, err := w.Write(one)
		return err
	})
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return err
	}
	return atomicfile.Write(path, b.Bytes(), 0o600)
}

// digest is a digest file that is being read, by key.
type digest struct {
	path string
	file *os.File
	in   *parquet.GenericReader[row]
	rows []row
	at   int // in rows
	n    int
	end  bool
}

// ahead is how many rows of a digest are read at once.
const ahead = 64

func open(path string) (d *digest, err error) {
	defer damaged(path, &err)
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	d = &digest{path: path, file: f, rows: make([]row, ahead)}
	info, err := f.Stat()
	if err == nil {
		var p *parquet.File
		if p, err = parquet.OpenFile(f, info.Size(), parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true)); err == nil {
			d.in = parquet.NewGenericReader[row](p)
			err = d.next()
		}
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// damaged turns a panic of the library into an error and adds the file's name.
func damaged(path string, err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%w: %v", errDamaged, p)
	}
	if *err != nil {
		*err = fmt.Errorf("read digest %s: %w", path, *err)
	}
}

// row returns the next row; nil at the end.
func (d *digest) row() *row {
	if d.end {
		return nil
	}
	return &d.rows[d.at]
}

// next advances to the next row.
func (d *digest) next() (err error) {
	if d.at++; d.at < d.n {
		return nil
	}
	defer damaged(d.path, &err)
	d.at = 0
	d.n, err = d.in.Read(d.rows)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	d.end = d.n == 0
	return err
}

func (d *digest) close() (err error) {
	defer damaged(d.path, &err)
	if d.in != nil {
		err = d.in.Close()
	}
	return errors.Join(err, d.file.Close())
}
