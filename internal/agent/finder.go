package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/machine/origin"
)

// HostFinder finds tasks on a host by the rules of a configuration. A task is
// identified by its cgroup2, unless all its processes are in the cgroup2 root; then by
// its cgroup in the v1 hierarchy of the cpu controller.
type HostFinder struct {
	host      *host.Host
	config    *config.Agent
	names     Namer                     // nil: only paths name tasks
	unnamed   map[host.Place]*candidate // those of known whose names are still looked for
	watcher   *host.Watcher
	unwatched error     // why watcher is nil
	tried     time.Time // when that was found out
	unread    host.Unread
	own       map[sample.Hierarchy]string
	walked    time.Time // when all were walked
	known     map[host.Place]*candidate
	undecided map[host.Place]*candidate // the undecided ones of known
	users     map[userSlice]int         // how many of known are in each
}

// mostOfUser bounds the tasks in the slice of one user, who makes cgroups there as they like, also without
// processes: each task takes time in each window, seats of sources, and memory. Those that were there first are tasks.
const mostOfUser = 1000

var errOfUser = fmt.Errorf("its user has more than %d that would be tasks: what runs there is outside any task", mostOfUser)

// userSlice is a user's slice in a hierarchy.
type userSlice struct {
	hier sample.Hierarchy
	uid  int // not above 0: none's, or root's
}

// userOf is the uid of a path's userSlice.
func userOf(path string) int { return origin.Parse(path).UID }

// candidate is a cgroup that matches a rule and may be a task.
type candidate struct {
	Found
	decision
	asked time.Time // while undecided: time of the last check, and the pause until the next
	pause time.Duration

	found   time.Time // when it was found
	ask     bool      // what it is depends on more than its path
	named   bool      // that is known, or was not told in time
	claimed bool      // its name is one that it gives itself
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
// cgroup is checked again after askFirst, then at increasing intervals up to askMost. If the
// kernel does not report changes, for lack of watches as a rule, that may be over after watchAgain.
const (
	walkWatched   = 10 * time.Minute
	walkUnwatched = 5 * time.Second
	watchAgain    = time.Hour
	askFirst      = time.Second
	askMost       = 10 * time.Second
)

// nameWait is how long a new cgroup is no task because its name is still looked for. Then its path
// names it; if the name becomes known later, it is a new task under that name.
const nameWait = 2 * time.Second

// NewHostFinder starts to watch the host's cgroups. Close ends that. names may be nil.
func NewHostFinder(h *host.Host, c *config.Agent, names Namer) *HostFinder {
	f := &HostFinder{host: h, config: c, names: names, unnamed: map[host.Place]*candidate{}, own: map[sample.Hierarchy]string{},
		known: map[host.Place]*candidate{}, users: map[userSlice]int{}, tried: time.Now()}
	f.watcher, f.unwatched = h.Watch(c.Deeper, userOf)
	f.findOwn()
	return f
}

// Unwatched implements Finder.
func (f *HostFinder) Unwatched() error { return f.unwatched }

// Unread implements Finder. They are counted anew when all are walked.
func (f *HostFinder) Unread() host.Unread { return f.unread }

// Unnamed implements Finder.
func (f *HostFinder) Unnamed() error {
	if f.names == nil {
		return nil
	}
	return f.names.Err()
}

// Wait implements Finder. No change is reported while names are looked for: they come soon.
func (f *HostFinder) Wait() func() error {
	if f.watcher == nil || len(f.unnamed) > 0 {
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
		hier := sample.Unified
		switch controller {
		case "":
		case "cpu":
			hier = sample.V1CPU
		default:
			continue
		}
		if own == "/" && f.host.Above(hier) {
			own = f.searchOwn(hier)
		}
		if own != "/" && own != "" {
			f.own[hier] = own
		}
	}
}

// searchOwn finds the agent's cgroup by its process, once: in a container with a cgroup namespace of
// its own and a mount of the machine's cgroups, /proc does not tell the path.
func (f *HostFinder) searchOwn(hier sample.Hierarchy) (own string) {
	_, _ = f.host.WalkAt(host.Place{Hierarchy: hier, Path: "/"}, func(path string, _ uint64) error {
		if f.host.Holds(host.Place{Hierarchy: hier, Path: path}, os.Getpid()) {
			own = path
			return fs.SkipAll
		}
		return nil
	})
	return own
}

// Prime finds the tasks before the first Find, and waits for their names for up to nameWait, so that
// tasks that exist when the agent starts are in its first window.
func (f *HostFinder) Prime(ctx context.Context) error {
	now := time.Now()
	if err := f.walkAll(now); err != nil {
		return err
	}
	f.walked = time.Time{} // the first Find walks again
	for until := now.Add(nameWait); len(f.unnamed) > 0 && time.Now().Before(until); f.rename(time.Now()) {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// Survey finds the tasks of a host once, with their names and classes, as an agent with the
// configuration does when it starts.
func Survey(ctx context.Context, h *host.Host, c *config.Agent) (_ []Found, err error) {
	names := origin.New(h, c.Names.Sources())
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { names.Run(ctx) })
	defer running.Wait()
	defer cancel()
	f := NewHostFinder(h, c, names)
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Prime(ctx); err != nil {
		return nil, err
	}
	found, _, err := f.Find(time.Now())
	return found, err
}

// Find implements Finder.
func (f *HostFinder) Find(now time.Time) ([]Found, bool, error) {
	var changes host.Changes
	every := walkUnwatched
	if f.watcher == nil && now.Sub(f.tried) >= watchAgain {
		f.watcher, f.unwatched = f.host.Watch(f.config.Deeper, userOf)
		f.tried, f.walked = now, time.Time{} // what has changed until now is not reported
	}
	if f.watcher != nil {
		seen, err := f.watcher.Changes()
		if changes = *seen; err != nil {
			// Usually there are more cgroups than the user's inotify watches.
			f.unwatched = errors.Join(err, f.watcher.Close())
			f.watcher, f.tried, changes.Lost = nil, now, true
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
	if f.rename(now) {
		fresh = true
	}
	if !fresh {
		return nil, false, nil
	}
	return f.tasks(), true, nil
}

// tasks lists the tasks found, parents first.
func (f *HostFinder) tasks() []Found {
	var all []*candidate
	for _, c := range f.known {
		if c.decision == isTask && c.named && c.Rule != nil {
			all = append(all, c)
		}
	}
	// Of several with the same name, the first has it: not one that gave itself the name.
	slices.SortFunc(all, func(x, y *candidate) int {
		return cmp.Or(boolean(x.claimed)-boolean(y.claimed), x.found.Compare(y.found), cmp.Compare(x.Hierarchy, y.Hierarchy), cmp.Compare(x.Path, y.Path))
	})
	var found []Found
	taken := map[sample.TaskName]bool{}
	for _, c := range all {
		t := c.Found
		if taken[t.Name] {
			t.Name = ""
		}
		taken[t.Name] = t.Name != ""
		found = append(found, t)
	}
	slices.SortFunc(found, func(x, y Found) int {
		return cmp.Or(cmp.Compare(x.Hierarchy, y.Hierarchy), cmp.Compare(x.Path, y.Path))
	})
	return found
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// name asks for what is known of a candidate and reports whether that changes what it is. It waits
// no longer than nameWait for its name.
func (f *HostFinder) name(now time.Time, at host.Place, c *candidate) bool {
	was, before, labels := c.named, c.Verdict, c.Labels()
	if !c.ask || f.names == nil {
		c.Verdict, c.named = f.config.Classify(c.Path, nil), true
		return !was
	}
	facts, settled := f.names.Facts(at, c.Inode)
	if c.named = c.named || settled || now.Sub(c.found) >= nameWait; !c.named {
		f.unnamed[at] = c
		return false
	}
	delete(f.unnamed, at)
	v := f.config.Classify(c.Path, &facts)
	if v.Rule == nil && c.Rule != nil && (!v.Dismissed || c.Rule.Command != "") { // a capped task must not escape by another command
		v = c.Verdict
	}
	c.Verdict, c.Facts, c.claimed = v, &facts, facts.Claimed
	return !was || c.Verdict != before || !maps.Equal(labels, facts.Labels)
}

// rename asks again for the names that are still looked for and, if any has changed, for all.
func (f *HostFinder) rename(now time.Time) (changed bool) {
	if f.names == nil {
		return false
	}
	ask := f.unnamed
	if f.names.Changed() {
		ask = f.known
	}
	for at, c := range ask {
		changed = c.ask && f.name(now, at, c) || changed
	}
	return changed
}

// forget drops what is known of candidates that are gone.
func (f *HostFinder) forget(old map[host.Place]*candidate) {
	for at, c := range old {
		now := f.known[at]
		if now == c {
			continue
		}
		if now == nil {
			f.users[userSlice{at.Hierarchy, userOf(at.Path)}]--
		}
		if f.unnamed[at] == c {
			delete(f.unnamed, at)
		}
		if c.ask && f.names != nil {
			f.names.Forget(at, c.Inode)
		}
	}
}

// walkAll examines all cgroups.
func (f *HostFinder) walkAll(now time.Time) error {
	old := f.known
	f.unread = host.Unread{}
	f.walked, f.known, f.undecided = now, map[host.Place]*candidate{}, map[host.Place]*candidate{}
	_, err := f.walk(now, host.Place{Hierarchy: sample.Unified, Path: "/"}, old)
	if err == nil {
		_, err = f.walk(now, host.Place{Hierarchy: sample.V1CPU, Path: "/"}, old)
	}
	f.forget(old)
	return err
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
	f.forget(old)
	return changed || more, err
}

// walk examines the cgroups from a path down, and reports whether one is a task. A
// candidate that was decided before is not decided again. One that is replaced is in old then. The
// places of users' that are gone are free after forget.
func (f *HostFinder) walk(now time.Time, from host.Place, old map[host.Place]*candidate) (tasks bool, err error) {
	var over host.Unread
	unread, err := f.host.WalkAt(from, func(p string, inode uint64) error {
		if p == "/" {
			return nil
		}
		var below error
		if !f.config.Deeper(p) {
			below = fs.SkipDir
		}
		o := origin.Parse(p)
		may, ask := f.config.MayBeTask(p, o.Known())
		if !may || o.Helper {
			return below
		}
		at, user := host.Place{Hierarchy: from.Hierarchy, Path: p}, userSlice{from.Hierarchy, o.UID}
		c := cmp.Or(old[at], f.known[at])
		switch {
		case c != nil && c.Inode != inode:
			old[at] = c
		case c == nil && o.UID > 0 && f.users[user] >= mostOfUser:
			over.Add(host.Unread{N: 1, First: p, Err: errOfUser})
			return below
		case c == nil:
			f.users[user]++
		}
		if c == nil || c.Inode != inode {
			own := f.own[at.Hierarchy]
			c = &candidate{Found: Found{Hierarchy: at.Hierarchy, Path: p, Inode: inode, Own: own == p || strings.HasPrefix(own, p+"/")},
				found: now, ask: ask}
		}
		f.known[at] = c
		if !c.named {
			f.name(now, at, c)
		}
		if c.decision == undecided {
			f.ask(now, at, c)
		}
		tasks = tasks || c.decision == isTask
		return below
	})
	if errors.Is(err, host.ErrNoHierarchy) {
		return false, nil
	}
	if err != nil {
		for at, c := range old { // what it did not come to is known as before
			f.known[at] = cmp.Or(f.known[at], c)
		}
		return false, err
	}
	unread.Add(over)
	if f.unread.N == 0 || from.Path == "/" { // else it may be one that is counted
		f.unread.Add(unread)
	}
	return tasks, nil
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
	case err == nil && places.Unified == "" && tooMany(cg): // it must not hide by that
		return isTask
	case err != nil || places.Unified == "": // no processes, or processes in several cgroups2
		return undecided
	case path.Clean(places.Unified) == "/":
		return isTask
	}
	return isNone
}

// tooMany reports whether a cgroup has so many below it that its processes are not known.
func tooMany(cg *host.Cgroup) bool {
	_, err := cg.Members()
	return errors.Is(err, host.ErrCrowded)
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
