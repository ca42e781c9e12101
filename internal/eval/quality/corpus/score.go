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

// specSamples is how many samples a spec needs: those of the first calm stretch.
const specSamples = 30

// totals is how often a rule was right over several recordings.
type totals struct {
	replay.Shares
	after  []time.Duration
	soon   int // episodes that were found within soon intervals
	judged int
	// alone are the samples that were judged while no antagonist was there, and
	// framed the accusations then.
	alone, framed int
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

// soon is how many intervals it may take to find an episode.
const soon = 5

// ends are the ends of a recording's intervals, which are a little longer than they
// were to be.
type ends map[sample.Millis]bool

// since is how many intervals ended after one moment, up to another.
func (e ends) since(from, to sample.Millis) (n int) {
	for at := range e {
		if from < at && at <= to {
			n++
		}
	}
	return n
}

// printScore plays every recording by every rule, as an agent that only advises and
// knows of nothing else, and prints a table for each half and place.
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
		var said strings.Builder
		for _, on := range []place{onCPUs, onDisk, onLink} {
			var of []string
			for _, f := range files {
				if s := recorded[filepath.Base(f)]; s != nil && s.half == h && s.on == on {
					of = append(of, f)
				}
			}
			if len(of) == 0 {
				continue
			}
			where := map[place]string{onCPUs: "CPUs", onDisk: "a disk", onLink: "a link"}[on]
			fmt.Fprintf(w, "%s programs that share %s, %d scenes, intervals of %s:\n\n| rule | samples judged | precision | recall | top-1 | found within 5 intervals | median | false accusations without an antagonist |\n|---|---|---|---|---|---|---|---|\n", h, where, len(of), interval)
			for _, rule := range rules {
				var all totals
				for _, f := range of {
					if err := all.play(f, rule, &said); err != nil {
						return fmt.Errorf("%s: %w", f, err)
					}
				}
				median := "-"
				if slices.Sort(all.after); len(all.after) > 0 {
					median = all.after[len(all.after)/2].Round(time.Second).String()
				}
				fmt.Fprintf(w, "| `%s` | %d | %s | %s | %s | %d of %d | %s | %d in %d samples |\n", rule, all.judged, formatShare(all.Precision), formatShare(all.Recall), formatShare(all.Top1), all.soon, all.Recall.N, median, all.framed, all.alone)
			}
			fmt.Fprintln(w)
		}
		if long && said.Len() > 0 {
			fmt.Fprintln(w, said.String())
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

// play adds what a rule makes of a recording; of the default rule it says what was
// wrong and what was missed.
func (s *totals) play(file string, rule detect.Method, said io.Writer) error {
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
	nobody, err := withoutAntagonists(file)
	if err != nil {
		return err
	}
	alone := map[sample.TaskName][]sample.Millis{}
	bad, intervals := map[badKey][]sample.Millis{}, ends{}
	o.Judged = func(j replay.JudgedSample) {
		intervals[j.At] = true
		alone[j.Task] = append(alone[j.Task], j.At)
		if j.Outlier {
			k := badKey{j.Task, j.Signal}
			bad[k] = append(bad[k], j.At)
		}
	}
	result, err := replay.Run(context.Background(), r, o, 1)
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
		return nobody(at) && !slices.ContainsFunc(left, in)
	}
	for task, times := range alone {
		for _, at := range times {
			if counts(task, at) {
				s.alone++
			}
		}
	}
	for _, v := range score.Wrong() {
		if counts(v.Victim, v.At) {
			s.framed++
		}
	}
	if rule != detect.EvidenceMethod {
		return nil
	}
	name, at := strings.TrimSuffix(filepath.Base(file), ".csv.gz"), func(ms int64) time.Duration {
		return (time.Duration(ms-int64(result.From)) * time.Millisecond).Round(time.Second)
	}
	for _, v := range score.Wrong() {
		fmt.Fprintf(said, "%s: wrong: %s, signal %s: accused %s at %s\n", name, v.Victim, v.Signal, v.Suspect, at(int64(v.At)))
	}
	for i := range score.Found {
		if f := &score.Found[i]; intervals.since(f.From, f.First.At) > soon {
			fmt.Fprintf(said, "%s: late: %s, antagonists %v, signal %s: found after %s, episode from %s%s\n", name, f.Victim, f.Antagonists, f.First.Signal, f.After().Round(time.Second), at(int64(f.From)), third(bad, &f.Episode, intervals))
		}
	}
	for _, e := range score.Missed {
		fmt.Fprintf(said, "%s: missed: %s, antagonists %v, episode from %s\n", name, e.Victim, e.Antagonists, at(int64(e.From)))
	}
	return nil
}

type badKey struct {
	task   sample.TaskName
	signal sample.SignalName
}

// third says in which interval of an episode the victim had its third bad one by one
// signal, if that was not soon: without three no rule here says anything.
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

// withoutAntagonists reads what was played in a recording, and returns whether a moment
// lies in a stretch without antagonists, the first second of it left out.
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
	var alone []span
	lines := bufio.NewScanner(zip)
	for lines.Scan() && strings.HasPrefix(lines.Text(), "#") {
		if text, ok := strings.CutPrefix(lines.Text(), stretchMark); ok {
			from, to, antagonist, err := parseStretch(text)
			if err != nil {
				return nil, err
			}
			if !antagonist {
				alone = append(alone, span{from.Add(settling * interval), to})
			}
		}
	}
	return func(at sample.Millis) bool {
		return slices.ContainsFunc(alone, func(s span) bool { return s.from < at && at <= s.to })
	}, lines.Err()
}
