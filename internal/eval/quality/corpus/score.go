package main

import (
	"bufio"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/eval/replay"
	"github.com/quell-dev/quell/internal/format/trace"
	"github.com/quell-dev/quell/internal/format/trace/recording"
)

// specSamples is the number of samples that a spec needs: those of the first calm stretch.
const specSamples = 30

// totals counts how often a rule was right over several recordings.
type totals struct {
	replay.Shares
	after  []time.Duration // from the beginning of an episode to the first right accusation
	soon   int             // episodes found within soon intervals
	judged int             // samples compared with a spec
	// calm is the number of samples that were judged while no antagonist ran, and wrong
	// the number of accusations at those times.
	calm, wrong int
}

func (s *totals) add(r *replay.Result, score *replay.Score, e ends) {
	s.Shares = s.Plus(&score.Shares)
	s.judged += r.Judged
	for i := range score.Found {
		f := &score.Found[i]
		s.after = append(s.after, f.After())
		if e.since(f.From, f.First.At) <= soon {
			s.soon++
		}
	}
}

// soon is the number of intervals within which an episode should be found.
const soon = 5

// ends holds the end times of a recording's intervals, which are a little longer than the
// configured interval. All count, also those of which a rule judges no sample: it is not faster
// for having judged less.
type ends map[sample.Millis]bool

// counted is a recording that notes the ends of its intervals as it is read.
type counted struct {
	replay.Source
	intervals ends
}

func (c counted) Next() ([]sample.Sample, error) {
	some, err := c.Source.Next()
	for i := range some {
		c.intervals[some[i].TS] = true
	}
	return some, err
}

// since returns the number of intervals that ended after from, and not after to.
func (e ends) since(from, to sample.Millis) (n int) {
	for at := range e {
		if from < at && at <= to {
			n++
		}
	}
	return n
}

// printScore plays every recording with every rule, as an agent in mode advise without a
// server does, and prints a table for each half and place.
func printScore(w io.Writer, dir, only string, rules []detect.Method, long bool) error {
	files, err := filepath.Glob(filepath.Join(dir, only+"*.csv.gz"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no recordings in %s: run make corpus", dir)
	}
	all, err := allScenes()
	if err != nil {
		return err
	}
	recorded := map[string]*scene{} // by file name
	for i := range all {
		recorded[all[i].file("")] = &all[i]
	}
	for _, h := range []half{tuning, test, innocence} {
		var details strings.Builder
		for _, on := range []place{onCPUs, onDisk, onLink} {
			var some []string
			for _, f := range files {
				if s := recorded[filepath.Base(f)]; s != nil && s.half == h && s.on == on {
					some = append(some, f)
				}
			}
			if len(some) == 0 {
				continue
			}
			where := map[place]string{onCPUs: "CPUs", onDisk: "a disk", onLink: "a link"}[on]
			fmt.Fprintf(w, "%s programs that share %s, %d scenes, intervals of %s:\n\n| rule | samples judged | precision | recall | top-1 | found within 5 intervals | median | false accusations without an antagonist |\n|---|---|---|---|---|---|---|---|\n", h, where, len(some), interval)
			for _, rule := range rules {
				var all totals
				for _, f := range some {
					if err := all.play(f, rule, &details); err != nil {
						return fmt.Errorf("%s: %w", f, err)
					}
				}
				median := "-"
				if slices.Sort(all.after); len(all.after) > 0 {
					median = all.after[len(all.after)/2].Round(time.Second).String()
				}
				fmt.Fprintf(w, "| `%s` | %d | %s | %s | %s | %d of %d | %s | %d in %d samples |\n", rule, all.judged, formatShare(all.Precision), formatShare(all.Recall), formatShare(all.Top1), all.soon, all.Recall.N, median, all.wrong, all.calm)
			}
			fmt.Fprintln(w)
		}
		if long && details.Len() > 0 {
			fmt.Fprintln(w, details.String())
		}
	}
	return nil
}

func formatShare(s replay.Share) string {
	if s.N == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3f (%d of %d; %.2f to %.2f)", s.Value(), s.K, s.N, s.Low, s.High)
}

// play adds the result of a rule on a recording. For the default rule it also writes a line
// for each wrong, late and missing accusation to details.
func (s *totals) play(file string, rule detect.Method, details io.Writer) error {
	o, err := replay.Default(rule)
	if err != nil {
		return err
	}
	o.ScaleTo(interval)
	o.Spec.MinSamples = specSamples
	r, err := recording.Open(file, recording.Options{})
	if err != nil {
		return err
	}
	defer r.Close()
	calm, err := withoutAntagonists(file)
	if err != nil {
		return err
	}
	judged := map[sample.TaskName][]sample.Millis{}
	bad, intervals := map[badKey][]sample.Millis{}, ends{}
	o.Judged = func(j replay.JudgedSample) {
		judged[j.Task] = append(judged[j.Task], j.At)
		if j.Outlier {
			k := badKey{j.Task, j.Signal}
			bad[k] = append(bad[k], j.At)
		}
	}
	result, err := replay.Run(context.Background(), counted{r, intervals}, o, 1)
	if err != nil {
		return err
	}
	labels, labelled := r.Labels()
	if !labelled || r.Report().Bad > 0 {
		return fmt.Errorf("want labels and no bad rows: labelled %t, %d bad rows", labelled, r.Report().Bad)
	}
	left := r.Unlabelled()
	score := replay.Judge(labels, left, result.Accusations)
	s.add(result, &score, intervals)
	counts := func(task sample.TaskName, at sample.Millis) bool {
		in := func(l trace.Stretch) bool { return l.Victim == task && l.From < at && at <= l.To }
		return calm(at) && !slices.ContainsFunc(left, in)
	}
	for task, times := range judged {
		for _, at := range times {
			if counts(task, at) {
				s.calm++
			}
		}
	}
	for _, v := range score.Wrong() {
		if counts(v.Victim, v.At) {
			s.wrong++
		}
	}
	if rule != detect.EvidenceMethod {
		return nil
	}
	name, at := strings.TrimSuffix(filepath.Base(file), ".csv.gz"), func(ms int64) time.Duration {
		return (time.Duration(ms-int64(result.From)) * time.Millisecond).Round(time.Second)
	}
	for _, v := range score.Wrong() {
		fmt.Fprintf(details, "%s: wrong: %s, signal %s: accused %s at %s\n", name, v.Victim, v.Signal, v.Suspect, at(int64(v.At)))
	}
	for i := range score.Found {
		if f := &score.Found[i]; intervals.since(f.From, f.First.At) > soon {
			fmt.Fprintf(details, "%s: late: %s, antagonists %v, signal %s: found after %s, episode from %s%s\n", name, f.Victim, f.Antagonists, f.First.Signal, f.After().Round(time.Second), at(int64(f.From)), third(bad, &f.Episode, intervals))
		}
	}
	for _, e := range score.Missed {
		fmt.Fprintf(details, "%s: missed: %s, antagonists %v, episode from %s\n", name, e.Victim, e.Antagonists, at(int64(e.From)))
	}
	return nil
}

type badKey struct {
	task   sample.TaskName
	signal sample.SignalName
}

// third describes the interval of an episode in which the victim had its third outlier in
// one signal, if that was not soon. No rule accuses without three outliers.
func third(bad map[badKey][]sample.Millis, e *replay.Episode, intervals ends) string {
	first := math.MaxInt
	for k, times := range bad {
		if k.task != e.Victim {
			continue
		}
		n := 0
		for _, at := range times {
			if at > e.From && at <= e.To {
				if n++; n == 3 {
					first = min(first, intervals.since(e.From, at))
				}
			}
		}
	}
	switch {
	case first == math.MaxInt:
		return "; the victim had fewer than three outliers"
	case first > soon:
		return fmt.Sprintf("; the third outlier was in interval %d", first)
	}
	return ""
}

// withoutAntagonists reads the stretches of a recording. The returned function reports
// whether a moment lies in a stretch without antagonists, except in its first intervals
// (settling).
func withoutAntagonists(file string) (func(sample.Millis) bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	type span struct{ from, to sample.Millis }
	var calm []span
	lines := bufio.NewScanner(zip)
	for lines.Scan() && strings.HasPrefix(lines.Text(), "#") {
		if text, ok := strings.CutPrefix(lines.Text(), stretchMark); ok {
			from, to, antagonist, err := parseStretch(text)
			if err != nil {
				return nil, err
			}
			if !antagonist {
				calm = append(calm, span{from.Add(settling * interval), to})
			}
		}
	}
	return func(at sample.Millis) bool {
		return slices.ContainsFunc(calm, func(s span) bool { return s.from < at && at <= s.to })
	}, lines.Err()
}
