package main

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace"
)

// A recording says in comments which stretch was played when, so that the truth can be
// computed again:
//
//	# stretch FROM TO calm
//	# stretch FROM TO quiet
//	# stretch FROM TO phase /corpus/VICTIM
//	# stretch FROM TO /corpus/ANTAGONIST …
const stretchMark = "# stretch "

// String returns the comment's text after the mark; times are in ms since the epoch.
func (s *stretch) String() string {
	text := fmt.Sprintf("%d %d ", s.from.UnixMilli(), s.to.UnixMilli())
	switch {
	case s.calm:
		return text + "calm"
	case s.phase != "":
		return text + "phase " + s.phase
	case len(s.antagonists) == 0:
		return text + "quiet"
	}
	var names []string
	for _, a := range s.antagonists {
		names = append(names, string(a.task))
	}
	return text + strings.Join(names, " ")
}

// parseStretch parses the result of String.
func parseStretch(text string) (s stretch, err error) {
	words := strings.Fields(text)
	if len(words) < 3 {
		return s, fmt.Errorf("stretch %q: want FROM TO CONTENT", text)
	}
	for i, t := range []*time.Time{&s.from, &s.to} {
		ms, err := strconv.ParseInt(words[i], 10, 64)
		if err != nil {
			return s, fmt.Errorf("stretch %q: %w", text, err)
		}
		*t = time.UnixMilli(ms)
	}
	switch words[2] {
	case "calm":
		s.calm = true
	case "quiet":
	case "phase":
		if len(words) != 4 {
			return s, fmt.Errorf("stretch %q: want FROM TO phase TASK", text)
		}
		s.phase = words[3]
	default:
		for _, name := range words[2:] {
			cause, ok := causeOf(name)
			if !ok {
				return s, fmt.Errorf("stretch %q: unknown antagonist", text)
			}
			s.antagonists = append(s.antagonists, antagonist{sample.TaskName(name), cause})
		}
	}
	return s, nil
}

// causeOf returns the resource that an antagonist takes most of, by its task's name. From
// its second arrival on the name ends in the number of the arrival.
func causeOf(task string) (cause string, ok bool) {
	for _, a := range antagonists() {
		rest, found := strings.CutPrefix(task, "/corpus/"+a.name)
		n, err := strconv.Atoi(strings.TrimPrefix(rest, "-"))
		if found && (rest == "" || strings.HasPrefix(rest, "-") && err == nil && n > 1) {
			return a.cause, true
		}
	}
	return "", false
}

// computeLabels computes the truth of the scene from the work that each victim did.
func (r *sceneRecording) computeLabels(done map[string]work) {
	r.foreign()
	r.judgement, r.rates = judgement{}, map[string]float64{}
	for _, v := range r.scene.victims {
		j := judge(r.scene.name, sample.TaskName("/corpus/"+v.name), done[v.name], r.stretches)
		r.rates[v.name] = done[v.name].rate(r.stretches[0].from, r.stretches[0].to)
		r.labels, r.unknown = append(r.labels, j.labels...), append(r.unknown, j.unknown...)
	}
	for _, i := range r.scene.innocents {
		r.unknown = append(r.unknown, uncounted(r.scene.name, sample.TaskName("/corpus/"+i.name), r.stretches)...)
	}
}

// foreign computes the load outside the scene, in total and in each stretch.
func (r *sceneRecording) foreign() {
	mean := func(from, to time.Time) float64 {
		sum, seen := 0.0, map[sample.Millis]bool{}
		for i := range r.samples {
			s := &r.samples[i]
			if at := s.TS.Time(); s.Task == detect.OutsideName && !seen[s.TS] && at.After(from) && !at.After(to) {
				sum, seen[s.TS] = sum+float64(s.CPU), true
			}
		}
		return sum / float64(max(len(seen), 1))
	}
	for i := range r.stretches {
		s := &r.stretches[i]
		s.foreign = mean(s.from, s.to)
	}
	r.others = 0
	if n := len(r.samples); n > 0 {
		r.others = mean(time.Time{}, r.samples[n-1].TS.Time())
	}
}

// recorded returns each victim's work according to the recording: the pieces of an interval
// are distributed evenly over it.
func (r *sceneRecording) recorded() map[string]work {
	done, last := map[string]work{}, map[string]sample.Millis{}
	for i := range r.samples {
		s := &r.samples[i]
		n, ok := s.Extras.Get(sample.Transactions)
		name := strings.TrimPrefix(string(s.Task), "/corpus/")
		if !ok || !slices.ContainsFunc(r.scene.victims, func(p *program) bool { return p.name == name }) {
			continue
		}
		from := s.TS.Add(-interval)
		if last[name] > 0 {
			from = last[name]
		}
		last[name] = s.TS
		for k := range int(n) {
			at := from.Time().Add(time.Duration((float64(k) + 0.5) / n * float64(s.TS.Sub(from))))
			done[name] = append(done[name], at)
		}
	}
	return done
}

// stretchesOf reads the stretches from a recording's comments.
func stretchesOf(recording io.Reader) (all []stretch, err error) {
	lines := bufio.NewScanner(recording)
	for lines.Scan() && strings.HasPrefix(lines.Text(), "#") {
		if words, ok := strings.CutPrefix(lines.Text(), stretchMark); ok {
			s, err := parseStretch(words)
			if err != nil {
				return nil, err
			}
			all = append(all, s)
		}
	}
	return all, lines.Err()
}

// relabel judges a recording again and rewrites it.
func relabel(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(zip)
	if err != nil {
		return err
	}
	r := &sceneRecording{}
	if r.stretches, err = stretchesOf(strings.NewReader(string(text))); err != nil {
		return err
	}
	if len(r.stretches) == 0 {
		return errors.New("no lines \"# stretch\": record the scene again")
	}
	in, err := trace.NewReader(strings.NewReader(string(text)))
	if err != nil {
		return err
	}
	for {
		var s sample.Sample
		err := in.Read(&s)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		r.samples = append(r.samples, s)
	}
	if r.scene = sceneOf(file); r.scene == nil {
		return fmt.Errorf("unknown scene")
	}
	r.computeLabels(r.recorded())
	return r.save(file)
}
