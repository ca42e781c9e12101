package replay

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace/parquet"
)

// fleet is a trace of the given number of machines with 50 tasks each, one sample a minute,
// in which one task in 100 suffers for ten minutes of each hour.
func fleet(b *testing.B, machines, minutes int) []byte {
	b.Helper()
	r := rand.New(rand.NewPCG(9, 10))
	var file bytes.Buffer
	w := parquet.NewWriter(&file)
	for at := range minutes {
		for m := range machines {
			for k := range 50 {
				cost, cpu := 1.5+0.1*r.NormFloat64(), 0.3+r.Float64()
				if k == 0 && m%2 == 0 && at%60 < 10 {
					cost *= 2.5
				}
				s := sample.Sample{TS: sample.Millis(at+1) * minute, Machine: fmt.Sprintf("machine-%d", m), Job: sample.JobName(fmt.Sprintf("job-%d", k%20)),
					Task: sample.TaskName(fmt.Sprintf("/kubepods/pod-%d/task-%d", m, k)), Platform: "AuthenticAMD-25-1-1", Signal: sample.CPI,
					Variant: "cycles", Class: sample.Class(k % 3), CPU: float32(cpu), Cost: float32(max(cost, 0.2)), Coverage: 1}
				if err := w.Write(&s); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	return file.Bytes()
}

// BenchmarkReplay plays a trace from Parquet on two goroutines and, alternately, only reads
// it: the ratio is the time of the former over the latter.
func BenchmarkReplay(b *testing.B) {
	const machines, minutes = 40, 240
	file := fleet(b, machines, minutes)
	o, err := Default(detect.Quell)
	if err != nil {
		b.Fatal(err)
	}
	open := func() *parquet.Reader {
		r, err := parquet.NewReader(bytes.NewReader(file), int64(len(file)))
		if err != nil {
			b.Fatal(err)
		}
		return r
	}
	var replayed, read float64
	for b.Loop() {
		start := b.Elapsed()
		r := open()
		result, err := Run(context.Background(), r, o, 2)
		if err != nil || result.Samples != machines*minutes*50 || result.Outliers == 0 {
			b.Fatal(err, result.Samples)
		}
		r.Close()
		middle := b.Elapsed()
		r = open()
		for err == nil {
			_, err = r.Next()
		}
		if err != io.EOF {
			b.Fatal(err)
		}
		r.Close()
		replayed += (middle - start).Seconds()
		read += (b.Elapsed() - middle).Seconds()
	}
	n := float64(b.N) * machines * minutes * 50
	b.ReportMetric(n/replayed, "samples/s")
	b.ReportMetric(n/read, "read/s")
	b.ReportMetric(replayed/read, "of-reading")
	b.ReportMetric(float64(len(file))/(machines*minutes*50), "B/sample")
}
