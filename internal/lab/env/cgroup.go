package env

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/load"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/machine/host"
)

// partCgroup is the cgroup of a part, in every hierarchy that its tree is in.
type partCgroup struct {
	tree  *workload.Tree
	task  string
	guard *load.Guard
	dirs  []string // of the task
	all   string   // the one that lists its processes

	mu      sync.Mutex
	cpus    sample.Set // the last requested CPUs
	stopper load.Actuator
	stopped bool
}

// box makes a part's cgroup.
func (m *Maker) box(p *study.Part, ungrouped bool) (*partCgroup, error) {
	tree, err := m.tree(ungrouped)
	if err != nil {
		return nil, err
	}
	b := &partCgroup{tree: tree, task: m.name(p), guard: m.opt.Guard}
	if err := tree.Add(b.task); err != nil {
		return nil, err
	}
	b.dirs = tree.Dirs(b.task)
	b.all = b.dirs[0]
	// A guest's memory is limited by QEMU, which needs some memory in addition.
	if p.Environment.Memory > 0 && p.Environment.Driver != study.QEMU {
		if err := b.limitMemory(int64(p.Environment.Memory)); err != nil {
			return nil, errors.Join(err, tree.Remove(b.task))
		}
	}
	return b, nil
}

// file returns the path of a file of the cgroup in the first hierarchy that has it; ""
// if none has.
func (b *partCgroup) file(names ...string) string {
	for _, name := range names {
		for _, dir := range b.dirs {
			if path := filepath.Join(dir, name); unix.Access(path, unix.F_OK) == nil {
				return path
			}
		}
	}
	return ""
}

func (b *partCgroup) limitMemory(bytes int64) error {
	path := b.file("memory.max", "memory.limit_in_bytes")
	if path == "" {
		return &lab.LackError{What: "no memory controller for cgroups", Remedy: "remove memory: from the environment, or enable the controller"}
	}
	return host.WriteFile(path, strconv.FormatInt(bytes, 10))
}

// Usage implements lab.Environment, from cpu.stat (cgroup-v2.rst) or cpuacct.usage
// (cgroup-v1/cpuacct.rst). For a frozen part it is exact to some µs; otherwise the run
// time since the last tick may be missing.
func (b *partCgroup) Usage() (lab.Usage, error) {
	var u lab.Usage
	for _, dir := range b.dirs {
		text, err := os.ReadFile(filepath.Join(dir, "cpu.stat"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return u, fmt.Errorf("read CPU time: %w", err)
		}
		v := pairs(string(text))
		u.User += time.Duration(v["user_usec"]) * time.Microsecond
		u.System += time.Duration(v["system_usec"]) * time.Microsecond
		u.Throttled += time.Duration(v["throttled_usec"])*time.Microsecond + time.Duration(v["throttled_time"])
		if total, ok := v["usage_usec"]; ok {
			// The kernel reads the three values one after another too.
			u.User = max(0, time.Duration(total)*time.Microsecond-u.System)
		}
	}
	if u.Total() > 0 {
		return u, nil
	}
	return b.usageV1(u)
}

// usageV1 divides the exact time in proportion to the ticks seen in user and in system
// mode.
func (b *partCgroup) usageV1(u lab.Usage) (lab.Usage, error) {
	path := b.file("cpuacct.usage")
	if path == "" {
		return u, nil // cgroup2 reported 0
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return u, fmt.Errorf("read CPU time: %w", err)
	}
	total, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return u, fmt.Errorf("read %s: %w", path, err)
	}
	stat, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cpuacct.stat"))
	if err != nil {
		return u, fmt.Errorf("read CPU time: %w", err)
	}
	v := pairs(string(stat))
	if ticks := v["user"] + v["system"]; ticks > 0 {
		u.System = time.Duration(float64(total) * float64(v["system"]) / float64(ticks))
	}
	u.User = time.Duration(total) - u.System
	return u, nil
}

// pairs parses lines with a name and a number.
func pairs(text string) map[string]int64 {
	v := map[string]int64{}
	for line := range strings.Lines(text) {
		name, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseInt(number, 10, 64); err == nil {
			v[name] = n
		}
	}
	return v
}

// Threads implements lab.Environment: all threads of all processes in it.
func (b *partCgroup) Threads() ([]int, error) {
	var all []int
	err := filepath.WalkDir(b.all, func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return ignoreGone(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			return ignoreGone(err)
		}
		for _, pid := range strings.Fields(string(text)) {
			n, err := strconv.Atoi(pid)
			if err != nil {
				return err
			}
			threads, err := host.ThreadsOf(n)
			if err := ignoreGone(err); err != nil {
				return err
			}
			all = append(all, threads...)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list threads: %w", err)
	}
	slices.Sort(all)
	return all, nil
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// Ready implements lab.Environment, from the state in /proc/TID/stat
// (proc_pid_stat(5)): R is running or waiting for a CPU.
func (b *partCgroup) Ready() (bool, error) {
	threads, err := b.Threads()
	if err != nil {
		return false, err
	}
	for _, tid := range threads {
		stat, err := host.ReadProcessStat("/proc/" + strconv.Itoa(tid) + "/stat")
		if err := ignoreGone(err); err != nil {
			return false, fmt.Errorf("read the state of thread %d: %w", tid, err)
		}
		if stat.State == 'R' {
			return true, nil
		}
	}
	return false, nil
}

// Pin implements lab.Environment for an environment without virtual CPUs: one set for
// all of it. It sets the cpuset, if there is one, which no process inside can leave,
// and the affinity of every existing thread, which later threads inherit.
func (b *partCgroup) Pin(sets []sample.Set) error {
	if err := RefusePlacement(&study.Environment{Driver: study.Cgroup}, len(sets)); err != nil {
		return err
	}
	return b.place(sets[0])
}

func (b *partCgroup) place(set sample.Set) error {
	if set.Len() == 0 {
		return errors.New("place on CPUs: the set is empty")
	}
	b.mu.Lock()
	b.cpus = set
	b.mu.Unlock()
	if err := b.confine(set); err != nil {
		return fmt.Errorf("place on CPUs %s: %w", set, err)
	}
	// After the cpuset: before Linux 6.2 a change of the cpuset resets affinities.
	return host.PlaceThreads(b.Threads, set)
}

// confine writes the cpusets: of this cgroup and, if it has child cgroups (LXC), of
// those. A v1 cpuset must contain its children, so a wider set must be written from
// above and a narrower one from below; confine repeats all writes until none fails.
func (b *partCgroup) confine(set sample.Set) error {
	top := b.file("cpuset.cpus")
	if top == "" {
		return nil
	}
	var files []string
	err := filepath.WalkDir(filepath.Dir(top), func(dir string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && unix.Access(filepath.Join(dir, "cpuset.cpus"), unix.F_OK) == nil {
			files = append(files, filepath.Join(dir, "cpuset.cpus"))
		}
		return ignoreGone(err)
	})
	for range files {
		err = nil
		for _, f := range files {
			err = errors.Join(err, host.WriteFile(f, set.String()))
		}
		if err == nil {
			return nil
		}
	}
	return err
}

// union returns the CPUs on which any of the threads may run.
func union(threads []int) (sample.Set, error) {
	var all sample.Set
	for _, tid := range threads {
		set, err := host.Affinity(tid)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return all, fmt.Errorf("read affinity of thread %d: %w", tid, err)
		}
		all = all.Union(set)
	}
	return all, nil
}

// Pinned implements lab.Environment. While the cgroup is empty it returns what a new
// thread there would get: the cpuset's CPUs, or without a cpuset the affinity as the
// kernel sets it.
func (b *partCgroup) Pinned() ([]sample.Set, error) {
	threads, err := b.Threads()
	if err != nil {
		return nil, err
	}
	if set, err := union(threads); err != nil || set.Len() > 0 {
		return []sample.Set{set}, err
	}
	if path := b.file("cpuset.cpus.effective", "cpuset.effective_cpus"); path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read cpuset: %w", err)
		}
		set, err := sample.ParseSet(strings.TrimSpace(string(text)))
		return []sample.Set{set}, err
	}
	b.mu.Lock()
	want := b.cpus
	b.mu.Unlock()
	return tryAffinity(want)
}

// tryAffinity sets the affinity of a temporary thread, if there is one to set, and reads it back.
func tryAffinity(want sample.Set) ([]sample.Set, error) {
	var got sample.Set
	var err error
	done := make(chan struct{})
	host.OwnThread(func() {
		defer close(done)
		if want.Len() > 0 { // otherwise it was not placed
			err = host.SetAffinity(0, want)
		}
		if err == nil {
			got, err = host.Affinity(0)
		}
	})
	<-done
	if err != nil {
		return nil, fmt.Errorf("try CPUs %s: %w", want, err)
	}
	return []sample.Set{got}, nil
}

// Freeze implements lab.Environment, by the cgroup's freezer, or by signals if there is
// none.
func (b *partCgroup) Freeze(stop bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopper == nil {
		if !stop {
			return nil
		}
		var err error
		if path := b.file("cgroup.freeze", "freezer.state"); path != "" {
			b.stopper, err = load.OpenFreezer(filepath.Dir(path), b.guard)
		} else {
			b.stopper = load.NewSignals(filepath.Join(b.all, "cgroup.procs"), b.guard)
		}
		if err != nil {
			return err
		}
	}
	if stop {
		b.stopped = true // even if Stop fails half-way
		return b.stopper.Stop()
	}
	if err := b.stopper.Continue(); err != nil {
		return err
	}
	b.stopped = false
	return nil
}

// thaw lets the part run again if it is stopped: a frozen process does not end.
func (b *partCgroup) thaw() error {
	b.mu.Lock()
	stopped := b.stopped
	b.mu.Unlock()
	if !stopped {
		return nil
	}
	return b.Freeze(false)
}
