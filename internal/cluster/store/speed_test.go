package store

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// fleet makes batches like those of a cluster's agents: 50 tasks on each machine, of
// 2,000 jobs, with costs that vary as in the paper's figure 7.
type fleet struct {
	rng   *rand.Rand
	batch []Batch
}

func newFleet(machines int) *fleet {
	f := &fleet{rng: rand.New(rand.NewPCG(1, 2)), batch: make([]Batch, machines)}
	for m := range f.batch {
		b := &f.batch[m]
		name := fmt.Sprintf("host-%05d", m)
		b.Source = Source{"samples", name, "boot"}
		for i := range 50 {
			job := f.rng.IntN(2000)
			b.Samples = append(b.Samples, sample.Sample{Machine: name, Job: sample.JobName(fmt.Sprintf("job-%04d", job)),
				Task: sample.TaskName(fmt.Sprintf("/kubepods/burstable/pod%04d-%02d", job, i)), Platform: sample.Platform(fmt.Sprintf("AuthenticAMD-25-%d-1", m%3)),
				Signal: sample.CPI, Variant: "ref-cycles", Class: sample.Class(job % 3), Coverage: 1})
		}
	}
	return f
}

// tick makes the next batch of a machine.
func (f *fleet) tick(m int, at sample.Millis) *Batch {
	b := &f.batch[m]
	b.N++
	for i := range b.Samples {
		s := &b.Samples[i]
		s.TS = at
		s.CPU = float32(math.Round(1000*math.Abs(1+0.4*f.rng.NormFloat64())) / 1000)
		s.Cost = float32(1 + float64(i%10)/10 + 0.16*f.rng.NormFloat64())
	}
	return b
}

// peak is the process's peak memory, MB (proc(5), VmHWM).
func peak(b *testing.B) float64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	var kb float64
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		b.Fatal(err)
	}
	return kb / 1024
}

// BenchmarkIngest measures the durable ingest of 50-sample batches of 6,000 machines,
// with merging, in commits of 600,000 samples. The generator's own time is excluded from
// the rate but not from the CPU seconds.
func BenchmarkIngest(b *testing.B) {
	c := &clock{start.Add(-50 * time.Minute)}
	s, err := Open(b.TempDir(), c.options())
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	f := newFleet(6000)
	stop, merged := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			more, err := s.Compact()
			if err != nil {
				merged <- err
				return
			}
			if more {
				continue
			}
			select {
			case <-stop:
				merged <- nil
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	runtime.GC()
	cpu := quelltest.CPUTime(b)
	n := 0
	began := time.Now()
	for b.Loop() {
		at := sample.At(c.now).Add(time.Duration(n/6000) * time.Second)
		if !s.Add(f.tick(n%6000, at)) {
			b.Fatal("a batch was not new")
		}
		if n++; n%12_000 == 0 {
			if err := s.Flush(); err != nil {
				b.Fatal(err)
			}
		}
	}
	if err := s.Flush(); err != nil {
		b.Fatal(err)
	}
	took := time.Since(began)
	close(stop)
	if err := <-merged; err != nil {
		b.Fatal(err)
	}
	st := s.Stats()
	b.ReportMetric(float64(st.Samples)/took.Seconds(), "samples/s")
	b.ReportMetric(float64(st.Samples)/(quelltest.CPUTime(b)-cpu).Seconds(), "samples/CPU-s")
	b.ReportMetric(float64(st.Bytes)/float64(st.Rows), "B/sample")
	b.ReportMetric(peak(b), "peak-MB")
	b.ReportMetric(float64(st.Segments), "segments")
}
