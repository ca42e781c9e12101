package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// A task can report what it likes about itself (sample.Signal.SelfReported), and make its report follow
// a neighbour's activity until the neighbour seems to be the cause. So a cap or a trial for such a
// signal needs a witness: a signal that the machine measures must have been over the victim's threshold
// in the same intervals. A report that its witness contradicts accuses no task, and a job whose reports
// are contradicted repeatedly is distrusted: its reports accuse no task for a day.

// Constants of witnesses: unit, meaning, and how each was chosen.
const (
	// Share of the reported outliers within Policy.Calm: at least so many need a witness, or
	// are contradicted. A witness that is over its threshold by chance in one interval of
	// twenty is so in two of three with a probability below 1 %.
	minWitnessed = 0.5
	// Intervals: the same.
	leastWitnessed = 2
	// Ratio: a cost per instruction that rose by less than this part of what the task
	// reports contradicts it: its instructions became no slower, so it did more of them.
	contradictRatio = 0.25
	// Contradicted findings of a job within distrustFor, Policy.Calm apart, from which on it
	// is distrusted.
	distrustAfter = 3
	distrustFor   = 24 * time.Hour
	// Bounds of what is kept: intervals of each task, and jobs.
	maxTestimony, maxReporters = 64, 256
)

// testimony is what signals said of a task in one interval.
type testimony struct {
	at sample.Millis
	// reported is the excess of a self-reported cost over its mean, as a part of the mean, if it was an
	// outlier; else 0. measured is that of cpi whether it was one or not, NaN if it was not judged.
	reported, measured float64
	witness            sample.SignalName // that was an outlier; "" for none
	of                 sample.TaskKey    // of which it was: the task, or the part of the machine
}

// Reporter is a job whose reports about itself were contradicted.
type Reporter struct {
	Job sample.JobName `json:"job"`
	// Task is the task that was contradicted last, Signal what it reported.
	Task   sample.TaskName   `json:"task"`
	Signal sample.SignalName `json:"signal"`
	// Contradicted are the times, oldest first.
	Contradicted []sample.Millis `json:"contradicted"`
}

// testify keeps what an interval says of the tasks that may be helped.
func (p *Planner) testify(sig *sample.Signal, at sample.Millis, readings []detect.Reading, verdicts []detect.Verdict) {
	p.reports = p.reports || sig.SelfReported
	if !p.reports || !sig.SelfReported && !sig.Witness {
		return
	}
	for i := range readings {
		r, v := &readings[i], &verdicts[i]
		switch {
		case sig.Name.OfMachine():
			if v.Outlier {
				p.testifyOfMachine(sig, at, r, readings)
			}
		case !v.Judged || !r.Task.MayBeHelped():
		case sig.SelfReported && v.Outlier:
			t := p.testimonyAt(r.Task.Key, at)
			t.reported = max(t.reported, excess(r))
		case sig.Witness:
			t := p.testimonyAt(r.Task.Key, at)
			if v.Outlier && !v.SelfMade {
				t.witness, t.of = sig.Name, r.Task.Key
			}
			if sig.Name == sample.CPI {
				t.measured = excess(r)
			}
		}
	}
}

// testifyOfMachine lets an outlier of a part of the machine testify for all tasks that can use it.
func (p *Planner) testifyOfMachine(sig *sample.Signal, at sample.Millis, part *detect.Reading, readings []detect.Reading) {
	for i := range readings {
		r := &readings[i]
		if r.Task.MayBeHelped() && (part.Reach == nil || r.Reach == nil || r.Reach.Intersects(part.Reach)) {
			t := p.testimonyAt(r.Task.Key, at)
			t.witness, t.of = sig.Name, part.Task.Key
		}
	}
}

func excess(r *detect.Reading) float64 {
	if r.Spec == nil || !(r.Spec.Mean > 0) {
		return math.NaN()
	}
	return r.Cost/r.Spec.Mean - 1
}

// testimonyAt is what is known of a task's interval.
func (p *Planner) testimonyAt(k sample.TaskKey, at sample.Millis) *testimony {
	all := p.testimony[k]
	if n := len(all); n > 0 && all[n-1].at == at {
		return &all[n-1]
	}
	keep := at.Add(-p.policy.Calm)
	all = slices.DeleteFunc(all, func(t testimony) bool { return t.at <= keep })
	all = append(all[max(0, len(all)+1-maxTestimony):], testimony{at: at, measured: math.NaN()})
	p.testimony[k] = all
	return &all[len(all)-1]
}

// hearing is what the witnesses say of a task's reported outliers within Policy.Calm.
type hearing struct {
	reported, witnessed, contradicted int
	incidents                         []incidentKey // of the witnesses, where they have one; the newest last
}

func (p *Planner) hear(now sample.Millis, k sample.TaskKey) (h hearing) {
	for _, t := range p.testimony[k] {
		if !(t.reported > 0) || now.Sub(t.at) >= p.policy.Calm {
			continue
		}
		h.reported++
		switch {
		case t.witness != "":
			h.witnessed++
			if k := keyOf(t.witness, t.of, detect.Neighbour); !slices.Contains(h.incidents, k) {
				h.incidents = append(h.incidents, k)
			}
		case t.measured < contradictRatio*t.reported: // false for NaN
			h.contradicted++
		}
	}
	return h
}

// enough reports whether n of the reported outliers are enough to decide.
func (h hearing) enough(n int) bool {
	return n >= leastWitnessed && float64(n) >= minWitnessed*float64(h.reported)
}

// noWitnessReason says why no task may be capped for what the victim reports; "" if one may.
func (p *Planner) noWitnessReason(now sample.Millis, inc *incident, s *detect.Suspect) (why string) {
	sig, _ := sample.LookupSignal(inc.Signal)
	if !sig.SelfReported {
		return ""
	}
	h := p.hear(now, inc.Victim.Key)
	if !h.enough(h.witnessed) {
		return fmt.Sprintf("%s is what %s reports about itself, and no signal that the machine measures (%s) agrees: that was over its threshold in %d of %d such intervals",
			inc.Signal, inc.Victim.Name, strings.Join(witnessNames(), ", "), h.witnessed, h.reported)
	}
	for _, k := range slices.Backward(h.incidents) {
		other := p.open[k]
		if other == nil || other.latest.Antagonists == 0 {
			continue
		}
		named := other.latest.Suspects[:other.latest.Antagonists]
		if slices.ContainsFunc(named, func(o detect.Suspect) bool { return o.Key == s.Key }) {
			return ""
		}
		why = cmp.Or(why, fmt.Sprintf("%s is what %s reports about itself, and its witness, %s, names %s", inc.Signal, inc.Victim.Name, k.signal, named[0].Name))
	}
	return why
}

func witnessNames() (names []string) {
	for _, s := range sample.Signals() {
		if s.Witness {
			names = append(names, string(s.Name))
		}
	}
	return names
}

// Believe returns a finding as it is believed: one that rests on a report that is not believed accuses
// no task, and says why (detect.Finding.Disbelief). The pipeline calls it before Finding.
func (p *Planner) Believe(now sample.Millis, f detect.Finding) detect.Finding {
	sig, _ := sample.LookupSignal(f.Signal)
	if !sig.SelfReported || f.Kind != detect.Neighbour && !f.Trial {
		return f
	}
	why, job := "", offenderOf(f.Victim)
	h := p.hear(now, f.Victim.Key)
	if h.enough(h.contradicted) {
		p.contradicted(now, job, &f)
		why = fmt.Sprintf("%s is what %s reports about itself; cpi did not rise with it in %d of %d intervals: its instructions became no slower", f.Signal, f.Victim.Name, h.contradicted, h.reported)
	}
	if r := p.reporters[job]; r.distrusted(now) && !h.enough(h.witnessed) {
		why = fmt.Sprintf("%s is not believed in what it reports about itself (%s): that was contradicted %d times within a day", job, f.Signal, len(r.Contradicted))
	}
	if why == "" {
		return f
	}
	f.Disbelief, f.Kind, f.Antagonists, f.Trial, f.TrialCandidates = why, detect.Nobody, 0, false, 0
	f.Suspects = slices.Clone(f.Suspects)
	for i := range f.Suspects {
		f.Suspects[i].Level = min(f.Suspects[i].Level, detect.Possible)
	}
	return f
}

// contradicted records that a finding was contradicted; of findings that follow each other
// closely only the first counts.
func (p *Planner) contradicted(now sample.Millis, job sample.JobName, f *detect.Finding) {
	r := p.reporters[job]
	if r == nil {
		if len(p.reporters) >= maxReporters {
			p.forgetReporter()
		}
		r = &Reporter{Job: job}
		p.reporters[job] = r
	}
	r.Contradicted = slices.DeleteFunc(r.Contradicted, func(at sample.Millis) bool { return now.Sub(at) >= distrustFor })
	r.Task, r.Signal = f.Victim.Name, f.Signal
	if n := len(r.Contradicted); n == 0 || now.Sub(r.Contradicted[n-1]) >= p.policy.Calm {
		r.Contradicted = append(r.Contradicted, now)
	}
}

// forgetReporter forgets the job that was contradicted longest ago.
func (p *Planner) forgetReporter() {
	var oldest *Reporter
	for _, r := range p.reporters {
		if oldest == nil || cmp.Or(cmp.Compare(r.newest(), oldest.newest()), cmp.Compare(r.Job, oldest.Job)) < 0 {
			oldest = r
		}
	}
	delete(p.reporters, oldest.Job)
}

func (r *Reporter) newest() sample.Millis { return r.Contradicted[len(r.Contradicted)-1] }

func (r *Reporter) distrusted(now sample.Millis) bool {
	return r != nil && len(r.Contradicted) >= distrustAfter && now.Sub(r.newest()) < distrustFor
}

// Distrusted lists the jobs whose reports about themselves are not believed, by name.
func (p *Planner) Distrusted(now sample.Millis) (all []Reporter) {
	for _, r := range p.reporters {
		if r.distrusted(now) {
			one := *r
			one.Contradicted = slices.Clone(r.Contradicted)
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(a, b Reporter) int { return cmp.Compare(a.Job, b.Job) })
	return all
}
