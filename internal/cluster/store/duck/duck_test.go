package duck

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/dialect"
	"github.com/quell-dev/quell/internal/cluster/store/digest"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestMain makes the test binary the child for its own queries.
func TestMain(m *testing.M) {
	quelltest.Command("query-child", func(dir string) error { return Child(dir, os.Stdin, os.Stdout) })
	quelltest.Command("query-child-unfenced", unfenced)
	quelltest.Command("query-child-many", many)
	quelltest.Command("query-child-reaches", reaches)
	quelltest.Main(m)
}

// unfenced is a child whose DuckDB is unrestricted.
func unfenced(dir string) error {
	_, err := sandbox(dir)
	var job Job
	if err == nil {
		err = json.NewDecoder(os.Stdin).Decode(&job)
	}
	if err == nil {
		err = limit(&job.Limits)
	}
	var db *sql.DB
	if err == nil {
		db, err = sql.Open("duckdb", "")
	}
	if err == nil {
		_, err = db.Exec(job.SQL)
	}
	l := line{End: new(bool)}
	if err != nil {
		l = line{Err: &Error{Wrong, err.Error()}}
	}
	return json.NewEncoder(os.Stdout).Encode(l)
}

var start = time.Date(2026, 11, 21, 13, 0, 0, 0, time.UTC)

func limits() Limits {
	return Limits{Time: 20 * time.Second, MemoryMB: 200, Threads: 1, Rows: 1000, Bytes: 1 << 20}
}

type bench struct {
	dir    string
	store  *store.Store
	runner *Runner
}

func newBench(t testing.TB, opt store.Options) *bench {
	t.Helper()
	dir := t.TempDir()
	s, err := store.Open(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	runner := NewRunner(os.Args[0], "query-child", dir)
	t.Cleanup(runner.Close)
	return &bench{dir, s, runner}
}

func (b *bench) add(t testing.TB, batch *store.Batch) {
	t.Helper()
	b.store.Add(batch)
	if err := b.store.Flush(); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) job(sql string) *Job {
	sn := b.store.Snapshot(0, 0)
	defer sn.Close()
	return &Job{SQL: sql, Files: dialect.Files(sn), Limits: limits()}
}

func (b *bench) ask(t testing.TB, sql string) *Answer {
	t.Helper()
	a, err := b.runner.Query(t.Context(), b.job(sql))
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return a
}

func rows(a *Answer) string {
	var all []string
	for _, r := range a.Rows {
		all = append(all, string(r))
	}
	return strings.Join(all, " ")
}

func clock() time.Time { return start.Add(96 * time.Hour) }

func one(at time.Duration, machine, task string, cpu, cost float32) sample.Sample {
	return sample.Sample{TS: sample.At(start.Add(at)), Machine: machine, Job: "web", Task: sample.TaskName(task), Platform: "p",
		Signal: sample.CPI, Variant: "ref-cycles", Class: sample.LatencySensitive, CPU: cpu, Cost: cost, Coverage: 1}
}

func TestAQueryAnswers(t *testing.T) {
	b := newBench(t, store.Options{Now: clock})
	if got := rows(b.ask(t, "SELECT count(*) FROM samples")); got != "[0]" {
		t.Errorf("an empty store has %s samples", got)
	}
	nan := one(time.Minute, "m1", "/a", 0.5, float32(math.NaN()))
	nan.Extras.Set(sample.Cycles, 7)
	b.add(t, &store.Batch{Samples: []sample.Sample{one(0, "m1", "/a", 1, 2), nan}})
	a := b.ask(t, "SELECT ts, task, cost, cycles, flags FROM samples ORDER BY ts")
	if got, want := rows(a), `["2026-11-21T13:00:00Z","/a",2,null,0] ["2026-11-21T13:01:00Z","/a",null,7,0]`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if len(a.Columns) != 5 || a.Columns[0] != (dialect.Column{Name: "ts", Type: "TIMESTAMPTZ"}) {
		t.Errorf("columns %v", a.Columns)
	}
	if !slices.Contains(a.Fences, "limits") {
		t.Errorf("fences %v", a.Fences)
	}
	t.Logf("fences: %v; took %v", a.Fences, a.Took)
	together := &asker{t: t, dir: b.dir}
	together.begin()
	defer func() { together.end() }()
	for _, table := range []string{"samples", "incidents", "incident_history", "actions", "audit", "specs", "spec_history", "machines", "signals"} {
		for _, sql := range []string{"FROM " + table, "DESCRIBE " + table} {
			if _, err := together.query(b.job(sql)); err != nil {
				t.Errorf("%s: %v", sql, err)
			}
		}
	}
	if got := rows(b.ask(t, "SELECT count(*) FROM signals WHERE least_cpu > 1000 OR most_cost > 1e9")); got != "[0]" {
		t.Errorf("%s signals have a bound that nothing reaches", got)
	}
	b.ask(t, "EXPLAIN SELECT * FROM samples")
	b.ask(t, "explain analyze SELECT count(*) FROM samples")
	b.ask(t, "WITH x AS (SELECT 1 AS a) SELECT * FROM x;")
}

func TestAQuerySeesItsTimeOnly(t *testing.T) {
	b := newBench(t, store.Options{Now: clock})
	b.add(t, &store.Batch{Samples: []sample.Sample{one(0, "m1", "/a", 1, 2), one(time.Minute, "m1", "/a", 1, 3), one(2*time.Minute, "m1", "/a", 1, 4)}})
	job := b.job("SELECT cost FROM samples ORDER BY ts")
	job.From, job.To = sample.At(start.Add(time.Second)), sample.At(start.Add(time.Minute))
	a, err := b.runner.Query(t.Context(), job)
	if err != nil || rows(a) != "[3]" {
		t.Errorf("got %v, %v", a, err)
	}
}

func TestAnAnswerIsCutOff(t *testing.T) {
	b := newBench(t, store.Options{Now: clock})
	job := b.job("SELECT * FROM range(5000)")
	a, err := b.runner.Query(t.Context(), job)
	if err != nil || len(a.Rows) != 1000 || !a.Truncated {
		t.Errorf("%d rows, cut off %v, %v; want 1000", len(a.Rows), a.Truncated, err)
	}
	job.Limits.Bytes = 100
	if a, err = b.runner.Query(t.Context(), job); err != nil || len(a.Rows) >= 100 || !a.Truncated {
		t.Errorf("more than 100 bytes: %d rows, %v", len(a.Rows), err)
	}
}

// An incident's newest state is its current state.
func TestIncidentsStandAsLastTold(t *testing.T) {
	b := newBench(t, store.Options{Now: clock})
	closed := sample.At(start.Add(time.Hour))
	c := int64(closed)
	for i, inc := range []store.Incident{
		{Machine: "m1", ID: "i1", Updated: 1, Outcome: ""},
		{Machine: "m1", ID: "i1", Updated: 3, Outcome: "true-positive", Closed: &c},
		{Machine: "m1", ID: "i1", Updated: 2, Outcome: "noise"},
		{Machine: "m2", ID: "i1", Updated: 1, Outcome: "other"},
	} {
		b.add(t, &store.Batch{Source: store.Source{Stream: "records", Machine: inc.Machine}, N: uint64(i + 1), Incidents: []store.Incident{inc}})
	}
	if got, want := rows(b.ask(t, "SELECT machine, outcome FROM incidents ORDER BY machine")), `["m1","true-positive"] ["m2","other"]`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := rows(b.ask(t, "SELECT count(*) FROM incident_history")); got != "[4]" {
		t.Errorf("the history has %s", got)
	}
}

// TestNamesOfAnyBytesCanBeQueried: a cgroup's name may have any bytes, and a hostile agent's job,
// platform and signal too. No query could read a column with a string that is no UTF-8.
func TestNamesOfAnyBytesCanBeQueried(t *testing.T) {
	b := newBench(t, store.Options{Now: clock})
	s := one(0, "m\xff", "/a\xff\x1b", 1, 2)
	s.Job, s.Platform, s.Signal, s.Variant = "j\xff", "p\xff", "s\xff", "v\xff"
	var victim incident.Record
	victim.Machine, victim.ID, victim.Victim.Name, victim.Updated = "m1", "i1", "/a\xff", sample.At(start)
	row, err := store.IncidentOf(&victim)
	if err != nil {
		t.Fatal(err)
	}
	b.add(t, &store.Batch{Source: store.Source{Stream: "samples", Machine: "m"}, N: 1, Samples: []sample.Sample{s}, Incidents: []store.Incident{row}})
	got := rows(b.ask(t, "SELECT job, platform, signal, variant, machine FROM samples WHERE task = '\"/a\\xff\\x1b\"'"))
	if want := `["j\ufffd","p\ufffd","s\ufffd","v\ufffd","m\ufffd"]`; got != strings.ReplaceAll(want, `\ufffd`, "\ufffd") {
		t.Errorf("got %s", got)
	}
	if got := rows(b.ask(t, "SELECT count(*) FROM incidents WHERE victim_task = '\"/a\\xff\"'")); got != "[1]" {
		t.Errorf("the incident has another name: %s", got)
	}
}

// TestSpecsAgreeWithHistory: on the same samples, the specs by SQL, by digests and by an
// agent's own spec.History are equal.
func TestSpecsAgreeWithHistory(t *testing.T) {
	p := spec.Paper()
	h := spec.NewHistory(p)
	b := newBench(t, store.Options{Now: clock})
	rng := rand.New(rand.NewPCG(4, 5))
	key := spec.Key{Job: "web", Platform: "p", Signal: sample.CPI, Variant: "ref-cycles"}
	var last sample.Millis
	for n := range uint64(200) { // every 17 minutes, over a day and a half
		batch := &store.Batch{Source: store.Source{Stream: "samples", Machine: "m"}, N: n + 1}
		for i := range uint64(7) {
			s := one(time.Duration(n)*17*time.Minute, "m", fmt.Sprint("/web/", i), 0.3+rng.Float32(), float32(math.Abs(1.8+0.16*rng.NormFloat64())))
			switch rng.IntN(10) {
			case 0:
				s.Cost = float32(math.NaN())
			case 1:
				s.CPU = 0.1 // hardly ran
			case 2:
				s.Flags = sample.Capped | sample.Stolen
			case 3:
				s.Cost = 2000 // not a measurement
			default:
				if i < 5 || n%2 == 0 { // two of the seven give fewer than 100
					h.Add(key, sample.TaskKey{Inode: i}, s.TS, float64(s.CPU), float64(s.Cost), 0)
					last = s.TS
					break
				}
				continue
			}
			batch.Samples = append(batch.Samples, s)
		}
		b.store.Add(batch)
		if n%40 == 0 {
			b.add(t, &store.Batch{})
		}
	}
	b.add(t, &store.Batch{})
	now := last.Add(time.Minute)
	want, _ := h.Lookup(key, now)
	got, err := dialect.SpecsOf(b.ask(t, dialect.DuckDB().Specs(p, nil, now)).Rows, now)
	if err != nil || len(got) != 1 {
		t.Fatalf("%d specs, %v", len(got), err)
	}
	g := got[0]
	if g.State != want.State.String() || g.State != "ready" || g.Samples != want.Samples || int(g.Tasks) != want.Tasks || g.Last != int64(last) {
		t.Errorf("got %+v\nwant %+v", g, want)
	}
	sn := b.store.Snapshot(0, 0)
	defer sn.Close()
	learner := digest.Learner{Dir: t.TempDir()}
	all, err := learner.Learn(t.Context(), sn, 0, nil, p, now)
	if err != nil || len(all) != 1 {
		t.Fatalf("%d specs by digests, %v", len(all), err)
	}
	d := all[0]
	if d.State.String() != g.State || d.Samples != g.Samples || d.Tasks != int(g.Tasks) || int64(d.Last) != g.Last || d.Key != key {
		t.Errorf("by digests %+v\nby SQL %+v", d, g)
	}
	for name, by := range map[string][3]float64{"mean": {g.Mean, want.Mean, d.Mean}, "σ": {g.StdDev, want.StdDev, d.StdDev}, "CPU": {g.CPUMean, want.CPUMean, d.CPUMean}} {
		if math.Abs(by[0]-by[1]) > 1e-9*by[1] || math.Abs(by[2]-by[1]) > 1e-9*by[1] {
			t.Errorf("%s: by SQL %.15g, by History %.15g, by digests %.15g", name, by[0], by[1], by[2])
		}
	}
}

// TestTheSelfPartAgreesWithHistory: what tasks spent on themselves is the same by SQL, by digests
// and by an agent's own spec.History, which knows the length of its intervals.
func TestTheSelfPartAgreesWithHistory(t *testing.T) {
	p := spec.Paper()
	h := spec.NewHistory(p)
	b := newBench(t, store.Options{Now: clock})
	rng := rand.New(rand.NewPCG(24, 25))
	key := spec.Key{Job: "web", Platform: "p", Signal: sample.RunQ, Variant: "ebpf"}
	batch := &store.Batch{}
	for n := range 150 {
		for i := range uint64(6) {
			cpu, other, self := 0.3+rng.Float32(), 0.01+rng.Float64(), 2*rng.Float64()
			s := one(time.Duration(n)*11*time.Minute, "m", fmt.Sprint("/web/", i), cpu, float32(other/float64(10*cpu)))
			s.Signal, s.Variant = key.Signal, key.Variant
			s.Extras.Set(sample.WaitOther, other)
			s.Extras.Set(sample.WaitSelf, self)
			h.Add(key, sample.TaskKey{Inode: i}, s.TS, float64(cpu), float64(s.Cost), self/float64(10*cpu))
			batch.Samples = append(batch.Samples, s)
		}
	}
	b.add(t, batch)
	now := batch.Samples[len(batch.Samples)-1].TS.Add(time.Minute)
	want, _ := h.Lookup(key, now)
	got, err := dialect.SpecsOf(b.ask(t, dialect.DuckDB().Specs(p, nil, now)).Rows, now)
	sn := b.store.Snapshot(0, 0)
	defer sn.Close()
	all, bad := (&digest.Learner{Dir: t.TempDir()}).Learn(t.Context(), sn, 0, nil, p, now)
	if err != nil || bad != nil || len(got) != 1 || len(all) != 1 {
		t.Fatalf("%d by SQL, %d by digests, %v, %v", len(got), len(all), err, bad)
	}
	for name, s := range map[string]spec.Spec{"SQL": dialect.SpecOf(&got[0]), "digests": all[0].Spec} {
		// A stored cost has 24 bits.
		if s.SelfSamples != 900 || s.SelfSamples != want.SelfSamples || math.Abs(s.SelfMean-want.SelfMean) > 1e-7*want.SelfMean || math.Abs(s.SelfStdDev-want.SelfStdDev) > 1e-7*want.SelfStdDev || s.SelfMean < 0.05 {
			t.Errorf("by %s %d, %.12g, %.12g; by History %d, %.12g, %.12g", name, s.SelfSamples, s.SelfMean, s.SelfStdDev, want.SelfSamples, want.SelfMean, want.SelfStdDev)
		}
	}
}

// TestSpecsOfManyMachinesAgree: with machines of any number, weight and honesty, and with
// revocations, the specs by SQL and by digests are equal, and so are the machines left out.
func TestSpecsOfManyMachinesAgree(t *testing.T) {
	p := spec.Paper()
	p.MinTasks, p.MinSamples, p.MinMachines = 2, 10, 3
	b := newBench(t, store.Options{Now: clock})
	rng := rand.New(rand.NewPCG(14, 15))
	batch := &store.Batch{}
	for job := range 60 {
		machines := 1 + job%15
		for m := range machines {
			mean, n := 1+0.02*rng.Float64(), 1+rng.IntN(60)
			switch rng.IntN(6) {
			case 0:
				mean = 0.1 + 4*rng.Float64() // lies, or differs
			case 1:
				n *= 10
			case 2:
				n = 1 + rng.IntN(3)
			}
			for i := range n {
				for task := range 1 + m%3 {
					s := one(time.Duration(rng.IntN(50*3600))*time.Second, fmt.Sprint("m", m), fmt.Sprint("/", job, "/", task), 0.3+rng.Float32(), float32(mean+0.1*rng.NormFloat64()))
					if s.Job, s.Signal = sample.JobName(fmt.Sprint("job'", job)), []sample.SignalName{sample.CPI, sample.RunQ, sample.CPT}[job%3]; i%7 == 3 {
						s.Cost = 0.5
					}
					if m%4 < 3 { // the others do not count it
						s.Extras.Set(sample.WaitOther, float64(s.Cost)*float64(s.CPU)*10)
						s.Extras.Set(sample.WaitSelf, max(0, 5*rng.Float64()-1)*float64(1+job%2*(m%2)*(m%5)))
					}
					batch.Samples = append(batch.Samples, s)
				}
			}
		}
	}
	container := one(0, "m1", "/x", 1, 1)
	container.Job = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	batch.Samples = append(batch.Samples, container)
	b.add(t, batch)
	now := sample.At(start.Add(51 * time.Hour))
	states, out, self := map[string]int{}, 0, 0
	for name, revoked := range map[string][]store.Window{
		"nothing revoked":     nil,
		"a machine and a job": {{Machine: "m2", From: sample.At(start), To: sample.At(start.Add(25 * time.Hour))}, {Job: "job'7", To: now}, {Machine: "m0", Job: "job'9", To: now}},
	} {
		got, err := dialect.SpecsOf(b.ask(t, dialect.DuckDB().Specs(p, revoked, now)).Rows, now)
		if err != nil {
			t.Fatal(err)
		}
		sn := b.store.Snapshot(0, 0)
		learner := digest.Learner{Dir: t.TempDir()}
		all, err := learner.Learn(t.Context(), sn, 0, revoked, p, now)
		sn.Close()
		if err != nil || len(all) != len(got) || len(got) < 50 {
			t.Fatalf("%s: %d specs by SQL, %d by digests, %v", name, len(got), len(all), err)
		}
		for i, g := range got {
			d := all[i]
			near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Abs(b) }
			states[g.State]++
			out += d.OutCount
			if d.SelfSamples > 0 {
				self++
			}
			if d.SelfSamples != g.SelfSamples || !near(g.SelfMean, d.SelfMean) || !near(g.SelfStdDev, d.SelfStdDev) {
				t.Errorf("%s: the self part by SQL %d, %v, %v, by digests %d, %v, %v", name, g.SelfSamples, g.SelfMean, g.SelfStdDev, d.SelfSamples, d.SelfMean, d.SelfStdDev)
			}
			if d.Key != dialect.KeyOf(&g) || d.State.String() != g.State || d.Samples != g.Samples || d.Tasks != int(g.Tasks) || int64(d.Last) != g.Last ||
				d.Machines != int(g.Machines) || d.OutCount != int(g.MachinesOut) || !near(g.Mean, d.Mean) || !near(g.StdDev, d.StdDev) || !near(g.CPUMean, d.CPUMean) {
				t.Errorf("%s: by SQL %+v\nby digests %+v, %d machines, %d left out, last %d", name, g, d.Spec, d.Machines, d.OutCount, d.Last)
			}
		}
	}
	if states["ready"] < 20 || states["insufficient"] < 5 || out < 20 || self < 20 {
		t.Errorf("%v, %d machines left out, %d self parts: the test shows little", states, out, self)
	}
}

// Samples of a victim in an incident are not learnt from, unless the change is lasting.
func TestIncidentsDoNotTeach(t *testing.T) {
	b := newBench(t, store.Options{Now: clock})
	batch := &store.Batch{}
	for i := range 10 {
		batch.Samples = append(batch.Samples, one(time.Duration(i)*time.Minute, "m1", "/a", 1, float32(i)), one(time.Duration(i)*time.Minute, "m2", "/a", 1, float32(i)))
	}
	at := func(m int) int64 { return start.Add(time.Duration(m) * time.Minute).UnixMilli() }
	closed := at(5)
	inc := store.Incident{Machine: "m1", ID: "1", VictimTask: "/a", Signal: "cpi", Began: at(3), Updated: at(5), Closed: &closed}
	lasting := store.Incident{Machine: "m2", ID: "1", VictimTask: "/a", Signal: "cpi", Began: at(3), Updated: at(9), Follows: true}
	other := store.Incident{Machine: "m2", ID: "2", VictimTask: "/a", Signal: "runq", Began: at(0), Updated: at(9)}
	batch.Incidents = []store.Incident{inc, lasting, other}
	b.add(t, batch)
	p := spec.Paper()
	p.MinTasks, p.MinSamples = 2, 7
	now := sample.At(start.Add(time.Hour))
	got, err := dialect.SpecsOf(b.ask(t, dialect.DuckDB().Specs(p, nil, now)).Rows, now)
	if err != nil || len(got) != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	// Cost 0 is below cpi's range, once on each machine.
	if got[0].Samples != 9+6 || got[0].State != "insufficient" && got[0].State != "learning" {
		t.Errorf("%d samples, %s; want 15 of which m1 has 6, too few", got[0].Samples, got[0].State)
	}
	open := inc
	open.Closed, open.Updated, open.ID = nil, at(9), "3"
	b.add(t, &store.Batch{Incidents: []store.Incident{open}})
	if got, err = dialect.SpecsOf(b.ask(t, dialect.DuckDB().Specs(p, nil, now)).Rows, now); err != nil || got[0].Samples != 9+2 {
		t.Errorf("while one is open: %d samples, want 11, %v", got[0].Samples, err)
	}
}

func TestASlowQueryIsStopped(t *testing.T) {
	b := newBench(t, store.Options{Now: clock})
	job := b.job("SELECT count(*) FROM range(100000000000) a WHERE hash(a.range) % 7 = 3")
	job.Limits.Time = 300 * time.Millisecond
	_, err := b.runner.Query(t.Context(), job)
	var e *Error
	if !errors.As(err, &e) || e.Kind != Exceeded {
		t.Errorf("got %v, want it stopped", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = b.runner.Query(ctx, job); err == nil {
		t.Error("a cancelled query was answered")
	}
}

// A row that is too large to be held is refused, by the child and by its parent.
func TestRowsAreBounded(t *testing.T) {
	b := newBench(t, store.Options{Now: clock})
	job := b.job(fmt.Sprintf("SELECT repeat('x', %d)", maxRow))
	job.Limits.Bytes = 1 << 30
	_, err := b.runner.Query(t.Context(), job)
	if e, ok := errors.AsType[*Error](err); !ok || e.Kind != Exceeded || !strings.Contains(e.Message, "a row") {
		t.Errorf("got %v", err)
	}
	var sum Summary
	long := bufio.NewReader(strings.NewReader(`{"row":["` + strings.Repeat("x", maxLine) + `"]}` + "\n"))
	if ended, err := sum.read(long, collector{&Answer{}}); ended || err == nil {
		t.Errorf("a line of a child that ignores the limit: %v, %v", ended, err)
	}
}

// FuzzChildsOutput reads what a child that was taken over might send: there is no panic, and no
// row that is larger than allowed.
func FuzzChildsOutput(f *testing.F) {
	f.Add([]byte(`{"fences":["landlock"]}` + "\n" + `{"columns":[{"name":"a","type":"INTEGER"}]}` + "\n" + `{"row":[1]}` + "\n" + `{"end":true}` + "\n"))
	f.Add([]byte(`{"error":{"kind":"wrong","message":"x"}}` + "\n"))
	f.Add([]byte("{\n{\"row\":null}\n\n\x00"))
	f.Fuzz(func(t *testing.T, text []byte) {
		a := &Answer{}
		var sum Summary
		sum.read(bufio.NewReader(bytes.NewReader(text)), collector{a})
		for _, row := range a.Rows {
			if len(row) > maxLine || !json.Valid(row) {
				t.Errorf("row %.100q", row)
			}
		}
	})
}

// A sink's error stops the query, whatever the child still has to send.
func TestASinkStopsTheQuery(t *testing.T) {
	b := newBench(t, store.Options{Now: clock})
	job := b.job("SELECT range, repeat('x', 1000) FROM range(20000)")
	job.Limits.Rows, job.Limits.Bytes = 1_000_000, 1<<30
	enough := errors.New("enough")
	s := &stopping{after: 10, err: enough}
	if _, err := b.runner.Stream(t.Context(), job, s); !errors.Is(err, enough) || s.rows != 10 {
		t.Errorf("after %d rows: %v", s.rows, err)
	}
}

type stopping struct {
	rows, after int
	err         error
}

func (s *stopping) Columns([]dialect.Column) error { return nil }

func (s *stopping) Row(json.RawMessage) error {
	if s.rows++; s.rows == s.after {
		return s.err
	}
	return nil
}

// What is not in the job is not in the process.
func TestTheChildHasNoSecrets(t *testing.T) {
	t.Setenv("QUELL_TEST_SECRET", "hidden")
	b := newBench(t, store.Options{Now: clock})
	secret := filepath.Join(b.dir, "token")
	if err := os.WriteFile(secret, []byte("hidden"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{"SELECT * FROM read_text('" + secret + "')", "SELECT * FROM read_text('/proc/self/environ')", "SELECT getenv('QUELL_TEST_SECRET')"} {
		a, err := b.runner.Query(t.Context(), b.job(sql))
		if text, _ := json.Marshal(a); err == nil || strings.Contains(string(text), "hidden") {
			t.Errorf("%s: %s", sql, text)
		}
	}
}

// A study's results, put into the store's folder as the lab writes them, are the table lab;
// without any the table is there and empty. They join with what production has seen.
func TestLabResults(t *testing.T) {
	b := newBench(t, store.Options{})
	const ask = "SELECT study, part, round(value) AS value FROM lab WHERE analysis = 'degradation' ORDER BY value DESC"
	if a := b.ask(t, ask); len(a.Rows) != 0 || len(a.Columns) != 3 {
		t.Errorf("%s of no results", rows(a))
	}
	dir := filepath.Join(b.dir, dialect.Lab)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("duckdb", "")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for study, value := range map[string]string{"vm-mapping": "41.7", "it's": "NULL"} {
		row := "SELECT 'degradation' AS analysis, 'percent' AS quantity, 'mapping=a+b' AS cell, 'web' AS part, '' AS \"at\", '%' AS unit, " + value + "::DOUBLE AS value, 40.0 AS low, 44.0 AS high, 0.95 AS level, 't' AS method, 3 AS n"
		if _, err := db.Exec("COPY (" + row + ") TO '" + strings.ReplaceAll(filepath.Join(dir, study+".parquet"), "'", "''") + "' (FORMAT parquet)"); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := rows(b.ask(t, ask+" NULLS LAST")), `["vm-mapping","web",42] ["it's","web",null]`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	// What the lab wrote itself: an example.
	const example = "net-tenants-small.parquet"
	text, err := os.ReadFile(filepath.Join("../../../../examples/net-tenants-small", example))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, example), text, 0o644); err != nil {
		t.Fatal(err)
	}
	if got, want := rows(b.ask(t, "SELECT study, count(*) > 100, count(low) > 100, count(DISTINCT cell) > 3 FROM lab WHERE analysis = 'net-tenants' GROUP BY ALL")), `["net-tenants-small",true,true,true]`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if a := b.ask(t, "SELECT l.study, count(s.job) FROM lab l LEFT JOIN suspects s ON s.victim_job = l.part GROUP BY ALL"); len(a.Rows) != 3 {
		t.Errorf("%s", rows(a))
	}
}
