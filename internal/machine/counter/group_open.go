package counter

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
	"golang.org/x/sys/unix"
)

// ErrNoPerfDir says that perf cannot separate the task from the rest of the machine,
// because the task is in the root of the cgroup tree that perf uses.
var ErrNoPerfDir = errors.New("task has no cgroup of its own for perf")

// add opens the task's groups on every CPU, or none. Groups that are opened per window
// are not tried: opening them in the root has shown that it works, and closing the last
// event of a tracepoint waits for all CPUs, 40 ms and more.
func (g *groups) add(key sample.TaskKey, dir string) error {
	if g.tasks[key] != nil {
		return fmt.Errorf("add %s: already monitored", key)
	}
	if dir == "" {
		return fmt.Errorf("add %s: %w", key, ErrNoPerfDir)
	}
	if limit := fdLimit(); g.perWindow && limit > 0 && uint64(g.held()+g.need()) > limit {
		return &FDLimitError{g.need(), g.held(), limit, unix.EMFILE}
	}
	at, err := openCgroup(dir)
	if outOfFDs(err) {
		return &FDLimitError{g.need(), g.held(), fdLimit(), err}
	}
	if err != nil {
		return fmt.Errorf("add %s: %w", key, err)
	}
	defer at.close()
	t := &groupTask{key: key, dir: dir, inode: at.inode, cpus: make([]cpuGroup, len(g.cpus))}
	if g.perWindow {
		g.tasks[key] = t
		g.order = append(g.order, t)
		return nil
	}
	there := 0
	for i, cpu := range g.cpus {
		err = g.open(&t.cpus[i], at.fd, cpu)
		if err == nil {
			there++
		} else if !errors.Is(err, unix.ENODEV) {
			break
		}
	}
	if there > 0 && (err == nil || errors.Is(err, unix.ENODEV)) {
		g.tasks[key] = t
		g.order = append(g.order, t)
		return nil
	}
	g.closeTask(t)
	if outOfFDs(err) {
		return &FDLimitError{g.need(), g.held(), fdLimit(), err}
	}
	return fmt.Errorf("add %s: %w", key, g.explain("event group", at, err))
}

// addCPUs makes room for groups on CPUs that are new; reopen opens them.
func (g *groups) addCPUs(online sample.Set) {
	for _, cpu := range online.Numbers() {
		if slices.Contains(g.cpus, cpu) {
			continue
		}
		g.cpus = append(g.cpus, cpu)
		for _, t := range g.order {
			t.cpus = append(t.cpus, cpuGroup{})
		}
	}
}

// reopen opens every closed group: those that are open only in windows, those whose CPU
// was offline, and those that could not be read. A CPU that is found offline is not
// tried again for the other tasks.
func (g *groups) reopen() {
	clear(g.offline)
	closed := 0
	for _, t := range g.order {
		for i := range t.cpus {
			if !t.cpus[i].isOpen {
				closed++
			}
		}
	}
	if closed == 0 {
		return
	}
	g.tour.begin(closed)
	defer g.tour.end()
	for i, cpu := range g.cpus {
		g.tour.moveTo(cpu)
		for _, t := range g.order {
			c := &t.cpus[i]
			if c.isOpen {
				continue
			}
			if c.offline = g.offline[cpu]; !c.offline && errors.Is(g.reopenOne(t, c, cpu), unix.ENODEV) {
				g.offline[cpu] = true
			}
		}
	}
}

func (g *groups) reopenOne(t *groupTask, c *cpuGroup, cpu int) error {
	at, err := openCgroup(t.dir)
	if errors.Is(err, host.ErrGone) {
		return nil // this does not mean that its CPU is offline
	}
	if err != nil {
		return err
	}
	defer at.close()
	if at.inode != t.inode {
		return nil // another cgroup of the same name
	}
	return g.open(c, at.fd, cpu)
}

// open opens one group, or nothing.
func (g *groups) open(c *cpuGroup, cgroup, cpu int) error {
	*c = cpuGroup{}
	leader := -1
	for i, e := range g.events {
		fd, err := g.sys.open(e.attr(), cgroup, cpu, leader)
		if err != nil {
			for _, fd := range c.fds[:i] {
				g.sys.close(fd)
			}
			c.offline = errors.Is(err, unix.ENODEV)
			return fmt.Errorf("open %s on CPU %d: %w", e.name, cpu, err)
		}
		c.fds[i] = fd
		leader = c.fds[0]
	}
	c.isOpen = true
	return nil
}

func (g *groups) close(c *cpuGroup) {
	if !c.isOpen {
		return
	}
	// The leader last: without it the members would become events of their own.
	for i := len(g.events) - 1; i >= 0; i-- {
		g.sys.close(c.fds[i])
	}
	*c = cpuGroup{}
}

func (g *groups) closeTask(t *groupTask) {
	for i := range t.cpus {
		g.close(&t.cpus[i])
	}
}

func (g *groups) forget(t *groupTask) {
	g.closeTask(t)
	delete(g.tasks, t.key)
	g.order = slices.DeleteFunc(g.order, func(o *groupTask) bool { return o == t })
}

// try opens events as one group on the first CPU that is there, and closes it.
func (g *groups) try(cgroup int, events ...event) error {
	trial := groups{sys: g.sys, events: events}
	err := error(unix.ENODEV)
	for _, cpu := range g.cpus {
		var c cpuGroup
		if err = trial.open(&c, cgroup, cpu); !errors.Is(err, unix.ENODEV) {
			trial.close(&c)
			break
		}
	}
	return err
}

// check tries events as one group in a cgroup; the error is an explanation.
func (g *groups) check(what string, at cgroupDir, events ...event) error {
	if err := g.try(at.fd, events...); err != nil {
		return g.explain(what, at, err)
	}
	return nil
}

// explain returns the reason why what could not be opened in a cgroup. ENOENT is
// ambiguous: the event may not exist, the cgroup may just have been removed, or perf
// may not see this cgroup at all. Opening a software event in the same cgroup decides.
func (g *groups) explain(what string, at cgroupDir, err error) error {
	if at.fd == anyCgroup {
		return notSupported(what, err)
	}
	var st unix.Stat_t
	if unix.Stat(at.path, &st) != nil || st.Ino != at.inode {
		return fmt.Errorf("open %s: %w", at.path, host.ErrGone)
	}
	soft := g.try(at.fd, taskClock)
	if soft == nil {
		return notSupported(what, err)
	}
	var e *NotSupportedError
	if !errors.As(notSupported("perf in cgroup mode", soft), &e) {
		return notSupported(what, err)
	}
	switch {
	case errors.Is(soft, unix.ENOENT) && perfInV1(g.cgroups):
		e.Reason, e.Remedy = "perf_event_open: ENOENT, for the software event task-clock too: "+inV1, outOfV1
	case errors.Is(soft, unix.ENOENT):
		e.Reason = "perf_event_open: ENOENT for " + what + " and for the software event task-clock in " + at.path +
			": perf sees no cgroup below the root until cgroup.subtree_control of the root was written once"
		e.Remedy = "write any controller to cgroup.subtree_control of the cgroup2 root, as systemd does at boot"
	case errors.Is(soft, unix.EINVAL):
		e.Reason = "perf_event_open: EINVAL for the software event task-clock: the kernel was built without CONFIG_CGROUP_PERF"
		e.Remedy = "use a kernel with CONFIG_CGROUP_PERF"
	}
	return e
}

// perf follows the cgroups of one hierarchy, that of the controller perf_event
// (css_tryget_online_from_dir). Older distributions mount it as cgroup v1.
const (
	inV1    = "the controller perf_event is in a cgroup v1 hierarchy, so perf sees no cgroup of cgroup2"
	outOfV1 = "boot with cgroup v2 alone (systemd.unified_cgroup_hierarchy=1), or with cgroup_no_v1=perf_event and cgroup2 mounted"
)

// hierarchyOfPerf is its line in /proc/cgroups (cgroups(7)): name and number of the hierarchy, which
// is 0 for cgroup2.
var hierarchyOfPerf = regexp.MustCompile(`(?m)^perf_event\t[1-9]`)

func perfInV1(cgroups string) bool {
	text, _ := os.ReadFile(cgroups) // without it, the kernel has no v1
	return hierarchyOfPerf.Match(text)
}

// need is the number of descriptors of a task, including its directory's while it is
// added; held is the number that the tasks so far take in a window.
func (g *groups) need() int { return len(g.cpus)*len(g.events) + 1 }
func (g *groups) held() int { return len(g.order) * len(g.cpus) * len(g.events) }

// fdLimit is RLIMIT_NOFILE, 0 if it cannot be read.
func fdLimit() uint64 {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return limit.Cur
}

// cgroupDir is a cgroup's directory, open for perf_event_open.
type cgroupDir struct {
	path  string
	fd    int
	inode uint64
}

// openRoot opens the root of the cgroup tree that perf uses, "" if there is none.
func (g *groups) openRoot(cgroup2 string) (cgroupDir, error) {
	if cgroup2 != "" {
		return openCgroup(cgroup2)
	}
	e := &NotSupportedError{What: "perf in cgroup mode", Reason: "no cgroup2 file system is mounted", Remedy: "mount -t cgroup2 none /sys/fs/cgroup/unified"}
	if perfInV1(g.cgroups) {
		e.Reason, e.Remedy = e.Reason+", and "+inV1, outOfV1
	}
	return cgroupDir{}, e
}

func openCgroup(path string) (d cgroupDir, err error) {
	d.path = path
	if d.fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			err = host.ErrGone
		}
		return d, fmt.Errorf("open %s: %w", path, err)
	}
	var st unix.Stat_t
	if err = unix.Fstat(d.fd, &st); err != nil {
		d.close()
		return d, fmt.Errorf("stat %s: %w", path, err)
	}
	d.inode = st.Ino
	return d, nil
}

func (d cgroupDir) close() { unix.Close(d.fd) }
