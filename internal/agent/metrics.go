package agent

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/quell-dev/quell/internal/core/sample"
)

// metric is one row of the table of metrics.
type metric struct {
	name   string
	help   string
	kind   prometheus.ValueType
	labels []string // sorted
	// collect adds the values; it runs in the loop's goroutine.
	collect func(v *view, s *series)
}

// series are the values of one scrape, all of one instant. They are a prometheus.Collector.
type series struct {
	jobs  []*job
	specs map[specState]int
	pairs []*pair
	more  int // pairs without series
	row   *metric
	desc  *prometheus.Desc // of row
	all   []prometheus.Metric
}

// add adds one value of the metric that is being collected; labels are the values of
// its label names, in the same order. The format is UTF-8; a cgroup's name is any bytes.
func (s *series) add(v float64, labels ...string) {
	for i, l := range labels {
		labels[i] = strings.ToValidUTF8(l, "\uFFFD")
	}
	s.all = append(s.all, prometheus.MustNewConstMetric(s.desc, s.row.kind, v, labels...))
}

// Describe implements prometheus.Collector. It describes nothing: the series are not known
// before they are collected.
func (s *series) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s *series) Collect(to chan<- prometheus.Metric) {
	for _, m := range s.all {
		to <- m
	}
}

// prompt reports whether a metric always has its present value. The others change when a
// window begins or ends. So does the agent's own CPU time, which is among the process'
// metrics.
func prompt(name string) bool {
	switch name {
	case "quell_info", "quell_signal_available", "quell_degraded", "quell_enforcement_mode", "quell_tasks", "quell_caps", "quell_caps_stuck",
		"quell_cap_end_timestamp_seconds", "quell_cap_undo_failures_total", "quell_caps_ended_total", "quell_uplink_connected":
		return true
	}
	return false
}

// hold keeps the values after a window, if windows open at random moments. A task that saw
// them change could tell that a window has ended, and that no other opens soon. So they
// change at a fixed time after each period, and by one window each time.
func (v *view) hold(now time.Time) {
	if !v.random() || v.Config.Listen == "" {
		return
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(v.series(func(name string) bool { return !prompt(name) }))
	families, err := prometheus.Gatherers{registry, v.process}.Gather()
	if err != nil {
		v.Log.Debug("collect metrics", "reason", err)
	}
	from, c := now, v.Config.Sampling
	if opened := v.sampler.window.opened; !opened.IsZero() {
		from = opened.Add(c.Period + 2*(c.Duration+v.Config.Tick))
	}
	v.shown(now)
	v.held = append(v.held, heldMetrics{from, families})
}

// shown returns the held values that may be shown, and drops older ones.
func (v *view) shown(now time.Time) []*dto.MetricFamily {
	for len(v.held) > 1 && !v.held[1].from.After(now) {
		v.held = v.held[1:]
	}
	if len(v.held) == 0 {
		return nil
	}
	return v.held[0].families
}

// scrape returns what a scrape shows.
func (v *view) scrape(now time.Time) prometheus.Gatherers {
	registry := prometheus.NewRegistry()
	if !v.random() {
		registry.MustRegister(v.series(func(string) bool { return true }))
		return prometheus.Gatherers{registry, v.process}
	}
	registry.MustRegister(v.series(prompt))
	families := v.shown(now)
	return prometheus.Gatherers{registry, prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return families, nil })}
}

// series returns the current values of those metrics that are wanted.
func (v *view) series(wanted func(name string) bool) *series {
	s := &series{}
	s.jobs, s.specs = v.jobs()
	s.pairs, s.more = v.pairs()
	for _, row := range metrics() {
		if !wanted(row.name) {
			continue
		}
		s.row, s.desc = &row, prometheus.NewDesc(row.name, row.help, row.labels, nil)
		row.collect(v, s)
	}
	return s
}

// byLabel is for counters that have one label.
func byLabel[K ~string, N uint64 | float64](of func(*stats) map[K]N) func(*view, *series) {
	return func(v *view, s *series) {
		for name, n := range of(v.stats) {
			s.add(float64(n), string(name))
		}
	}
}

// byKind is for counters by signal and kind.
func byKind(of func(*stats) map[[2]string]uint64) func(*view, *series) {
	return func(v *view, s *series) {
		for k, n := range of(v.stats) {
			s.add(float64(n), k[1], k[0])
		}
	}
}

// bySource is for values of sources; ok is false for a source that has none.
func bySource(of func(*sourceState) (_ float64, ok bool)) func(*view, *series) {
	return func(v *view, s *series) {
		for _, source := range v.scheduler.all {
			if x, ok := of(source); ok {
				s.add(x, string(source.info.Signal))
			}
		}
	}
}

func one(of func(*view) float64) func(*view, *series) {
	return func(v *view, s *series) { s.add(of(v)) }
}

const (
	gauge = prometheus.GaugeValue
	count = prometheus.CounterValue
)

// metrics is the table from which names, help texts and the reference page are made.
func metrics() []metric {
	return []metric{
		{"quell_info", "Platform, rule and version of the agent; always 1.", gauge, []string{"platform", "rule", "version"},
			func(v *view, s *series) {
				s.add(1, string(v.Platform), string(v.pipeline.Params().Method), v.Version)
			}},
		{"quell_signal_available", "Whether a requested signal is counted.", gauge, []string{"signal", "variant"},
			func(v *view, s *series) {
				for _, r := range v.Signals {
					s.add(truth(r.OK), string(r.Signal), r.Variant)
				}
			}},
		{"quell_degraded", "Number of current problems; see quell status.", gauge, nil,
			one(func(v *view) float64 { return float64(len(v.health.problems)) })},
		{"quell_signal_tasks", "Tasks that a signal counts in the newest window, and those that wait for their turn.", gauge, []string{"signal", "state"},
			func(v *view, s *series) {
				for _, source := range v.scheduler.all {
					s.add(float64(source.taken), string(source.info.Signal), "counted")
					s.add(float64(len(source.eligible)-source.taken), string(source.info.Signal), "waiting")
				}
			}},
		{"quell_signal_wait_windows", "Windows within which a signal counts every task at least once; 1 if all are counted in each, 0 if some are never counted.", gauge, []string{"signal"},
			bySource(func(s *sourceState) (float64, bool) { return float64(s.wait), true })},
		{"quell_signal_coverage_ratio", "Share of their windows in which a signal counted the present tasks.", gauge, []string{"signal"},
			bySource(func(s *sourceState) (float64, bool) { return s.coverage, true })},
		{"quell_signal_tax_ratio", "Upper bound of the share of the machine's CPU time that counting a signal costs: its cost per context switch times the rate of switches in the newest window.", gauge, []string{"signal"},
			bySource(func(s *sourceState) (float64, bool) { return s.tax.share, s.tax.known })},
		{"quell_signal_resting", "Whether a signal is paused because counting it would cost more than sampling.max_tax.", gauge, []string{"signal"},
			bySource(func(s *sourceState) (float64, bool) { return truth(s.tax.paused), s.tax.known })},
		{"quell_evading_tasks", "Tasks that use far more CPU time outside sampling windows than in them.", gauge, nil,
			one(func(v *view) float64 { return float64(len(v.pipeline.Evaders())) })},
		{"quell_distrusted_jobs", "Jobs whose reports about themselves were contradicted repeatedly and accuse no task.", gauge, nil,
			one(func(v *view) float64 { return float64(len(v.pipeline.Distrusted(sample.At(v.clock.now())))) })},
		{"quell_enforcement_mode", "0 off, 1 advise, 2 on.", gauge, nil,
			one(func(v *view) float64 { return float64(v.pipeline.Policy().Mode) })},
		{"quell_tasks", "Monitored tasks.", gauge, nil,
			one(func(v *view) float64 { return float64(len(v.tasks.byKey)) })},
		{"quell_cgroups_unread", "Cgroups that are left out because they cannot be read, for example because of the length of their paths.", gauge, nil,
			one(func(v *view) float64 { return float64(v.Finder.Unread().N) })},
		{"quell_outside_cpu", "CPU-s/s used outside any task in the last interval: kernel, interrupts, and cgroups that no rule matches.", gauge, nil,
			one(func(v *view) float64 { return v.sampler.window.outside })},
		{"quell_ticks_total", "Iterations of the loop.", count, nil, one(func(v *view) float64 { return float64(v.stats.ticks) })},
		{"quell_tick_seconds_total", "Time spent in iterations of the loop.", count, nil, one(func(v *view) float64 { return v.stats.tickSeconds })},
		{"quell_ticks_late_total", "Iterations that began more than a tick late.", count, nil, one(func(v *view) float64 { return float64(v.stats.late) })},
		{"quell_intervals_total", "Sampling intervals finished.", count, nil, one(func(v *view) float64 { return float64(v.stats.intervals) })},
		{"quell_source_seconds_total", "Time spent reading a signal's counters.", count, []string{"signal"},
			byLabel(func(s *stats) map[sample.SignalName]float64 { return s.sourceSeconds })},
		{"quell_source_failed_tasks_total", "Tasks that a signal could not monitor.", count, []string{"signal"},
			byLabel(func(s *stats) map[sample.SignalName]uint64 { return s.addFailed })},
		{"quell_signal_lost_total", "Events that a signal's programs in the kernel saw and could not count: waits (runq), requests (io), stretches of a task on a CPU (cpi).", count, []string{"signal"},
			bySource(func(s *sourceState) (float64, bool) { return float64(s.totals.Lost), s.info.CountsLosses })},
		{"quell_signal_unattributed_seconds_total", "Seconds that tasks waited while it is unknown which task was served (runq, io, net).", count, []string{"signal"},
			bySource(func(s *sourceState) (float64, bool) { return s.totals.Unattributed.Seconds(), s.info.Accounts })},
		{"quell_signal_refused_pairs_total", "Times that a task was served while another one waited and the pair could not be recorded for lack of room (runq, io, net).", count, []string{"signal"},
			bySource(func(s *sourceState) (float64, bool) { return float64(s.totals.PairsDropped), s.info.CountsLosses })},
		{"quell_samples_total", "Samples taken; each has at least the task's usage.", count, []string{"signal"},
			byLabel(func(s *stats) map[sample.SignalName]uint64 { return s.samples })},
		{"quell_not_counted_total", "Samples whose cost could not be counted.", count, []string{"signal"},
			byLabel(func(s *stats) map[sample.SignalName]uint64 { return s.notCounted })},
		{"quell_rejected_total", "Samples whose cost was outside the signal's sane range.", count, []string{"signal"},
			func(v *view, s *series) {
				for _, r := range v.Signals {
					s.add(float64(v.pipeline.Rejected(r.Signal)), string(r.Signal))
				}
			}},
		{"quell_outliers_total", "Samples over their job's threshold.", count, []string{"signal"},
			byLabel(func(s *stats) map[sample.SignalName]uint64 { return s.outliers })},
		{"quell_analyses_total", "Anomalies analysed.", count, nil, one(func(v *view) float64 { return float64(v.stats.analyses) })},
		{"quell_findings_total", "Analyses, by what was found: nobody, neighbour, indeterminate, own-quota, steal, self-wait or phase-change.", count, []string{"kind", "signal"},
			byKind(func(s *stats) map[[2]string]uint64 { return s.findings })},
		{"quell_incidents_total", "Incidents, by what was found first.", count, []string{"kind", "signal"},
			byKind(func(s *stats) map[[2]string]uint64 { return s.incidents })},
		{"quell_incidents_open", "Incidents that are open.", gauge, nil, one(func(v *view) float64 { return float64(v.pipeline.OpenCount()) })},
		{"quell_pair_incidents_open", "Open incidents by the victim's and the suspect's job; at most 50 pairs, the surest and worst. An incident that names no suspect has none; programs outside any task are (other).", gauge, pairLabels,
			byPair(func(p *pair) (float64, bool) { return float64(p.incidents), true })},
		{"quell_pair_level", "How sure it is that the suspect slows the victim: 0 no evidence, 1 possible, 2 likely, 3 proven.", gauge, pairLabels,
			byPair(func(p *pair) (float64, bool) { return float64(p.level), true })},
		{"quell_pair_cost", "Cost of the victim at the latest analysis, of the incident of the pair that is worst in relation to its threshold, in the signal's unit.", gauge, pairLabels,
			byPair(func(p *pair) (float64, bool) { return p.cost, p.cost == p.cost })},
		{"quell_pair_threshold", "Threshold of the victim in the same incident, in the signal's unit.", gauge, pairLabels,
			byPair(func(p *pair) (float64, bool) { return p.threshold, p.threshold == p.threshold })},
		{"quell_pairs_left_out", "Pairs with open incidents that have no series because there are more than 50.", gauge, nil,
			func(_ *view, s *series) { s.add(float64(s.more)) }},
		{"quell_caps", "Caps in force.", gauge, nil, one(func(v *view) float64 { return float64(len(v.Enforcer.Active())) })},
		{"quell_cap_end_timestamp_seconds", "Time when a cap in force ends, s since 1970; at most 50 caps. Container, namespace and pod are Kubernetes' names, if there are any.", gauge,
			[]string{"by", "capped_container", "capped_job", "capped_namespace", "capped_pod", "capped_task"}, capEnds},
		{"quell_caps_stuck", "Caps that could not be undone; retried at least every 30 s.", gauge, nil,
			one(func(v *view) float64 { return float64(len(v.Enforcer.Stuck())) })},
		{"quell_cap_undo_failures_total", "Attempts to undo a cap that failed.", count, nil,
			one(func(v *view) float64 { return float64(v.stats.undoFailed) })},
		{"quell_caps_ended_total", "Caps ended, by how: restored; taken-over: another program set another limit; reset: another program put back the old one; gone with the task.", count, []string{"result"},
			byLabel(func(s *stats) map[string]uint64 { return s.capsEnded })},
		{"quell_outcomes_total", "Outcomes of caps.", count, []string{"outcome"},
			byLabel(func(s *stats) map[string]uint64 { return s.outcomes })},
		{"quell_specs", "Specs of jobs that run here, by state.", gauge, []string{"signal", "state"},
			func(v *view, s *series) {
				for of, n := range s.specs {
					s.add(float64(n), string(of.signal), of.state.String())
				}
			}},
		{"quell_job_tasks", "Tasks of a job; the jobs that use most CPU.", gauge, []string{"job"},
			byJob(func(j *job) (float64, bool) { return float64(j.tasks), true })},
		{"quell_job_cpu", "CPU-s/s of a job's tasks in the last interval.", gauge, []string{"job"},
			byJob(func(j *job) (float64, bool) { return j.cpu, true })},
		{"quell_job_cpu_stall", "Mean share of the last interval in which some thread of a job's task waited for a CPU (PSI).", gauge, []string{"job"},
			byJob(func(j *job) (float64, bool) { return j.stall.value(), j.stall.n > 0 })},
		{"quell_job_cost", "Mean cost of a job's tasks in the last interval, in the signal's unit.", gauge, []string{"job", "signal"},
			func(v *view, s *series) {
				for _, j := range s.jobs {
					for signal, c := range j.costs {
						s.add(c.value(), string(j.name), string(signal))
					}
				}
			}},
		{"quell_machine_cost", "Cost of a signal that measures the whole machine or one of its caches, in the last interval, in the signal's unit.", gauge, []string{"name", "signal"},
			func(v *view, s *series) {
				for _, o := range v.sampler.overall {
					if c := float64(o.cost); c == c {
						s.add(c, o.name, string(o.signal))
					}
				}
			}},
		{"quell_uplink_connected", "Whether the connection to the server works; absent without a server.", gauge, nil,
			uplink(func(u Uplink) float64 { return truth(u.Err() == nil) })},
		{"quell_credentials_expire_timestamp_seconds", "When the credentials for the server expire, s since 1970; 0 if never; absent without a server.", gauge, nil,
			uplink(func(u Uplink) float64 {
				at, _ := u.Expires(time.Now())
				if at.IsZero() {
					return 0
				}
				return float64(at.Unix())
			})},
		{"quell_uplink_waiting", "Batches of samples and records on disk that the server has not taken yet.", gauge, nil,
			uplink(func(u Uplink) float64 { waiting, _ := u.Backlog(); return float64(waiting) })},
		{"quell_uplink_lost_total", "Batches and records that will never reach the server: the spool was full, too slow or damaged.", count, nil,
			uplink(func(u Uplink) float64 { _, lost := u.Backlog(); return float64(lost) })},
		{"quell_expiry_timestamp_seconds", "Time when a certificate of the connection to the server expires, s since 1970.", gauge, []string{"what"},
			func(v *view, s *series) {
				for _, e := range v.Certificates.Expiries() {
					s.add(float64(e.Ends.Unix()), e.What)
				}
			}},
	}
}

func byJob(of func(*job) (float64, bool)) func(*view, *series) {
	return func(_ *view, s *series) {
		for _, j := range s.jobs {
			if v, ok := of(j); ok {
				s.add(v, string(j.name))
			}
		}
	}
}

// byPair is for values of pairs.
func byPair(of func(*pair) (float64, bool)) func(*view, *series) {
	return func(_ *view, s *series) {
		for _, p := range s.pairs {
			if x, ok := of(p); ok {
				s.add(x, p.names()...)
			}
		}
	}
}

// capEnds adds the end of each cap in force. Its labels say what a container's own metrics
// say of it, so that an alert for them can be inhibited.
func capEnds(v *view, s *series) {
	caps := v.pipeline.Caps()
	for _, c := range caps[:min(len(caps), maxPairs)] {
		if c.Applied {
			s.add(float64(c.Until)/1000, c.By, v.label(&c.Task, "container"), string(c.Task.Job), v.label(&c.Task, "namespace"), v.label(&c.Task, "pod"), string(c.Task.Name))
		}
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func uplink(of func(Uplink) float64) func(*view, *series) {
	return func(v *view, s *series) {
		if v.Uplink != nil {
			s.add(of(v.Uplink))
		}
	}
}
