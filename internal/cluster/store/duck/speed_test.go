package duck

import (
	"database/sql"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/dialect"
	"github.com/quell-dev/quell/internal/cluster/store/digest"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

var (
	benchSamples = flag.Int("samples", 2_000_000, "samples of BenchmarkSpecs; 100000000 for the figures of docs/specs.md (2 GB of disk)")
	benchDays    = flag.Int("days", 2, "whole days of BenchmarkWindow, of 1.44 M samples each; the rest of the year is thin")
	benchData    = flag.String("data", "", "folder to keep the benchmarks' stores in, to be used again")
)

// benchStore opens the store of a benchmark, which fill fills once.
func benchStore(b *testing.B, name string, now time.Time, fill func(s *store.Store)) *bench {
	b.Helper()
	dir := b.TempDir()
	if *benchData != "" {
		dir = filepath.Join(*benchData, name)
	}
	s, err := store.Open(dir, store.Options{Now: func() time.Time { return now }})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	if s.Stats().Segments == 0 {
		begun := time.Now()
		fill(s)
		st := s.Stats()
		b.Logf("%s: %d samples in %d segments, %.1f bytes each, made in %v", dir, st.Rows, st.Segments, float64(st.Bytes)/float64(st.Rows), time.Since(begun).Round(time.Second))
	}
	st := s.Stats()
	b.ReportMetric(float64(st.Bytes)/1e6, "MB")
	runner := NewRunner(os.Args[0], "query-child", dir)
	b.Cleanup(runner.Close)
	return &bench{dir, s, runner}
}

func flush(b *testing.B, s *store.Store) {
	b.Helper()
	if err := s.Flush(); err != nil {
		b.Fatal(err)
	}
}

// cost is the wall time and processor time of an operation. Processor time is more
// meaningful when other processes use the machine.
type cost struct{ wall, cpu time.Duration }

func (c *cost) add(b *testing.B, do func()) {
	b.Helper()
	cpu := func() (all time.Duration) {
		for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
			var u unix.Rusage
			if err := unix.Getrusage(who, &u); err != nil {
				b.Fatal(err)
			}
			all += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
		return all
	}
	begun, used := time.Now(), cpu()
	do()
	c.wall, c.cpu = c.wall+time.Since(begun), c.cpu+cpu()-used
}

// report reports the ratio of this cost to another.
func (c *cost) report(b *testing.B, what string, of *cost) {
	b.ReportMetric(c.wall.Seconds()/of.wall.Seconds(), what)
	b.ReportMetric(c.cpu.Seconds()/of.cpu.Seconds(), what+"(cpu)")
}

// bare executes a query in this process, over the same files, without views, fences and
// JSON.
func bare(b *testing.B, text string) {
	b.Helper()
	db, err := sql.Open("duckdb", "?threads=2")
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
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
}

// paperSQL is the paper's statistic as plain DuckDB SQL: count, mean and standard
// deviation weighted by 0.9 per day, for jobs with five tasks of a hundred samples each.
// It omits what quell adds: the exclusion of samples of incidents, of capped tasks and of
// invalid costs.
func paperSQL(files string, now sample.Millis) string {
	return fmt.Sprintf(`WITH tasks AS (
  SELECT job, platform, signal, variant, count(*) AS n, sum(w) AS w, sum(w * w) AS w2, sum(w * cpu) AS wu, sum(w * cost) AS wc, sum(w * cost * cost) AS wcc
  FROM (SELECT *, pow(0.9, (%d - epoch_ms(ts)) / 86400000) AS w FROM read_parquet(%s))
  GROUP BY job, platform, signal, variant, machine, task
)
SELECT job, platform, signal, variant, sum(n), sum(wu) / sum(w), sum(wc) / sum(w), sqrt((sum(wcc) - sum(wc) * sum(wc) / sum(w)) / (sum(w) - sum(w2) / sum(w)))
FROM tasks GROUP BY ALL HAVING count(*) FILTER (n >= 100) >= 5`, now, files)
}

// BenchmarkSpecs computes the specs of -samples samples of 25 tasks for each of 10,000
// jobs and platforms (fewer of them for less than 100 M samples). In alternation it
// queries DuckDB alone, on the same files, for counts, means and standard deviations by
// job and platform, and for the paper's statistic. It reports ratios of wall and
// processor time:
//
//	first-of-…   no segment was read before
//	hourly-of-…  all but those of the newest hour were, as in a server
func BenchmarkSpecs(b *testing.B) {
	const tasks, perTask = 25, 400
	pairs := max(1, *benchSamples/(tasks*perTask))
	end := start.Add(perTask * time.Minute)
	s := benchStore(b, fmt.Sprint("specs-", *benchSamples), end, func(st *store.Store) {
		rng := rand.New(rand.NewPCG(1, 2))
		for from := 0; from < perTask; from += 60 {
			for pair := range pairs {
				batch := &store.Batch{}
				for task := range tasks {
					machine, name := fmt.Sprintf("host-%05d", (pair*tasks+task)%6000), sample.TaskName(fmt.Sprintf("/kubepods/pod-%07d", pair*tasks+task))
					for m := from; m < min(from+60, perTask); m++ {
						batch.Samples = append(batch.Samples, sample.Sample{TS: sample.At(start.Add(time.Duration(m) * time.Minute)), Machine: machine,
							Job: sample.JobName(fmt.Sprintf("job-%05d", pair/3)), Task: name, Platform: sample.Platform(fmt.Sprint("platform-", pair%3)),
							Signal: sample.CPI, Variant: "ref-cycles", CPU: 1 + rng.Float32(), Cost: 1.8 + 0.16*float32(rng.NormFloat64()), Coverage: 1})
					}
				}
				st.Add(batch)
				if st.Pending() > 4_000_000 {
					flush(b, st)
				}
			}
			flush(b, st)
		}
	})
	sn := s.store.Snapshot(0, 0)
	defer sn.Close()
	files, now := list(sn.Files(store.Samples)), sample.At(end)
	learner := digest.Learner{Dir: filepath.Join(b.TempDir(), "digests"), Threads: 2}
	learn := func() {
		got, err := learner.Learn(b.Context(), sn, 0, nil, spec.Paper(), now)
		if err != nil || len(got) != pairs || got[0].State != spec.Ready || got[0].Samples != tasks*perTask {
			b.Fatal(len(got), err)
		}
		b.Logf("%d of %d segments read, %d samples", learner.Stats.Read, learner.Stats.Segments, learner.Stats.Rows)
	}
	remove := func(dir string) {
		if err := os.RemoveAll(dir); err != nil {
			b.Fatal(err)
		}
	}
	newest := filepath.Join(learner.Dir, filepath.Dir(sn.Segments[len(sn.Segments)-1].File))
	var plain, paper, first, hourly cost
	for b.Loop() {
		plain.add(b, func() {
			bare(b, "SELECT job, platform, signal, variant, count(*), avg(cpu), avg(cost), stddev_samp(cost) FROM read_parquet("+files+") GROUP BY ALL")
		})
		remove(learner.Dir)
		first.add(b, learn)
		paper.add(b, func() { bare(b, paperSQL(files, now)) })
		remove(newest)
		hourly.add(b, learn)
	}
	b.ReportMetric(plain.wall.Seconds()/float64(b.N), "s/plain")
	b.ReportMetric(plain.cpu.Seconds()/float64(b.N), "s/plain(cpu)")
	first.report(b, "first-of-plain", &plain)
	first.report(b, "first-of-paper", &paper)
	hourly.report(b, "hourly-of-plain", &plain)
	hourly.report(b, "hourly-of-paper", &paper)
}

// BenchmarkWindow reads one hour of one machine with 1,000 tasks a minute out of a year
// of hours: the time to find the hour's segment, to start a process for the query, and to
// read it. -days days of the year are complete (365 are 525 M samples); the other hours
// hold ten samples each.
func BenchmarkWindow(b *testing.B) {
	const hours, tasks = 365 * 24, 1000
	at := func(rng *rand.Rand, m, i int) sample.Sample {
		return one(time.Duration(m)*time.Minute, "m1", fmt.Sprintf("/kubepods/pod-%04d", i), 2*rng.Float32(), 1.8+0.16*float32(rng.NormFloat64()))
	}
	s := benchStore(b, fmt.Sprint("window-", *benchDays), start.Add(366*24*time.Hour), func(st *store.Store) {
		rng := rand.New(rand.NewPCG(3, 4))
		batch := &store.Batch{}
		for h := *benchDays * 24; h < hours; h++ {
			for i := range 10 {
				batch.Samples = append(batch.Samples, at(rng, h*60, i))
			}
		}
		st.Add(batch)
		flush(b, st)
		for h := range min(*benchDays*24, hours) {
			batch.Samples = batch.Samples[:0]
			for m := range 60 {
				for i := range tasks {
					batch.Samples = append(batch.Samples, at(rng, h*60+m, i))
				}
			}
			st.Add(batch)
			flush(b, st)
		}
	})
	rng := rand.New(rand.NewPCG(5, 6))
	var all []float64
	for b.Loop() {
		from := sample.At(start.Add(time.Duration(rng.IntN(*benchDays*24)) * time.Hour))
		begun := time.Now()
		sn := s.store.Snapshot(from, from+3_599_999)
		job := &Job{SQL: "SELECT task, count(*), avg(cost), max(cpu) FROM samples WHERE machine = 'm1' GROUP BY task", Files: dialect.Files(sn), From: from, To: from + 3_599_999,
			Limits: Limits{Time: time.Minute, MemoryMB: 200, Threads: 2, Rows: 1 << 20, Bytes: 1 << 30}}
		a, err := s.runner.Query(b.Context(), job)
		sn.Close()
		if err != nil || len(a.Rows) != tasks {
			b.Fatal(a, err)
		}
		all = append(all, time.Since(begun).Seconds())
	}
	slices.Sort(all)
	b.ReportMetric(1000*all[0], "least-ms")
	b.ReportMetric(1000*all[len(all)/2], "median-ms")
	b.ReportMetric(1000*all[len(all)*95/100], "p95-ms")
}
