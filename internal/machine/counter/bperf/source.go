package bperf

import (
	"fmt"
	"runtime"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/counter/bpf"
)

// Source is the counter.Source of signal cpi. Lost counts slices of followed tasks whose counters
// could not be read.
type Source struct {
	*windows
	info     counter.Info
	programs *programs
}

type windows = bpf.Windows[bperfDone, *bperfDone]

// oldest is the first kernel with bpf_get_current_task_btf.
const oldest = "Linux 5.11 or newer with BTF"

// Open opens groups of events (cycles, instructions and perhaps misses of the last-level cache)
// on the CPUs that are online. info is that of a source of the same events in cgroup mode; its
// variant applies, since both count the same. Errors: *counter.FDLimitError,
// *counter.NotSupportedError.
func Open(events []counter.Event, info counter.Info, online sample.Set) (*Source, error) {
	p, err := bpf.Load(func(bool) (*programs, error) { return loadPrograms(counter.NewCPUGroups(events...), online) })
	var w *windows
	if err == nil {
		w, err = bpf.Open[bperfDone](p)
	}
	if err != nil {
		return nil, bpf.NotSupported("counters of CPUs read by eBPF", oldest, err)
	}
	s := &Source{windows: w, info: info, programs: p}
	s.info.WindowFDs, s.info.IdleFDs = 0, 0 // for each task
	s.info.CountsLosses = true
	overhead, err := p.measureSwitchOverhead()
	if err != nil {
		return nil, fmt.Errorf("measure the overhead of a switch: %w", closeWith(err, s))
	}
	s.info.SetSwitchOverhead(overhead)
	return s, nil
}

func closeWith(err error, s *Source) error {
	if also := s.Close(); also != nil {
		return fmt.Errorf("%w; %w", err, also)
	}
	return err
}

// overheadTries is how often the overhead is measured. The minimum is used, since other activity
// of the machine only adds.
const overheadTries = 40

// measured is MEASURED of bperf.bpf.c.
const measured = 32

// measureSwitchOverhead measures what a switch between two cgroups costs in a window: what the
// program does then.
func (p *programs) measureSwitchOverhead() (least time.Duration, err error) {
	if err := p.Open(nil, nil); err != nil {
		return 0, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for range overheadTries {
		begin := time.Now()
		if _, err := p.objs.Measure.Run(nil); err != nil { // on the CPU where this thread is
			return 0, fmt.Errorf("run: %w", closeWindow(err, p))
		}
		if d := time.Since(begin) / measured; least == 0 || d < least {
			least = d
		}
	}
	return least, p.Detach()
}

func closeWindow(err error, p *programs) error {
	if also := p.Detach(); also != nil {
		return fmt.Errorf("%w; %w", err, also)
	}
	return err
}

// Info implements counter.Source.
func (s *Source) Info() counter.Info { return s.info }

// SetCPUs implements counter.Source.
func (s *Source) SetCPUs(online sample.Set) { s.programs.online = online }

// Remove implements counter.Source. Many tasks may end at once, and threads that run are charged by interrupting
// all CPUs: a task that has any may be charged 10 ms too little. One that has ended has none.
func (s *Source) Remove(key sample.TaskKey, cpu time.Duration) (counter.Reading, bool) {
	if p := s.programs; p.open && time.Since(p.charged) >= 10*time.Millisecond {
		// If it fails, what its threads do now is missing from the reading.
		_ = p.charge(p.objs.Sync)
	}
	return s.windows.Remove(key, cpu)
}

// Totals implements counter.Source. What runs outside all tasks is not counted.
func (s *Source) Totals() counter.Totals {
	t := s.windows.Totals()
	t.Others = counter.Reading{}
	return t
}

// Add implements bpf.Record.
func (d *bperfDone) Add(more *bperfDone) {
	for i := range d.Value {
		d.Value[i] += more.Value[i]
	}
	d.Enabled += more.Enabled
	d.Running += more.Running
	d.Slices += more.Slices
	d.Missed += more.Missed
	d.Events = max(d.Events, more.Events)
}

// Places implements bpf.Record: what a task shares follows from its CPUs.
func (d *bperfDone) Places() ([]uint64, bool) { return nil, true }

// Waited implements bpf.Record: there is no queue.
func (d *bperfDone) Waited() time.Duration { return 0 }

// mostMissed is the share of a task's slices that may be missing from counts that count as whole.
const mostMissed = 0.01

// Reading implements bpf.Record. Counts are scaled up for the time in which other events had the
// counters.
func (d *bperfDone) Reading() counter.Reading {
	coverage, scale := 1.0, 1.0
	if d.Slices+d.Missed > 0 {
		coverage = float64(d.Slices) / float64(d.Slices+d.Missed)
	}
	if d.Enabled > 0 {
		coverage *= min(1, float64(d.Running)/float64(d.Enabled))
	}
	if d.Running > 0 {
		scale = max(1, float64(d.Enabled)/float64(d.Running))
	}
	// A task that did not run did nothing of all events.
	counts := make([]float64, max(d.Events, 2))
	for i := range counts {
		counts[i] = float64(d.Value[i]) * scale
	}
	return counter.CPIReading(counts, coverage, d.Enabled, d.Running, float64(d.Missed) > mostMissed*float64(d.Slices+d.Missed))
}
