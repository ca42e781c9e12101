package replaycmd

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/eval/quality"
	"github.com/quell-dev/quell/internal/eval/rivals"
	"github.com/quell-dev/quell/internal/eval/sim"
	"github.com/quell-dev/quell/internal/format/trace"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

// simulation holds the flags of quell sim.
type simulation struct {
	seed                        uint64
	machines, workers           int
	takes, trial                time.Duration
	scenario, rule, mode, trace string
	cap, incidents              string
	list                        bool
}

// Sim is quell sim. Package cli adds its long help.
func Sim(shared *app.App) *cobra.Command {
	a := &commands{shared}
	var s simulation
	cmd := &cobra.Command{
		Use: "sim", Short: "run the real detection on a simulated fleet with known antagonists", Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runSim(&s) },
	}
	flags := cmd.Flags()
	flags.Uint64Var(&s.seed, "seed", 1, "random seed of the fleet")
	flags.IntVar(&s.machines, "machines", 1, "machines per scenario")
	app.DurationVar(flags, &s.takes, "for", 150*time.Minute, "simulated time of each machine")
	flags.StringVar(&s.scenario, "scenario", "*", "name of a scenario, or a pattern of names")
	flags.StringVar(&s.rule, "rule", string(detect.Default), "detection rule: "+ruleNames())
	flags.StringVar(&s.mode, "enforcement", plan.On.String(), "on: caps affect the machine; advise: no task is capped")
	flags.StringVar(&s.cap, "cap", "fixed", "fixed: the paper's hard cap; feedback: caps that take no more than the victim needs")
	app.DurationVar(flags, &s.trial, "trial", config.Default().Enforce.Trial, "cap a suspect for this long if rule evidence cannot decide; 0: never")
	flags.StringVar(&s.trace, "trace", "", "write every sample, and the labels, to this file (CSV)")
	flags.StringVar(&s.incidents, "incidents", "", "write every incident, and the summary last, to this file (JSON lines, for quell evaluate)")
	flags.IntVar(&s.workers, "workers", 0, "machines simulated in parallel; 0: one per CPU")
	flags.BoolVar(&s.list, "list", false, "only list the scenarios")
	_ = cmd.RegisterFlagCompletionFunc("rule", cobra.FixedCompletions(strings.Split(ruleNames(), ", "), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("enforcement", cobra.FixedCompletions([]string{"on", "advise"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("cap", cobra.FixedCompletions([]string{"fixed", "feedback"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("scenario", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var all []string
		for _, s := range scenarios() {
			all = append(all, s.Name)
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	})
	return a.WithJSON(cmd)
}

// ruleNames returns the names of all rules, separated by commas.
func ruleNames() string {
	var all []string
	for _, r := range rivals.Names() {
		all = append(all, string(r))
	}
	return strings.Join(all, ", ")
}

// scenarios returns all scenarios that can be selected.
func scenarios() []sim.Scenario { return append(sim.Scenarios(), sim.Everyday(), sim.Fleet()) }

// matchScenarios returns the scenarios whose names match the pattern. A star stands for one or
// more whole parts of a name; alone it selects all except everyday and fleet.
func matchScenarios(all []sim.Scenario, pattern string) ([]*sim.Scenario, error) {
	var some []*sim.Scenario
	for i := range all {
		ok, err := path.Match(pattern, all[i].Name)
		if err != nil {
			return nil, app.Usage(fmt.Errorf("--scenario %q: %w", pattern, err), "see `quell sim --list` for the names")
		}
		if ok && pattern != "*" || pattern == "*" && all[i].Trouble != sim.Everyday().Trouble {
			some = append(some, &all[i])
		}
	}
	if len(some) == 0 {
		return nil, app.Usage(fmt.Errorf("--scenario %q: unknown scenario", pattern), "see `quell sim --list` for the names")
	}
	return some, nil
}

func (a *commands) runSim(s *simulation) error {
	all := scenarios()
	some, err := matchScenarios(all, s.scenario)
	if err != nil {
		return err
	}
	if s.list {
		for _, f := range some {
			if _, err := fmt.Fprintf(a.Out, "%-40s %s\n", f.Name, f.Half); err != nil {
				return fmt.Errorf("list scenarios: %w", err)
			}
		}
		return nil
	}
	rule, err := rivals.Load(detect.Method(s.rule))
	if err != nil {
		return fmt.Errorf("--rule: %w", err)
	}
	policy := sim.Policy()
	if policy.Mode, err = plan.ParseMode(s.mode); err != nil {
		return fmt.Errorf("--enforcement: %w", err)
	}
	if policy.Feedback = s.cap == "feedback"; !policy.Feedback && s.cap != "fixed" {
		return fmt.Errorf("--cap %q: want fixed or feedback", s.cap)
	}
	policy.Trial = s.trial
	if s.machines < 1 || s.takes < time.Minute {
		return fmt.Errorf("--machines %d --for %s: want at least one machine and one minute", s.machines, s.takes)
	}
	var orders []sim.Order
	for _, f := range some {
		for n := range s.machines {
			orders = append(orders, sim.Order{Scenario: f, Seed: s.seed + uint64(n)})
		}
	}
	setup := sim.Setup{Rule: rule, Policy: policy, Minutes: int(s.takes.Minutes())}
	return a.playSim(s, orders, setup)
}

// playSim plays the orders, and writes the trace if requested.
func (a *commands) playSim(s *simulation, orders []sim.Order, setup sim.Setup) (err error) {
	var labelled *trace.Writer
	var broken error
	if s.trace != "" {
		var file *os.File
		if file, err = os.Create(s.trace); err != nil {
			return fmt.Errorf("write trace: %w", err)
		}
		defer func() {
			if e := file.Close(); err == nil && e != nil {
				err = fmt.Errorf("write trace: %w", e)
			}
		}()
		// A replay takes activity and pressure from these if they are not CPU usage.
		var counts []sample.Extra
		for _, o := range orders {
			if sig := o.Scenario.Channel.Signal(); !sig.Domain.OfCPUs() && !slices.Contains(counts, sig.Activity) {
				counts = append(counts, sig.Activity)
			}
		}
		labelled = trace.NewWriter(file, counts...)
		setup.Record = func(x *sample.Sample) {
			if broken == nil {
				broken = labelled.Write(x)
			}
		}
	}
	var kept *os.File
	var lines *json.Encoder
	if s.incidents != "" {
		if kept, err = os.Create(s.incidents); err != nil {
			return fmt.Errorf("write incidents: %w", err)
		}
		defer func() {
			if e := kept.Close(); err == nil && e != nil {
				err = fmt.Errorf("write incidents: %w", e)
			}
		}()
		lines, setup.Incidents = json.NewEncoder(kept), true
	}
	progress := a.Progress(a.Err)
	report := simReport{Rule: setup.Rule.Method, Seed: s.seed, Count: quality.Count{Class: s.scenario}}
	began := a.Now()
	sim.NewSimulator(s.seed).RunAll(orders, setup, s.workers, func(c sim.Case) {
		report.Count.Add(&c)
		report.Outliers += c.Outliers
		report.Anomalies += c.Anomalies
		if labelled != nil && broken == nil {
			broken = labelled.Labels(c.Labels...)
		}
		for i := range c.Incidents {
			if broken == nil {
				broken = lines.Encode(&c.Incidents[i])
			}
		}
		done, all := report.Count.Cases, len(orders)
		progress.Draw("[%s] %d of %d machines", app.Bar(float64(done)/float64(all), 40, "#", "."), done, all)
	})
	progress.Clear()
	if labelled != nil && broken == nil {
		broken = labelled.Flush()
	}
	if broken != nil {
		return fmt.Errorf("write trace or incidents: %w", broken)
	}
	report.finish()
	if lines != nil {
		if err := lines.Encode(&report); err != nil {
			return fmt.Errorf("write incidents: %w", err)
		}
	}
	if a.JSON {
		return a.WriteJSON(&report)
	}
	return report.text(a.Out, a.Now().Sub(began))
}

// simReport is the report of quell sim.
type simReport struct {
	Rule detect.Method `json:"rule"`
	Seed uint64        `json:"seed"`
	quality.Count
	Outliers  int     `json:"outliers"`
	Anomalies int     `json:"anomalies"`
	Precision float64 `json:"precision"`
	Recall    float64 `json:"recall"`
	Top1      float64 `json:"top1"`
	// Least are the lower bounds of the one-sided 95 % confidence intervals.
	Least      map[string]float64 `json:"least"`
	MedianS    float64            `json:"median_time_s"`
	FalseRate  float64            `json:"false_per_1000_machine_days"`
	FalseAbove float64            `json:"false_per_1000_machine_days_upper"`
}

func (r *simReport) finish() {
	r.Least = map[string]float64{}
	r.Precision, r.Least["precision"] = r.Count.Precision()
	r.Recall, r.Least["recall"] = r.Count.Recall()
	r.Top1, r.Least["top1"] = r.Count.Top1()
	r.MedianS = r.Median().Seconds()
	r.FalseRate, r.FalseAbove = r.FalsePerThousandDays()
}

func (r *simReport) text(w io.Writer, took time.Duration) error {
	days := float64(r.Minutes) / (24 * 60)
	_, err := fmt.Fprintf(w, `rule %s, seed %d: %d machines, %.1f machine-days, %d samples in %s
outliers %d, anomalies %d, accusations %d, right %d
victims %d, named %d, after %.0f min (median)
precision %.3f (at least %.3f), recall %.3f (%.3f), top-1 %.3f (%.3f)
false accusations per 1,000 machine-days: %.1f (at most %.1f)
caps took %.1f CPU-h from antagonists, %.1f from others; of %d victims under caps %d were below threshold in most minutes
bounds: one-sided, 95 %%
`, r.Rule, r.Seed, r.Cases, days, r.Samples, took.Round(100*time.Millisecond), r.Outliers, r.Anomalies, r.Accusations, r.Right,
		r.Victims, r.Named, r.MedianS/60, r.Precision, r.Least["precision"], r.Recall, r.Least["recall"], r.Top1, r.Least["top1"],
		r.FalseRate, r.FalseAbove, r.Relief.Taken/3600, r.Relief.TakenOfOthers/3600, r.Relief.Victims, r.Relief.Relieved)
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
