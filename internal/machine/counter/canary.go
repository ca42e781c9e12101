package counter

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/chase"
	"github.com/quell-dev/quell/internal/machine/host"
	"golang.org/x/sys/unix"
)

const (
	// CanaryVariant is the variant of Canary.
	CanaryVariant = "chase"
	// canarySet is the canary's working set in bytes. It exceeds a core's own cache
	// (L2: 0.25 to 2 MiB), and another pass over it takes only 1 ms. If an eighth of
	// the last-level cache is less, that is used.
	canarySet = 4 << 20
	// partsPerPass is the number of timed parts of a pass; the slowest are left out.
	partsPerPass = 4
	// warmPasses is the number of timed passes in a burst, after one to load the set.
	warmPasses = 2
)

// Cache is a last-level cache that the canary measures, from any of the CPUs that use
// it. Size is in bytes, 0 if not known.
type Cache struct {
	Name string // of the stand-in
	CPUs sample.Set
	Size int64
}

// Caches returns a machine's last-level caches, or one for all CPUs if none is known.
func Caches(t host.Topology) []Cache {
	var all []Cache
	for _, c := range t.CPUs {
		known := slices.ContainsFunc(all, func(o Cache) bool { return o.CPUs.Has(c.ID) })
		if c.LLC.ID >= 0 && !known {
			all = append(all, Cache{Name: "(cache " + strconv.Itoa(c.LLC.ID) + ")", CPUs: c.LLC.CPUs, Size: c.LLC.Size})
		}
	}
	if len(all) == 0 {
		all = append(all, Cache{Name: "(cache)", CPUs: t.Online})
	}
	return all
}

// Canary is the MachineSource of the time of a load that the last-level cache could answer, in
// s/load: a pointer chase through a small working set, read once to load it into the
// cache and then timed. It needs no hardware counter. Its bursts of some ms are spread
// over a window. They take at most the given CPU time; if one burst takes more, there
// is one.
type Canary struct {
	caches []Cache
	budget time.Duration // CPU time per window
	set    []uint64
	free   func()
	next   int // the next cache to measure

	stop chan struct{} // nil: no window is open
	done chan []cacheTiming
	last []cacheTiming
}

// cacheTiming is what a window measured of one cache.
type cacheTiming struct {
	cache int
	turns []time.Duration // CPU time of each timed part
	err   error
}

// OpenCanary prepares a canary. All caches share the budget of a window: if it is not
// enough for all, the windows visit the caches in turn.
func OpenCanary(caches []Cache, budget time.Duration) (*Canary, error) {
	if len(caches) == 0 || budget <= 0 {
		return nil, fmt.Errorf("open canary: %d caches, CPU time %s per window: both must be positive", len(caches), budget)
	}
	size := int64(canarySet)
	for _, c := range caches {
		if c.Size > 0 {
			size = min(size, max(c.Size/8, 64<<10))
		}
	}
	set, free, err := chase.Map(size)
	if err != nil {
		return nil, fmt.Errorf("open canary: %w", err)
	}
	chase.Link(set, 1)
	return &Canary{caches: caches, budget: budget, set: set, free: free}, nil
}

// Info implements MachineSource.
func (c *Canary) Info() Info { return Info{Signal: sample.Probe, Variant: CanaryVariant} }

// Start implements MachineSource. The canary runs in a thread of its own until Stop.
func (c *Canary) Start() error {
	if c.stop != nil {
		return ErrOpen
	}
	c.stop, c.done = make(chan struct{}), make(chan []cacheTiming, 1)
	stop, done := c.stop, c.done
	host.OwnThread(func() { done <- c.watch(stop) })
	return nil
}

// canaryPause is the pause between two bursts. Antagonists come and go, so the bursts
// must cover more than the window's beginning.
const canaryPause = 150 * time.Millisecond

// watch visits one cache after the other until it is stopped or has spent its budget.
// It visits at least one cache once. It stays on the CPUs that the agent may use: an operator
// may have set its affinity to keep it off the others.
func (c *Canary) watch(stop <-chan struct{}) []cacheTiming {
	var all []cacheTiming
	home, _ := host.Affinity(0) // with more than 1024 CPUs none: the canary cannot be pinned then
	began := host.ThreadCPU()
	for n := 0; ; n++ {
		cache := c.next % len(c.caches)
		c.next++
		i := slices.IndexFunc(all, func(v cacheTiming) bool { return v.cache == cache })
		if i < 0 {
			i, all = len(all), append(all, cacheTiming{cache: cache})
		}
		before := host.ThreadCPU()
		turns, err := c.burst(c.caches[cache].CPUs, home)
		all[i].turns, all[i].err = append(all[i].turns, turns...), errors.Join(all[i].err, err)
		now := host.ThreadCPU()
		if spent := now - began; spent+(now-before) > c.budget {
			return all
		}
		select {
		case <-stop:
			return all
		case <-time.After(canaryPause):
		}
	}
}

// burst loads the set into the cache from one of its CPUs that is in home and reads it again.
// It returns the CPU time of each part.
func (c *Canary) burst(cpus, home sample.Set) ([]time.Duration, error) {
	if err := pinToOne(cpus, home); err != nil {
		return nil, err
	}
	n := len(c.set) * 8 / chase.Line
	at := chase.Walk(c.set, 0, n)
	turns := make([]time.Duration, 0, warmPasses*partsPerPass)
	for range cap(turns) {
		start := host.ThreadCPU()
		at = chase.Walk(c.set, at, n/partsPerPass)
		turns = append(turns, host.ThreadCPU()-start)
	}
	return turns, nil
}

// pinToOne binds the thread to the last CPU of the set that is in home and allowed: the first
// CPUs handle the interrupts.
func pinToOne(cpus, home sample.Set) error {
	for _, cpu := range slices.Backward(cpus.Numbers()) {
		if !home.Has(cpu) {
			continue
		}
		var one, is unix.CPUSet
		one.Set(cpu)
		setAffinity(0, &one)
		if err := unix.SchedGetaffinity(0, &is); err == nil && is == one {
			return nil
		}
	}
	return fmt.Errorf("pin the canary: none of CPUs %s is available to the agent", cpus)
}

// Stop implements MachineSource.
func (c *Canary) Stop() error {
	if c.stop == nil {
		return ErrNotOpen
	}
	close(c.stop)
	c.last = <-c.done
	c.stop = nil
	return nil
}

// MachineReadings implements MachineSource: a reading for each cache that was visited.
func (c *Canary) MachineReadings(yield func(string, sample.Set, Reading)) {
	for _, v := range c.last {
		r := Reading{Cost: math.NaN(), Coverage: 1, Err: v.err}
		if len(v.turns) > 0 {
			r.Cost = trimmedMean(v.turns).Seconds() / float64(len(c.set)*8/chase.Line/partsPerPass)
		}
		yield(c.caches[v.cache].Name, c.caches[v.cache].CPUs, r)
	}
}

// trimmedMean sorts the turns and returns their mean without the slowest tenth, at least one:
// time that an interrupt or a hypervisor takes from the CPU is not the cache's.
func trimmedMean(turns []time.Duration) time.Duration {
	slices.Sort(turns)
	kept := turns
	if n := len(turns); n > 1 {
		kept = turns[:n-max(1, n/10)]
	}
	var sum time.Duration
	for _, t := range kept {
		sum += t
	}
	return sum / time.Duration(len(kept))
}

// Close implements MachineSource.
func (c *Canary) Close() error {
	var err error
	if c.stop != nil {
		err = c.Stop()
	}
	c.free()
	return err
}
