package observe

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/machine/host"
)

// processes is a snapshot of all processes, taken at the beginning of the steady window,
// to name those that used CPU time in it.
type processes struct {
	at  time.Time
	all map[processKey]process
}

type processKey struct {
	pid   int
	began uint64 // in ticks since boot
}

type process struct {
	name string
	used time.Duration
}

func listProcesses(h *host.Host) processes {
	p := processes{at: time.Now(), all: map[processKey]process{}}
	entries, err := os.ReadDir(h.Path("/proc"))
	if err != nil {
		return p
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if s, err := host.ReadProcessStat(h.Path("/proc/" + e.Name() + "/stat")); err == nil {
			p.all[processKey{pid, s.Start}] = process{s.Name, s.Used}
		}
	}
	return p
}

// busiestForeign names the processes outside the parts that used the most CPU time since the
// snapshot and may run on the parts' CPUs; "" if there are none. This process is one where its
// time counts. It does not see processes that ended in between, nor on which CPUs the time was
// used.
func (p processes) busiestForeign(o *Observer) string {
	if p.at.IsZero() {
		return ""
	}
	var names []string
	for _, u := range p.since(o.opt.Host, 0.01) {
		if len(names) == 3 {
			break
		}
		if !o.owns(u.pid) && o.reaches(u.pid) && (u.pid != os.Getpid() || !o.confined) {
			names = append(names, fmt.Sprintf("%s (pid %d) %.2f CPUs", u.name, u.pid, u.rate))
		}
	}
	return strings.Join(names, ", ")
}

// owns reports whether a process belongs to a part.
func (o *Observer) owns(pid int) bool {
	paths := pathsOf(o.opt.Host, strconv.Itoa(pid))
	for _, p := range o.parts {
		if p.holds(pid, paths) {
			return true
		}
	}
	return false
}

// reaches reports whether a process's first thread may run on the parts' CPUs.
func (o *Observer) reaches(pid int) bool {
	set, err := host.Affinity(pid)
	return err == nil && set.Intersects(o.cpus)
}

// processUsage is a process that used CPU time, with its rate.
type processUsage struct {
	pid  int
	name string
	rate float64 // CPUs
}

// since lists the processes that used at least the given number of CPUs since the snapshot,
// the busiest first.
func (p processes) since(h *host.Host, least float64) []processUsage {
	var all []processUsage
	now := listProcesses(h)
	span := now.at.Sub(p.at).Seconds()
	for key, one := range now.all {
		if rate := (one.used - p.all[key].used).Seconds() / span; rate >= least {
			all = append(all, processUsage{key.pid, one.name, rate})
		}
	}
	slices.SortFunc(all, func(a, b processUsage) int { return cmp.Or(cmp.Compare(b.rate, a.rate), cmp.Compare(a.pid, b.pid)) })
	return all
}
