package segment

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/core/sample"
	trace "github.com/quell-dev/quell/internal/format/trace/parquet"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// cluster returns the samples that 1,000 machines send in a number of seconds.
func cluster(seconds, from int) []sample.Sample {
	r, values := rand.New(rand.NewPCG(1, 2)), rand.New(rand.NewPCG(3, uint64(from)))
	var all []sample.Sample
	for m := range 1000 {
		for i := range 50 {
			job := r.IntN(333)
			s := sample.Sample{Machine: fmt.Sprintf("host-%05d", m), Job: sample.JobName(fmt.Sprintf("job-%04d", job)),
				Task: sample.TaskName(fmt.Sprintf("/kubepods/burstable/pod%08x-%02d", r.Uint32(), i)), Platform: "AuthenticAMD-25-1-1",
				Signal: sample.CPI, Variant: "ref-cycles", Class: sample.Batch, Coverage: 1}
			for t := range seconds {
				s.TS = 1_790_000_000_000 + sample.Millis(1000*(from+t))
				s.CPU, s.Cost = values.Float32(), 1+values.Float32()
				all = append(all, s)
			}
		}
	}
	order(all)
	return all
}

// rows writes the same file with the library, row by row.
func rows(b *testing.B, out io.Writer, all []sample.Sample) {
	w := parquet.NewGenericWriter[trace.Row](out, trace.Options()...)
	file := make([]trace.Row, 1024)
	for len(all) > 0 {
		n := min(len(file), len(all))
		for i := range n {
			file[i].Set(&all[i], nil)
		}
		if _, err := w.Write(file[:n]); err != nil {
			b.Fatal(err)
		}
		all = all[n:]
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkWrite writes sorted samples by series and, in alternation, by rows.
func BenchmarkWrite(b *testing.B) {
	all := cluster(4, 0)
	w, err := NewWriter()
	if err != nil {
		b.Fatal(err)
	}
	var bySeries, byRows time.Duration
	var file, plain bytes.Buffer
	for b.Loop() {
		file.Reset()
		plain.Reset()
		began := quelltest.CPUTime(b)
		w.Reset(&file)
		putSorted(w, all)
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
		middle := quelltest.CPUTime(b)
		rows(b, &plain, all)
		bySeries += middle - began
		byRows += quelltest.CPUTime(b) - middle
	}
	n := float64(len(all)) * float64(b.N)
	b.ReportMetric(float64(bySeries.Nanoseconds())/n, "CPU-ns/sample")
	b.ReportMetric(float64(byRows)/float64(bySeries), "×rows")
	b.ReportMetric(float64(file.Len())/float64(len(all)), "B/sample")
	b.ReportMetric(float64(plain.Len())/float64(len(all)), "B/sample-rows")
}

// BenchmarkLevel writes with the zstd level of segments and, in alternation, with the
// next one.
func BenchmarkLevel(b *testing.B) {
	all := cluster(4, 0)
	w, err := NewWriter()
	if err != nil {
		b.Fatal(err)
	}
	next, err := NewWriter()
	if err != nil {
		b.Fatal(err)
	}
	if next.codec, err = newCodec(zstd.SpeedDefault); err != nil {
		b.Fatal(err)
	}
	var took [2]time.Duration
	var files [2]bytes.Buffer
	for b.Loop() {
		for i, w := range []*Writer{w, next} {
			began := quelltest.CPUTime(b)
			files[i].Reset()
			w.Reset(&files[i])
			putSorted(w, all)
			if err := w.Close(); err != nil {
				b.Fatal(err)
			}
			took[i] += quelltest.CPUTime(b) - began
		}
	}
	b.ReportMetric(float64(took[1])/float64(took[0]), "×CPU-next")
	b.ReportMetric(float64(files[1].Len())/float64(files[0].Len()), "×bytes-next")
}

// BenchmarkMerge merges eight files by series and, in alternation, by rows.
func BenchmarkMerge(b *testing.B) {
	w, err := NewWriter()
	if err != nil {
		b.Fatal(err)
	}
	var files []Input
	n := 0
	for i := range 8 {
		all := cluster(2, 2*i)
		var file bytes.Buffer
		w.Reset(&file)
		putSorted(w, all)
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
		files = append(files, input(b, fmt.Sprint(i), file.Bytes()))
		n += len(all)
	}
	var bySeries, byRows time.Duration
	var file bytes.Buffer
	for b.Loop() {
		file.Reset()
		began := quelltest.CPUTime(b)
		w.Reset(&file)
		if _, err := Merge(w, files); err != nil {
			b.Fatal(err)
		}
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
		middle := quelltest.CPUTime(b)
		var groups []parquet.RowGroup
		for _, f := range files {
			groups = append(groups, f.File.RowGroups()...)
		}
		var by []parquet.SortingColumn
		for _, c := range Order() {
			by = append(by, parquet.Ascending(c))
		}
		merged, err := parquet.MergeRowGroups(groups, parquet.SortingRowGroupConfig(parquet.SortingColumns(by...)))
		if err != nil {
			b.Fatal(err)
		}
		out := parquet.NewWriter(io.Discard, append(trace.Options(), merged.Schema())...)
		if _, err := out.WriteRowGroup(merged); err != nil {
			b.Fatal(err)
		}
		if err := out.Close(); err != nil {
			b.Fatal(err)
		}
		bySeries += middle - began
		byRows += quelltest.CPUTime(b) - middle
	}
	total := float64(n) * float64(b.N)
	b.ReportMetric(float64(bySeries.Nanoseconds())/total, "CPU-ns/sample")
	b.ReportMetric(float64(byRows)/float64(bySeries), "×rows")
	b.ReportMetric(float64(file.Len())/float64(n), "B/sample")
}
