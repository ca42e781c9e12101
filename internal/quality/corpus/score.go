package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/detect"
	"github.com/quell-dev/quell/internal/replay"
	"github.com/quell-dev/quell/internal/trace/recording"
)

// specSamples is how many samples a spec needs: those of the first calm stretch.
const specSamples = 30

// sum is how often a rule was right over several recordings.
type sum struct {
	precision, recall, top1 replay.Share
	after                   []time.Duration
	judged                  int
}

func (s *sum) add(r *replay.Result, score *replay.Score) {
	s.precision, s.recall, s.top1 = s.precision.Plus(score.Precision), s.recall.Plus(score.Recall), s.top1.Plus(score.Top1)
	s.after, s.judged = append(s.after, score.After...), s.judged+r.Judged
}

// soon is how many episodes were found within five intervals of their beginning.
func (s *sum) soon() (n int) {
	for _, d := range s.after {
		if d <= 5*interval {
			n++
		}
	}
	return n
}

// printScore plays every recording by every rule, as an agent that only advises and
// knows of nothing else, and prints a table for each half.
func printScore(w io.Writer, dir, only string, rules []detect.Rule, long bool) error {
	files, err := filepath.Glob(filepath.Join(dir, only+"*.csv.gz"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no recordings in %s: make corpus", dir)
	}
	for _, h := range []half{tuning, test} {
		var of []string
		for _, f := range files {
			if strings.HasPrefix(filepath.Base(f), string(h)) {
				of = append(of, f)
			}
		}
		if len(of) == 0 {
			continue
		}
		fmt.Fprintf(w, "%s programs, %d scenes, intervals of %s:\n\n| rule | samples judged | precision | recall | top-1 | found within 5 intervals | median |\n|---|---|---|---|---|---|---|\n", h, len(of), interval)
		var said strings.Builder
		for _, rule := range rules {
			var all sum
			for _, f := range of {
				if err := all.play(f, rule, &said); err != nil {
					return fmt.Errorf("%s: %w", f, err)
				}
			}
			median := "-"
			if slices.Sort(all.after); len(all.after) > 0 {
				median = all.after[len(all.after)/2].Round(time.Second).String()
			}
			fmt.Fprintf(w, "| `%s` | %d | %s | %s | %s | %d of %d | %s |\n", rule, all.judged, of3(all.precision), of3(all.recall), of3(all.top1), all.soon(), all.recall.N, median)
		}
		fmt.Fprintln(w)
		if long {
			fmt.Fprintln(w, said.String())
		}
	}
	return nil
}

func of3(s replay.Share) string {
	if s.N == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3f (%d of %d; %.2f to %.2f)", s.Value(), s.K, s.N, s.Low, s.High)
}

// play adds what a rule makes of a recording; of the default rule it says what was
// wrong and what was missed.
func (s *sum) play(file string, rule detect.Rule, said io.Writer) error {
	o, err := replay.Default(rule)
	if err != nil {
		return err
	}
	o.Step(interval)
	o.Spec.MinSamples = specSamples
	r, err := recording.Open(file, recording.Options{})
	if err != nil {
		return err
	}
	defer r.Close()
	result, err := replay.Run(context.Background(), r, o, 1)
	if err != nil {
		return err
	}
	labels, labelled := r.Labels()
	if !labelled || r.Report().Bad > 0 {
		return fmt.Errorf("labelled %t, %d bad rows", labelled, r.Report().Bad)
	}
	score := replay.Judge(labels, r.Unlabelled(), result.Accusations)
	s.add(result, &score)
	if rule != detect.Evident {
		return nil
	}
	name, at := strings.TrimSuffix(filepath.Base(file), ".csv.gz"), func(ms int64) time.Duration {
		return (time.Duration(ms-int64(result.From)) * time.Millisecond).Round(time.Second)
	}
	for _, v := range score.Wrong() {
		fmt.Fprintf(said, "%s: wrong: %s by %s names %s after %s\n", name, v.Victim, v.Signal, v.Suspect, at(int64(v.At)))
	}
	for _, e := range score.Missed {
		fmt.Fprintf(said, "%s: missed: %s beside %v after %s\n", name, e.Victim, e.Antagonists, at(int64(e.From)))
	}
	return nil
}
