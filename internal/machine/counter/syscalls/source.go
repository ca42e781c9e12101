package syscalls

import (
	"math"
	"path"
	"time"

	"github.com/cilium/ebpf"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/counter/bpf"
)

// Source is the counter.Source of signal cps. Its variant is that of counter.OpenCPS: both count the
// same calls.
type Source struct {
	*windows
	dirs map[string]sample.TaskKey // of the tasks, by their cgroups' directories
	of   map[sample.TaskKey]string // the inverse
}

type windows = bpf.Windows[syscallsDone, *syscallsDone]

// oldest is the first kernel with bpf_get_current_task_btf.
const oldest = "Linux 5.11 or newer with BTF and CONFIG_FTRACE_SYSCALLS"

// Open loads the program, or returns a *counter.NotSupportedError.
func Open() (*Source, error) {
	k, err := bpf.Load(func(bool) (*bpf.Programs[syscallsDone], error) { return load() })
	var w *windows
	if err == nil {
		w, err = bpf.Open[syscallsDone](k)
	}
	if err != nil {
		return nil, bpf.NotSupported("system calls by eBPF", oldest, err)
	}
	return &Source{windows: w, dirs: map[string]sample.TaskKey{}, of: map[sample.TaskKey]string{}}, nil
}

func load() (*bpf.Programs[syscallsDone], error) {
	spec, err := loadSyscalls()
	if err != nil {
		return nil, err
	}
	spec.Maps[syscallsMapWork].MaxEntries = bpf.MaxCgroups
	var objs syscallsObjects
	if err := spec.LoadAndAssign(&objs, nil); err != nil {
		return nil, err
	}
	return bpf.NewPrograms[syscallsDone](objs.Work, objs.Lost, bpf.Parts{Of: objs.PartOf, Number: objs.Parts, Made: []*ebpf.Program{objs.OnMkdir, objs.OnRmdir}}, objs.Close, objs.OnEnter), nil
}

// Info implements counter.Source.
func (s *Source) Info() counter.Info {
	return counter.Info{Signal: sample.CPS, Variant: counter.VariantCPS}
}

// Totals implements counter.Source. What runs outside all tasks is not counted.
func (s *Source) Totals() counter.Totals {
	t := s.windows.Totals()
	t.Others = counter.Reading{}
	return t
}

// Add implements counter.Source.
func (s *Source) Add(t counter.Target) error {
	if err := s.windows.Add(t); err != nil {
		return err
	}
	s.dirs[t.Dir], s.of[t.Key] = t.Key, t.Dir
	return nil
}

// Remove implements counter.Source. What the tasks inside it used until now is not known: if it has
// any, its reading has no cost.
func (s *Source) Remove(key sample.TaskKey, cpu time.Duration) (counter.Reading, bool) {
	outer := false
	for inner := range s.of {
		outer = outer || inner != key && s.above(inner) == key
	}
	if dir := s.of[key]; s.dirs[dir] == key {
		delete(s.dirs, dir)
	}
	delete(s.of, key)
	r, ok := s.windows.Remove(key, cpu)
	return costing(r, cpu, !outer), ok
}

// Stop implements counter.Source.
func (s *Source) Stop(end counter.WindowEnd, yield func(sample.TaskKey, counter.Reading)) error {
	if end.CPU == nil {
		end.CPU = func(sample.TaskKey) (time.Duration, bool) { return 0, false }
	}
	inside := map[sample.TaskKey]time.Duration{} // what those in a task used; below 0: not known
	for key := range s.of {
		outer := s.above(key)
		if outer == (sample.TaskKey{}) {
			continue
		}
		if used, known := end.CPU(key); known && inside[outer] >= 0 {
			inside[outer] += used
		} else {
			inside[outer] = -1
		}
	}
	return s.windows.Stop(end, func(key sample.TaskKey, r counter.Reading) {
		used, known := end.CPU(key)
		yield(key, costing(r, used-inside[key], known && inside[key] >= 0))
	})
}

// above returns the nearest followed task that a task is in, zero if there is none.
func (s *Source) above(key sample.TaskKey) sample.TaskKey {
	for dir := path.Dir(s.of[key]); len(dir) > 1; dir = path.Dir(dir) {
		if outer, ok := s.dirs[dir]; ok {
			return outer
		}
	}
	return sample.TaskKey{}
}

// costing sets the cost of a reading from the CPU time.
func costing(r counter.Reading, used time.Duration, known bool) counter.Reading {
	if calls, _ := r.Extras.Get(sample.Syscalls); known && calls > 0 {
		r.Cost = max(0, used).Seconds() / calls
	}
	return r
}

// Add implements bpf.Record.
func (d *syscallsDone) Add(more *syscallsDone) { d.Calls += more.Calls }

// Places implements bpf.Record: what a task shares follows from its CPUs.
func (d *syscallsDone) Places() ([]uint64, bool) { return nil, true }

// Waited implements bpf.Record: there is no queue.
func (d *syscallsDone) Waited() time.Duration { return 0 }

// Reading implements bpf.Record; the cost is set by costing.
func (d *syscallsDone) Reading() counter.Reading {
	r := counter.Reading{Cost: math.NaN(), Coverage: 1}
	r.Extras.Set(sample.Syscalls, float64(d.Calls))
	return r
}
