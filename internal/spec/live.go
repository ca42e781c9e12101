package spec

import (
	"math"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/stat"
)

// Live goes on learning between two computations over all that is stored: to what
// the last one gave it adds samples as they come. A sample is held back first,
// for as long as it takes to know of an incident that it was taken in. It is not
// safe for concurrent use.
type Live struct {
	params  Params
	hold    sample.Millis
	most    int // samples held back at most
	cut     sample.Millis
	ids     map[Key]int32
	books   []*fresh // by id
	last    int32    // id of the newest sample's key: many follow of one
	held    map[sample.Millis][]waiting
	waiting int
	past    sample.Millis // all minutes before are let go of
	windows map[victim]map[string]window
	stats   LiveStats
}

// LiveStats counts since NewLive.
type LiveStats struct {
	Taken   uint64 // samples that entered
	Refused uint64 // held back and found to be of an incident
	Missed  uint64 // too late, or more than can be held: the next computation has them
	Held    int
}

// fresh is what came of one key since the last computation.
type fresh struct {
	key       Key
	rule      Rule
	base      Learnt
	cost, cpu stat.Moments // weighted as of base's hour
	tasks     map[uint64]int64
	newest    sample.Millis
	told      Spec // as last returned by Changed
	touched   bool
}

// waiting is a sample that is held back.
type waiting struct {
	task      uint64
	id        int32
	after     uint32 // ms since its minute began
	cpu, cost float32
}

// victim is whom an incident is about.
type victim struct {
	task   uint64
	signal sample.SignalName
}

type window struct{ from, to sample.Millis }

// LiveHold is for how long a sample is held back by default: an incident opens at
// most 5 minutes after its first bad interval, and its message takes its time.
const LiveHold = 10 * 60_000

const minuteMS = 60_000

// NewLive returns a Live without a base. It holds back at most so many samples,
// of 24 bytes each.
func NewLive(p Params, hold sample.Millis, most int) *Live {
	return &Live{params: p, hold: hold, most: most, ids: map[Key]int32{}, held: map[sample.Millis][]waiting{}, windows: map[victim]map[string]window{}}
}

// Stats returns counts.
func (l *Live) Stats() LiveStats {
	s := l.stats
	s.Held = l.waiting
	return s
}

// Rebase makes the result of a computation over all samples up to cut the base.
func (l *Live) Rebase(cut sample.Millis, all []Learnt) {
	l.cut = cut
	for _, f := range l.books {
		*f = fresh{key: f.key, rule: f.rule, base: Learnt{Spec: Spec{Key: f.key}}, told: Spec{Key: f.key}}
		f.begin(HourOf(cut))
	}
	for i := range all {
		f := l.books[l.id(all[i].Key)]
		f.base, f.told = all[i], all[i].Spec
		f.begin(HourOf(cut))
	}
}

// begin makes sure that there is something to add to.
func (f *fresh) begin(hour sample.Millis) {
	if f.base.base.hour == 0 {
		f.base.base = base{hour: hour, tasks: map[uint64]int64{}}
	}
	f.tasks = f.base.base.tasks
}

func (l *Live) id(k Key) int32 {
	if int(l.last) < len(l.books) && l.books[l.last].key == k {
		return l.last
	}
	id, ok := l.ids[k]
	if !ok {
		id = int32(len(l.books))
		// A sample's strings may be pieces of a whole message.
		k = Key{sample.JobName(strings.Clone(string(k.Job))), sample.Platform(strings.Clone(string(k.Platform))),
			sample.SignalName(strings.Clone(string(k.Signal))), strings.Clone(k.Variant)}
		l.ids[k] = id
		f := &fresh{key: k, told: Spec{Key: k}}
		f.rule, ok = RuleOf(k.Signal)
		if !ok {
			f.rule.Least = math.Inf(1) // nothing of an unknown signal teaches
		}
		f.begin(HourOf(l.cut))
		l.books = append(l.books, f)
	}
	l.last = id
	return id
}

// Add takes in a sample, held back.
func (l *Live) Add(s *sample.Sample) {
	minute := s.TS - s.TS%minuteMS
	if minute < l.past || s.TS <= l.cut || l.waiting >= l.most {
		l.stats.Missed++
		return
	}
	id := l.id(Key{s.Job, s.Platform, s.Signal, s.Variant})
	if !l.books[id].rule.Teaches(s.Flags, s.CPU, s.Cost) {
		return
	}
	l.held[minute] = append(l.held[minute], waiting{HashTask(s.Machine, string(s.Task)), id, uint32(s.TS - minute), s.CPU, s.Cost})
	l.waiting++
}

// Incident says that what a task cost from the end of its first bad interval on is
// not normal, up to an end; 0: it lasts. An incident is told of again when it
// changes. One that is a lasting change of the task itself, which the spec
// follows, takes nothing away.
func (l *Live) Incident(machine, id string, task sample.TaskName, signal sample.SignalName, began, ended sample.Millis, follows bool) {
	v := victim{HashTask(machine, string(task)), signal}
	id = machine + "/" + id
	if follows {
		delete(l.windows[v], id)
		return
	}
	if ended == 0 {
		ended = math.MaxInt64
	}
	if l.windows[v] == nil {
		l.windows[v] = map[string]window{}
	}
	l.windows[v][id] = window{began, ended}
}

// Advance lets go of what has been held back for long enough.
func (l *Live) Advance(now sample.Millis) {
	horizon := now - l.hold
	horizon -= horizon % minuteMS
	if horizon <= l.past {
		return
	}
	var minutes []sample.Millis
	for m := range l.held {
		if m < horizon {
			minutes = append(minutes, m)
		}
	}
	slices.Sort(minutes) // sums are the same whatever the map's order
	for _, m := range minutes {
		for i := range l.held[m] {
			s := &l.held[m][i]
			l.enter(m+sample.Millis(s.after), s)
		}
		l.waiting -= len(l.held[m])
		delete(l.held, m)
	}
	l.past = horizon
	for v, all := range l.windows {
		for id, w := range all {
			if w.to < horizon {
				delete(all, id)
			}
		}
		if len(all) == 0 {
			delete(l.windows, v)
		}
	}
}

// enter takes a sample in, if it is not of an incident and not in the base.
func (l *Live) enter(at sample.Millis, s *waiting) {
	if at <= l.cut {
		return
	}
	f := l.books[s.id]
	for _, w := range l.windows[victim{s.task, f.key.Signal}] {
		if at >= w.from && at <= w.to {
			l.stats.Refused++
			return
		}
	}
	l.stats.Taken++
	w := l.params.weight(HourOf(at), f.base.base.hour)
	f.cost.Add(float64(s.cost), w)
	f.cpu.Add(float64(s.cpu), w)
	if f.tasks != nil {
		f.tasks[s.task]++
	}
	f.newest, f.touched = max(f.newest, at), true
}

// worthTelling is by what part of its standard deviation a mean, or that itself,
// must have moved to be told of before the next computation.
const worthTelling = 0.1

// Changed returns the specs that differ from what was told of them before by more
// than a tenth of their standard deviation, or by their state.
func (l *Live) Changed(now sample.Millis) []Learnt {
	var all []Learnt
	for _, f := range l.books {
		if !f.touched {
			continue
		}
		f.touched = false
		n := f.merged(l.params, now)
		if n.State == f.told.State && math.Abs(n.Mean-f.told.Mean) <= worthTelling*f.told.StdDev && math.Abs(n.StdDev-f.told.StdDev) <= worthTelling*f.told.StdDev {
			continue
		}
		f.told = n.Spec
		all = append(all, n)
	}
	return all
}

// merged is the base and what came since. Quantiles and levels of usage are the
// base's.
func (f *fresh) merged(p Params, now sample.Millis) Learnt {
	n := f.base
	cost, cpu := n.base.cost, n.base.cpu
	cost.Merge(f.cost)
	cpu.Merge(f.cpu)
	n.Key, n.Updated = f.key, now
	n.Last = max(n.Last, f.newest)
	n.Samples, n.CPUMean, n.Mean, n.StdDev = cost.N, cpu.Mean, cost.Mean, cost.StdDev()
	if f.tasks != nil {
		n.Tasks = p.enough(f.tasks)
		n.State = p.state(len(f.tasks), n.Tasks, now.Sub(n.Last))
	} else if n.State = Ready; now.Sub(n.Last) > p.StaleAfter {
		n.State = Stale
	}
	return n
}
