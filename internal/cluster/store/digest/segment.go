package digest

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"slices"

	"github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/core/stat"
)

// whose identifies the samples that windows apply to.
type whose struct {
	machine, task, signal string
}

// segment reads one file.
type segment struct {
	windows map[whose][]store.Window
	file    *parquet.File
	all     []*column

	job, platform, task, machine, signal, variant *column
	ts, flags, cpu, cost                          *column

	// Index of the current key's job and platform, −1 before the first.
	atJob, atPlatform int32
	sums              []*sums // of that job and platform, by signal and variant
	spare             []*sums
	emit              func(k spec.Key, h *spec.Hour) error
}

// sums are the running sums of a key's samples. Costs are summed as differences from the
// first one, so that their squares do not cancel out.
type sums struct {
	signal, variant int32
	rule            spec.Filter
	known           bool // whether the signal is known
	first           float64
	cost            [spec.UsageBins]sum
	cpu             float64
	newest          sample.Millis
	tasks           []spec.TaskSamples
	bins            []uint32 // by stat.BinOf
	least, most     int32    // range of the nonempty bins
}

type sum struct {
	n      int64
	s1, s2 float64
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
	s := &segment{emit: emit, windows: map[whose][]store.Window{}, atJob: -1, atPlatform: -1}
	for _, w := range windows {
		k := whose{w.Machine, string(w.Task), string(w.Signal)}
		s.windows[k] = append(s.windows[k], w)
	}
	if s.file, err = parquet.OpenFile(f, info.Size(), parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true), parquet.ReadBufferSize(1<<18)); err != nil {
		return err
	}
	if err := s.columns(); err != nil {
		return err
	}
	defer func() {
		for _, c := range s.all {
			c.close()
		}
	}()
	for _, g := range s.file.RowGroups() {
		for _, c := range s.all {
			c.open(g)
		}
		for left := g.NumRows(); left > 0; {
			if err := ctx.Err(); err != nil {
				return err
			}
			n := int(left)
			for _, c := range s.all {
				if err := c.nextPage(); err != nil {
					return err
				}
				n = min(n, c.left())
			}
			if err := s.rows(n); err != nil {
				return err
			}
			left -= int64(n)
		}
	}
	return s.end()
}

// columns looks up the columns.
func (s *segment) columns() (err error) {
	open := func(name string, text bool) *column {
		c := &column{name: name}
		leaf, ok := s.file.Schema().Lookup(name)
		if !ok || leaf.MaxRepetitionLevel > 0 || leaf.MaxDefinitionLevel > 0 && name != "cost" {
			err = fmt.Errorf("column %s: %w", name, errNotSegment)
			return c
		}
		if c.leaf, c.null = leaf.ColumnIndex, leaf.MaxDefinitionLevel > 0; text {
			c.names = &names{id: map[string]int32{}}
		}
		s.all = append(s.all, c)
		return c
	}
	s.job, s.platform, s.task = open("job", true), open("platform", true), open("task", true)
	s.machine, s.signal, s.variant = open("machine", true), open("signal", true), open("variant", true)
	s.ts, s.flags, s.cpu, s.cost = open("ts", false), open("flags", false), open("cpu", false), open("cost", false)
	return err
}

// rows reads the next n rows, which are in one page of every column, one run of a task's
// samples at a time.
func (s *segment) rows(n int) error {
	job, platform, task, machine, signal, variant := s.job.ids[:n], s.platform.ids[:n], s.task.ids[:n], s.machine.ids[:n], s.signal.ids[:n], s.variant.ids[:n]
	ts, flags, cpu, cost := s.ts.whole[:n], s.flags.whole[:n], s.cpu.reals[:n], s.cost.reals[:n]
	for i := 0; i < n; {
		j := i + 1
		for j < n && task[j] == task[i] && signal[j] == signal[i] && machine[j] == machine[i] && variant[j] == variant[i] && job[j] == job[i] && platform[j] == platform[i] {
			j++
		}
		if job[i] != s.atJob || platform[i] != s.atPlatform {
			if err := s.turn(job[i], platform[i]); err != nil {
				return err
			}
		}
		sm := s.of(signal[i], variant[i])
		if sm.known {
			var windows []store.Window
			if len(s.windows) > 0 {
				windows = s.windows[whose{s.machine.names.text[machine[i]], s.task.names.text[task[i]], s.signal.names.text[signal[i]]}]
			}
			if got := sm.add(ts[i:j], flags[i:j], cpu[i:j], cost[i:j], windows); got > 0 {
				sm.task(spec.HashTask(s.machine.names.text[machine[i]], s.task.names.text[task[i]]), got)
			}
		}
		i = j
	}
	for _, c := range s.all {
		c.skip(n)
	}
	return nil
}

// of returns the sums of a signal and variant of the current job and platform.
func (s *segment) of(signal, variant int32) *sums {
	for _, sm := range s.sums {
		if sm.signal == signal && sm.variant == variant {
			return sm
		}
	}
	var sm *sums
	if n := len(s.spare); n > 0 {
		sm, s.spare = s.spare[n-1], s.spare[:n-1]
	} else {
		sm = &sums{bins: make([]uint32, stat.Bins)}
	}
	sm.signal, sm.variant, sm.least, sm.most = signal, variant, stat.Bins, -1
	sm.rule, sm.known = spec.FilterOf(sample.SignalName(s.signal.names.text[signal]))
	s.sums = append(s.sums, sm)
	return sm
}

// add adds a task's samples and returns how many of them are used for the spec.
func (sm *sums) add(ts, flags []int64, cpu, cost []float32, windows []store.Window) (got int64) {
	usage, newest := 0.0, int64(sm.newest)
	for i := range cost {
		c := cost[i]
		if !sm.rule.Accepts(sample.Flags(flags[i]), cpu[i], c) || windows != nil && within(windows, ts[i]) {
			continue
		}
		if sm.most < 0 {
			sm.first = float64(c)
		}
		d := float64(c) - sm.first
		b := &sm.cost[spec.UsageBin(cpu[i])]
		b.n++
		b.s1 += d
		b.s2 += d * d
		usage += float64(cpu[i])
		bin := stat.BinOf(c)
		sm.bins[bin]++
		sm.least, sm.most = min(sm.least, bin), max(sm.most, bin)
		newest = max(newest, ts[i])
		got++
	}
	sm.cpu += usage
	sm.newest = sample.Millis(newest)
	return got
}

func within(windows []store.Window, at int64) bool {
	return slices.ContainsFunc(windows, func(w store.Window) bool { return at >= int64(w.From) && at <= int64(w.To) })
}

func (sm *sums) task(hash uint64, n int64) {
	if k := len(sm.tasks); k > 0 && sm.tasks[k-1].Task == hash { // continued from another page
		sm.tasks[k-1].N += n
		return
	}
	sm.tasks = append(sm.tasks, spec.TaskSamples{Task: hash, N: n})
}

// turn ends a job and platform and starts the next.
func (s *segment) turn(job, platform int32) error {
	if s.atJob >= 0 {
		was := cmp.Or(cmp.Compare(s.job.names.text[s.atJob], s.job.names.text[job]), cmp.Compare(s.platform.names.text[s.atPlatform], s.platform.names.text[platform]))
		if was >= 0 {
			return fmt.Errorf("not sorted by job and platform: %w", errNotSegment)
		}
	}
	err := s.end()
	s.atJob, s.atPlatform = job, platform
	return err
}

// end emits the hours of the current job and platform.
func (s *segment) end() error {
	slices.SortFunc(s.sums, func(a, b *sums) int {
		return cmp.Or(cmp.Compare(s.signal.names.text[a.signal], s.signal.names.text[b.signal]), cmp.Compare(s.variant.names.text[a.variant], s.variant.names.text[b.variant]))
	})
	for _, sm := range s.sums {
		if sm.most >= 0 {
			h := sm.hour()
			k := spec.Key{Job: sample.JobName(s.job.names.text[s.atJob]), Platform: sample.Platform(s.platform.names.text[s.atPlatform]),
				Signal: sample.SignalName(s.signal.names.text[sm.signal]), Variant: s.variant.names.text[sm.variant]}
			if err := s.emit(k, &h); err != nil {
				return err
			}
		}
		sm.clear()
	}
	s.spare, s.sums = append(s.spare, s.sums...), s.sums[:0]
	return nil
}

// hour returns the hour that the sums describe.
func (sm *sums) hour() spec.Hour {
	h := spec.Hour{Start: spec.HourOf(sm.newest), Newest: sm.newest, Tasks: slices.Clone(sm.tasks)}
	for i, b := range sm.cost {
		if b.n > 0 {
			n := float64(b.n)
			h.Usage[i] = stat.Moments{N: b.n, W: n, W2: n, Mean: sm.first + b.s1/n, M2: math.Max(0, b.s2-b.s1*b.s1/n)}
			h.Cost.Merge(h.Usage[i])
		}
	}
	h.CPU = sm.cpu / float64(h.Cost.N)
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
	*sm = sums{bins: sm.bins, tasks: sm.tasks[:0]}
}
