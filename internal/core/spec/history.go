package spec

import (
	"cmp"
	"maps"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/stat"
)

// History learns specs from samples. It is not safe for concurrent use.
type History struct {
	params Params
	keys   map[Key]*KeyHistory
	of     map[sample.TaskKey][]*KeyHistory // that have the task in tasks
	look   int                              // number of keys from which on keep looks for those to forget
}

// maxKeys is how many keys without a live task are kept at most. The oldest are forgotten until three
// quarters are left: every job that ever ran would be kept otherwise, in memory and on disk.
const maxKeys = 10_000

// KeyHistory is what is known of one key. Add and Lookup find it by the key; a caller that
// keeps it saves the search. It lives as long as its History, or until it is forgotten.
type KeyHistory struct {
	Record  // without Tasks
	history *History
	tasks   map[sample.TaskKey]int // samples of each live task
	// before are the same from before a restart, of tasks not seen since, by cgroup: the time
	// when a task was first seen is lost. After a reboot the same number can be that of
	// another task; if it is of the same job, the spec only becomes ready later.
	before    map[uint64]TaskCount
	most      int   // samples of the task that has given the most since the agent's start
	shown     int64 // number of samples that the provisional spec is of
	forgotten bool  // it is not in its History
}

// NewHistory returns an empty history.
func NewHistory(p Params) *History {
	return &History{params: p, keys: map[Key]*KeyHistory{}, of: map[sample.TaskKey][]*KeyHistory{}}
}

// Add adds one sample: CPU usage in CPU-s/s, cost and self in the signal's unit. self is NaN
// if the source does not separate it.
func (h *History) Add(k Key, task sample.TaskKey, at sample.Millis, cpu, cost, self float64) {
	b := h.keys[k]
	if b == nil {
		b = &KeyHistory{Record: Record{Key: k, Aged: at, Published: Spec{Key: k}}, history: h, tasks: map[sample.TaskKey]int{}}
		h.keep(b)
	}
	b.Add(task, at, cpu, cost, self)
}

// keep adds a key. If there are too many it forgets those that were taught longest ago. It looks for them
// again after thousands more: all may live.
func (h *History) keep(b *KeyHistory) {
	if len(h.keys) >= max(maxKeys, h.look) {
		idle := slices.DeleteFunc(slices.Collect(maps.Values(h.keys)), func(b *KeyHistory) bool { return len(b.tasks)+len(b.before) > 0 })
		slices.SortFunc(idle, func(x, y *KeyHistory) int { return cmp.Or(cmp.Compare(x.Last, y.Last), x.Key.compare(&y.Key)) })
		for _, x := range idle[:max(0, len(idle)-3*maxKeys/4)] {
			delete(h.keys, x.Key)
			x.forgotten = true
		}
		h.look = len(h.keys) + maxKeys/4
	}
	h.keys[b.Key] = b
}

// Find returns the book of a key; nil if no sample of it was added.
func (h *History) Find(k Key) *KeyHistory { return h.keys[k] }

// Add adds one sample, as History.Add.
func (b *KeyHistory) Add(task sample.TaskKey, at sample.Millis, cpu, cost, self float64) {
	if b.forgotten && b.history.keys[b.Key] == nil { // a task was kept that gave no sample for long
		b.forgotten = false
		b.history.keep(b)
	}
	b.age(at, b.history.params)
	b.Cost.Add(cost, 1)
	if self >= 0 {
		b.Self.Add(self, 1)
	}
	b.CPU.Add(cpu, 1)
	b.Last = max(b.Last, at)
	n := b.tasks[task] + 1
	if n == 1 {
		b.history.of[task] = append(b.history.of[task], b)
	}
	if earlier, known := b.before[task.CgroupID()]; known {
		n += earlier.Samples
		delete(b.before, task.CgroupID())
	}
	b.tasks[task] = n
	b.most = max(b.most, n)
	if n == b.history.params.MinSamples {
		b.Full++
	}
}

// Forget drops what is kept for a task that ended; its samples stay.
func (h *History) Forget(task sample.TaskKey) {
	for _, b := range h.of[task] {
		delete(b.tasks, task)
	}
	delete(h.of, task)
}

// age lowers the weight of the past: AgeWeight per day, by the hour. The paper
// multiplies "the CPI value from the previous day by about 0.9 before averaging",
// read here as a weight: a factor on the value would bias the mean.
func (b *KeyHistory) age(now sample.Millis, p Params) {
	from, to := HourOf(b.Aged), HourOf(now)
	if to <= from {
		return
	}
	f := p.weight(from, to)
	b.Cost.Decay(f)
	b.Self.Decay(f)
	b.CPU.Decay(f)
	b.Aged = now
}

// Lookup returns the spec of a key as last published, and whether there is one. A spec
// becomes ready as soon as there are enough samples. Then it is fixed for Every, so that
// the threshold does not move with every sample.
func (h *History) Lookup(k Key, now sample.Millis) (Spec, bool) {
	b := h.keys[k]
	if b == nil {
		return Spec{Key: k}, false
	}
	return b.Spec(now), true
}

// Spec returns the spec, as History.Lookup.
func (b *KeyHistory) Spec(now sample.Millis) Spec {
	s, p := &b.Published, &b.history.params
	if max(b.Aged, b.Last, s.Updated)-now > 24*HourMS { // stored by a clock that was ahead
		b.Aged, b.Last, s.Updated = now, now, 0
	}
	s.Own = p.MinTasks == 1
	// All samples are this machine's own.
	one := counts{machines: p.MinMachines, fullMachines: p.MinMachines, tasks: max(len(b.tasks), b.Full), full: b.Full}
	switch state := p.state(one, now.Sub(b.Last)); {
	case state != Ready:
		s.State = state
		s.Provisional = state == Learning && p.Provisional > 0 && p.MinTasks == 1 && b.most >= p.Provisional
		if s.Provisional && 2*b.Cost.N >= 3*b.shown { // the threshold does not move with every sample
			b.shown = b.Cost.N
			b.publish(now)
		}
	case s.State != Ready || now.Sub(s.Updated) >= p.Every:
		s.State, s.Provisional = Ready, false
		b.publish(now)
	}
	s.Samples, s.Tasks = b.Cost.N, b.Full
	return *s
}

// publish makes what is learnt so far the spec.
func (b *KeyHistory) publish(now sample.Millis) {
	s := &b.Published
	s.Updated, s.CPUMean, s.Mean, s.StdDev = now, b.CPU.Mean, b.Cost.Mean, b.Cost.StdDev()
	s.SelfSamples, s.SelfMean, s.SelfStdDev = b.Self.N, b.Self.Mean, b.Self.StdDev()
}

// Missing is how many more samples a task must give until the spec is ready, if MinTasks tasks give
// one each in every interval; 0 if they have given enough.
func (b *KeyHistory) Missing() int {
	p := &b.history.params
	lack := p.MinTasks - b.Full
	if lack <= 0 {
		return 0
	}
	var partial []int // samples of the tasks that have not given enough, the most first
	for _, n := range b.tasks {
		if n < p.MinSamples {
			partial = append(partial, n)
		}
	}
	slices.SortFunc(partial, func(x, y int) int { return cmp.Compare(y, x) })
	if lack > len(partial) {
		return p.MinSamples
	}
	return p.MinSamples - partial[lack-1]
}

// Record is one key's history as it is stored across restarts.
type Record struct {
	Key
	Cost      stat.Moments  `json:"cost"`
	Self      stat.Moments  `json:"self"`
	CPU       stat.Moments  `json:"cpu"`
	Aged      sample.Millis `json:"aged"` // when the weights were last aged
	Last      sample.Millis `json:"last"` // newest sample
	Full      int           `json:"full"` // tasks that reached MinSamples
	Published Spec          `json:"published"`
	// Tasks are the live tasks, so that no task counts twice towards Full.
	Tasks []TaskCount `json:"tasks,omitempty"`
}

// TaskCount is how many samples a live task has given.
type TaskCount struct {
	Hierarchy sample.Hierarchy `json:"hierarchy"`
	Inode     uint64           `json:"inode"`
	Samples   int              `json:"samples"`
	Missed    int              `json:"missed,omitempty"` // restarts since it was last seen
}

// maxMissed is the number of restarts after which a task that is not seen is forgotten.
const maxMissed = 10

// counts lists the tasks that are live, or were live when the agent was restarted and
// have not been seen since, in a fixed order.
func (b *KeyHistory) counts() []TaskCount {
	var all []TaskCount
	for t, n := range b.tasks {
		all = append(all, TaskCount{Hierarchy: t.Hierarchy, Inode: t.Inode, Samples: n})
	}
	for _, t := range b.before {
		all = append(all, t)
	}
	slices.SortFunc(all, func(x, y TaskCount) int {
		return cmp.Or(cmp.Compare(x.Hierarchy, y.Hierarchy), cmp.Compare(x.Inode, y.Inode), cmp.Compare(x.Samples, y.Samples))
	})
	return all
}

// Records returns everything that is to be stored, in a fixed order.
func (h *History) Records() []Record {
	all := make([]Record, 0, len(h.keys))
	for _, b := range h.keys {
		r := b.Record
		r.Tasks = b.counts()
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Record) int { return a.Key.compare(&b.Key) })
	return all
}

func (k *Key) compare(o *Key) int {
	return cmp.Or(cmp.Compare(k.Job, o.Job), cmp.Compare(k.Platform, o.Platform), cmp.Compare(k.Signal, o.Signal), cmp.Compare(k.Variant, o.Variant))
}

// Restore puts stored records back. Keys that have learnt since stay as they are. Records
// with numbers that no samples can give are left out: it returns how many.
func (h *History) Restore(records []Record) (refused int) {
	for _, r := range records {
		if h.keys[r.Key] != nil {
			continue
		}
		if !r.sane() {
			refused++
			continue
		}
		r.Published.Key = r.Key
		before := make(map[uint64]TaskCount, len(r.Tasks))
		for _, t := range r.Tasks {
			if t.Missed++; t.Missed < maxMissed {
				before[sample.CgroupID(t.Hierarchy, t.Inode)] = t
			}
		}
		r.Tasks = nil
		h.keep(&KeyHistory{Record: r, history: h, tasks: map[sample.TaskKey]int{}, before: before})
	}
	return refused
}

// sane reports whether a record can result from learning. A damaged record would corrupt
// what is learnt from then on.
func (r *Record) sane() bool {
	p := &r.Published
	for _, x := range []float64{p.CPUMean, p.Mean, p.StdDev, p.SelfMean, p.SelfStdDev} {
		if !(x >= 0 && x < stat.MaxValue) {
			return false
		}
	}
	for _, t := range r.Tasks {
		if t.Samples < 0 || t.Missed < 0 {
			return false
		}
	}
	return r.Full >= 0 && r.Cost.Sane() && r.Self.Sane() && r.CPU.Sane()
}
