package workload

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/machine/host"
)

// MissingError says what this machine lacks to run workloads in cgroups, and the remedy.
type MissingError struct {
	What   string
	Remedy string
	Err    error // the cause, or nil
}

func (e *MissingError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %v; %s", e.What, e.Err, e.Remedy)
	}
	return e.What + "; " + e.Remedy
}

func (e *MissingError) Unwrap() error { return e.Err }

// mounts are the mount points of the cgroup hierarchies that a tree uses; "" for a
// missing one.
type mounts struct {
	unified string // cgroup2
	cpu     string // v1 with the cpu controller
	cpuacct string // v1 with cpuacct, if mounted separately from cpu
	cpuset  string // v1 with cpuset, if requested
	more    []string
}

// mountsOf returns them from a host's layout.
func mountsOf(l host.Layout) mounts {
	m := mounts{unified: l.Unified, cpu: l.V1["cpu"]}
	if m.cpuacct = l.V1["cpuacct"]; m.cpuacct == m.cpu {
		m.cpuacct = ""
	}
	return m
}

// all returns the mount points in the order in which processes are placed.
func (m mounts) all() []string {
	return slices.DeleteFunc(append([]string{m.unified, m.cpu, m.cpuacct}, m.more...), func(s string) bool { return s == "" })
}

// extend adds the v1 hierarchies that the options request, and removes the cpu
// controller's if the tree is ungrouped.
func (m *mounts) extend(v1 map[string]string, opt TreeOptions) {
	cpu := m.cpu
	if opt.Ungrouped {
		m.cpu = ""
	}
	for _, c := range opt.Controllers {
		dir := v1[c]
		if dir == "" || dir == cpu && opt.Ungrouped {
			continue
		}
		if c == "cpuset" {
			m.cpuset = dir
		}
		if !slices.Contains(m.all(), dir) {
			m.more = append(m.more, dir)
		}
	}
}

// sweepable are the mount points of all hierarchies that may contain a tree.
func sweepable(l host.Layout) []string {
	var all []string
	for _, dir := range l.V1 {
		all = append(all, dir)
	}
	if l.Unified != "" {
		all = append(all, l.Unified)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// findMounts finds this machine's mounts in its layout and checks that one of them can limit CPU.
func findMounts(l host.Layout) (mounts, error) {
	m := mountsOf(l)
	if m.unified == "" && m.cpu == "" {
		return m, &MissingError{"no cgroup file system is mounted",
			"mount one: mount -t cgroup2 none /sys/fs/cgroup", nil}
	}
	if m.cpu != "" {
		return m, nil
	}
	if !hasWord(m.unified, "cgroup.controllers", "cpu") {
		return m, &MissingError{"no cgroup hierarchy has a cpu controller",
			"needs a kernel with CONFIG_CFS_BANDWIDTH and, in a container, the host's cgroup tree", nil}
	}
	if !hasWord(m.unified, "cgroup.subtree_control", "cpu") {
		return m, &MissingError{"the cpu controller is not enabled for children of " + m.unified,
			fmt.Sprintf("enable it: echo +cpu > %s/cgroup.subtree_control", m.unified), nil}
	}
	return m, nil
}

func hasWord(dir, file, word string) bool {
	text, err := os.ReadFile(filepath.Join(dir, file))
	return err == nil && slices.Contains(strings.Fields(string(text)), word)
}
