package server

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/cluster/store/dialect"
	"github.com/quell-dev/quell/internal/cluster/store/duck"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// tasksSQL selects the newest sample of each task and signal. Those of a machine's tasks beyond its first 1,000 come
// last, where a list is cut off: it reports as many as it likes.
const tasksSQL = `WITH newest AS (
  SELECT machine, task, job, class, platform, signal, variant, cpu, cost, flags, epoch_ms(ts) AS ms
  FROM samples WHERE task <> %s AND ts >= %s%s
  QUALIFY row_number() OVER (PARTITION BY machine, task, signal ORDER BY ts DESC) = 1
), ranked AS (
  SELECT *, dense_rank() OVER (PARTITION BY machine ORDER BY task) > 1000 AS further FROM newest
)
SELECT * EXCLUDE (further) FROM ranked ORDER BY further, machine, task, signal LIMIT 100001`

// recent is the age up to which a task's sample is listed: agents sample once a minute.
const recent = 10 * time.Minute

func (s *Server) whoAsks(w http.ResponseWriter, r *request) error {
	return reply(w, http.StatusOK, cluster.Caller{Name: r.caller.name, Scope: string(r.caller.scope), Version: s.Version, Now: s.now()})
}

func (s *Server) listTasks(w http.ResponseWriter, r *request) error {
	q := r.URL.Query()
	from, err := when("since", q.Get("since"), s.now())
	if err != nil {
		return err
	}
	if from == 0 {
		from = s.now().Add(-recent)
	}
	d, where := dialect.DuckDB(), ""
	for _, column := range [...]string{"machine", "job"} {
		if v := q.Get(column); v != "" {
			where += fmt.Sprintf(" AND %s = %s", column, d.Quote(v))
		}
	}
	a := s.answer(w, r, listForm(asIs))
	g := &taskRows{to: a, limit: s.limitOf}
	job := &duck.Job{SQL: fmt.Sprintf(tasksSQL, d.Quote(string(detect.OutsideName)), d.At(from), where), From: from, Limits: duck.Limits{Rows: 100_000}}
	sum, err := s.ask(r.Context(), s.forLists, job, a, g)
	if err == nil {
		err = g.flush()
	}
	return a.finish(sum.Truncated, err)
}

// limitOf returns the mean and the threshold of a spec that is ready; NaN without one.
func (s *Server) limitOf(k spec.Key) (mean, limit incident.Value) {
	s.specs.mu.Lock()
	v, ok := s.specs.by[k]
	s.specs.mu.Unlock()
	if of := dialect.SpecOf(&v); ok && of.State == spec.Ready {
		return incident.Value(of.Mean), threshold(of)
	}
	return incident.Value(math.NaN()), incident.Value(math.NaN())
}

// threshold is a spec's threshold with an agent's default parameters; NaN for an unknown
// signal.
func threshold(of spec.Spec) incident.Value {
	sig, known := sample.LookupSignal(of.Signal)
	p, err := detect.Paper(detect.Default)
	if !known || err != nil {
		return incident.Value(math.NaN())
	}
	return incident.Value(p.Threshold(sig, of))
}

// taskRows is a sink of tasksSQL's rows, which it joins to tasks.
type taskRows struct {
	to    duck.Sink
	limit func(spec.Key) (mean, limit incident.Value)
	task  cluster.Task // the last one, not yet passed on; without costs: none
}

// Columns implements duck.Sink.
func (g *taskRows) Columns(all []dialect.Column) error { return g.to.Columns(all) }

// Row implements duck.Sink.
func (g *taskRows) Row(row json.RawMessage) error {
	var t cluster.Task
	var k spec.Key
	var cost *float64
	var flags uint8
	if err := json.Unmarshal(row, &[]any{&t.Machine, &t.Task, &t.Job, &t.Class, &k.Platform, &k.Signal, &k.Variant, &t.CPU, &cost, &flags, &t.At}); err != nil {
		return fmt.Errorf("read tasks: %w", err)
	}
	if t.Machine != g.task.Machine || t.Task != g.task.Task {
		if err := g.flush(); err != nil {
			return err
		}
		g.task = t
	}
	if t.At > g.task.At { // the signals before it are paused
		g.task.At, g.task.CPU, g.task.Capped = t.At, t.CPU, false
	}
	g.task.Capped = g.task.Capped || t.At == g.task.At && sample.Flags(flags)&sample.Capped != 0
	k.Job = t.Job
	c := cluster.TaskCost{Signal: k.Signal, Cost: incident.Value(math.NaN())}
	if cost != nil {
		c.Cost = incident.Value(*cost)
	}
	c.Mean, c.Limit = g.limit(k)
	g.task.Costs = append(g.task.Costs, c)
	return nil
}

// flush passes the last task on.
func (g *taskRows) flush() error {
	if len(g.task.Costs) == 0 {
		return nil
	}
	row, err := json.Marshal(g.task)
	g.task = cluster.Task{}
	if err != nil {
		return fmt.Errorf("encode task: %w", err)
	}
	return g.to.Row(row)
}
