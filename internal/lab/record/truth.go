package record

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Truth is what the lab knows about the effect of an antagonist on a victim.
type Truth string

// The truths.
const (
	Hurt    Truth = "hurt"
	Spared  Truth = "spared"
	Unclear Truth = "unclear"
)

// The thresholds of the truths. Slowdowns between the first two are unclear. A victim
// whose rates before and after differ by more than steady was disturbed by something else
// or changed by itself. The same holds if other tasks used more CPU than before, by more
// than foreign of the victim's CPUs.
const (
	hurtFrom   = 1.15
	sparedUpTo = 1.05
	steady     = 1.15
	foreign    = 0.15
	// Levels of the antagonist's load that mean its absence and presence, as a share of
	// its CPUs. Presence is also checked against the CPU time that it really used.
	off, on   = 0.05, 0.5
	leastUsed = 0.1
)

// Stretch is a time in which the antagonist is present (on); before and after it the
// antagonist is absent (off).
type Stretch struct {
	Victim     string        `json:"victim"` // parts' names
	Antagonist string        `json:"antagonist"`
	Window     result.Window `json:"window"` // after the run's start
	// Slowdown is the victim's time for a unit of work inside it over that outside.
	Slowdown stat.Float `json:"slowdown"`
	// Used is the antagonist's CPU usage in it, as a share of its CPUs.
	Used  float64 `json:"used"`
	Truth Truth   `json:"truth"`
	Why   string  `json:"why,omitempty"` // why it is unclear
	Cause string  `json:"cause,omitempty"`
}

// Stretches returns the stretches of a valid run with a staircase: every measured part
// against the role that climbs. A run without a staircase has none.
func Stretches(r *result.Run, seconds []result.Sample) []Stretch {
	var present, absent []result.Step
	for _, s := range r.Steps {
		switch {
		case s.Target >= on:
			present = append(present, s)
		case s.Target <= off:
			absent = append(absent, s)
		}
	}
	if len(present) == 0 {
		return nil
	}
	var all []Stretch
	for _, w := range stretches(present) {
		for i := range r.Cell.Parts {
			p := &r.Cell.Parts[i]
			if !p.Measure || p.Role == present[0].Role {
				continue
			}
			for j := range r.Cell.Parts {
				if q := &r.Cell.Parts[j]; q.Role == present[0].Role {
					s := Stretch{Victim: p.Name(), Antagonist: q.Name(), Window: w, Cause: cause(r, p, q)}
					s.judge(r, seconds, present, absent)
					all = append(all, s)
				}
			}
		}
	}
	return all
}

// stretches joins adjacent steps.
func stretches(steps []result.Step) []result.Window {
	var all []result.Window
	for _, s := range steps {
		if n := len(all); n > 0 && all[n-1].To == s.From {
			all[n-1].To = s.To
		} else {
			all = append(all, result.Window{From: s.From, To: s.To})
		}
	}
	return all
}

// cause is "cpu" where the two share one CPU, otherwise the resource that the antagonist
// contends for.
func cause(r *result.Run, victim, antagonist *study.Part) string {
	cpus := func(name string) string {
		i := slices.IndexFunc(r.Parts, func(p result.Part) bool { return p.Name == name })
		if i < 0 {
			return ""
		}
		return strings.Join(r.Parts[i].CPUs, ";")
	}
	// In this kind of study each placement is one CPU.
	if c := cpus(victim.Name()); c != "" && c == cpus(antagonist.Name()) {
		return "cpu"
	}
	return antagonist.Workload.Contends
}

func (s *Stretch) judge(r *result.Run, seconds []result.Sample, present, absent []result.Step) {
	s.Truth, s.Slowdown = Unclear, stat.Float(math.NaN())
	i := slices.IndexFunc(r.Parts, func(p result.Part) bool { return p.Name == s.Victim })
	if i < 0 {
		s.Why = "no record of the victim"
		return
	}
	if slices.ContainsFunc(r.Cell.Parts, func(p study.Part) bool { return p.Name() == s.Victim && p.Workload.Metric.OfRun() }) {
		s.Why = "the victim's figure is one of the whole run: use parse: iterations, or time"
		return
	}
	rate := func(steps []result.Step) float64 {
		var units, span float64
		for _, one := range steps {
			from, to := one.From+one.Settle, one.To-one.Trail
			units += analyse.Throughput(r.Parts[i].Iterations, from, to) * (to - from).Seconds()
			span += (to - from).Seconds()
		}
		return units / span
	}
	within := func(one result.Step) bool { return one.From >= s.Window.From && one.To <= s.Window.To }
	in := slices.DeleteFunc(slices.Clone(present), func(one result.Step) bool { return !within(one) })
	before := slices.DeleteFunc(slices.Clone(absent), func(one result.Step) bool { return one.To > s.Window.From })
	after := slices.DeleteFunc(slices.Clone(absent), func(one result.Step) bool { return one.From < s.Window.To })
	for _, one := range in {
		s.Used += one.Achieved / float64(len(in))
	}
	if len(before) == 0 || len(after) == 0 {
		s.Why = "the antagonist was not absent before and after it"
		return
	}
	beside, first, second := rate(in), rate(before), rate(after)
	s.Slowdown = stat.Float((first + second) / 2 / beside)
	more := share(seconds, "cpu.foreign", in) - share(seconds, "cpu.foreign", append(before, after...))
	least, most := min(first, second), max(first, second)
	switch {
	case !(beside > 0) || !(least > 0):
		s.Why = "the victim did no work in a part of it"
	case s.Used < leastUsed:
		s.Why = fmt.Sprintf("the antagonist used %.0f %% of its CPUs", 100*s.Used)
	case most > steady*least:
		s.Why = fmt.Sprintf("without the antagonist the rate was %.3g before and %.3g after", first, second)
	case more > foreign:
		s.Why = fmt.Sprintf("other tasks used %.0f points more of the CPUs than before and after", 100*more)
	case least/beside >= hurtFrom:
		s.Truth = Hurt
	case s.Slowdown <= sparedUpTo:
		s.Truth = Spared
	default:
		s.Why = fmt.Sprintf("a slowdown of %.0f %% is inconclusive", 100*(s.Slowdown-1))
	}
}

// share is the mean of a value over the seconds of some steps; 0 where it was not
// measured.
func share(seconds []result.Sample, name string, steps []result.Step) float64 {
	sum, n := 0.0, 0.0
	for _, s := range seconds {
		v, ok := s.Values[name]
		if ok && slices.ContainsFunc(steps, func(one result.Step) bool { return s.At-time.Second >= one.From && s.At <= one.To }) {
			sum, n = sum+v, n+1
		}
	}
	return sum / max(n, 1)
}
