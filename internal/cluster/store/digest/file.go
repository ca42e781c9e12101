package digest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"

	"github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/format/atomicfile"
	trace "github.com/quell-dev/quell/internal/format/trace/parquet"
)

// row is a key's hour as stored in a digest.
type row struct {
	Job      string `parquet:"job,dict"`
	Platform string `parquet:"platform,dict"`
	Signal   string `parquet:"signal,dict"`
	Variant  string `parquet:"variant,dict"`
	Hour     int64  `parquet:"hour,timestamp(millisecond)"`
	Newest   int64  `parquet:"newest,timestamp(millisecond)"`
	// Costs by level of usage: samples, mean, sum of squared differences from it.
	Level   []int32   `parquet:"level"`
	Samples []int64   `parquet:"level_samples"`
	Mean    []float64 `parquet:"level_mean"`
	M2      []float64 `parquet:"level_m2"`
	// Machines, as spec.HashMachine: samples, mean, sum of squared differences from it, mean
	// usage, and how many of the following tasks are each one's.
	Machine        []int64   `parquet:"machine"`
	MachineSamples []int64   `parquet:"machine_samples"`
	MachineMean    []float64 `parquet:"machine_mean"`
	MachineM2      []float64 `parquet:"machine_m2"`
	MachineCPU     []float64 `parquet:"machine_cpu"`
	MachineTasks   []int32   `parquet:"machine_tasks"`
	// The part of the machines' costs that tasks spent on themselves: its samples, mean, sum
	// of squared differences from it. Empty if it is not known of any machine.
	SelfSamples []int64   `parquet:"self_samples"`
	SelfMean    []float64 `parquet:"self_mean"`
	SelfM2      []float64 `parquet:"self_m2"`
	// Tasks, as spec.HashTask, and their samples, machine by machine.
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
		Hour: int64(h.Start), Newest: int64(h.Newest), Level: r.Level[:0], Samples: r.Samples[:0], Mean: r.Mean[:0], M2: r.M2[:0],
		Machine: r.Machine[:0], MachineSamples: r.MachineSamples[:0], MachineMean: r.MachineMean[:0], MachineM2: r.MachineM2[:0], MachineCPU: r.MachineCPU[:0], MachineTasks: r.MachineTasks[:0],
		SelfSamples: r.SelfSamples[:0], SelfMean: r.SelfMean[:0], SelfM2: r.SelfM2[:0],
		Task: r.Task[:0], TaskSamples: r.TaskSamples[:0], Bin: r.Bin[:0], BinSamples: r.BinSamples[:0]}
	for i := range h.Usage {
		if m := &h.Usage[i]; m.N > 0 {
			r.Level, r.Samples, r.Mean, r.M2 = append(r.Level, int32(i)), append(r.Samples, m.N), append(r.Mean, m.Mean), append(r.M2, m.M2)
		}
	}
	self := slices.ContainsFunc(h.Machines, func(m spec.MachineHour) bool { return m.Self.N > 0 })
	for i := range h.Machines {
		m := &h.Machines[i]
		if self {
			r.SelfSamples, r.SelfMean, r.SelfM2 = append(r.SelfSamples, m.Self.N), append(r.SelfMean, m.Self.Mean), append(r.SelfM2, m.Self.M2)
		}
		r.Machine, r.MachineSamples, r.MachineMean = append(r.Machine, int64(m.Machine)), append(r.MachineSamples, m.Cost.N), append(r.MachineMean, m.Cost.Mean)
		r.MachineM2, r.MachineCPU, r.MachineTasks = append(r.MachineM2, m.Cost.M2), append(r.MachineCPU, m.CPU), append(r.MachineTasks, int32(len(m.Tasks)))
		for _, t := range m.Tasks {
			r.Task, r.TaskSamples = append(r.Task, int64(t.Task)), append(r.TaskSamples, int32(min(t.N, math.MaxInt32))) // more teach nothing else
		}
	}
	for _, b := range h.Sketch.Bins() {
		r.Bin, r.BinSamples = append(r.Bin, b.Bin), append(r.BinSamples, int64(b.Count))
	}
}

var errDamaged = errors.New("a digest is damaged")

// hour returns the hour in a row.
func (r *row) hour() (h spec.Hour, err error) {
	n, self := len(r.Machine), len(r.SelfSamples)
	if len(r.Samples) != len(r.Level) || len(r.Mean) != len(r.Level) || len(r.M2) != len(r.Level) || len(r.TaskSamples) != len(r.Task) || len(r.BinSamples) != len(r.Bin) ||
		n == 0 || len(r.MachineSamples) != n || len(r.MachineMean) != n || len(r.MachineM2) != n || len(r.MachineCPU) != n || len(r.MachineTasks) != n ||
		self != 0 && self != n || len(r.SelfMean) != self || len(r.SelfM2) != self {
		return h, errDamaged
	}
	h = spec.Hour{Start: sample.Millis(r.Hour), Newest: sample.Millis(r.Newest), Machines: make([]spec.MachineHour, n)}
	samples := int64(0)
	for i, level := range r.Level {
		m, err := momentsOf(r.Samples[i], r.Mean[i], r.M2[i])
		if err != nil || level < 0 || int(level) >= spec.UsageBins {
			return h, errDamaged
		}
		h.Usage[level] = m
		samples += m.N
	}
	tasks := make([]spec.TaskSamples, len(r.Task))
	for i := range r.Task {
		tasks[i] = spec.TaskSamples{Task: uint64(r.Task[i]), N: int64(r.TaskSamples[i])}
		if tasks[i].N <= 0 {
			return h, errDamaged
		}
	}
	for i := range h.Machines {
		m, err := momentsOf(r.MachineSamples[i], r.MachineMean[i], r.MachineM2[i])
		k := int(r.MachineTasks[i])
		if cpu := r.MachineCPU[i]; err != nil || !(math.Abs(cpu) < stat.MaxValue) || k < 1 || k > len(tasks) {
			return h, errDamaged
		}
		h.Machines[i] = spec.MachineHour{Machine: uint64(r.Machine[i]), Cost: m, CPU: r.MachineCPU[i], Tasks: tasks[:k:k]}
		if self > 0 && r.SelfSamples[i] != 0 {
			if h.Machines[i].Self, err = momentsOf(r.SelfSamples[i], r.SelfMean[i], r.SelfM2[i]); err != nil || r.SelfSamples[i] > m.N {
				return h, errDamaged
			}
		}
		tasks, samples = tasks[k:], samples-m.N
	}
	if samples != 0 || len(tasks) > 0 { // some are missing
		return h, errDamaged
	}
	for i := range r.Bin {
		if r.Bin[i] < 0 || r.Bin[i] >= stat.Bins || r.BinSamples[i] <= 0 {
			return h, errDamaged
		}
		h.Sketch.AddBin(r.Bin[i], float64(r.BinSamples[i]))
	}
	return h, nil
}

// momentsOf returns the moments of n samples of weight 1.
func momentsOf(n int64, mean, m2 float64) (stat.Moments, error) {
	m := stat.Moments{N: n, W: float64(n), W2: float64(n), Mean: mean, M2: m2}
	if n <= 0 || !m.Sane() {
		return m, errDamaged
	}
	return m, nil
}

// write makes a digest, completely or not at all. fill passes it the hours, by key.
func write(path string, fill func(emit func(spec.Key, *spec.Hour) error) error) error {
	var b bytes.Buffer
	w := parquet.NewGenericWriter[row](&b, parquet.Compression(&parquet.Zstd), parquet.PageBufferSize(pageBytes))
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

// A computation has all digests open, hundreds or thousands of them, and of each a page of every column and some rows.
// The row of a job that runs on 1,000 machines has 70 KB.
const (
	pageBytes = 16 << 10
	ahead     = 64   // rows that are read at once, of few digests
	mostHeld  = 4096 // rows, of many
)

// held is how many rows of each of so many digests are read at once.
func held(digests int) int { return max(1, min(ahead, mostHeld/max(1, digests))) }

// open opens a digest of which so many rows are read at once.
func open(path string, rows int) (d *digest, err error) {
	defer damaged(path, &err)
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	d = &digest{path: path, file: f, rows: make([]row, rows)}
	info, err := f.Stat()
	if err == nil {
		var p *trace.File
		if p, err = trace.Open(f, info.Size()); err == nil {
			d.in = parquet.NewGenericReader[row](p.File)
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
