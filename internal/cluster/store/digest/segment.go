package digest

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/segment"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/core/stat"
	trace "github.com/quell-dev/quell/internal/format/trace/parquet"
)

// whose identifies the samples that windows apply to.
type whose struct {
	machine, task, signal string
}

// digester reads one file.
type digester struct {
	*segment.Reader
	windows map[whose]spec.Spans
	revoked []store.Window // those without a task

	job, platform string         // the current key's
	begun         bool           // these are set
	sums          []*sums        // of that job and platform, by signal and variant
	made          map[string]int // how many of them a machine's samples have made
	spare         []*sums
	emit          func(k spec.Key, h *spec.Hour) error
}

// maxMade bounds the signals and variants of one job and platform that one machine reports: there are
// some ten. Sums take 64 KB each, and an agent can report a variant with each sample.
const maxMade = 64

// sums are the running sums of a key's samples. Costs are summed as differences from the
// first one, so that their squares do not cancel out.
type sums struct {
	signal, variant string
	rule            spec.Filter
	known           bool // whether the signal is known
	first           float64
	firstSelf       float64 // of the known ones
	selfKnown       bool    // there is one
	cost            [spec.UsageBins]sum
	newest          sample.Millis
	machines        []machineSums
	at              map[string]int // places in machines, by name
	bins            []uint32       // by stat.BinOf
	least, most     int32          // range of the nonempty bins
}

// machineSums are those of one machine.
type machineSums struct {
	id    uint64
	cost  sum
	self  sum // as differences from firstSelf
	cpu   float64
	tasks []spec.TaskSamples
}

type sum struct {
	n      int64
	s1, s2 float64
}

func (s *sum) add(d float64) {
	s.n++
	s.s1 += d
	s.s2 += d * d
}

func (s sum) plus(o sum) sum { return sum{s.n + o.n, s.s1 + o.s1, s.s2 + o.s2} }

// moments are those of the sum's values, which are differences from first. No value is negative,
// and a rounding error must not make the mean so.
func (s *sum) moments(first float64) stat.Moments {
	n := float64(s.n)
	return stat.Moments{N: s.n, W: n, W2: n, Mean: max(0, first+s.s1/n), M2: math.Max(0, s.s2-s.s1*s.s1/n)}
}

// read digests a segment: it calls emit with the hour of each key, in the order of keys.
func read(ctx context.Context, path string, windows []store.Window, emit func(k spec.Key, h *spec.Hour) error) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("digest: %w", err)
	}
	defer f.Close() // it was only read
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("digest: %w", err)
	}
	defer func() {
		if p := recover(); p != nil { // the library panics on a damaged file
			err = fmt.Errorf("damaged: %v", p)
		}
		if err != nil {
			err = fmt.Errorf("digest %s: %w", path, err)
		}
	}()
	s := &digester{emit: emit, windows: map[whose]spec.Spans{}, made: map[string]int{}}
	for _, w := range windows {
		if w.Task == "" {
			s.revoked = append(s.revoked, w)
			continue
		}
		k := whose{w.Machine, string(w.Task), string(w.Signal)}
		s.windows[k] = append(s.windows[k], spec.Span{From: w.From, To: w.To})
	}
	for k, all := range s.windows {
		s.windows[k] = spec.SpansOf(all)
	}
	file, err := trace.Open(f, info.Size(), parquet.ReadBufferSize(1<<18))
	if err != nil {
		return err
	}
	if s.Reader, err = segment.NewReader(file.File, "job", "platform", "task", "machine", "signal", "variant", "ts", "flags", "cpu", "cost",
		sample.WaitOther.String(), sample.WaitSelf.String()); err != nil {
		return err
	}
	defer s.Close() // it was only read
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		more, err := s.Next()
		if err != nil {
			return err
		}
		if !more {
			return s.end()
		}
		if err := s.rows(); err != nil {
			return err
		}
	}
}

// rows reads the rows of a block, one run of a task's samples at a time.
func (s *digester) rows() error {
	for i, j := 0, 0; i < s.N; i = j {
		j = s.EndOfSeries(i)
		text := func(column int) string { return s.Names[column][s.Index[column][i]] }
		if job, platform := text(segment.Job), text(segment.Platform); !s.begun || job != s.job || platform != s.platform {
			if err := s.turn(job, platform); err != nil {
				return err
			}
		}
		machine, task := text(segment.Machine), text(segment.Task)
		if sm := s.of(text(segment.Signal), text(segment.Variant), machine); sm != nil && sm.known {
			var windows spec.Spans
			if len(s.windows) > 0 {
				windows = s.windows[whose{machine, task, sm.signal}]
			}
			for _, w := range s.revoked {
				if (w.Machine == "" || w.Machine == machine) && (w.Job == "" || string(w.Job) == s.job) {
					windows = spec.SpansOf(append(slices.Clone(windows), spec.Span{From: w.From, To: w.To}))
				}
			}
			var waits waits
			if other, self := s.Extras[sample.WaitOther], s.Extras[sample.WaitSelf]; sm.rule.SelfApart && other != nil && self != nil {
				waits.other, waits.self = other[i:j], self[i:j]
			}
			sm.add(machine, task, s.TS[i:j], s.Flags[i:j], s.CPU[i:j], s.Cost[i:j], waits, windows)
		}
	}
	return nil
}

// of returns the sums of a signal and variant of the current job and platform; nil if there are none
// and the machine has made too many.
func (s *digester) of(signal, variant, machine string) *sums {
	for _, sm := range s.sums {
		if sm.signal == signal && sm.variant == variant {
			return sm
		}
	}
	if s.made[machine] == maxMade {
		return nil
	}
	s.made[machine]++
	var sm *sums
	if n := len(s.spare); n > 0 {
		sm, s.spare = s.spare[n-1], s.spare[:n-1]
	} else {
		sm = &sums{bins: make([]uint32, stat.Bins), at: map[string]int{}}
	}
	sm.signal, sm.variant, sm.least, sm.most = signal, variant, stat.Bins, -1
	sm.rule, sm.known = spec.FilterOf(sample.SignalName(signal))
	sm.known = sm.known && spec.Shared(sample.JobName(s.job))
	s.sums = append(s.sums, sm)
	return sm
}

// waits are the samples' extras of that name, NaN where they are absent; nil if all are.
type waits struct {
	other, self []float64
}

// add adds a task's samples.
func (sm *sums) add(machine, task string, ts []int64, flags []int32, cpu, cost []float32, waits waits, windows spec.Spans) {
	usage, newest := 0.0, int64(sm.newest)
	var own, ownSelf sum
	for i := range cost {
		c := cost[i]
		if !sm.rule.Accepts(sample.Flags(flags[i]), cpu[i], c) || windows != nil && windows.Has(sample.Millis(ts[i])) {
			continue
		}
		if sm.most < 0 {
			sm.first = float64(c)
		}
		d := float64(c) - sm.first
		sm.cost[spec.UsageBin(cpu[i])].add(d)
		own.add(d)
		usage += float64(cpu[i])
		if waits.self != nil {
			if self := sm.rule.Self(c, waits.other[i], waits.self[i]); self >= 0 {
				if !sm.selfKnown {
					sm.firstSelf, sm.selfKnown = self, true
				}
				ownSelf.add(self - sm.firstSelf)
			}
		}
		bin := stat.BinOf(c)
		sm.bins[bin]++
		sm.least, sm.most = min(sm.least, bin), max(sm.most, bin)
		newest = max(newest, ts[i])
	}
	if own.n == 0 {
		return
	}
	sm.newest = sample.Millis(newest)
	m := sm.machine(machine)
	m.cost, m.self = m.cost.plus(own), m.self.plus(ownSelf)
	m.cpu += usage
	m.task(spec.HashTask(machine, task), own.n)
}

func (sm *sums) machine(name string) *machineSums {
	i, known := sm.at[name]
	if !known {
		i = len(sm.machines)
		sm.at[strings.Clone(name)] = i
		sm.machines = append(sm.machines, machineSums{id: spec.HashMachine(name)})
	}
	return &sm.machines[i]
}

func (m *machineSums) task(hash uint64, n int64) {
	if k := len(m.tasks); k > 0 && m.tasks[k-1].Task == hash { // continued from another page
		m.tasks[k-1].N += n
		return
	}
	m.tasks = append(m.tasks, spec.TaskSamples{Task: hash, N: n})
}

// turn ends a job and platform and starts the next.
func (s *digester) turn(job, platform string) error {
	if s.begun && cmp.Or(cmp.Compare(s.job, job), cmp.Compare(s.platform, platform)) >= 0 {
		return fmt.Errorf("not sorted by job and platform: %w", segment.ErrNotSegment)
	}
	err := s.end()
	s.job, s.platform, s.begun = job, platform, true
	return err
}

// end emits the hours of the current job and platform.
func (s *digester) end() error {
	slices.SortFunc(s.sums, func(a, b *sums) int {
		return cmp.Or(cmp.Compare(a.signal, b.signal), cmp.Compare(a.variant, b.variant))
	})
	for _, sm := range s.sums {
		if sm.most >= 0 {
			h := sm.hour()
			k := spec.Key{Job: sample.JobName(s.job), Platform: sample.Platform(s.platform), Signal: sample.SignalName(sm.signal), Variant: sm.variant}
			if err := s.emit(k, &h); err != nil {
				return err
			}
		}
		sm.clear()
	}
	s.spare, s.sums = append(s.spare, s.sums...), s.sums[:0]
	clear(s.made)
	return nil
}

// hour returns the hour that the sums describe.
func (sm *sums) hour() spec.Hour {
	slices.SortFunc(sm.machines, func(a, b machineSums) int { return cmp.Compare(a.id, b.id) }) // as spec.Learn needs them
	h := spec.Hour{Start: spec.HourOf(sm.newest), Newest: sm.newest, Machines: make([]spec.MachineHour, len(sm.machines))}
	for i := range sm.cost {
		if b := &sm.cost[i]; b.n > 0 {
			h.Usage[i] = b.moments(sm.first)
		}
	}
	for i := range sm.machines {
		m := &sm.machines[i]
		h.Machines[i] = spec.MachineHour{Machine: m.id, Cost: m.cost.moments(sm.first), CPU: m.cpu / float64(m.cost.n), Tasks: m.tasks}
		if m.self.n > 0 {
			h.Machines[i].Self = m.self.moments(sm.firstSelf)
		}
	}
	for bin := sm.least; bin <= sm.most; bin++ {
		if n := sm.bins[bin]; n > 0 {
			h.Sketch.AddBin(bin, float64(n))
		}
	}
	return h
}

func (sm *sums) clear() {
	if sm.most >= 0 {
		clear(sm.bins[sm.least : sm.most+1])
	}
	clear(sm.at)
	*sm = sums{bins: sm.bins, at: sm.at}
}
