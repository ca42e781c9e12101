package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// A recording says in comments which stretch was played when:
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

// parseStretch parses the result of String: the times, and whether there was an antagonist.
func parseStretch(text string) (from, to sample.Millis, antagonist bool, err error) {
	var what string
	if _, err := fmt.Sscan(text, &from, &to, &what); err != nil {
		return 0, 0, false, fmt.Errorf("stretch %q: want FROM TO CONTENT: %w", text, err)
	}
	return from, to, strings.HasPrefix(what, "/"), nil
}

// computeLabels computes the truth of the scene from the work that each victim did.
func (r *sceneRecording) computeLabels(done map[string]work) {
	r.foreign()
	r.rates = map[string]float64{}
	for _, v := range r.scene.victims {
		j := judge(r.scene.name, sample.TaskName("/corpus/"+v.Name), done[v.Name], r.stretches)
		r.rates[v.Name] = done[v.Name].rate(r.stretches[0].from, r.stretches[0].to)
		r.labels, r.unknown = append(r.labels, j.labels...), append(r.unknown, j.unknown...)
	}
	for _, i := range r.scene.innocents {
		r.unknown = append(r.unknown, uncounted(r.scene.name, sample.TaskName("/corpus/"+i.Name), r.stretches)...)
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
