package agent

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/quell-dev/quell/internal/plan"
	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/spec"
)

// stats are the loop's counters.
type stats struct {
	ticks, late, intervals, analyses         uint64
	undoFailed                               uint64
	tickSeconds                              float64
	samples, notCounted, outliers, addFailed map[sample.SignalName]uint64
	sourceSeconds                            map[sample.SignalName]float64
	incidents, findings                      map[[2]string]uint64 // signal, kind
	outcomes, capsEnded                      map[string]uint64
	seen                                     map[string]int // rounds counted, of incidents not closed
}

func newStats() stats {
	n := func() map[sample.SignalName]uint64 { return map[sample.SignalName]uint64{} }
	return stats{samples: n(), notCounted: n(), outliers: n(), addFailed: n(),
		sourceSeconds: map[sample.SignalName]float64{}, incidents: map[[2]string]uint64{}, findings: map[[2]string]uint64{},
		outcomes: map[string]uint64{}, capsEnded: map[string]uint64{}, seen: map[string]int{}}
}

// incident counts an incident once, and each of its rounds when it has ended.
// It reports whether the incident is new.
func (s *stats) incident(inc *plan.Incident) bool {
	counted, known := s.seen[inc.ID]
	if !known {
		s.incidents[[2]string{string(inc.Signal), inc.Kind.String()}]++
	}
	ended := 0
	for _, r := range inc.Rounds {
		if r.Ended != 0 {
			if ended++; ended > counted {
				s.outcomes[string(r.Outcome)]++
			}
		}
	}
	s.seen[inc.ID] = ended
	if inc.Closed != 0 {
		delete(s.seen, inc.ID)
	}
	return !known
}

// maxJobs bounds the series that grow with what runs on the machine: the jobs
// that use most CPU have series of their own.
const maxJobs = 100

// metric is one row of the table of metrics.
type metric struct {
	name   string
	help   string
	kind   prometheus.ValueType
	labels []string
	// collect emits the values; it runs in the loop's goroutine.
	collect func(a *Agent, emit func(v float64, labels ...string))
}

func bySignal[N uint64 | float64](of func(*stats) map[sample.SignalName]N) func(*Agent, func(float64, ...string)) {
	return func(a *Agent, emit func(float64, ...string)) {
		for name, n := range of(&a.stats) {
			emit(float64(n), string(name))
		}
	}
}

func one(of func(*Agent) float64) func(*Agent, func(float64, ...string)) {
	return func(a *Agent, emit func(float64, ...string)) { emit(of(a)) }
}

const (
	gauge = prometheus.GaugeValue
	count = prometheus.CounterValue
)

// metrics is the table that names, helps and the reference page come from.
func metrics() []metric {
	return []metric{
		{"quell_info", "What runs here; always 1.", gauge, []string{"version", "platform", "rule"},
			func(a *Agent, emit func(float64, ...string)) {
				emit(1, a.Version, string(a.Platform), string(a.detector.Params().Rule))
			}},
		{"quell_signal_available", "Whether a signal that was asked for is counted.", gauge, []string{"signal", "variant"},
			func(a *Agent, emit func(float64, ...string)) {
				for _, s := range a.Signals {
					emit(truth(s.OK), string(s.Signal), s.Variant)
				}
			}},
		{"quell_degraded", "Things that do not work now; see quell status.", gauge, nil,
			one(func(a *Agent) float64 { return float64(len(a.degraded)) })},
		{"quell_signal_tasks", "Tasks that a signal counts in the newest window, and those that wait for their turn.", gauge, []string{"signal", "state"},
			func(a *Agent, emit func(float64, ...string)) {
				for i, g := range a.seatings {
					emit(float64(g.taken), string(a.Sources[i].Signal()), "counted")
					emit(float64(g.claimed-g.taken), string(a.Sources[i].Signal()), "waiting")
				}
			}},
		{"quell_signal_wait_windows", "Windows within which a signal counts every task at least once; 1 where all are counted in each, 0 where some never are.", gauge, []string{"signal"},
			func(a *Agent, emit func(float64, ...string)) {
				for i, g := range a.seatings {
					emit(float64(g.wait), string(a.Sources[i].Signal()))
				}
			}},
		{"quell_signal_coverage_ratio", "Share of their windows in which a signal counted the tasks that are here now.", gauge, []string{"signal"},
			func(a *Agent, emit func(float64, ...string)) {
				for i := range a.seatings {
					emit(a.coverage(i), string(a.Sources[i].Signal()))
				}
			}},
		{"quell_enforcement_mode", "0 off, 1 advise, 2 on.", gauge, nil,
			one(func(a *Agent) float64 { return float64(a.planner.Policy().Mode) })},
		{"quell_tasks", "Tasks that are followed.", gauge, nil,
			one(func(a *Agent) float64 { return float64(len(a.tasks)) })},
		{"quell_outside_cpu", "CPU-s/s used outside any task in the last interval: kernel, interrupts, and what no rule matches.", gauge, nil,
			one(func(a *Agent) float64 { return a.window.outside })},
		{"quell_ticks_total", "Turns of the loop.", count, nil, one(func(a *Agent) float64 { return float64(a.stats.ticks) })},
		{"quell_tick_seconds_total", "Time spent in them.", count, nil, one(func(a *Agent) float64 { return a.stats.tickSeconds })},
		{"quell_ticks_late_total", "Turns that began more than a tick late.", count, nil, one(func(a *Agent) float64 { return float64(a.stats.late) })},
		{"quell_intervals_total", "Sampling intervals finished.", count, nil, one(func(a *Agent) float64 { return float64(a.stats.intervals) })},
		{"quell_source_seconds_total", "Time spent reading a signal's counters.", count, []string{"signal"},
			bySignal(func(s *stats) map[sample.SignalName]float64 { return s.sourceSeconds })},
		{"quell_source_failed_tasks_total", "Tasks that a signal could not follow.", count, []string{"signal"},
			bySignal(func(s *stats) map[sample.SignalName]uint64 { return s.addFailed })},
		{"quell_samples_total", "Samples taken, of a task's usage at least.", count, []string{"signal"},
			bySignal(func(s *stats) map[sample.SignalName]uint64 { return s.samples })},
		{"quell_not_counted_total", "Samples whose cost could not be counted.", count, []string{"signal"},
			bySignal(func(s *stats) map[sample.SignalName]uint64 { return s.notCounted })},
		{"quell_rejected_total", "Samples whose cost was outside the signal's sane range.", count, []string{"signal"},
			func(a *Agent, emit func(float64, ...string)) {
				for _, s := range a.Signals {
					emit(float64(a.detector.Rejected(s.Signal)), string(s.Signal))
				}
			}},
		{"quell_outliers_total", "Samples over their job's threshold.", count, []string{"signal"},
			bySignal(func(s *stats) map[sample.SignalName]uint64 { return s.outliers })},
		{"quell_analyses_total", "Anomalies analysed.", count, nil, one(func(a *Agent) float64 { return float64(a.stats.analyses) })},
		{"quell_findings_total", "Analyses, by what was found: nobody, neighbour, indeterminate, own-quota, steal, self-wait or phase-change.", count, []string{"signal", "kind"},
			func(a *Agent, emit func(float64, ...string)) {
				for k, n := range a.stats.findings {
					emit(float64(n), k[0], k[1])
				}
			}},
		{"quell_incidents_total", "Incidents, by what was found first.", count, []string{"signal", "kind"},
			func(a *Agent, emit func(float64, ...string)) {
				for k, n := range a.stats.incidents {
					emit(float64(n), k[0], k[1])
				}
			}},
		{"quell_incidents_open", "Incidents that are open.", gauge, nil, one(func(a *Agent) float64 { return float64(len(a.planner.Open())) })},
		{"quell_caps", "Caps in force.", gauge, nil, one(func(a *Agent) float64 { return float64(len(a.Enforcer.Active())) })},
		{"quell_caps_stuck", "Caps that are to be undone and cannot be; tried again at least every 30 s.", gauge, nil,
			one(func(a *Agent) float64 { return float64(len(a.Enforcer.Stuck())) })},
		{"quell_cap_undo_failures_total", "Attempts to undo a cap that failed.", count, nil,
			one(func(a *Agent) float64 { return float64(a.stats.undoFailed) })},
		{"quell_caps_ended_total", "Caps ended, by how: restored, taken-over by somebody else, or gone with the task.", count, []string{"result"},
			func(a *Agent, emit func(float64, ...string)) {
				for k, n := range a.stats.capsEnded {
					emit(float64(n), k)
				}
			}},
		{"quell_outcomes_total", "What came of caps.", count, []string{"outcome"},
			func(a *Agent, emit func(float64, ...string)) {
				for k, n := range a.stats.outcomes {
					emit(float64(n), k)
				}
			}},
		{"quell_specs", "Specs of jobs that run here, by state.", gauge, []string{"signal", "state"}, collectSpecs},
		{"quell_job_tasks", "Tasks of a job; the jobs that use most CPU.", gauge, []string{"job"},
			byJob(func(j *jobView) (float64, bool) { return float64(j.tasks), true })},
		{"quell_job_cpu", "CPU-s/s of a job's tasks in the last interval.", gauge, []string{"job"},
			byJob(func(j *jobView) (float64, bool) { return j.cpu, true })},
		{"quell_job_cpu_stall", "Mean share of the last interval in which some thread of a job's task waited for a CPU (PSI).", gauge, []string{"job"},
			byJob(func(j *jobView) (float64, bool) { return j.stall / float64(j.stalls), j.stalls > 0 })},
		{"quell_job_cost", "Mean cost of a job's tasks in the last interval, in the signal's unit.", gauge, []string{"job", "signal"}, collectCosts},
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func collectSpecs(a *Agent, emit func(float64, ...string)) {
	type key struct {
		signal sample.SignalName
		state  spec.State
	}
	n := map[key]map[spec.Key]bool{}
	for _, t := range a.tasks {
		for _, v := range t.views {
			k := key{v.Signal, v.Spec.State}
			if n[k] == nil {
				n[k] = map[spec.Key]bool{}
			}
			n[k][v.Spec.Key] = true
		}
	}
	for k, specs := range n {
		emit(float64(len(specs)), string(k.signal), k.state.String())
	}
}

type jobView struct {
	name  string
	tasks int
	cpu   float64
	// of the tasks whose pressure is known
	stall  float64 // sum
	stalls int
	cost   map[sample.SignalName][2]float64 // sum, n
}

// topJobs sums up the jobs that use most CPU.
func (a *Agent) topJobs() []*jobView {
	byName := map[sample.JobName]*jobView{}
	for _, t := range a.tasks {
		j := byName[t.Job]
		if j == nil {
			j = &jobView{name: string(t.Job), cost: map[sample.SignalName][2]float64{}}
			byName[t.Job] = j
		}
		j.tasks++
		j.cpu += t.cpu
		if t.pressure.said {
			j.stall += t.pressure.share
			j.stalls++
		}
		for _, v := range t.views {
			if c := float64(v.Cost); c == c {
				s := j.cost[v.Signal]
				j.cost[v.Signal] = [2]float64{s[0] + c, s[1] + 1}
			}
		}
	}
	jobs := make([]*jobView, 0, len(byName))
	for _, j := range byName {
		jobs = append(jobs, j)
	}
	slices.SortFunc(jobs, func(x, y *jobView) int {
		return cmp.Or(cmp.Compare(y.cpu, x.cpu), cmp.Compare(x.name, y.name))
	})
	return jobs[:min(len(jobs), maxJobs)]
}

func byJob(of func(*jobView) (float64, bool)) func(*Agent, func(float64, ...string)) {
	return func(a *Agent, emit func(float64, ...string)) {
		for _, j := range a.topJobs() {
			if v, ok := of(j); ok {
				emit(v, j.name)
			}
		}
	}
}

func collectCosts(a *Agent, emit func(float64, ...string)) {
	for _, j := range a.topJobs() {
		for name, s := range j.cost {
			emit(s[0]/s[1], j.name, string(name))
		}
	}
}

// collector gathers the table's values in the loop's goroutine, so that a
// scrape sees one instant.
type collector struct {
	a     *Agent
	rows  []metric
	descs []*prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var all []prometheus.Metric
	err := c.a.ask(ctx, func() {
		for i, m := range c.rows {
			m.collect(c.a, func(v float64, labels ...string) {
				all = append(all, prometheus.MustNewConstMetric(c.descs[i], m.kind, v, labels...))
			})
		}
	})
	if err != nil {
		all = []prometheus.Metric{prometheus.NewInvalidMetric(c.descs[0], err)}
	}
	for _, m := range all {
		ch <- m
	}
}

// Alive returns when the loop has taken a turn for it, or why it has not.
func (a *Agent) Alive(ctx context.Context) error { return a.ask(ctx, func() {}) }

// MetricsServer serves /metrics and /healthz.
func (a *Agent) MetricsServer() *http.Server {
	c := &collector{a: a, rows: metrics()}
	for _, m := range c.rows {
		c.descs = append(c.descs, prometheus.NewDesc(m.name, m.help, m.labels, nil))
	}
	r := prometheus.NewRegistry()
	r.MustRegister(c, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector())
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, req *http.Request) {
		if err := a.Alive(req.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	return &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
}
