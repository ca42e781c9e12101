package replay

import (
	"cmp"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/stat"
	"github.com/quell-dev/quell/internal/trace"
)

// Share is a share with its two-sided 95 % interval (Clopper and Pearson, 1934).
type Share struct {
	K, N      int
	Low, High float64
}

// Value is the share; NaN of nothing.
func (s Share) Value() float64 { return float64(s.K) / float64(s.N) }

func shareOf(k, n int) Share {
	low, high := stat.ShareBetween(k, n)
	return Share{k, n, low, high}
}

// Score is how often a labelled recording's accusations were right.
type Score struct {
	// Precision: of the accusations, those of an antagonist of the victim's
	// while it hurt it.
	Precision Share
	// Recall: of the episodes, those in which an antagonist was accused.
	Recall Share
	// Top1: of the episodes in which anybody was accused, those in which the
	// first accused was an antagonist.
	Top1 Share
	// After are the times from an episode's beginning to the first right
	// accusation, ascending.
	After []time.Duration
	// Wrong are the accusations that were not right.
	Wrong []Accusation
	// Missed are the episodes without a right accusation.
	Missed []Episode
}

// Episode is a stretch in which a victim suffered from one or several others.
type Episode struct {
	Machine     string            `json:"machine,omitempty"`
	Victim      sample.TaskName   `json:"victim"`
	Antagonists []sample.TaskName `json:"antagonists"`
	From        sample.Millis     `json:"from"`
	To          sample.Millis     `json:"to"`
	Causes      []string          `json:"causes,omitempty"`
	labels      []trace.Label
}

// Episodes joins labels of one victim that are no more than gap apart: what
// would be one incident is one episode (Policy.Calm). Labels without an
// antagonist, what was nobody's doing, make none.
func Episodes(labels []trace.Label, gap time.Duration) []Episode {
	all := slices.DeleteFunc(slices.Clone(labels), func(l trace.Label) bool { return l.Antagonist == "" })
	slices.SortFunc(all, func(a, b trace.Label) int {
		return cmp.Or(cmp.Compare(a.Machine, b.Machine), cmp.Compare(a.Victim, b.Victim), cmp.Compare(a.From, b.From),
			cmp.Compare(a.To, b.To), cmp.Compare(a.Antagonist, b.Antagonist))
	})
	var episodes []Episode
	for _, l := range all {
		n := len(episodes) - 1
		if n < 0 || episodes[n].Machine != l.Machine || episodes[n].Victim != l.Victim || episodes[n].To.Add(gap) < l.From {
			episodes = append(episodes, Episode{Machine: l.Machine, Victim: l.Victim, From: l.From, To: l.To})
			n++
		}
		e := &episodes[n]
		e.To, e.labels = max(e.To, l.To), append(e.labels, l)
		if !slices.Contains(e.Antagonists, l.Antagonist) {
			e.Antagonists = append(e.Antagonists, l.Antagonist)
		}
		if l.Cause != "" && !slices.Contains(e.Causes, l.Cause) {
			e.Causes = append(e.Causes, l.Cause)
		}
	}
	return episodes
}

// Judge holds accusations against labels. An accusation is about the time from
// its anomaly's beginning until it was made, so one made shortly after an
// episode of what happened in it is right. Labels make episodes by gap.
func Judge(labels []trace.Label, accusations []Accusation, gap time.Duration) Score {
	var s Score
	right := 0
	for _, a := range accusations {
		if slices.ContainsFunc(labels, func(l trace.Label) bool {
			return l.Antagonist == a.Suspect && l.Victim == a.Victim && l.Machine == a.Machine && l.From <= a.At && a.Began <= l.To
		}) {
			right++
		} else {
			s.Wrong = append(s.Wrong, a)
		}
	}
	s.Precision = shareOf(right, len(accusations))
	episodes := Episodes(labels, gap)
	named, first, firstRight := 0, 0, 0
	for _, e := range episodes {
		var anybody, found bool
		for _, a := range accusations { // by time
			if a.Machine != e.Machine || a.Victim != e.Victim || a.At < e.From || a.Began > e.To {
				continue
			}
			is := slices.ContainsFunc(e.labels, func(l trace.Label) bool { return l.Antagonist == a.Suspect && l.From <= a.At && a.Began <= l.To })
			if !anybody {
				anybody = true
				first++
				if is {
					firstRight++
				}
			}
			if is && !found {
				found = true
				named++
				s.After = append(s.After, a.At.Sub(e.From))
			}
		}
		if !found {
			s.Missed = append(s.Missed, e)
		}
	}
	slices.Sort(s.After)
	s.Recall, s.Top1 = shareOf(named, len(episodes)), shareOf(firstRight, first)
	return s
}

// Median is the median time to detection with the bounds of its 95 % interval
// by order statistics (signs; Conover, Practical Nonparametric Statistics, 3.2);
// false if nothing was detected. With fewer than 6 the interval is the range.
func (s *Score) Median() (median, low, high time.Duration, ok bool) {
	n := len(s.After)
	if n == 0 {
		return 0, 0, 0, false
	}
	k := 0 // values outside the interval on each side
	for tail, p := 0.0, pow2(-n); k < n/2; k++ {
		if tail += p; tail > 0.025 {
			break
		}
		p *= float64(n-k) / float64(k+1)
	}
	if k > 0 {
		k--
	}
	return s.After[n/2], s.After[k], s.After[n-1-k], true
}

func pow2(n int) float64 {
	v := 1.0
	for range -n {
		v /= 2
	}
	return v
}
