package agent

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/config"
	"github.com/quell-dev/quell/internal/host"
	"github.com/quell-dev/quell/internal/sample"
)

// HostFinder finds tasks on a host by the rules of a configuration. A task has
// its identity in cgroup2 unless its processes are all in the root there; then
// in the v1 hierarchy of the cpu controller.
type HostFinder struct {
	host      *host.Host
	config    *config.Agent
	watcher   *host.Watcher
	unwatched error // why watcher is nil
	own       map[sample.Hierarchy]string
	walked    time.Time // all
	known     map[host.Place]*candidate
	undecided map[host.Place]*candidate // those of known that are
}

// candidate is a cgroup that a rule makes a task, if it is one.
type candidate struct {
	Found
	decision
	asked time.Time // while undecided: when, and how long until it is again
	pause time.Duration
}

// decision is whether a cgroup's processes have their identity there. Those of a
// v1 cgroup do not if they have a cgroup2 of their own, and while it has none
// nobody knows.
type decision uint8

const (
	undecided decision = iota
	isTask
	isNone
)

// Walking takes in the order of 10 µs a cgroup. Where the kernel tells of
// changes only what has changed is looked at, and all now and then in case
// something was missed. A cgroup that is undecided is asked again, at first
// after askFirst and then ever more rarely.
const (
	walkWatched   = 10 * time.Minute
	walkUnwatched = 5 * time.Second
	askFirst      = time.Second
	askMost       = 10 * time.Second
)

// NewHostFinder starts to watch the host's cgroups. Close ends it.
func NewHostFinder(h *host.Host, c *config.Agent) *HostFinder {
	f := &HostFinder{host: h, config: c, own: map[sample.Hierarchy]string{}}
	f.watcher, f.unwatched = h.Watch()
	f.findOwn()
	return f
}

// Unwatched implements Finder.
func (f *HostFinder) Unwatched() error { return f.unwatched }

// Wait implements Finder.
func (f *HostFinder) Wait() func() error {
	if f.watcher == nil {
		return nil
	}
	return f.watcher.Wait
}

// Close ends watching.
func (f *HostFinder) Close() error {
	if f.watcher == nil {
		return nil
	}
	return f.watcher.Close()
}

// findOwn remembers the cgroups that the agent itself runs in.
func (f *HostFinder) findOwn() {
	text, err := os.ReadFile(f.host.Path("/proc/self/cgroup"))
	if err != nil {
		return
	}
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 || parts[2] == "/" {
			continue
		}
		switch {
		case parts[0] == "0":
			f.own[sample.Unified] = parts[2]
		case strings.Contains(","+parts[1]+",", ",cpu,"):
			f.own[sample.V1CPU] = parts[2]
		}
	}
}

// Find implements Finder.
func (f *HostFinder) Find(now time.Time) ([]Found, bool, error) {
	var changes host.Changes
	every := walkUnwatched
	if f.watcher != nil {
		seen, err := f.watcher.Changes()
		if changes = *seen; err != nil {
			// Too many cgroups for the user's watches, as a rule.
			f.unwatched = errors.Join(err, f.watcher.Close())
			f.watcher, changes.Lost = nil, true
		} else {
			every = walkWatched
		}
	}
	fresh := false
	if changes.Lost || f.walked.IsZero() || now.Sub(f.walked) >= every {
		if err := f.walkAll(now); err != nil {
			f.walked = time.Time{} // what the watcher told of has not been seen
			return nil, false, err
		}
		fresh = true
	} else {
		for _, at := range changes.Places {
			changed, err := f.walkAt(now, at)
			if err != nil {
				f.walked = time.Time{}
				return nil, false, err
			}
			fresh = fresh || changed
		}
	}
	for at, c := range f.undecided {
		if now.Sub(c.asked) >= c.pause {
			fresh = f.ask(now, at, c) || fresh
		}
	}
	if !fresh {
		return nil, false, nil
	}
	return f.tasks(), true, nil
}

// tasks lists those found, parents first.
func (f *HostFinder) tasks() []Found {
	var found []Found
	for _, c := range f.known {
		if c.decision == isTask {
			found = append(found, c.Found)
		}
	}
	slices.SortFunc(found, func(x, y Found) int {
		return cmp.Or(cmp.Compare(x.Hierarchy, y.Hierarchy), cmp.Compare(x.Path, y.Path))
	})
	return found
}

// walkAll looks at all cgroups.
func (f *HostFinder) walkAll(now time.Time) error {
	old := f.known
	f.walked, f.known, f.undecided = now, map[host.Place]*candidate{}, map[host.Place]*candidate{}
	for _, hier := range []sample.Hierarchy{sample.Unified, sample.V1CPU} {
		_, err := f.walk(now, host.Place{Hierarchy: hier, Path: "/"}, old)
		if err != nil && !errors.Is(err, host.ErrNoHierarchy) {
			return err
		}
	}
	return nil
}

// walkAt looks at a place where a cgroup was made or removed, and reports
// whether that changes the tasks. A removed cgroup has none below it.
func (f *HostFinder) walkAt(now time.Time, at host.Place) (changed bool, err error) {
	old := map[host.Place]*candidate{}
	if c := f.known[at]; c != nil {
		old[at], changed = c, c.decision == isTask
		delete(f.known, at)
		delete(f.undecided, at)
	}
	more, err := f.walk(now, at, old)
	return changed || more, err
}

// walk looks at the cgroups from a place on, and reports whether one is a task.
// What was known of them before is not asked again.
func (f *HostFinder) walk(now time.Time, from host.Place, old map[host.Place]*candidate) (tasks bool, err error) {
	err = f.host.WalkAt(from, func(p string, inode uint64) error {
		if p == "/" {
			return nil
		}
		rule, job := f.config.Classify(p)
		if rule == nil {
			return nil
		}
		at := host.Place{Hierarchy: from.Hierarchy, Path: p}
		c := old[at]
		if c == nil || c.Inode != inode {
			own := f.own[at.Hierarchy]
			c = &candidate{Found: Found{Hierarchy: at.Hierarchy, Path: p, Inode: inode, Rule: rule, Job: job,
				Own: own == p || strings.HasPrefix(own, p+"/")}}
		}
		f.known[at] = c
		if c.decision == undecided {
			f.ask(now, at, c)
		}
		tasks = tasks || c.decision == isTask
		return nil
	})
	return tasks, err
}

// ask decides on a candidate if that can be done now, and reports whether it is
// a task.
func (f *HostFinder) ask(now time.Time, at host.Place, c *candidate) bool {
	c.decision = f.decide(at)
	if c.decision == undecided {
		c.asked, c.pause = now, min(askMost, max(askFirst, 2*c.pause))
		f.undecided[at] = c
	} else {
		delete(f.undecided, at)
	}
	return c.decision == isTask
}

func (f *HostFinder) decide(at host.Place) decision {
	if at.Hierarchy != sample.V1CPU || f.host.Layout().Unified == "" {
		return isTask
	}
	cg, err := f.host.OpenCgroup(at.Hierarchy, at.Path)
	if err != nil {
		return undecided // gone, as a rule
	}
	defer cg.Close()
	places, err := cg.Places()
	switch {
	case err != nil || places.Unified == "": // none, or in several cgroups2
		return undecided
	case path.Clean(places.Unified) == "/":
		return isTask
	}
	return isNone
}

// Open implements Finder.
func (f *HostFinder) Open(t Found) (Cgroup, error) {
	cg, err := f.host.OpenCgroup(t.Hierarchy, t.Path)
	if err != nil {
		return nil, err
	}
	if cg.Inode() != t.Inode {
		cg.Close()
		return nil, fmt.Errorf("open %s: %w", t.Path, host.ErrGone)
	}
	return cg, nil
}
