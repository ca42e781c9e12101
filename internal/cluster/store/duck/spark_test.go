//go:build spark

package duck

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/dialect"
	"github.com/quell-dev/quell/internal/cluster/store/digest"
	"github.com/quell-dev/quell/internal/cluster/store/spark"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// cluster is a Spark master with two workers and a Connect server, each in a separate
// process on loopback. make test-spark sets the location of Spark.
type cluster struct {
	address string // of the Connect server
	web     string // of the master
	logs    string
}

func port(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	if address := os.Getenv("QUELL_SPARK_CONNECT"); address != "" { // one that is already running
		return &cluster{address: address}
	}
	home := os.Getenv("QUELL_SPARK_HOME")
	if home == "" {
		quelltest.Skip(t, "spark", fmt.Errorf("QUELL_SPARK_HOME is not set: make test-spark"))
	}
	dir := t.TempDir()
	c := &cluster{logs: dir}
	run := func(name string, args ...string) {
		log, err := os.Create(filepath.Join(dir, name+".log"))
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(filepath.Join(home, "bin", args[0]), args[1:]...)
		cmd.Env = append(os.Environ(), "SPARK_HOME="+home, "SPARK_LOCAL_IP=127.0.0.1", "SPARK_LOCAL_DIRS="+dir, "SPARK_WORKER_DIR="+filepath.Join(dir, "work"), "SPARK_DAEMON_MEMORY=512m")
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { _ = cmd.Wait(); log.Close(); close(ended) }() // it ends by a signal
		t.Cleanup(func() {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) // a worker ends its executors
			select {
			case <-ended:
			case <-time.After(20 * time.Second):
				_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
				<-ended
			}
		})
	}
	master, web, connect := port(t), port(t), port(t)
	at := fmt.Sprint("spark://127.0.0.1:", master)
	run("master", "spark-class", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", strconv.Itoa(master), "--webui-port", strconv.Itoa(web))
	for i := range 2 {
		run(fmt.Sprint("worker", i), "spark-class", "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--port", strconv.Itoa(port(t)), "--webui-port", strconv.Itoa(port(t)), "--cores", "1", "--memory", "2g", at)
	}
	args := []string{"spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", at, "--driver-memory", "1g"}
	for _, conf := range []string{"spark.executor.memory=1500m", "spark.executor.cores=1", "spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1", "spark.connect.grpc.binding.address=127.0.0.1",
		fmt.Sprint("spark.connect.grpc.binding.port=", connect), "spark.ui.enabled=false", "spark.sql.shuffle.partitions=4"} {
		args = append(args, "--conf", conf)
	}
	run("connect", append(args, "spark-internal")...)
	c.address, c.web = fmt.Sprint("sc://127.0.0.1:", connect), fmt.Sprintf("http://127.0.0.1:%d/json/", web)
	return c
}

// ready waits for the Connect server and for an executor on each worker.
func (c *cluster) ready(t *testing.T) *spark.Session {
	t.Helper()
	var s *spark.Session
	last := error(nil)
	quelltest.Until(t, "Spark to answer; its logs are in "+c.logs, func() bool {
		s, last = spark.Open(t.Context(), c.address, "")
		return last == nil
	})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := s.Query(t.Context(), "SELECT count(*) FROM range(1000)", 1); err != nil {
		t.Fatal(err)
	}
	if c.web == "" {
		return s
	}
	var status struct {
		Workers []struct {
			State     string `json:"state"`
			CoresUsed int    `json:"coresused"`
		} `json:"workers"`
	}
	quelltest.Until(t, "an executor on each of two workers", func() bool {
		resp, err := http.Get(c.web)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		status.Workers = nil
		if err != nil || json.Unmarshal(text, &status) != nil || len(status.Workers) != 2 {
			return false
		}
		for _, w := range status.Workers {
			if w.State != "ALIVE" || w.CoresUsed != 1 {
				return false
			}
		}
		return true
	})
	http.DefaultClient.CloseIdleConnections()
	return s
}

// million makes a store of 1 M samples, including all kinds that are not learnt from.
func million(t *testing.T) *bench {
	t.Helper()
	b := newBench(t, store.Options{Now: clock})
	rng := rand.New(rand.NewPCG(7, 9))
	for part := range 20 {
		batch := &store.Batch{}
		for i := range 50_000 {
			job := rng.IntN(40)
			at := time.Duration(part*3)*time.Hour + time.Duration(i/10_000)*20*time.Minute // of two hours
			s := one(at, fmt.Sprint("m", i%50), fmt.Sprintf("/%d/%d", job, i%8), rng.Float32()*2, float32(math.Abs(1.8+0.16*rng.NormFloat64())))
			s.Job, s.Platform = sample.JobName(fmt.Sprint("job'", job)), sample.Platform(fmt.Sprint("p", job%3))
			switch rng.IntN(20) {
			case 0:
				s.Cost = float32(math.NaN())
			case 1:
				s.Flags = sample.Capped
			case 2:
				s.Cost = 1e6
			case 3:
				s.Signal, s.Variant = sample.RunQ, ""
				s.Extras.Set(sample.WaitOther, float64(s.Cost)*float64(s.CPU)*10)
				s.Extras.Set(sample.WaitSelf, 3*rng.Float64())
			}
			batch.Samples = append(batch.Samples, s)
		}
		for i := range 20 { // incidents of an hour; some follow a change, some are reported twice
			began := start.Add(time.Duration(part*3) * time.Hour).UnixMilli()
			closed := began + 3_600_000
			inc := store.Incident{Machine: fmt.Sprint("m", i), ID: fmt.Sprint(part, "-", i), VictimTask: fmt.Sprintf("/%d/%d", i, i%8), Signal: "cpi", Began: began, Updated: began, Follows: i%5 == 0}
			batch.Incidents = append(batch.Incidents, inc)
			inc.Updated, inc.Closed = closed, &closed
			batch.Incidents = append(batch.Incidents, inc)
			round := store.Round{Machine: inc.Machine, Incident: inc.ID, ID: "cap-" + inc.ID, Updated: began, VictimJob: "web", Job: fmt.Sprint("job'", i%4), Task: fmt.Sprint("/", i), Began: began, Until: closed}
			suspect := store.Suspect{Machine: inc.Machine, Incident: inc.ID, Updated: began, VictimJob: "web", Job: round.Job, Task: round.Task, NamedFrom: &began, NamedUntil: &began, Level: "likely"}
			batch.Rounds, batch.Suspects = append(batch.Rounds, round), append(batch.Suspects, suspect)
			relative := rng.Float64()
			round.Updated, round.Ended, round.RelativeCost, round.Outcome = closed, &closed, &relative, []string{"noise", "true-positive"}[i%2]
			suspect.Updated, suspect.Level = closed, []string{"possible", "proven"}[i%2]
			batch.Rounds, batch.Suspects = append(batch.Rounds, round), append(batch.Suspects, suspect)
		}
		b.add(t, batch)
	}
	return b
}

// near reports whether two numbers agree to 1e-9.
func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Max(1e-12, math.Abs(b)) }

// TestSparkAgreesWithDuckDB compares the results of both, and of digests.
func TestSparkAgreesWithDuckDB(t *testing.T) {
	c := newCluster(t)
	b := million(t)
	session := c.ready(t)
	t.Logf("Spark %s, two workers", session.Version)
	t.Run("quantiles", func(t *testing.T) { quantilesAgree(t, b, session) })
	t.Run("tables", func(t *testing.T) { tablesAgree(t, b, session) })
	t.Run("specs", func(t *testing.T) { specsAgree(t, b, c) })
}

// specsAgree: count, mean and standard deviation agree with DuckDB's to 1e-9.
func specsAgree(t *testing.T, b *bench, c *cluster) {
	sn := b.store.Snapshot(0, 0)
	defer sn.Close()
	p := spec.Paper()
	p.MinTasks, p.MinMachines = 8, 3
	revoked := []store.Window{{Machine: "m3", From: sample.At(start), To: sample.At(start.Add(5 * time.Hour))}}
	now := sample.At(clock())
	from := now.Add(-90 * time.Hour)

	onCluster := spark.Learner{Address: c.address}
	begun := time.Now()
	onSpark, err := onCluster.Learn(t.Context(), sn, from, revoked, p, now)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d specs of 1 M samples on Spark in %v", len(onSpark), time.Since(begun))
	job := b.job(dialect.DuckDB().Specs(p, revoked, now))
	job.From, job.To = from, now
	job.Limits = Limits{Time: time.Minute, MemoryMB: 1000, Threads: 2, Rows: 1 << 20, Bytes: 1 << 30}
	a, err := b.runner.Query(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	onDuck, err := dialect.SpecsOf(a.Rows, now)
	if err != nil || len(onDuck) < 60 || len(onDuck) != len(onSpark) {
		t.Fatalf("%d specs by DuckDB, %d by Spark, %v", len(onDuck), len(onSpark), err)
	}
	states := map[string]int{}
	for i, d := range onDuck {
		s := onSpark[i]
		states[d.State]++
		if s.Key != dialect.KeyOf(&d) || s.State.String() != d.State || s.Tasks != int(d.Tasks) || s.Samples != d.Samples || int64(s.Last) != d.Last ||
			s.Machines != int(d.Machines) || s.OutCount != int(d.MachinesOut) || !near(s.Mean, d.Mean) || !near(s.StdDev, d.StdDev) || !near(s.CPUMean, d.CPUMean) ||
			s.SelfSamples != d.SelfSamples || !near(s.SelfMean, d.SelfMean) || !near(s.SelfStdDev, d.SelfStdDev) {
			t.Errorf("on Spark  %+v\nby DuckDB %+v", s, d)
		}
	}
	t.Logf("states: %v", states)
	whole, err := onCluster.Learn(t.Context(), sn, 0, nil, p, now) // digests have whole hours only
	if err != nil {
		t.Fatal(err)
	}
	learner := digest.Learner{Dir: t.TempDir(), Threads: 2}
	by, err := learner.Learn(t.Context(), sn, 0, windowsOf(t, b), p, now)
	if err != nil || len(by) != len(whole) {
		t.Fatalf("%d specs by digests, %d by Spark, %v", len(by), len(whole), err)
	}
	for i, d := range by {
		if s := whole[i]; s.Key != d.Key || s.Samples != d.Samples || !near(s.Mean, d.Mean) || !near(s.StdDev, d.StdDev) || s.SelfSamples != d.SelfSamples || !near(s.SelfMean, d.SelfMean) {
			t.Errorf("on Spark  %+v\nby digests %+v", s, d.Spec)
		}
	}
}

// quantilesAgree runs the same query on both, and on DuckDB also with its own function:
// for samples' costs, and for the CPU usage, which each of the million has.
func quantilesAgree(t *testing.T, b *bench, session *spark.Session) {
	sn := b.store.Snapshot(0, 0)
	defer sn.Close()
	if err := session.Tables(t.Context(), spark.Files(sn), 0, 0); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		column, where string
		rows          float64 // at least
	}{{"cost", "cost < 1000", 800_000}, {"cpu", "true", 1_000_000}} {
		ask := func(quantile func(q string) string) string {
			return fmt.Sprintf("SELECT signal, count(*) AS n, %s AS p50, %s AS p90, %s AS p99 FROM samples WHERE %s GROUP BY signal ORDER BY signal",
				quantile("0.5"), quantile("0.9"), quantile("0.99"), c.where)
		}
		standard := ask(func(q string) string {
			return "percentile_cont(" + q + ") WITHIN GROUP (ORDER BY CAST(" + c.column + " AS DOUBLE))"
		})
		onSpark, err := session.Query(t.Context(), standard, 100)
		if err != nil {
			t.Fatal(err)
		}
		answers := [3][]json.RawMessage{onSpark.Rows, b.ask(t, standard).Rows,
			b.ask(t, ask(func(q string) string { return "quantile_cont(" + c.column + "::DOUBLE, " + q + ")" })).Rows}
		rows := 0.0
		for i := range answers[0] {
			var name [3]string
			var n [3][4]float64 // rows and quantiles
			for j, a := range answers {
				if len(a) != 2 {
					t.Fatalf("%s: %s", c.column, answers)
				}
				into := []any{&name[j], &n[j][0], &n[j][1], &n[j][2], &n[j][3]}
				if err := json.Unmarshal(a[i], &into); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("%s, %s: count and quantiles on Spark %v, by DuckDB %v", c.column, name[0], n[0], n[2])
			for k := range n[0] {
				if name[0] != name[1] || name[0] != name[2] || !near(n[0][k], n[1][k]) || !near(n[0][k], n[2][k]) {
					t.Errorf("%s: %v %v", c.column, name, n)
				}
			}
			rows += n[0][0]
		}
		if rows < c.rows {
			t.Errorf("%s: %g rows were compared, want %g", c.column, rows, c.rows)
		}
	}
}

// tablesAgree: each table has the same number of rows in both.
func tablesAgree(t *testing.T, b *bench, session *spark.Session) {
	for _, table := range []string{"samples", "incidents", "incident_history", "rounds", "round_history", "suspects", "suspect_history", "actions", "audit", "specs", "spec_history", "signals"} {
		got, err := session.Query(t.Context(), "SELECT count(*) FROM "+table, 1)
		if err != nil {
			t.Fatalf("%s: %v", table, err)
		}
		if want := rows(b.ask(t, "SELECT count(*) FROM "+table)); string(got.Rows[0]) != want {
			t.Errorf("%s: %s rows on Spark, %s by DuckDB", table, got.Rows[0], want)
		}
	}
	const pairs = "SELECT s.victim_job, s.job, s.level, count(*) AS n, count(r.ended) AS ended, sum(r.relative_cost) AS relative FROM suspects s JOIN rounds r ON s.machine = r.machine AND s.incident = r.incident AND s.task = r.task GROUP BY s.victim_job, s.job, s.level ORDER BY s.job, s.level"
	got, err := session.Query(t.Context(), pairs, 100)
	if err != nil {
		t.Fatal(err)
	}
	want := b.ask(t, pairs).Rows
	if len(got.Rows) != 4 || len(want) != 4 {
		t.Fatalf("pairs on Spark %s, by DuckDB %s", got.Rows, want)
	}
	for i := range want {
		var name [2][3]string
		var n [2][3]float64
		for k, row := range [2]json.RawMessage{got.Rows[i], want[i]} {
			into := []any{&name[k][0], &name[k][1], &name[k][2], &n[k][0], &n[k][1], &n[k][2]}
			if err := json.Unmarshal(row, &into); err != nil {
				t.Fatal(err)
			}
		}
		if name[0] != name[1] || n[0][0] != n[1][0] || n[0][1] != n[1][1] || !near(n[0][2], n[1][2]) {
			t.Errorf("on Spark %s, by DuckDB %s", got.Rows[i], want[i])
		}
	}
	if _, err := session.Query(t.Context(), "SELEC 1", 1); err == nil || !strings.Contains(err.Error(), "SYNTAX") {
		t.Errorf("a statement that is none: %v", err)
	}
}

func windowsOf(t *testing.T, b *bench) (all []store.Window) {
	t.Helper()
	for _, row := range b.ask(t, "SELECT machine, victim_task, signal, epoch_ms(began), epoch_ms(coalesce(closed, updated)) FROM incidents WHERE NOT follows").Rows {
		var w store.Window
		into := []any{&w.Machine, &w.Task, &w.Signal, &w.From, &w.To}
		if err := json.Unmarshal(row, &into); err != nil {
			t.Fatal(err)
		}
		all = append(all, w)
	}
	return all
}
