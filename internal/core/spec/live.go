package spec

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/stat"
)

// Live continues learning between two computations over all stored samples: it adds new
// samples to the result of the last computation. A sample is held back first, until it is
// known whether it was taken in an incident. Live is not safe for concurrent use.
type Live struct {
	params  Params
	hold    sample.Millis
	most    int // limit of samples held back
	cut     sample.Millis
	ids     map[Key]int32
	keys    []*liveKey           // by id
	brought map[uint64]int       // how many of these a machine began since the last computation, by HashMachine
	last    int32                // id of the newest sample's key: the next sample often has the same key, or the one that followed it before
	rows    map[string]*liveRows // by machine: of its last batch
	cached  int                  // number of them
	held    map[sample.Millis]*heldMinute
	newest  *heldMinute   // the one that the newest sample was added to
	of      sample.Millis // its minute
	waiting int
	by      map[uint64]int // how many of these are of a machine, by HashMachine
	past    sample.Millis  // all minutes before it have been released
	windows map[victim]map[string]window
	marked  map[uint64]int // how many of them are of a machine, by HashMachine
	revoked []Revocation
	stats   LiveStats
}

// Revocation takes back what was learnt: the samples of a machine, of a job, or of a machine's
// tasks of a job, from From to To, do not teach.
type Revocation struct {
	Machine  string         // "": all
	Job      sample.JobName // "": all
	From, To sample.Millis
}

// Covers reports whether a sample is revoked.
func (r *Revocation) Covers(machine string, job sample.JobName, at sample.Millis) bool {
	return (r.Machine == "" || r.Machine == machine) && r.covers(job, at)
}

func (r *Revocation) covers(job sample.JobName, at sample.Millis) bool {
	return (r.Job == "" || r.Job == job) && at >= r.From && at <= r.To
}

// maxLiveKeys bounds the keys between two computations: a few hundred bytes each.
const maxLiveKeys = 200_000

// LiveStats counts since NewLive.
type LiveStats struct {
	Taken   uint64 // samples that were added
	Refused uint64 // samples that were held back and found to be of an incident, or revoked
	Missed  uint64 // samples too late, or over a limit: the next computation includes them
	Held    int
}

// liveKey is what arrived for one key since the last computation.
type liveKey struct {
	key      Key
	filter   Filter
	base     Computed
	machines map[uint64]*machineSum // by id, weighted as of base's hour
	tasks    map[uint64]int64       // with those of base; nil if they are not counted
	newest   sample.Millis
	reported Spec // as last returned by Changed
	touched  bool
	next     int32 // id of the key that followed it
}

// heldMinute is a minute's samples that are held back, in parts: hundreds of thousands of them
// are not copied as they grow.
type heldMinute struct{ parts [][]heldSample }

// heldPart is how many samples a part has.
const heldPart = 1024

func (m *heldMinute) add(s heldSample) {
	last := len(m.parts) - 1
	if last < 0 || len(m.parts[last]) == heldPart {
		m.parts = append(m.parts, make([]heldSample, 0, heldPart))
		last++
	}
	m.parts[last] = append(m.parts[last], s)
}

// heldSample is a sample that is held back.
type heldSample struct {
	task, machine uint64
	id            int32
	after         uint32 // ms since its minute began
	cpu, cost     float32
}

// victim is the task and the signal that an incident is about.
type victim struct {
	task   uint64
	signal sample.SignalName
}

type window struct {
	from, to sample.Millis
	machine  uint64 // HashMachine
}

// maxLiveWindows bounds the windows of one machine: it may report incidents that never end.
const maxLiveWindows = 10_000

// LiveHold is how long a sample is held back by default: an incident opens at most 5
// minutes after its first bad interval, and its message takes some time.
const LiveHold = 10 * 60_000

// heldShare: one machine may have 1/heldShare of the room that all leave free, for samples and for keys, so that one that
// sends as many as it can does not keep those of others from being learnt.
const heldShare = 8

const minuteMS = 60_000

// NewLive returns a Live without a base, which waits for one. It holds back at most the given number of
// samples, of 32 bytes each.
func NewLive(p Params, hold sample.Millis, most int) *Live {
	return &Live{params: p, hold: hold, most: most, rows: map[string]*liveRows{}, ids: map[Key]int32{}, brought: map[uint64]int{}, held: map[sample.Millis]*heldMinute{}, by: map[uint64]int{}, windows: map[victim]map[string]window{}, marked: map[uint64]int{}}
}

// Stats returns the counts.
func (l *Live) Stats() LiveStats {
	s := l.stats
	s.Held = l.waiting
	return s
}

// Rebase makes the result of a computation over all samples up to cut the new base. Keys that
// it does not have are forgotten, unless samples of them are held back.
func (l *Live) Rebase(cut sample.Millis, all []Computed) {
	l.cut = cut
	old := l.keys
	l.keys, l.last = nil, 0
	clear(l.ids)
	clear(l.brought)
	l.forgetRows()
	for i := range all {
		f := l.begin(all[i].Key)
		f.reported = all[i].Spec
		if all[i].base.hour != 0 {
			f.base, f.tasks = all[i], all[i].base.tasks
		}
	}
	ids := map[int32]int32{}
	for _, minute := range slices.Sorted(maps.Keys(l.held)) { // ids must not depend on the map's order
		for _, held := range l.held[minute].parts {
			for i := range held {
				s := &held[i]
				id, known := ids[s.id]
				if !known {
					id = l.id(old[s.id].key)
					ids[s.id] = id
				}
				s.id = id
			}
		}
	}
}

// begin adds a key without a base.
func (l *Live) begin(k Key) *liveKey {
	f := &liveKey{key: k, reported: Spec{Key: k}, tasks: map[uint64]int64{}}
	f.base = Computed{Spec: Spec{Key: k}, base: base{hour: HourOf(l.cut)}}
	known := false
	if f.filter, known = FilterOf(k.Signal); !known || !Shared(k.Job) {
		f.filter.Least = math.Inf(1) // no sample of it teaches
	}
	l.ids[k] = int32(len(l.keys))
	l.keys = append(l.keys, f)
	return f
}

// find returns a key's place.
func (l *Live) find(k *Key) (id int32, ok bool) {
	if len(l.keys) == 0 {
		return 0, false
	}
	before := l.keys[l.last]
	if before.key == *k {
		return l.last, true
	}
	if id = before.next; l.keys[id].key != *k {
		if id, ok = l.ids[*k]; !ok {
			return 0, false
		}
		before.next = id
	}
	l.last = id
	return id, true
}

// id returns a key's place, and adds it if it is new.
func (l *Live) id(k Key) int32 {
	id, ok := l.find(&k)
	if !ok {
		id = int32(len(l.keys))
		// A sample's strings may be parts of a whole message.
		l.begin(Key{sample.JobName(strings.Clone(string(k.Job))), sample.Platform(strings.Clone(string(k.Platform))),
			sample.SignalName(strings.Clone(string(k.Signal))), strings.Clone(k.Variant)})
	}
	l.last = id
	return id
}

// Revoke sets the revocations.
func (l *Live) Revoke(all []Revocation) { l.revoked = all }

// liveRows is what is known of a machine's samples, in the order of its batches.
type liveRows struct {
	shape   uint64
	machine uint64 // HashMachine
	rows    []liveRow
}

// liveRow is the key and the task of samples.
type liveRow struct {
	task uint64
	id   int32 // of the key, or one of those below
}

const (
	notLookedUp    = -1
	teachesNothing = -2
)

// maxLiveRows bounds what is kept of machines' batches: 16 bytes each.
const maxLiveRows = 1 << 20

func (l *Live) forgetRows() {
	clear(l.rows)
	l.cached = 0
}

// AddAll adds samples to those held back. With a shape they are a batch of the machine, and have
// the same names in the same order as those of its batch before if that had the same shape.
func (l *Live) AddAll(machine string, shape uint64, samples []sample.Sample) {
	if shape == 0 {
		for i := range samples {
			l.Add(&samples[i])
		}
		return
	}
	known := l.rows[machine]
	if known == nil || known.shape != shape || len(known.rows) != len(samples) {
		if known == nil {
			known = &liveRows{machine: HashMachine(machine)}
			l.rows[strings.Clone(machine)] = known
		}
		l.cached += len(samples) - len(known.rows)
		known.shape, known.rows = shape, slices.Grow(known.rows[:0], len(samples))[:len(samples)]
		for i := range known.rows {
			known.rows[i] = liveRow{id: notLookedUp}
		}
	}
	for i := range samples {
		l.add(&samples[i], known.machine, &known.rows[i])
	}
	if l.cached > maxLiveRows {
		l.forgetRows()
	}
}

// Add adds a sample to those held back.
func (l *Live) Add(s *sample.Sample) {
	l.add(s, HashMachine(s.Machine), &liveRow{id: notLookedUp})
}

// add adds a sample; r is what is known of it.
func (l *Live) add(s *sample.Sample, machine uint64, r *liveRow) {
	minute := s.TS - s.TS%minuteMS
	if minute < l.past || s.TS <= l.cut || l.by[machine] >= max(1, (l.most-l.waiting)/heldShare) || l.waiting >= l.most {
		l.stats.Missed++
		return
	}
	if r.id == notLookedUp {
		k := Key{s.Job, s.Platform, s.Signal, s.Variant}
		id, known := l.find(&k)
		if !known {
			switch _, signal := FilterOf(s.Signal); {
			case !signal || !Shared(s.Job):
				r.id = teachesNothing
				return
			case l.brought[machine] >= (maxLiveKeys-len(l.keys))/heldShare:
				l.stats.Missed++
				return
			}
			id = l.id(k)
			l.brought[machine]++
		}
		r.id, r.task = id, hashTaskOf(machine, string(s.Task))
	}
	if r.id == teachesNothing || !l.keys[r.id].filter.Accepts(s.Flags, s.CPU, s.Cost) {
		return
	}
	if l.newest == nil || l.of != minute {
		if l.newest, l.of = l.held[minute], minute; l.newest == nil {
			l.newest = &heldMinute{}
			l.held[minute] = l.newest
		}
	}
	l.newest.add(heldSample{r.task, machine, r.id, uint32(s.TS - minute), s.CPU, s.Cost})
	l.waiting++
	l.by[machine]++
}

// Incident marks what a task cost from began, the end of its first bad interval, to ended
// as not normal; ended 0: it lasts. It is called again when the incident changes. An
// incident that is a lasting change of the task itself, which the spec follows, excludes
// nothing.
func (l *Live) Incident(machine, id string, task sample.TaskName, signal sample.SignalName, began, ended sample.Millis, follows bool) {
	v := victim{HashTask(machine, string(task)), signal}
	id = machine + "/" + id
	if ended == 0 {
		ended = math.MaxInt64
	}
	if follows || ended < l.past { // all samples until then are released
		l.unmark(v, id)
		return
	}
	of := HashMachine(machine)
	if _, known := l.windows[v][id]; !known {
		if l.marked[of] >= maxLiveWindows {
			return
		}
		l.marked[of]++
	}
	if l.windows[v] == nil {
		l.windows[v] = map[string]window{}
	}
	l.windows[v][id] = window{began, ended, of}
}

// unmark removes an incident's window, if it has one.
func (l *Live) unmark(v victim, id string) {
	w, known := l.windows[v][id]
	if !known {
		return
	}
	if l.marked[w.machine]--; l.marked[w.machine] == 0 {
		delete(l.marked, w.machine)
	}
	if delete(l.windows[v], id); len(l.windows[v]) == 0 {
		delete(l.windows, v)
	}
}

// Advance releases the samples that have been held back long enough; none before the first Rebase:
// specs of what has come since the server's start would replace those of all that is stored.
func (l *Live) Advance(now sample.Millis) {
	horizon := now - l.hold
	horizon -= horizon % minuteMS
	if horizon <= l.past || l.cut == 0 {
		return
	}
	var minutes []sample.Millis
	for m := range l.held {
		if m < horizon {
			minutes = append(minutes, m)
		}
	}
	slices.Sort(minutes) // sums must not depend on the map's order
	marked := make(map[victim]Spans, len(l.windows))
	for v, all := range l.windows {
		spans := make([]Span, 0, len(all))
		for _, w := range all {
			spans = append(spans, Span{w.from, w.to})
		}
		marked[v] = SpansOf(spans)
	}
	for _, m := range minutes {
		for _, held := range l.held[m].parts {
			for i := range held {
				l.enter(m+sample.Millis(held[i].after), &held[i], marked)
				if of := held[i].machine; l.by[of] > 1 {
					l.by[of]--
				} else {
					delete(l.by, of)
				}
			}
			l.waiting -= len(held)
		}
		delete(l.held, m)
	}
	l.past, l.newest = horizon, nil
	for v, all := range l.windows {
		for id, w := range all {
			if w.to < horizon {
				l.unmark(v, id)
			}
		}
	}
}

// enter adds a sample unless it is of an incident, which are marked, or in the base already.
func (l *Live) enter(at sample.Millis, s *heldSample, marked map[victim]Spans) {
	if at <= l.cut {
		return
	}
	f := l.keys[s.id]
	if marked[victim{s.task, f.key.Signal}].Has(at) {
		l.stats.Refused++
		return
	}
	for i := range l.revoked {
		if r := &l.revoked[i]; (r.Machine == "" || HashMachine(r.Machine) == s.machine) && r.covers(f.key.Job, at) {
			l.stats.Refused++
			return
		}
	}
	l.stats.Taken++
	m := f.machines[s.machine]
	if m == nil {
		if f.machines == nil {
			f.machines = map[uint64]*machineSum{}
		}
		m = &machineSum{id: s.machine}
		f.machines[s.machine] = m
	}
	m.add(stat.Moments{N: 1, W: 1, W2: 1, Mean: float64(s.cost)}, stat.Moments{}, float64(s.cpu), l.params.weight(HourOf(at), f.base.base.hour))
	if f.tasks != nil {
		before := f.tasks[s.task]
		f.tasks[s.task] = before + 1
		m.count(l.params, before, before+1)
	}
	f.newest, f.touched = max(f.newest, at), true
}

// minReportedChange is the part of its standard deviation by which a mean must move, or the
// standard deviation itself must change, to be reported before the next computation.
const minReportedChange = 0.1

// Changed returns the specs whose mean or standard deviation moved by more than a tenth
// of the standard deviation, or whose state changed, since they were last reported.
func (l *Live) Changed(now sample.Millis) []Computed {
	var all []Computed
	for _, f := range l.keys {
		if !f.touched {
			continue
		}
		f.touched = false
		n := f.merged(l.params, now)
		if n.State == f.reported.State && math.Abs(n.Mean-f.reported.Mean) <= minReportedChange*f.reported.StdDev && math.Abs(n.StdDev-f.reported.StdDev) <= minReportedChange*f.reported.StdDev {
			continue
		}
		f.reported = n.Spec
		all = append(all, n)
	}
	return all
}

// merged is the base together with what arrived since. Quantiles, Sigmas, levels of usage and what
// tasks spent on themselves are those of the base.
func (f *liveKey) merged(p Params, now sample.Millis) Computed {
	n := f.base
	n.Key, n.Updated, n.Last = f.key, now, max(n.Last, f.newest)
	all := slices.Clone(n.base.machines)
	for _, id := range slices.Sorted(maps.Keys(f.machines)) { // sums must not depend on the map's order
		m := f.machines[id]
		i, found := slices.BinarySearchFunc(n.base.machines, id, func(m machineSum, id uint64) int { return cmp.Compare(m.id, id) })
		if !found {
			all = append(all, *m)
			continue
		}
		all[i].add(m.cost, m.self, m.cpu, 1)
		all[i].tasks, all[i].full = all[i].tasks+m.tasks, all[i].full+m.full
	}
	n.set(p, robust(f.key.Signal, all), now)
	return n
}
