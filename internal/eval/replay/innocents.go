package replay

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// innocentPrefix is the prefix of the names of innocents. A recording that already has such
// names is refused.
const innocentPrefix = "/innocents/"

// Innocents are tasks of one recording that are added to the machines of another, where
// they hurt no task. It is safe for use from several goroutines.
type Innocents struct {
	tasks  []innocent
	number int           // of the recording, counted from 1
	from   sample.Millis // beginning of the recording
	length sample.Millis
	step   sample.Millis // median time between its samples
}

// innocent is a task with its recorded series by signal.
type innocent struct {
	name   sample.TaskName // its name in the result
	job    sample.JobName
	usage  float64 // CPU-s/s, mean over the recording
	series []*recorded
}

// recorded is a series of samples; pieces[i] covers the time from start[i] to its TS.
type recorded struct {
	signal sample.Signal
	pieces []sample.Sample
	start  []sample.Millis
}

type innocentKey struct {
	machine string
	task    sample.TaskName
}

// errNoInnocents means that a recording has no usable task.
var errNoInnocents = errors.New("no task with two samples")

// LoadInnocents takes the tasks with the most CPU usage, limited to most tasks, from the
// number-th recording of innocents. each calls its argument with every sample of the
// recording, in order of time for each task, and is called twice.
func LoadInnocents(number, most int, each func(func(*sample.Sample)) error) (*Innocents, error) {
	used := map[innocentKey]map[sample.SignalName]float64{}
	first, last := sample.Millis(math.MaxInt64), sample.Millis(math.MinInt64) // of all tasks
	if err := each(func(s *sample.Sample) {
		if _, ok := ofTask(s); !ok {
			return
		}
		first, last = min(first, s.TS), max(last, s.TS)
		k := innocentKey{s.Machine, s.Task}
		if used[k] == nil {
			used[k] = map[sample.SignalName]float64{}
		}
		used[k][s.Signal] += float64(s.CPU)
	}); err != nil {
		return nil, err
	}
	total := func(k innocentKey) (sum float64) {
		for _, v := range used[k] { // each signal has all of the usage
			sum = max(sum, v)
		}
		return sum
	}
	ranked := slices.SortedFunc(maps.Keys(used), func(a, b innocentKey) int {
		return cmp.Or(cmp.Compare(total(b), total(a)), cmp.Compare(a.machine, b.machine), cmp.Compare(a.task, b.task))
	})
	most = min(most, len(used))
	in := &Innocents{number: number, tasks: make([]innocent, most)}
	places := map[innocentKey]int{}
	for i, k := range ranked[:most] {
		places[k] = i
		// The number of the recording and the rank in it make a name unique.
		in.tasks[i].name = sample.TaskName(fmt.Sprintf("%s%d-%d/%s", innocentPrefix, number, i+1, strings.TrimPrefix(string(k.task), "/")))
	}
	if err := each(func(s *sample.Sample) {
		if i, ok := places[innocentKey{s.Machine, s.Task}]; ok {
			in.tasks[i].add(in.number, s)
		}
	}); err != nil {
		return nil, err
	}
	return in, in.measure(first, last)
}

// ofTask returns the signal of a sample that is of a task.
func ofTask(s *sample.Sample) (sample.Signal, bool) {
	sig, ok := sample.LookupSignal(s.Signal)
	return sig, ok && !s.Signal.OfMachine() && s.Task != detect.OutsideName
}

func (t *innocent) add(number int, s *sample.Sample) {
	sig, ok := ofTask(s)
	if !ok {
		return
	}
	t.job = sample.JobName(fmt.Sprintf("innocents/%d/%s", number, s.Job))
	i := slices.IndexFunc(t.series, func(r *recorded) bool { return r.signal.Name == sig.Name })
	if i < 0 {
		i = len(t.series)
		t.series = append(t.series, &recorded{signal: sig})
	}
	r := t.series[i]
	if n := len(r.pieces); n > 0 && r.pieces[n-1].TS >= s.TS {
		return // not in order of time
	}
	r.pieces = append(r.pieces, *s)
}

// measure determines the time that each sample covers: the time since the previous one, or
// a median step if there is none or it is long ago. The recording's first and last samples
// define its length, so that a task that was present for a part of it comes and goes.
func (in *Innocents) measure(first, last sample.Millis) error {
	var steps []sample.Millis
	for i := range in.tasks {
		for _, r := range in.tasks[i].series {
			for k := 1; k < len(r.pieces); k++ {
				steps = append(steps, r.pieces[k].TS-r.pieces[k-1].TS)
			}
		}
	}
	if len(steps) == 0 {
		return errNoInnocents
	}
	slices.Sort(steps)
	in.step = steps[len(steps)/2]
	in.from, in.length = first-in.step, last-first+in.step
	for i := range in.tasks {
		for _, r := range in.tasks[i].series {
			for k := range r.pieces {
				at := r.pieces[k].TS
				from := at - in.step
				if k > 0 && r.pieces[k-1].TS >= at-in.step*3/2 {
					from = r.pieces[k-1].TS
				}
				r.start = append(r.start, from)
			}
		}
		t := &in.tasks[i]
		// The series with most samples is used for signals that were not recorded.
		slices.SortStableFunc(t.series, func(a, b *recorded) int { return cmp.Compare(len(b.pieces), len(a.pieces)) })
		for k := range t.series[0].pieces {
			t.usage += float64(t.series[0].pieces[k].CPU) * float64(t.series[0].pieces[k].TS-t.series[0].start[k]) / float64(in.length)
		}
	}
	return nil
}

// Tasks returns the number of innocents.
func (in *Innocents) Tasks() int { return len(in.tasks) }

// Length returns the length of the recording.
func (in *Innocents) Length() time.Duration { return time.Duration(in.length) * time.Millisecond }

// Usage returns the total mean CPU usage, CPU-s/s.
func (in *Innocents) Usage() (sum float64) {
	for i := range in.tasks {
		sum += in.tasks[i].usage
	}
	return sum
}

// shift returns the offset in the recording at which a machine begins: another one for each
// machine, the same in every run.
func (in *Innocents) shift(machine string) sample.Millis {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s", in.number, machine)
	return sample.Millis(h.Sum64() % uint64(in.length))
}

// lay appends the innocents' samples for an interval of the machine, with the end of sample
// of and the length step. The interval begins at a step boundary of the recording, so that
// equal steps do not average the noise of single samples away.
func (in *Innocents) lay(to []sample.Sample, of *sample.Sample, shift, step sample.Millis) []sample.Sample {
	begin := (of.TS - step + shift) % in.length
	if begin < 0 {
		begin += in.length
	}
	begin = (begin + in.step/2) / in.step * in.step % in.length
	for i := range in.tasks {
		t := &in.tasks[i]
		k := slices.IndexFunc(t.series, func(r *recorded) bool { return r.signal.Name == of.Signal })
		r := t.series[max(k, 0)]
		m := mean{signal: &r.signal}
		for at, left := in.from+begin, step; left > 0; {
			some := min(left, in.from+in.length-at)
			m.add(r, at, at+some)
			at, left = in.from, left-some
		}
		if m.covered == 0 {
			continue // it was not present
		}
		s := sample.Sample{TS: of.TS, Machine: of.Machine, Job: t.job, Task: t.name, Platform: m.last.Platform, Signal: of.Signal, Variant: m.last.Variant,
			Class: m.last.Class, CPU: float32(m.cpu / float64(step)), Cost: float32(math.NaN()), Coverage: 1, Flags: m.flags}
		if k >= 0 {
			s.Cost, s.Extras = m.cost(), m.extras
			for _, e := range shares {
				if v, ok := s.Extras.Get(e); ok {
					s.Extras.Set(e, v/float64(m.covered))
				}
			}
		}
		to = append(to, s)
	}
	return to
}

// shares are the extras that are levels; the others are counts, which grow with time.
var shares = [...]sample.Extra{sample.Threads, sample.CPUStall, sample.StolenShare}

// mean sums a task's activity over pieces of a recording.
type mean struct {
	signal  *sample.Signal
	covered sample.Millis // in which the task was present
	cpu     float64       // CPU-s/s × ms
	spent   float64       // spent ÷ done is the cost
	done    float64
	extras  sample.Extras
	flags   sample.Flags
	last    *sample.Sample
}

// add adds a period of a series.
func (m *mean) add(r *recorded, from, to sample.Millis) {
	for i := sort.Search(len(r.pieces), func(i int) bool { return r.pieces[i].TS > from }); i < len(r.pieces) && r.start[i] < to; i++ {
		p := &r.pieces[i]
		within := min(to, p.TS) - max(from, r.start[i])
		if within <= 0 {
			continue
		}
		used := float64(p.CPU) * float64(within)
		m.covered, m.cpu, m.last = m.covered+within, m.cpu+used, p
		m.flags |= p.Flags
		if cost := float64(p.Cost); m.signal.PerWork && cost > 0 {
			m.spent, m.done = m.spent+used, m.done+used/cost
		} else if !m.signal.PerWork && cost >= 0 {
			m.spent, m.done = m.spent+used*cost, m.done+used
		}
		for _, e := range sample.AllExtras() {
			v, ok := p.Extras.Get(e)
			if !ok {
				continue
			}
			part := float64(within)
			if !slices.Contains(shares[:], e) {
				part /= float64(p.TS - r.start[i])
			}
			sum, _ := m.extras.Get(e)
			m.extras.Set(e, sum+v*part)
		}
	}
}

// cost returns the mean cost of the task's work; NaN if that is not known.
func (m *mean) cost() float32 {
	if m.done == 0 {
		return float32(math.NaN())
	}
	return float32(m.spent / m.done)
}

// Splicer adds innocents to the tasks of every machine of a recording.
type Splicer struct {
	all      []*Innocents
	step     sample.Millis
	machines map[string]*spliced
	out      []sample.Sample
}

// spliced is the state of a machine: its newest interval.
type spliced struct {
	first, at sample.Millis
	signals   []sample.SignalName // whose innocents are in it already
	shifts    []sample.Millis     // of each recording
}

// NewSplicer returns a Splicer for a recording with a sample every step.
func NewSplicer(step time.Duration, all ...*Innocents) *Splicer {
	return &Splicer{all: all, step: max(sample.Millis(step.Milliseconds()), 1), machines: map[string]*spliced{}}
}

// ErrInnocents means that a recording already has tasks with the names of innocents.
var ErrInnocents = errors.New("the recording already has innocents")

// Add returns the given samples, the next of the recording, together with those of
// innocents in the same intervals. They are valid until the next call.
func (p *Splicer) Add(some []sample.Sample) ([]sample.Sample, error) {
	p.out = p.out[:0]
	for i := range some {
		s := &some[i]
		if strings.HasPrefix(string(s.Task), innocentPrefix) {
			return nil, fmt.Errorf("splice innocents: %w: %s", ErrInnocents, s.Task)
		}
		p.out = append(p.out, *s)
		m := p.machines[s.Machine]
		if m == nil {
			m = &spliced{first: s.TS, at: math.MinInt64}
			for _, in := range p.all {
				m.shifts = append(m.shifts, in.shift(s.Machine))
			}
			p.machines[s.Machine] = m
		}
		if s.TS > m.at {
			m.at, m.signals = s.TS, m.signals[:0]
		}
		if s.TS < m.at || s.Signal.OfMachine() || slices.Contains(m.signals, s.Signal) {
			continue
		}
		m.signals = append(m.signals, s.Signal)
		for k, in := range p.all {
			p.out = in.lay(p.out, s, m.shifts[k], p.step)
		}
	}
	return p.out, nil
}

// Longest returns the longest time that a machine's samples cover so far.
func (p *Splicer) Longest() time.Duration {
	var longest sample.Millis
	for _, m := range p.machines {
		longest = max(longest, m.at-m.first+p.step)
	}
	return time.Duration(longest) * time.Millisecond
}
