package replay

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/eval/stat"
	"github.com/quell-dev/quell/internal/format/trace"
)

// Share is a share with its two-sided 95 % confidence interval (Clopper and Pearson, 1934).
// As JSON it also has its value, null if N is 0.
type Share struct {
	K, N      int
	Low, High float64
}

// MarshalJSON implements json.Marshaler.
func (s Share) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Value incident.Value `json:"value"`
		Low   float64        `json:"low"`
		High  float64        `json:"high"`
		K     int            `json:"k"`
		N     int            `json:"n"`
	}{incident.Value(s.Value()), s.Low, s.High, s.K, s.N})
}

// Value is the share; NaN if N is 0.
func (s Share) Value() float64 { return float64(s.K) / float64(s.N) }

func (s Share) plus(o Share) Share {
	k, n := s.K+o.K, s.N+o.N
	low, high := stat.ShareInterval(k, n)
	return Share{k, n, low, high}
}

// Score says how often a labelled recording's accusations were right. docs/replay.md
// defines the three shares.
type Score struct {
	Shares
	// ByCause are the same shares by the causes of the stretches that accusations and
	// episodes belong to: by name, Outside last.
	ByCause []CauseShares
	// Verdicts are the judged accusations, by time.
	Verdicts []Verdict
	// Found are the episodes with a right accusation, the fastest first, and Missed those
	// without.
	Found  []Found
	Missed []Episode
	// LeftOut is the number of accusations in stretches whose truth is not known.
	LeftOut int
}

// Shares are the three shares of a recording's score.
type Shares struct {
	// Precision: of the accusations, those that were right.
	Precision Share `json:"precision"`
	// Recall: of the episodes, those in which an antagonist was accused.
	Recall Share `json:"recall"`
	// Top1: of the episodes with an accusation, those in which the first accused was an
	// antagonist.
	Top1 Share `json:"top1"`
}

// CauseShares are the shares of one cause, as labels name it. Several causes at once are
// joined by "+"; "" is for labels without a cause.
type CauseShares struct {
	Cause string `json:"cause"`
	Shares
}

// Outside is the cause of accusations that belong to no labelled stretch.
const Outside = "none"

// Verdict is an accusation in one stretch, by the first statement there, and whether that
// was right.
type Verdict struct {
	Accusation
	Right bool
	Cause string // cause of the stretch
}

// Wrong returns the accusations that were not right.
func (s *Score) Wrong() []Verdict {
	return slices.DeleteFunc(slices.Clone(s.Verdicts), func(v Verdict) bool { return v.Right })
}

// Episode is a stretch in which a victim suffered from one or more other tasks.
type Episode struct {
	Machine     string            `json:"machine,omitempty"`
	Victim      sample.TaskName   `json:"victim"`
	Antagonists []sample.TaskName `json:"antagonists"`
	From        sample.Millis     `json:"from"`
	To          sample.Millis     `json:"to"`
	Causes      []string          `json:"causes,omitempty"`
	labels      []trace.Label
}

// Found is an episode with its first right accusation.
type Found struct {
	Episode
	First Verdict
}

// After is the time from the episode's beginning to the accusation.
func (f *Found) After() time.Duration { return f.First.At.Sub(f.From) }

func (e *Episode) cause() string { return strings.Join(slices.Sorted(slices.Values(e.Causes)), "+") }

// Episodes returns the episodes of labels, one for each label. Labels of one victim that
// overlap in time are one episode with several antagonists, each of which is right. Labels
// that only touch do not overlap. Labels without an antagonist, whose effect no task
// caused, make no episode.
func Episodes(labels []trace.Label) []Episode {
	all := slices.DeleteFunc(slices.Clone(labels), func(l trace.Label) bool { return l.Antagonist == "" })
	slices.SortFunc(all, func(a, b trace.Label) int {
		return cmp.Or(cmp.Compare(a.Machine, b.Machine), cmp.Compare(a.Victim, b.Victim), cmp.Compare(a.From, b.From),
			cmp.Compare(a.To, b.To), cmp.Compare(a.Antagonist, b.Antagonist))
	})
	var episodes []Episode
	for _, l := range all {
		n := len(episodes) - 1
		if n < 0 || episodes[n].Machine != l.Machine || episodes[n].Victim != l.Victim || l.From >= episodes[n].To && l.From > episodes[n].From {
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

// stretch is a part of the recording for one victim: an episode, an effect that no task
// caused, or a part that is left out. A victim's stretches are listed by kind: an
// accusation that matches two equally belongs to the last.
type stretch struct {
	from, to sample.Millis
	kind     stretchKind
	cause    string
	labels   []trace.Label // of an episode
	episode  int           // index of the episode
}

type stretchKind uint8

const (
	leftOut stretchKind = iota
	noTask
	episode
)

type victimKey struct {
	machine string
	victim  sample.TaskName
}

// about returns the stretch that a statement belongs to, and whether it is right. Of the
// stretches that overlap the time from the anomaly's beginning to the statement, one in
// which it is right comes first, then the one with the largest overlap, then the last. −1:
// it belongs to none.
func about(all []stretch, suspect sample.TaskName, s Statement) (at int, right bool) {
	at = -1
	most := sample.Millis(-1)
	for i := range all {
		st := &all[i]
		shared := min(s.At, st.to) - max(s.Began, st.from)
		if shared < 0 {
			continue
		}
		is := slices.ContainsFunc(st.labels, func(l trace.Label) bool {
			return l.Antagonist == suspect && l.From <= s.At && s.Began <= l.To
		})
		if at >= 0 && (right && !is || right == is && shared < most) {
			continue
		}
		at, right, most = i, is, shared
	}
	return at, right
}

// Judge compares accusations with labels; in the stretches of left nothing is right or
// wrong. An accusation covers the time from its anomaly's beginning until it was made, so
// one made shortly after an episode, on what happened in it, is right. A suspect of an
// incident counts once, and again in each stretch that begins while the incident still
// names it. Outside of all stretches it counts only if it was not counted before: repeating
// a right accusation is no new accusation.
func Judge(labels []trace.Label, left []trace.Stretch, accusations []Accusation) Score {
	var s Score
	episodes := Episodes(labels)
	stretches := map[victimKey][]stretch{}
	add := func(machine string, victim sample.TaskName, st stretch) {
		k := victimKey{machine, victim}
		stretches[k] = append(stretches[k], st)
	}
	for _, l := range left {
		add(l.Machine, l.Victim, stretch{from: l.From, to: l.To})
	}
	for _, l := range labels {
		if l.Antagonist == "" {
			add(l.Machine, l.Victim, stretch{from: l.From, to: l.To, kind: noTask, cause: l.Cause})
		}
	}
	for i := range episodes {
		e := &episodes[i]
		add(e.Machine, e.Victim, stretch{from: e.From, to: e.To, kind: episode, cause: e.cause(), labels: e.labels, episode: i})
	}

	of := make([][]Verdict, len(episodes))
	counts := tallies{}
	type place struct {
		stretch int
		right   bool
	}
	for i := range accusations {
		a := &accusations[i]
		there := stretches[victimKey{a.Machine, a.Victim}]
		seen := map[place]bool{}
		counted := false
		a.each(func(said Statement) {
			at, right := about(there, a.Suspect, said)
			if seen[place{at, right}] || at < 0 && counted {
				return
			}
			seen[place{at, right}] = true
			v := Verdict{Accusation: *a, Right: right, Cause: Outside}
			v.Statement, v.Again = said, nil
			if at >= 0 {
				st := &there[at]
				if st.kind == leftOut {
					s.LeftOut++
					return
				}
				if v.Cause = st.cause; st.kind == episode {
					of[st.episode] = append(of[st.episode], v)
				}
			}
			counted = true
			s.Verdicts = append(s.Verdicts, v)
			counts.of(v.Cause).Precision.count(right)
		})
	}
	slices.SortStableFunc(s.Verdicts, compareVerdicts)
	for i := range episodes {
		e, made := &episodes[i], of[i]
		slices.SortStableFunc(made, compareVerdicts)
		c := counts.of(e.cause())
		if len(made) > 0 {
			c.Top1.count(made[0].Right)
		}
		first := slices.IndexFunc(made, func(v Verdict) bool { return v.Right })
		c.Recall.count(first >= 0)
		if first >= 0 {
			s.Found = append(s.Found, Found{*e, made[first]})
		} else {
			s.Missed = append(s.Missed, *e)
		}
	}
	slices.SortStableFunc(s.Found, func(a, b Found) int { return cmp.Compare(a.After(), b.After()) })
	s.Shares, s.ByCause = counts.shares()
	return s
}

func compareVerdicts(a, b Verdict) int { return compareAccusations(&a.Accusation, &b.Accusation) }

// tallies counts verdicts and episodes by cause; the shares have no bounds yet.
type tallies map[string]*Shares

func (t tallies) of(cause string) *Shares {
	if t[cause] == nil {
		t[cause] = &Shares{}
	}
	return t[cause]
}

// count counts one more.
func (s *Share) count(yes bool) {
	if s.N++; yes {
		s.K++
	}
}

// Plus returns the shares over both samples together.
func (s *Shares) Plus(o *Shares) Shares {
	return Shares{s.Precision.plus(o.Precision), s.Recall.plus(o.Recall), s.Top1.plus(o.Top1)}
}

// shares returns the shares over all causes together, and of each.
func (t tallies) shares() (all Shares, causes []CauseShares) {
	all = all.Plus(&Shares{}) // bounds also where there is nothing
	for cause, c := range t {
		all = all.Plus(c)
		causes = append(causes, CauseShares{cause, c.Plus(&Shares{})})
	}
	slices.SortFunc(causes, func(a, b CauseShares) int {
		outside := func(c CauseShares) int {
			if c.Cause == Outside {
				return 1
			}
			return 0
		}
		return cmp.Or(outside(a)-outside(b), cmp.Compare(a.Cause, b.Cause))
	})
	return all, causes
}

// Median is the median time to detection with the bounds of its 95 % confidence interval by
// order statistics (signs; Conover, Practical Nonparametric Statistics, 3.2); false if
// nothing was detected. With fewer than 6 the interval is the range.
func (s *Score) Median() (median, low, high time.Duration, ok bool) {
	n := len(s.Found)
	if n == 0 {
		return 0, 0, 0, false
	}
	k := 0 // number of values outside the interval on each side
	// The logarithm of the probability of k: that itself is below any float64 if n is large.
	for tail, p := 0.0, -float64(n)*math.Ln2; k < n/2; k++ {
		if tail += math.Exp(p); tail > 0.025 {
			break
		}
		p += math.Log(float64(n-k) / float64(k+1))
	}
	if k > 0 {
		k--
	}
	return s.Found[n/2].After(), s.Found[k].After(), s.Found[n-1-k].After(), true
}
