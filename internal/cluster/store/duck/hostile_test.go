package duck

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/dialect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// census lists the contents of a folder: names, modes and times of change.
func census(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			b.WriteString(path + " " + info.ModTime().String() + " " + info.Mode().String() + "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// many is a child that answers one query after the other, each with a new DuckDB inside
// the same fences. It saves the start of a process per query.
func many(dir string) error {
	fences, err := sandbox(dir)
	if err == nil {
		err = limit(&Limits{Time: 10 * time.Minute, MemoryMB: hostileLimits().MemoryMB, Threads: 1})
	}
	for in := json.NewDecoder(os.Stdin); err == nil; {
		var job Job
		if err = in.Decode(&job); err == nil {
			var e *engine
			if e, err = open(context.Background()); err == nil {
				err = e.answer(&job, fences, os.Stdout)
			}
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// asker queries such a child.
type asker struct {
	t    *testing.T
	dir  string
	jobs *json.Encoder
	out  *bufio.Reader
	cmd  *exec.Cmd
	errs tail
}

func (a *asker) begin() {
	a.t.Helper()
	a.cmd = exec.Command(os.Args[0], "query-child-many", a.dir)
	a.cmd.Env, a.cmd.Stderr = []string{}, &a.errs
	in, err := a.cmd.StdinPipe()
	if err != nil {
		a.t.Fatal(err)
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		a.t.Fatal(err)
	}
	if err := a.cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	a.jobs, a.out = json.NewEncoder(in), bufio.NewReader(out)
}

func (a *asker) end() {
	a.cmd.Process.Kill()
	_ = a.cmd.Wait() // it was killed, or a query has ended it
}

func (a *asker) query(job *Job) (*Answer, error) {
	a.t.Helper()
	if err := a.jobs.Encode(job); err != nil {
		a.end()
		a.t.Fatalf("ask: %v; it said: %s", err, a.errs.String())
	}
	answer := &Answer{Answer: dialect.Answer{Rows: []json.RawMessage{}}}
	late := time.AfterFunc(job.Limits.Time+grace+10*time.Second, func() { a.cmd.Process.Kill() })
	defer late.Stop()
	var sum Summary
	ended, bad := sum.read(a.out, collector{answer})
	answer.Truncated = sum.Truncated
	if !ended {
		a.end()
		a.t.Errorf("%s: it has ended the process, or had to be stopped; the process said: %s", job.SQL, a.errs.String())
		a.begin()
	}
	if bad != nil {
		return nil, bad
	}
	return answer, nil
}

func hostileLimits() Limits {
	return Limits{Time: time.Second, MemoryMB: 100, Threads: 1, Rows: 1000, Bytes: 1 << 20}
}

var apart = flag.Bool("apart", false, "TestHostileStatements: every statement in a process of its own, as quell-server does it (a minute more)")

// TestHostileStatements executes every statement of testdata/hostile.txt. Each is refused
// or bounded, reveals nothing and leaves nothing behind. A statement to be bounded runs
// in a separate process, as in quell-server. Those to be refused run one after the other
// in one process with the same fences, unless -apart is given.
func TestHostileStatements(t *testing.T) {
	text, err := os.ReadFile("testdata/hostile.txt")
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, store.Options{Now: clock})
	b.add(t, &store.Batch{Source: store.Source{Stream: "samples", Machine: "m1"}, N: 1, Samples: []sample.Sample{one(0, "m1", "/a", 1, 2)}})
	out := t.TempDir()
	secret := filepath.Join(filepath.Dir(b.dir), "secret.txt")
	if err := os.WriteFile(secret, []byte("the secret is kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	together := &asker{t: t, dir: b.dir}
	together.begin()
	defer func() { together.end() }()
	job := b.job("")
	job.Machines = []Machine{{Machine: "m1"}}
	fill := strings.NewReplacer("{SEG}", job.Files[store.Samples][1], "{STORE}", b.dir, "{SECRET}", secret, "{OUT}", out)
	before := census(t, b.dir) + census(t, out)
	n := 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		want, sql, ok := strings.Cut(line, " ")
		if line == "" || want == "#" {
			continue
		}
		if !ok || !slices.Contains([]string{"no", "big", "mem", "ok"}, want) {
			t.Fatalf("%q is no line of the list", line)
		}
		n++
		job.SQL, job.Limits = fill.Replace(sql), hostileLimits()
		bounded := want == "big" || want == "mem"
		ask := together.query
		if bounded || *apart {
			ask = func(job *Job) (*Answer, error) { return b.runner.Query(t.Context(), job) }
		}
		if want == "big" && !*apart {
			job.Limits.Time = 300 * time.Millisecond
		}
		if bounded {
			want = "big"
		}
		begun := time.Now()
		a, err := ask(job)
		hostile(t, want, job, a, err, time.Since(begun))
	}
	if n < 100 {
		t.Errorf("only %d statements", n)
	}
	if after := census(t, b.dir) + census(t, out); after != before {
		t.Errorf("something was written:\n%s\nbefore:\n%s", after, before)
	}
	t.Logf("%d hostile statements", n)
}

// hostile checks the result of a statement.
func hostile(t *testing.T, want string, job *Job, a *Answer, err error, took time.Duration) {
	t.Helper()
	answer, bad := json.Marshal(a)
	if bad != nil {
		t.Fatal(bad)
	}
	var e *Error
	switch {
	case err != nil && !errors.As(err, &e):
		t.Errorf("%s: %v", job.SQL, err)
	case want == "no" && (err == nil || e.Kind != Refused && e.Kind != Wrong):
		t.Errorf("%s: answered %.200s, %v", job.SQL, answer, err)
	case want == "big" && (err == nil && !a.Truncated || err != nil && e.Kind != Exceeded && e.Kind != Wrong):
		t.Errorf("%s: answered %.200s, %v", job.SQL, answer, err)
	case want == "ok" && err != nil && e.Kind == Broken:
		t.Errorf("%s: %v", job.SQL, err)
	}
	if text := string(answer) + errorText(err); strings.Contains(text, "secret is kept") || strings.Contains(text, "root:x:0") {
		t.Errorf("%s gave it away: %.300s", job.SQL, text)
	}
	if took > job.Limits.Time+grace+10*time.Second {
		t.Errorf("%s took %v", job.SQL, took)
	}
	if e != nil && want == "big" {
		t.Logf("%-9s %6dms %.60s: %.100s", e.Kind, took.Milliseconds(), job.SQL, e.Message)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestAttackAnAddressToCall: no query calls a function at an address that it chooses, by a parsed statement with
// values of a type that SQL has no name for. It would run any code as the server's user.
func TestAttackAnAddressToCall(t *testing.T) {
	b := newBench(t, store.Options{Now: clock})
	var row [1]string
	if err := json.Unmarshal(b.ask(t, "SELECT json_serialize_sql('SELECT * FROM arrow_scan(1, 2, 3)')::VARCHAR").Rows[0], &row); err != nil {
		t.Fatal(err)
	}
	d := dialect.DuckDB()
	evil := d.Quote(strings.ReplaceAll(row[0], `"INTEGER"`, `"POINTER"`))
	run := "SELECT * FROM json_execute_serialized_sql(" + evil + ")"
	for name, sql := range map[string]string{
		"called":                run,
		"by its whole name":     `SELECT * FROM system.main."JSON_EXECUTE_serialized_sql"(` + evil + ")",
		"explained":             "EXPLAIN " + run,
		"described":             "DESCRIBE " + run,
		"a pragma":              "PRAGMA json_execute_serialized_sql(" + evil + ")",
		"a call":                "CALL json_execute_serialized_sql(" + evil + ")",
		"in a text":             "SELECT * FROM query(" + d.Quote(run) + ")",
		"in a text for a plan":  "SELECT json_serialize_plan(" + d.Quote(run) + ")",
		"after a zero byte":     "SELECT 1\x00; " + run,
		"before a zero byte":    run + "\x00",
		"the second statement":  "SELECT 1; " + run,
		"the table of a select": "WITH x AS (FROM json_execute_serialized_sql(" + evil + ")) SELECT (SELECT count(*) FROM x)",
	} {
		_, err := b.runner.Query(t.Context(), b.job(sql))
		if e, ok := errors.AsType[*Error](err); !ok || e.Kind != Refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFencesWhileCachesAreDropped: a file of /proc is another one, which the fence does not permit, after
// the kernel has dropped it from its caches. Under memory pressure queries failed.
func TestFencesWhileCachesAreDropped(t *testing.T) {
	quelltest.Need(t, quelltest.Root)
	b := newBench(t, store.Options{Now: clock})
	b.add(t, &store.Batch{Samples: []sample.Sample{one(0, "m1", "/a", 1, 2)}})
	var dropping sync.WaitGroup
	var over atomic.Bool
	dropping.Go(func() {
		for !over.Load() {
			if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 5 {
		a := &asker{t: t, dir: b.dir}
		a.begin()
		job := b.job("SELECT 1")
		job.Limits = hostileLimits()
		if _, err := a.query(job); err != nil {
			t.Error(err)
		}
		a.end()
	}
	over.Store(true)
	dropping.Wait()
}

// TestTheOuterFencesHold removes DuckDB's own fence: the others must suffice.
func TestTheOuterFencesHold(t *testing.T) {
	b := newBench(t, store.Options{Now: clock})
	b.add(t, &store.Batch{Samples: []sample.Sample{one(0, "m1", "/a", 1, 2)}})
	a := b.ask(t, "SELECT 1")
	runner := NewRunner(os.Args[0], "query-child-unfenced", b.dir)
	t.Cleanup(runner.Close)
	seg := b.job("").Files[store.Samples][1]
	for _, sql := range []string{"COPY (SELECT * FROM range(100000)) TO '" + seg + "'", "COPY (SELECT 1) TO '" + b.dir + "/x.csv'"} {
		job := b.job(sql)
		if _, err := runner.Query(t.Context(), job); err == nil {
			t.Errorf("%s: it was written", sql)
		}
	}
	if got := rows(b.ask(t, "SELECT count(*) FROM samples")); got != "[1]" {
		t.Errorf("the segment holds %s now", got)
	}
	if !slices.Contains(a.Fences, "landlock") {
		t.Log("no Landlock here: reading files is left to DuckDB's fence")
		return
	}
	if _, err := runner.Query(t.Context(), b.job("SELECT * FROM read_text('/etc/passwd')")); err == nil {
		t.Error("/etc/passwd was read")
	}
}

// TestAttackTimesThatNoCalendarHas: an agent reports any number as a time of an incident or an action.
// All incidents and actions can be queried still, those of others too.
func TestAttackTimesThatNoCalendarHas(t *testing.T) {
	b := newBench(t, store.Options{Now: clock})
	const far = 1 << 62
	at, end := sample.At(start), int64(far)
	inc := incident.Record{}
	inc.Machine, inc.ID, inc.Updated, inc.Began, inc.Opened, inc.Closed = "m1", "i1", at, -far, math.MinInt64, math.MaxInt64-1
	inc.Findings = []plan.Finding{{From: -far, Until: far}}
	inc.Rounds = []*plan.Round{{ID: "c1", From: -far, Until: far, Ended: far}}
	inc.Latest = &plan.Analysis{Analysed: far}
	later := incident.Record{} // its times are moved with it
	later.Machine, later.ID, later.Updated, later.Began = "m1", "i2", math.MaxInt64-1, math.MinInt64
	batch := &store.Batch{Source: store.Source{Stream: "records", Machine: "m1"}, N: 1, Actions: []store.Action{{At: int64(at), Machine: "m1", Until: &end}}}
	for _, r := range []*incident.Record{&inc, &later} {
		if err := batch.AddIncident(r); err != nil {
			t.Fatal(err)
		}
	}
	b.add(t, batch)
	for sql, want := range map[string]string{
		"SELECT epoch_ms(began), epoch_ms(opened), epoch_ms(closed) FROM incidents WHERE id = 'i1'": "[-253402300799999,-253402300799999,253402300799999]",
		"SELECT count(began) FROM incidents":                                                   "[2]",
		"SELECT epoch_ms(began), epoch_ms(until), epoch_ms(ended) FROM rounds":                 "[-253402300799999,253402300799999,253402300799999]",
		"SELECT epoch_ms(analysed), epoch_ms(named_from), epoch_ms(named_until) FROM suspects": "[253402300799999,-253402300799999,253402300799999]",
		"SELECT epoch_ms(until) FROM actions":                                                  "[253402300799999]",
	} {
		if got := rows(b.ask(t, sql)); got != want {
			t.Errorf("%s: %s, want %s", sql, got, want)
		}
	}
}

// TestAttackSubjectsOfAnyBytes: a client of the bus that publishes on a subject that is no UTF-8 is
// refused, and the audit log with that subject can be read.
func TestAttackSubjectsOfAnyBytes(t *testing.T) {
	b := newBench(t, store.Options{Now: clock})
	b.add(t, &store.Batch{Audit: []store.Audit{{At: int64(sample.At(start)), Who: "agent.m1", What: "bus: publish", Target: "command.\xff\x1b", Outcome: "refused"}}})
	if got, want := rows(b.ask(t, "SELECT who, target FROM audit")), "[\"agent.m1\",\"command.\ufffd\\u001b\"]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestAttackARunWithAZeroByte: an agent names its run with a zero byte. The table of machines, and each
// query that has the word, works.
func TestAttackARunWithAZeroByte(t *testing.T) {
	b := newBench(t, store.Options{Now: clock})
	job := b.job("SELECT boot FROM machines WHERE machine = 'm1'")
	job.Machines = []Machine{{Machine: "m1", Boot: "a\x00b", Stream: "samples", Batch: 1, LastSeen: sample.At(start)}}
	a, err := b.runner.Query(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := rows(a), "[\"a\ufffdb\"]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
