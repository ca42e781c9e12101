// Package replaycmd is the commands quell replay and quell sim.
package replaycmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/eval/replay"
	"github.com/quell-dev/quell/internal/format/keyed"
	"github.com/quell-dev/quell/internal/format/trace"
	"github.com/quell-dev/quell/internal/format/trace/recording"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/people/report"
)

type commands struct{ *app.App }

// replayFlags holds the flags of quell replay.
type replayFlags struct {
	rule, columns, specs, sane, out, save string
	rules                                 []string
	innocents                             []string
	innocentsColumns                      string
	innocentsTasks                        int
	byTask                                bool
	leastSamples, workers, limit          int
	leastCPU                              float64
	step                                  time.Duration
}

// Replay is quell replay. Package cli adds its long help.
func Replay(shared *app.App) *cobra.Command {
	a := &commands{shared}
	var f replayFlags
	cmd := &cobra.Command{
		Use: "replay FILE...", Short: "run the real detection on recorded samples", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error { return a.runReplay(cmd, &f, files) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.rule, "rule", string(detect.Default), "detection rule: "+ruleNames())
	flags.StringSliceVar(&f.rules, "rules", nil, "rules to compare, or all: a table instead of incidents")
	flags.StringArrayVar(&f.innocents, "innocents", nil, "add tasks of this recording to every machine (may be repeated)")
	flags.IntVar(&f.innocentsTasks, "innocents-tasks", 10, "number of tasks of each such recording, those with the most CPU usage")
	flags.StringVar(&f.innocentsColumns, "innocents-columns", "", "column map of such a recording if it is a CSV but no trace (as --columns)")
	flags.StringVar(&f.columns, "columns", "", "column map of a CSV: a YAML file, or "+strings.Join(recording.Maps(), ", "))
	flags.StringVar(&f.specs, "specs", "learn", "learn: during the replay, as an agent does; whole: from the whole recording first")
	flags.BoolVar(&f.byTask, "by-task", false, "a spec for each task instead of each job")
	flags.IntVar(&f.leastSamples, "least-samples", 100, "samples per task that a spec needs")
	flags.Float64Var(&f.leastCPU, "least-cpu", 0.25, "ignore a victim's samples below this CPU usage, CPU-s/s (default: the signal's)")
	flags.StringVar(&f.sane, "sane", "", "LOW:HIGH, the valid range of a cost (default: the signal's; with rule cpi2 none)")
	app.DurationVar(flags, &f.step, "step", time.Minute, "sampling period of a task; the rule's windows are multiples of it")
	flags.IntVar(&f.workers, "workers", runtime.GOMAXPROCS(0), "machines replayed in parallel")
	flags.IntVar(&f.limit, "limit", 50, "maximum number of incidents to show, those with an accusation first; 0: all")
	flags.StringVar(&f.out, "out", "", "also write a report with plots to this file (HTML)")
	flags.StringVar(&f.save, "save", "", "also write the samples to this file as a trace: Parquet if it ends in .parquet, else CSV")
	complete := func(flag string, words []string) {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	}
	complete("rule", strings.Split(ruleNames(), ", "))
	complete("rules", append([]string{"all"}, strings.Split(ruleNames(), ", ")...))
	complete("specs", []string{"learn", "whole"})
	for _, flag := range []string{"columns", "innocents-columns"} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(recording.Maps(), cobra.ShellCompDirectiveDefault))
	}
	return a.WithJSON(cmd)
}

// options converts the flags to replay.Options.
func (f *replayFlags) options(rule string, changed func(string) bool) (replay.Options, error) {
	o, err := replay.Default(detect.Method(rule))
	if err != nil {
		return o, fmt.Errorf("--rule: %w", err)
	}
	switch {
	case f.specs != "learn" && f.specs != "whole":
		return o, fmt.Errorf("--specs %q: want learn or whole", f.specs)
	case f.step <= 0:
		return o, fmt.Errorf("--step %v: want a duration above 0", f.step)
	case f.leastSamples < 2:
		return o, fmt.Errorf("--least-samples %d: want 2 or more", f.leastSamples)
	case f.leastCPU < 0:
		return o, fmt.Errorf("--least-cpu %v: want 0 or more", f.leastCPU)
	}
	o.ScaleTo(f.step)
	o.ByTask = o.ByTask || f.byTask
	o.Spec.MinSamples = f.leastSamples
	o.Detect.Switches.Bounds = o.Detect.Switches.Bounds || f.sane != ""
	o.Signals = map[sample.SignalName]sample.Signal{}
	for _, s := range sample.Signals() {
		if changed("least-cpu") && s.Domain.OfCPUs() && !s.Name.OfMachine() {
			s.LeastCPU = f.leastCPU
		}
		if f.sane != "" {
			low, high, _ := strings.Cut(f.sane, ":")
			var bad, worse error
			s.Min, bad = strconv.ParseFloat(low, 64)
			if s.Max, worse = strconv.ParseFloat(high, 64); bad != nil || worse != nil || !(s.Min < s.Max) {
				return o, fmt.Errorf("--sane %q: want two numbers such as 0.1:20", f.sane)
			}
		}
		o.Signals[s.Name] = s
	}
	return o, nil
}

func (a *commands) runReplay(cmd *cobra.Command, f *replayFlags, files []string) error {
	p := &replayer{app: a, flags: f, files: files, changed: cmd.Flags().Changed}
	if err := p.load(cmd.Context()); err != nil {
		return err
	}
	if len(f.rules) > 0 {
		return a.compareRules(cmd.Context(), p)
	}
	r, err := p.play(cmd.Context(), f.rule)
	if err != nil {
		return err
	}
	if f.out != "" {
		if err := app.WriteFile(f.out, func(w io.Writer) error { return report.ReplayHTML(w, r, a.Style()) }); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
	}
	if a.JSON {
		return a.replayJSON(r)
	}
	return report.ReplayText(a.Out, r, f.limit, a.Style())
}

// compareRules plays the same recordings with several rules.
func (a *commands) compareRules(ctx context.Context, p *replayer) error {
	f := p.flags
	if f.out != "" || f.save != "" {
		return app.Usage(errors.New("--rules cannot be combined with --out or --save"), "use --rule with one rule")
	}
	if slices.Contains(p.files, "-") {
		return app.Usage(errors.New("--rules reads the recording once per rule, and standard input can be read only once"), "write it to a file first")
	}
	rules := f.rules
	if slices.Equal(rules, []string{"all"}) {
		rules = strings.Split(ruleNames(), ", ")
	}
	var all []*report.Replay
	for _, rule := range rules {
		r, err := p.play(ctx, rule)
		if err != nil {
			return err
		}
		all = append(all, r)
	}
	if !a.JSON {
		return report.RulesText(a.Out, all)
	}
	e := json.NewEncoder(a.Out)
	for _, r := range all {
		if err := e.Encode(r.Summary); err != nil {
			return fmt.Errorf("write JSON: %w", err)
		}
	}
	return nil
}

func columnsError(err error) error {
	if _, invalid := errors.AsType[*keyed.InvalidError](err); invalid {
		return app.Usage(err, "docs/replay.md describes column maps")
	}
	return app.Usage(err, "name a YAML file, or one of "+strings.Join(recording.Maps(), ", "))
}

// replayJSON writes a line for each incident, and the summary last.
func (a *commands) replayJSON(r *report.Replay) error {
	e := json.NewEncoder(a.Out)
	e.SetEscapeHTML(false)
	for _, inc := range r.Result.Incidents {
		if err := e.Encode(inc); err != nil {
			return fmt.Errorf("write JSON: %w", err)
		}
	}
	for _, note := range r.Notes {
		fmt.Fprintln(a.Err, "quell: "+note)
	}
	if err := e.Encode(r.Summary); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

// readAll reads all of a source and closes it.
func readAll(ctx context.Context, src replay.Source, end func() error, take func(*sample.Sample)) error {
	for {
		some, err := src.Next()
		if err == nil {
			err = ctx.Err()
		}
		for i := range some {
			take(&some[i])
		}
		if err == io.EOF {
			return end()
		}
		if err != nil {
			return errors.Join(err, end())
		}
	}
}

// fileSource is a replay.Source of several files, which shows its progress.
type fileSource struct {
	now      func() time.Time
	progress *app.Progress
	files    []string
	options  recording.Options
	what     string
	save     *traceWriter    // nil: not saved
	splice   *replay.Splicer // nil: without innocents

	at       int // file
	open     *recording.Recording
	read     int
	shown    time.Time
	rows     int
	bad      int
	labels   []trace.Label
	left     []trace.Stretch // unlabelled
	labelled bool
	bare     int // files without labels
	notes    []string
}

// Next implements replay.Source.
func (r *fileSource) Next() ([]sample.Sample, error) {
	for {
		if r.open == nil {
			if r.at == len(r.files) {
				return nil, io.EOF
			}
			var err error
			if r.open, err = recording.Open(r.files[r.at], r.options); err != nil {
				return nil, err
			}
		}
		some, err := r.open.Next()
		r.read += len(some)
		r.show()
		if err != io.EOF {
			if r.splice != nil && err == nil {
				some, err = r.splice.Add(some)
			}
			return some, errors.Join(err, r.save.add(some))
		}
		if err := r.close(); err != nil {
			return nil, err
		}
	}
}

// close closes the open file and records its report.
func (r *fileSource) close() error {
	r.progress.Clear()
	if r.open == nil {
		return nil
	}
	name, open := r.files[r.at], r.open
	r.open = nil
	r.at++
	rep := open.Report()
	r.rows, r.bad = r.rows+rep.Rows, r.bad+rep.Bad
	labels, labelled := open.Labels()
	r.labels, r.labelled = append(r.labels, labels...), r.labelled || labelled
	if !labelled {
		r.bare++
	}
	r.left = append(r.left, open.Unlabelled()...)
	if rep.Bad > 0 {
		r.notes = append(r.notes, fmt.Sprintf("%s: bad rows skipped: %d: %s", filepath.Base(name), rep.Bad, strings.Join(rep.Reasons, "; ")))
	}
	if len(rep.Unknown) > 0 {
		r.notes = append(r.notes, fmt.Sprintf("%s: unknown columns, ignored: %s", filepath.Base(name), strings.Join(rep.Unknown, ", ")))
	}
	return open.Close()
}

// show draws a progress bar.
func (r *fileSource) show() {
	if now := r.now(); now.Sub(r.shown) >= 200*time.Millisecond {
		r.shown = now
		part := (float64(r.at) + r.open.Progress()) / float64(len(r.files))
		r.progress.Draw("%s [%s] %.0f %%, %d samples", r.what, app.Bar(part, 30, "#", "-"), 100*part, r.read)
	}
}
