package agent

import (
	"context"

	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
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
	seen                                     map[string]int // rounds counted so far, of open incidents
}

func newStats() stats {
	n := func() map[sample.SignalName]uint64 { return map[sample.SignalName]uint64{} }
	return stats{samples: n(), notCounted: n(), outliers: n(), addFailed: n(),
		sourceSeconds: map[sample.SignalName]float64{}, incidents: map[[2]string]uint64{}, findings: map[[2]string]uint64{},
		outcomes: map[string]uint64{}, capsEnded: map[string]uint64{}, seen: map[string]int{}}
}

// incident counts an incident once, and each of its rounds when the round has ended. It
// reports whether the incident is new.
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

// metric is one row of the table of metrics.
type metric struct {
	name   string
	help   string
	kind   string
	labels []string // sorted
	// collect adds the values; it runs in the loop's goroutine.
	collect func(a *Agent, e *exposition)
}

func bySignal[N uint64 | float64](of func(*stats) map[sample.SignalName]N) func(*Agent, *exposition) {
	return func(a *Agent, e *exposition) {
		for name, n := range of(&a.stats) {
			e.add(float64(n), string(name))
		}
	}
}

func one(of func(*Agent) float64) func(*Agent, *exposition) {
	return func(a *Agent, e *exposition) { e.add(of(a)) }
}

const (
	gauge = "gauge"
	count = "counter"
)

// metrics is the table from which names, help texts and the reference page are made.
func metrics() []metric { return append(append(tickMetrics(), windowMetrics()...), uplinkMetrics()...) }

// tickMetrics are the metrics that may change at any time.
func tickMetrics() []metric {
	return []metric{
		{"quell_info", "Platform, rule and version of the agent; always 1.", gauge, []string{"platform", "rule", "version"},
			func(a *Agent, e *exposition) {
				e.add(1, string(a.Platform), string(a.pipeline.Params().Method), a.Version)
			}},
		{"quell_signal_available", "Whether a requested signal is counted.", gauge, []string{"signal", "variant"},
			func(a *Agent, e *exposition) {
				for _, s := range a.Signals {
					e.add(truth(s.OK), string(s.Signal), s.Variant)
				}
			}},
		{"quell_degraded", "Number of current problems; see quell status.", gauge, nil,
			one(func(a *Agent) float64 { return float64(len(a.degraded)) })},
		{"quell_signal_tasks", "Tasks that a signal counts in the newest window, and those that wait for their turn.", gauge, []string{"signal", "state"},
			func(a *Agent, e *exposition) {
				for _, g := range a.allocations {
					e.add(float64(g.taken), string(g.signal), "counted")
					e.add(float64(g.eligible-g.taken), string(g.signal), "waiting")
				}
			}},
		{"quell_signal_wait_windows", "Windows within which a signal counts every task at least once; 1 if all are counted in each, 0 if some are never counted.", gauge, []string{"signal"},
			func(a *Agent, e *exposition) {
				for _, g := range a.allocations {
					e.add(float64(g.wait), string(g.signal))
				}
			}},
		{"quell_signal_coverage_ratio", "Share of their windows in which a signal counted the present tasks.", gauge, []string{"signal"},
			func(a *Agent, e *exposition) {
				for _, g := range a.allocations {
					e.add(g.coverage, string(g.signal))
				}
			}},
		{"quell_signal_tax_ratio", "Upper bound of the share of the machine's CPU time that counting a signal costs: its cost per context switch times the rate of switches in the newest window.", gauge, []string{"signal"},
			func(a *Agent, e *exposition) {
				for i, x := range a.taxes {
					if x.known {
						e.add(x.share, string(a.Sources[i].Info().Signal))
					}
				}
			}},
		{"quell_signal_resting", "Whether a signal is paused because counting it would cost more than sampling.max_tax.", gauge, []string{"signal"},
			func(a *Agent, e *exposition) {
				for i, x := range a.taxes {
					if x.known {
						e.add(truth(x.paused), string(a.Sources[i].Info().Signal))
					}
				}
			}},
		{"quell_enforcement_mode", "0 off, 1 advise, 2 on.", gauge, nil,
			one(func(a *Agent) float64 { return float64(a.pipeline.Policy().Mode) })},
		{"quell_tasks", "Monitored tasks.", gauge, nil,
			one(func(a *Agent) float64 { return float64(len(a.tasks)) })},
		{"quell_outside_cpu", "CPU-s/s used outside any task in the last interval: kernel, interrupts, and cgroups that no rule matches.", gauge, nil,
			one(func(a *Agent) float64 { return a.window.outside })},
		{"quell_ticks_total", "Iterations of the loop.", count, nil, one(func(a *Agent) float64 { return float64(a.stats.ticks) })},
		{"quell_tick_seconds_total", "Time spent in iterations of the loop.", count, nil, one(func(a *Agent) float64 { return a.stats.tickSeconds })},
		{"quell_ticks_late_total", "Iterations that began more than a tick late.", count, nil, one(func(a *Agent) float64 { return float64(a.stats.late) })},
		{"quell_intervals_total", "Sampling intervals finished.", count, nil, one(func(a *Agent) float64 { return float64(a.stats.intervals) })},
		{"quell_source_seconds_total", "Time spent reading a signal's counters.", count, []string{"signal"},
			bySignal(func(s *stats) map[sample.SignalName]float64 { return s.sourceSeconds })},
		{"quell_source_failed_tasks_total", "Tasks that a signal could not monitor.", count, []string{"signal"},
			bySignal(func(s *stats) map[sample.SignalName]uint64 { return s.addFailed })},
		{"quell_signal_lost_total", "Events that a signal's programs in the kernel saw and could not count: waits (runq), requests (io).", count, []string{"signal"},
			func(a *Agent, e *exposition) {
				for i, s := range a.Sources {
					if info := s.Info(); info.CountsLosses {
						e.add(float64(a.totals[i].Lost), string(info.Signal))
					}
				}
			}},
		{"quell_signal_unattributed_seconds_total", "Seconds that tasks waited while it is unknown which task was served (runq, io, net).", count, []string{"signal"},
			func(a *Agent, e *exposition) {
				for i, s := range a.Sources {
					if info := s.Info(); info.Accounts {
						e.add(a.totals[i].Unattributed.Seconds(), string(info.Signal))
					}
				}
			}},
		{"quell_signal_refused_pairs_total", "Times that a task was served while another one waited and the pair could not be recorded for lack of room (runq, io, net).", count, []string{"signal"},
			func(a *Agent, e *exposition) {
				for i, s := range a.Sources {
					if info := s.Info(); info.CountsLosses {
						e.add(float64(a.totals[i].PairsDropped), string(info.Signal))
					}
				}
			}},
		{"quell_samples_total", "Samples taken; each has at least the task's usage.", count, []string{"signal"},
			bySignal(func(s *stats) map[sample.SignalName]uint64 { return s.samples })},
		{"quell_not_counted_total", "Samples whose cost could not be counted.", count, []string{"signal"},
			bySignal(func(s *stats) map[sample.SignalName]uint64 { return s.notCounted })},
		{"quell_rejected_total", "Samples whose cost was outside the signal's sane range.", count, []string{"signal"},
			func(a *Agent, e *exposition) {
				for _, s := range a.Signals {
					e.add(float64(a.pipeline.Rejected(s.Signal)), string(s.Signal))
				}
			}},
		{"quell_outliers_total", "Samples over their job's threshold.", count, []string{"signal"},
			bySignal(func(s *stats) map[sample.SignalName]uint64 { return s.outliers })},
		{"quell_analyses_total", "Anomalies analysed.", count, nil, one(func(a *Agent) float64 { return float64(a.stats.analyses) })},
		{"quell_findings_total", "Analyses, by what was found: nobody, neighbour, indeterminate, own-quota, steal, self-wait or phase-change.", count, []string{"kind", "signal"},
			func(a *Agent, e *exposition) {
				for k, n := range a.stats.findings {
					e.add(float64(n), k[1], k[0])
				}
			}},
		{"quell_incidents_total", "Incidents, by what was found first.", count, []string{"kind", "signal"},
			func(a *Agent, e *exposition) {
				for k, n := range a.stats.incidents {
					e.add(float64(n), k[1], k[0])
				}
			}},
		{"quell_incidents_open", "Incidents that are open.", gauge, nil, one(func(a *Agent) float64 { return float64(a.pipeline.OpenCount()) })},
		{"quell_caps", "Caps in force.", gauge, nil, one(func(a *Agent) float64 { return float64(len(a.Enforcer.Active())) })},
		{"quell_caps_stuck", "Caps that could not be undone; retried at least every 30 s.", gauge, nil,
			one(func(a *Agent) float64 { return float64(len(a.Enforcer.Stuck())) })},
		{"quell_cap_undo_failures_total", "Attempts to undo a cap that failed.", count, nil,
			one(func(a *Agent) float64 { return float64(a.stats.undoFailed) })},
		{"quell_caps_ended_total", "Caps ended, by how: restored, taken-over by another program, or gone with the task.", count, []string{"result"},
			func(a *Agent, e *exposition) {
				for k, n := range a.stats.capsEnded {
					e.add(float64(n), k)
				}
			}},
		{"quell_outcomes_total", "Outcomes of caps.", count, []string{"outcome"},
			func(a *Agent, e *exposition) {
				for k, n := range a.stats.outcomes {
					e.add(float64(n), k)
				}
			}},
	}
}

// windowMetrics describe the newest window and change only when a window closes.
func windowMetrics() []metric {
	return []metric{
		{"quell_specs", "Specs of jobs that run here, by state.", gauge, []string{"signal", "state"},
			func(a *Agent, e *exposition) {
				for _, c := range a.jobs.states {
					e.add(float64(c.n), string(c.signal), c.state.String())
				}
			}},
		{"quell_job_tasks", "Tasks of a job; the jobs that use most CPU.", gauge, []string{"job"},
			byJob(func(j *job) (float64, bool) { return float64(j.tasks), true })},
		{"quell_job_cpu", "CPU-s/s of a job's tasks in the last interval.", gauge, []string{"job"},
			byJob(func(j *job) (float64, bool) { return j.cpu, true })},
		{"quell_job_cpu_stall", "Mean share of the last interval in which some thread of a job's task waited for a CPU (PSI).", gauge, []string{"job"},
			byJob(func(j *job) (float64, bool) { return j.stall / float64(j.stalls), j.stalls > 0 })},
		{"quell_job_cost", "Mean cost of a job's tasks in the last interval, in the signal's unit.", gauge, []string{"job", "signal"},
			func(a *Agent, e *exposition) {
				for _, j := range a.jobs.top {
					for _, c := range j.costs {
						if c.n > 0 {
							e.add(c.sum/float64(c.n), j.name, string(c.signal))
						}
					}
				}
			}},
		{"quell_machine_cost", "Cost of a signal that measures the whole machine or one of its caches, in the last interval, in the signal's unit.", gauge, []string{"name", "signal"},
			func(a *Agent, e *exposition) {
				for _, o := range a.overall {
					if c := float64(o.cost); c == c {
						e.add(c, o.name, string(o.signal))
					}
				}
			}},
	}
}

func byJob(of func(*job) (float64, bool)) func(*Agent, *exposition) {
	return func(a *Agent, e *exposition) {
		for _, j := range a.jobs.top {
			if v, ok := of(j); ok {
				e.add(v, j.name)
			}
		}
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Alive returns nil once the loop has served the request, else why it has not.
func (a *Agent) Alive(ctx context.Context) error { return a.ask(ctx, func() {}) }
