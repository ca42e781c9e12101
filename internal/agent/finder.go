package agent

import (
	"errors"
	"fmt"
	"os"
	"path"
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
	walked    time.Time
	// undecided is set while a v1 cgroup that matches has no processes yet.
	undecided bool
	// home says of v1 cgroups, by inode, whether their processes have their
	// identity there: not if they have a cgroup2 of their own.
	home map[uint64]bool
}

// Walking takes in the order of 10 µs a cgroup, so it is done when the kernel
// tells of a change, and now and then in case it did not.
const (
	walkWatched   = time.Minute
	walkUnwatched = 5 * time.Second
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
	every, changed := walkUnwatched, false
	if f.watcher != nil {
		var err error
		if changed, err = f.watcher.Changed(); err != nil {
			// Too many cgroups for the user's watches, as a rule.
			f.unwatched = errors.Join(err, f.watcher.Close())
			f.watcher, changed = nil, true
		} else {
			every = walkWatched
		}
	}
	if !changed && !f.undecided && !f.walked.IsZero() && now.Sub(f.walked) < every {
		return nil, false, nil
	}
	f.walked, f.undecided = now, false
	var found []Found
	home := map[uint64]bool{}
	for _, hier := range []sample.Hierarchy{sample.Unified, sample.V1CPU} {
		err := f.host.Walk(hier, func(p string, inode uint64) error {
			if p == "/" {
				return nil
			}
			rule, job := f.config.Classify(p)
			if rule == nil || hier == sample.V1CPU && !f.here(p, inode, home) {
				return nil
			}
			own := f.own[hier]
			found = append(found, Found{Hierarchy: hier, Path: p, Inode: inode, Rule: rule, Job: job,
				Own: own == p || strings.HasPrefix(own, p+"/")})
			return nil
		})
		if err != nil && !errors.Is(err, host.ErrNoHierarchy) {
			f.walked = time.Time{} // what the watcher told of has not been seen
			return nil, false, err
		}
	}
	f.home = home // without those that are gone
	return found, true, nil
}

// here reports whether a v1 cgroup's processes have their identity in it, and
// files it in home once it is known: a task is not looked at again.
func (f *HostFinder) here(p string, inode uint64, home map[uint64]bool) bool {
	if f.host.Layout().Unified == "" {
		return true
	}
	if yes, known := f.home[inode]; known {
		home[inode] = yes
		return yes
	}
	cg, err := f.host.OpenCgroup(sample.V1CPU, p)
	if err != nil {
		return false
	}
	defer cg.Close()
	places, err := cg.Places()
	if err == nil && places.Unified == "" {
		// With processes they are in several cgroups2; the next walk asks again.
		pids, err := cg.Members()
		f.undecided = f.undecided || err == nil && len(pids) == 0
		return false
	}
	if err != nil {
		return false
	}
	home[inode] = path.Clean(places.Unified) == "/"
	return home[inode]
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
