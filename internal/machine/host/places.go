package host

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Places gives the cgroups of a cgroup's processes in every hierarchy that quell
// uses: paths below the mounts, "/" at the top, "" if the hierarchy is not
// mounted or the place is not known yet because the cgroup has no processes.
type Places struct {
	CPU, CPUAcct, Unified string
	// Split: the processes are not in one cgroup of the cpu controller's hierarchy (for a v1
	// task, also of cpuacct's), or share it with others. A limit on it would not limit this
	// task, or not this task alone. The place is "" then and Reason names the processes.
	Split  bool
	Reason string
}

// member is where one process is: its path below each mount, by tree name.
type member struct {
	pid   int
	paths map[string]string
}

// Places finds the cgroup's places from /proc/PID/cgroup of its members. It
// must be called again as members come and go; with none it returns the
// previous result. Usage and PSI use the last result. If there is only one
// hierarchy, every place is the cgroup's own path and nothing is read.
//
// A member deeper in the task (a container's own cgroups) counts if its path in
// the other hierarchy has the same end. If the members are still not in one
// cgroup, their nearest common one counts as long as no other process is in it:
// libvirt on v1 puts a guest's vCPU threads in cgroups of their own.
//
// Of a task with more than mostPlaced processes or threads, that many processes are looked at. It is split then if
// their cgroup has fewer threads than the task.
func (c *Cgroup) Places() (Places, error) {
	p, err := c.findPlaces(mostPlaced)
	if err != nil {
		return Places{}, fmt.Errorf("find places of %s: %w", c.path, err)
	}
	if c.hier == sample.V1CPU && p.Unified != c.places.Unified {
		_ = c.dropPressure() // was opened at the former place
	}
	if p != c.places && c.followed {
		c.places, c.followed = p, false
		c.follow()
	}
	c.places = p
	if c.closeAfterRead {
		return p, nil
	}
	return p, c.openStats()
}

func (c *Cgroup) findPlaces(most int) (Places, error) {
	p := c.places
	p.Split, p.Reason = false, ""
	// The hierarchies to search: those other than its own.
	other := make(map[string]tree)
	for _, name := range [...]string{"cpu", "cpuacct", ""} {
		t, ok := c.h.trees[name]
		switch {
		case ok && t.dir == c.tree.dir:
			p.set(name, c.path)
		case ok:
			other[name] = t
		case name != "" && c.hier == sample.Unified:
			p.set(name, c.path)
		}
	}
	if len(other) == 0 {
		return p, nil
	}
	pids, err := c.Members()
	if errors.Is(err, ErrCrowded) { // the places in other hierarchies stay unknown
		if c.hier == sample.Unified {
			p.CPU, p.Split, p.Reason = "", true, err.Error()
		}
		return p, nil
	}
	if err != nil {
		return p, err
	}
	members := c.members(pids, most)
	if len(members) == 0 {
		p.Split, p.Reason = c.places.Split, c.places.Reason
		return p, nil
	}
	for _, name := range slices.Sorted(maps.Keys(other)) {
		place, reason := c.commonPlace(name, members)
		// Only a cgroup that is capped or counted must belong to the task alone.
		if name == "cpu" || name == "cpuacct" && c.hier == sample.V1CPU {
			if reason == "" && place != "/" {
				place, reason = c.exclusivePlace(name, place, pids, members, most)
			}
			if reason != "" && !p.Split {
				p.Split, p.Reason = true, reason
			}
			if reason != "" {
				place = ""
			}
		}
		p.set(name, place)
	}
	// If cpuacct is in cgroup2, a v1 task's place is the one there.
	if _, ok := c.h.trees["cpuacct"]; !ok && c.hier == sample.V1CPU {
		p.CPUAcct = p.Unified
	}
	return p, nil
}

func (p *Places) set(tree, place string) {
	switch tree {
	case "cpu":
		p.CPU = place
	case "cpuacct":
		p.CPUAcct = place
	case "":
		p.Unified = place
	}
}

// members are those of the first processes that are in this cgroup.
func (c *Cgroup) members(pids []int, most int) (all []member) {
	for _, pid := range pids[:min(len(pids), most)] {
		if m, ok := c.where(pid, "cgroup"); ok {
			all = append(all, m)
		}
	}
	return all
}

// where reads a process's cgroup file (or "task/TID/cgroup"); ok is false if
// it has ended or is no longer in this cgroup.
func (c *Cgroup) where(pid int, file string) (m member, ok bool) {
	text, err := os.ReadFile(c.h.Path("/proc/" + strconv.Itoa(pid) + "/" + file))
	if err != nil {
		return m, false
	}
	m = member{pid: pid, paths: c.h.parseProcCgroup(text)}
	_, ok = c.inside(m)
	return m, ok
}

// inside returns the end of the member's path that is below this cgroup.
func (c *Cgroup) inside(m member) (rest string, ok bool) {
	own, ok := m.paths[c.h.treeName(c.tree)]
	if !ok {
		return "", false
	}
	return below(own, c.path)
}

// below cuts dir from the front of p: "" if they are the same.
func below(p, dir string) (rest string, ok bool) {
	if dir == "/" {
		return strings.TrimSuffix(p, "/"), true
	}
	rest, ok = strings.CutPrefix(p, dir)
	return rest, ok && (rest == "" || rest[0] == '/')
}

// treeName is a name under which t can be found in a member's paths.
func (h *Host) treeName(t tree) string {
	for name, u := range h.trees {
		if u.dir == t.dir {
			return name
		}
	}
	return ""
}

// commonPlace returns the nearest cgroup that holds all members in a tree, or the
// reason why only the top holds them although some are not at the top.
func (c *Cgroup) commonPlace(name string, members []member) (place, reason string) {
	first := -1
	for i, m := range members {
		q, ok := m.paths[name]
		if !ok {
			continue // outside the mount that is seen here
		}
		if rest, _ := c.inside(m); rest != "" && strings.HasSuffix(q, rest) {
			q = "/" + strings.Trim(strings.TrimSuffix(q, rest), "/")
		}
		switch {
		case first < 0:
			first, place = i, q
		case q == place:
		case q == "/" && c.h.exiting(m.pid):
			// v1 shows an exiting task at the top (proc_cgroup_show).
		case place == "/" && c.h.exiting(members[first].pid):
			first, place = i, q
		default:
			shared := ancestor(place, q)
			if shared == "/" {
				return "", fmt.Sprintf("process %d is in %s of %s, process %d in %s",
					members[first].pid, place, title(name), m.pid, q)
			}
			place = shared
		}
	}
	return place, ""
}

// title returns the name of a tree for messages.
func title(name string) string {
	if name == "" {
		return "cgroup2"
	}
	return name
}

// ancestor returns the nearest common ancestor of two paths.
func ancestor(a, b string) string {
	for a != "/" {
		if _, ok := below(b, a); ok {
			return a
		}
		a = path.Dir(a)
	}
	return "/"
}

// exiting reports whether a process is exiting (PF_EXITING) or gone.
func (h *Host) exiting(pid int) bool {
	const flagExiting = 0x4
	s, err := ReadProcessStat(h.Path("/proc/" + strconv.Itoa(pid) + "/stat"))
	return vanished(err) || s.Flags&flagExiting != 0
}

// exclusivePlace checks that a place in another tree holds all threads of the task and
// no process of others. Threads that are elsewhere move the place up to the
// nearest cgroup that holds them too.
func (c *Cgroup) exclusivePlace(name, place string, pids []int, members []member, most int) (string, string) {
	mount := c.h.trees[name].dir
	own, err := c.Threads()
	if err != nil {
		return "", err.Error()
	}
	there, err := c.h.processes(mount, place, 0, "tasks")
	// Threads may start and end meanwhile: as many there as there are may still be others.
	after, failed := c.Threads()
	switch crowded := max(len(pids), own, after) > most; {
	case err != nil:
	case crowded && (failed != nil || len(there) < min(own, after)):
		return "", fmt.Sprintf("some of its processes are not in %s of %s, and it has too many to find them", place, title(name))
	case !crowded && (failed != nil || len(there) < max(own, after)):
		var threads []member
		for _, m := range members {
			entries, _ := os.ReadDir(c.h.Path("/proc/" + strconv.Itoa(m.pid) + "/task"))
			for _, e := range entries {
				if t, ok := c.where(m.pid, "task/"+e.Name()+"/cgroup"); ok {
					threads = append(threads, t)
				}
			}
		}
		if len(threads) > 0 {
			var reason string
			if place, reason = c.commonPlace(name, threads); reason != "" || place == "/" {
				return place, reason
			}
		}
	}
	there, err = c.h.processes(mount, place, 0, "cgroup.procs")
	if err != nil && !errors.Is(err, ErrGone) {
		return "", err.Error()
	}
	for _, pid := range there {
		if _, mine := slices.BinarySearch(pids, pid); mine {
			continue
		}
		text, err := os.ReadFile(c.h.Path("/proc/" + strconv.Itoa(pid) + "/cgroup"))
		if err != nil {
			continue
		}
		m := member{pid: pid, paths: c.h.parseProcCgroup(text)}
		if _, mine := c.inside(m); !mine && !c.h.exiting(pid) {
			return "", fmt.Sprintf("%s of %s also holds process %d", place, name, pid)
		}
	}
	return place, ""
}

// ProcCgroups yields what /proc/PID/cgroup has (cgroups(7)): for each v1 controller, and for
// cgroup2 as "", the path in its hierarchy: "4:cpu,cpuacct:/a", "0::/a".
func ProcCgroups(text []byte) iter.Seq2[string, string] {
	return func(yield func(controller, path string) bool) {
		for line := range bytes.Lines(text) {
			f := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3)
			if len(f) != 3 {
				continue
			}
			for controller := range strings.SplitSeq(f[1], ",") {
				if !yield(controller, f[2]) {
					return
				}
			}
		}
	}
}

// parseProcCgroup reads /proc/PID/cgroup. Cgroups that are outside the mounts are left
// out, and so are removed ones that a zombie still holds.
func (h *Host) parseProcCgroup(text []byte) map[string]string {
	paths := make(map[string]string)
	for name, p := range ProcCgroups(text) {
		t, ok := h.trees[name]
		if !ok || !strings.HasPrefix(p, "/") {
			continue
		}
		if p, ok = t.below(p); ok && !(name == "" && h.removed(t, p)) {
			paths[name] = p
		}
	}
	return paths
}

// removed reports whether the kernel says so of a path of cgroup2 (proc_cgroup_show). A task may give
// its cgroup a name that ends like that: then it is there.
func (h *Host) removed(t tree, p string) bool {
	if !strings.HasSuffix(p, " (deleted)") {
		return false
	}
	_, err := h.Inode(path.Join(t.dir, p))
	return err != nil
}

// openStats opens the files that Usage reads: its own once, those in other
// hierarchies again whenever the place there has changed.
func (c *Cgroup) openStats() error {
	_, usage := c.usagePlace()
	_, throttle := c.throttlePlace()
	return errors.Join(c.openStat(&c.usage, usage, c.usageFile()), c.openStat(&c.throttle, throttle, "cpu.stat"))
}

// usagePlace returns the directory of usageFile and the mount above it, "" if the kernel keeps no
// CPU time of just this cgroup.
func (c *Cgroup) usagePlace() (mount, dir string) {
	if c.hier == sample.Unified {
		return c.tree.dir, c.Dir()
	}
	t, ok := c.h.trees["cpuacct"]
	if !ok {
		return "", ""
	}
	p := c.places.CPUAcct
	if p == "" && !c.places.Split {
		p = c.path // no processes yet: the place they usually get
	}
	if p == "" || p == "/" && c.path != "/" {
		return "", ""
	}
	return t.dir, path.Join(t.dir, p)
}

// throttlePlace is the same of the cpu controller's cpu.stat; "" if usageFile has that too.
func (c *Cgroup) throttlePlace() (mount, dir string) {
	if c.hier != sample.Unified {
		return c.tree.dir, c.Dir()
	}
	t, ok := c.h.trees["cpu"]
	if p := c.places.CPU; ok && p != "" && (p != "/" || c.path == "/") {
		return t.dir, path.Join(t.dir, p)
	}
	return "", ""
}

func (c *Cgroup) usageFile() string {
	if c.hier == sample.Unified {
		return "cpu.stat"
	}
	return "cpuacct.usage"
}

// openStat sets f to the named file in dir, to none if dir is "". It is no error if
// another hierarchy lacks the file.
func (c *Cgroup) openStat(f *statFile, dir, name string) error {
	if f.fd >= 0 && f.from == dir {
		return nil
	}
	if err := f.close(); err != nil {
		return err
	}
	if dir == "" {
		return nil
	}
	opened, err := c.openIn(dir, name)
	if err != nil && (dir == c.Dir() || !vanished(err)) {
		return orGone(err)
	}
	*f = opened
	return nil
}
