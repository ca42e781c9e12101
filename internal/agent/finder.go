package agent

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

// HostFinder finds tasks on a host by the rules of a configuration. A task is
// identified by its cgroup2, unless all its processes are in the cgroup2 root; then by
// its cgroup in the v1 hierarchy of the cpu controller.
type HostFinder struct {
	host      *host.Host
	config    *config.Agent
	watcher   *host.Watcher
	unwatched error // why watcher is nil
	unread    host.Unread
	own       map[sample.Hierarchy]string
	walked    time.Time // when all were walked
	known     map[host.Place]*candidate
	undecided map[host.Place]*candidate // the undecided ones of known
}

// candidate is a cgroup that matches a rule and may be a task.
type candidate struct {
	Found
	decision
	asked time.Time // while undecided: time of the last check, and the pause until the next
	pause time.Duration
}

// decision is whether a cgroup identifies its processes. A v1 cgroup does not if its
// processes have a cgroup2 of their own. While it has no processes, that is not known.
type decision uint8

const (
	undecided decision = iota
	isTask
	isNone
)

// Walking takes in the order of 10 µs per cgroup. If the kernel reports changes, only
// changed cgroups are examined; a periodic walk of all finds missed changes. An undecided
// cgroup is checked again after askFirst, then at increasing intervals up to askMost.
const (
	walkWatched   = 10 * time.Minute
	walkUnwatched = 5 * time.Second
	askFirst      = time.Second
	askMost       = 10 * time.Second
)

// NewHostFinder starts to watch the host's cgroups. Close ends that.
func NewHostFinder(h *host.Host, c *config.Agent) *HostFinder {
	f := &HostFinder{host: h, config: c, own: map[sample.Hierarchy]string{}}
	f.watcher, f.unwatched = h.Watch(c.Deeper)
	f.findOwn()
	return f
}

// Unwatched implements Finder.
func (f *HostFinder) Unwatched() error { return f.unwatched }

// Unread implements Finder. They are counted anew when all are walked.
func (f *HostFinder) Unread() host.Unread { return f.unread }

// Wait implements Finder.
func (f *HostFinder) Wait() func() error {
	if f.watcher == nil {
		return nil
	}
	return f.watcher.Wait
}

// Close stops watching.
func (f *HostFinder) Close() error {
	if f.watcher == nil {
		return nil
	}
	return f.watcher.Close()
}

// findOwn records the cgroups that the agent itself runs in.
func (f *HostFinder) findOwn() {
	text, err := os.ReadFile(f.host.Path("/proc/self/cgroup"))
	if err != nil {
		return
	}
	for controller, own := range host.ProcCgroups(text) {
		switch {
		case own == "/":
		case controller == "":
			f.own[sample.Unified] = own
		case controller == "cpu":
			f.own[sample.V1CPU] = own
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
			// Usually there are more cgroups than the user's inotify watches.
			f.unwatched = errors.Join(err, f.watcher.Close())
			f.watcher, changes.Lost = nil, true
		} else {
			every = walkWatched
		}
	}
	fresh := false
	if changes.Lost || f.walked.IsZero() || now.Sub(f.walked) >= every {
		if err := f.walkAll(now); err != nil {
			f.walked = time.Time{} // the changes that the watcher reported have not been examined
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

// tasks lists the tasks found, parents first.
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

// walkAll examines all cgroups.
func (f *HostFinder) walkAll(now time.Time) error {
	old := f.known
	f.unread = host.Unread{}
	f.walked, f.known, f.undecided = now, map[host.Place]*candidate{}, map[host.Place]*candidate{}
	for _, hier := range []sample.Hierarchy{sample.Unified, sample.V1CPU} {
		_, err := f.walk(now, host.Place{Hierarchy: hier, Path: "/"}, old)
		if err != nil && !errors.Is(err, host.ErrNoHierarchy) {
			return err
		}
	}
	return nil
}

// walkAt examines a path where a cgroup was made or removed, and reports whether that
// changes the tasks. A removed cgroup has no tasks below it.
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

// walk examines the cgroups from a path down, and reports whether one is a task. A
// candidate that was decided before is not decided again.
func (f *HostFinder) walk(now time.Time, from host.Place, old map[host.Place]*candidate) (tasks bool, err error) {
	unread, err := f.host.WalkAt(from, func(p string, inode uint64) error {
		if p == "/" {
			return nil
		}
		var below error
		if !f.config.Deeper(p) {
			below = fs.SkipDir
		}
		rule, job := f.config.Classify(p)
		if rule == nil {
			return below
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
		return below
	})
	if f.unread.N == 0 || from.Path == "/" { // else it may be one that is counted
		f.unread.Add(unread)
	}
	return tasks, err
}

// ask decides on a candidate if that is possible now, and reports whether it is a task.
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
		return undecided // usually the cgroup is gone
	}
	defer cg.Close()
	places, err := cg.Places()
	switch {
	case err != nil || places.Unified == "": // no processes, or processes in several cgroups2
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
