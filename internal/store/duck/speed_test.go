package duck

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/spec"
	"github.com/quell-dev/quell/internal/store"
)

// bare carries out a query in this process, over the same files, without views,
// fences and JSON: what there is to lose.
func bare(b *testing.B, text string) time.Duration {
	b.Helper()
	db, err := sql.Open("duckdb", "?threads=2")
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	begun := time.Now()
	r, err := db.Query(text)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	for r.Next() {
	}
	if err := r.Err(); err != nil {
		b.Fatal(err)
	}
	return time.Since(begun)
}

// BenchmarkSpecs computes specs of 1 M samples of 2,000 jobs on 3 platforms, and
// in turn asks DuckDB alone for counts, means and standard deviations of the same
// files: "of-bare" is the time of the former over the latter; "of-same-SQL", over
// the same statement in DuckDB alone, which is what the fences and views cost.
func BenchmarkSpecs(b *testing.B) {
	s := newBench(b, store.Options{Now: clock})
	rng := rand.New(rand.NewPCG(1, 2))
	for n := range uint64(20) {
		batch := &store.Batch{}
		for i := range 50_000 {
			job := i / 25
			batch.Samples = append(batch.Samples, sample.Sample{TS: sample.At(start.Add(time.Duration(n) * time.Minute)), Machine: fmt.Sprintf("host-%04d", i%1000),
				Job: sample.JobName(fmt.Sprintf("job-%04d", job)), Task: sample.TaskName(fmt.Sprintf("/pods/%d-%d", job, i%25)), Platform: sample.Platform(fmt.Sprint("p", job%3)),
				Signal: sample.CPI, Variant: "ref-cycles", CPU: 1 + rng.Float32(), Cost: 1.8 + 0.16*float32(rng.NormFloat64()), Coverage: 1})
		}
		s.store.Add(batch)
	}
	s.add(b, &store.Batch{})
	now := sample.At(start.Add(time.Hour))
	text := SpecSQL(spec.Paper(), now)
	var own, plain, same time.Duration
	for b.Loop() {
		job := s.job(text)
		job.Limits = Limits{Time: time.Minute, MemoryMB: 1000, Threads: 2, Rows: 1 << 20, Bytes: 1 << 30}
		files := list(job.Files[store.Samples])
		plain += bare(b, "SELECT job, platform, signal, variant, count(*), avg(cpu), avg(cost), stddev_samp(cost) FROM read_parquet("+files+") GROUP BY ALL")
		begun := time.Now()
		a, err := s.runner.Query(b.Context(), job)
		if err != nil {
			b.Fatal(err)
		}
		own += time.Since(begun)
		if got, err := SpecsOf(a, now); err != nil || len(got) != 2000 {
			b.Fatal(len(got), err)
		}
		same += inProcess(b, job)
	}
	b.ReportMetric(own.Seconds()/float64(b.N), "s/computation")
	b.ReportMetric(own.Seconds()/plain.Seconds(), "of-bare")
	b.ReportMetric(own.Seconds()/same.Seconds(), "of-same-SQL")
}

// inProcess carries out a job's statement by views, without fences and JSON.
func inProcess(b *testing.B, job *Job) time.Duration {
	b.Helper()
	db, err := sql.Open("duckdb", "?threads=2")
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	for _, s := range views(job) {
		if _, err := db.Exec(s); err != nil {
			b.Fatal(err)
		}
	}
	begun := time.Now()
	r, err := db.Query(job.SQL)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	for r.Next() {
	}
	return time.Since(begun)
}

// BenchmarkWindow reads one hour of one machine, 1,000 tasks a minute, out of a
// year of hours: what it takes to find the hour among 8,760 segments and to read
// it. The other hours hold ten samples each: their files are never opened.
func BenchmarkWindow(b *testing.B) {
	year := func() time.Time { return start.Add(366 * 24 * time.Hour) }
	s := newBench(b, store.Options{Now: year})
	batch := &store.Batch{}
	at := func(d time.Duration, i int) sample.Sample {
		return one(d, "m1", fmt.Sprintf("/pods/%04d", i), 1, float32(i))
	}
	const asked = 4000
	for h := range 8760 {
		for i := range 10 {
			batch.Samples = append(batch.Samples, at(time.Duration(h)*time.Hour+time.Minute, i))
		}
	}
	for m := range 60 {
		for i := range 1000 {
			batch.Samples = append(batch.Samples, at(asked*time.Hour+time.Duration(m)*time.Minute, i))
		}
	}
	s.add(b, batch)
	from := sample.At(start.Add(asked * time.Hour))
	var all []float64
	for b.Loop() {
		begun := time.Now()
		sn := s.store.Snapshot(from, from+3_599_999)
		job := &Job{SQL: "SELECT task, count(*), avg(cost), max(cpu) FROM samples WHERE machine = 'm1' GROUP BY task", Files: FilesOf(sn), From: from, To: from + 3_599_999,
			Limits: Limits{Time: time.Minute, MemoryMB: 200, Threads: 2, Rows: 1 << 20, Bytes: 1 << 30}}
		a, err := s.runner.Query(b.Context(), job)
		sn.Close()
		if err != nil || a.End.Rows != 1000 {
			b.Fatal(a, err)
		}
		all = append(all, time.Since(begun).Seconds())
	}
	least := all[0]
	for _, v := range all {
		least = min(least, v)
	}
	b.ReportMetric(1000*least, "least-ms")
}
