package workload

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/host"
)

// EnvError says what this machine lacks for running workloads in cgroups, and
// how to get it.
type EnvError struct {
	What   string
	Remedy string
	Err    error // the cause, or nil
}

func (e *EnvError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %v; %s", e.What, e.Err, e.Remedy)
	}
	return e.What + "; " + e.Remedy
}

func (e *EnvError) Unwrap() error { return e.Err }

// mounts are the mount points of the cgroup hierarchies that a tree lives in;
// "" for one that there is not.
type mounts struct {
	unified string // cgroup2
	cpu     string // v1 with the cpu controller
	cpuacct string // v1 with cpuacct, if mounted apart from cpu
}

// mountsOf takes them from a host's layout.
func mountsOf(l host.Layout) mounts {
	m := mounts{unified: l.Unified, cpu: l.V1["cpu"]}
	if m.cpuacct = l.V1["cpuacct"]; m.cpuacct == m.cpu {
		m.cpuacct = ""
	}
	return m
}

// all returns the mount points in the order in which processes are placed.
func (m mounts) all() []string {
	return slices.DeleteFunc([]string{m.unified, m.cpu, m.cpuacct}, func(s string) bool { return s == "" })
}

// findMounts looks at this machine and checks that one of them can limit CPU.
func findMounts() (mounts, error) {
	h, err := host.Open("/")
	if err != nil {
		return mounts{}, &EnvError{"no /proc", "mount it: mount -t proc proc /proc", err}
	}
	m := mountsOf(h.Layout())
	if m.unified == "" && m.cpu == "" {
		return m, &EnvError{"no cgroup file system is mounted",
			"mount one: mount -t cgroup2 none /sys/fs/cgroup", nil}
	}
	if m.cpu != "" {
		return m, nil
	}
	if !hasWord(m.unified, "cgroup.controllers", "cpu") {
		return m, &EnvError{"no cgroup hierarchy has a cpu controller",
			"needs a kernel with CONFIG_CFS_BANDWIDTH and, in a container, the host's cgroup tree", nil}
	}
	if !hasWord(m.unified, "cgroup.subtree_control", "cpu") {
		return m, &EnvError{"the cpu controller is not enabled for children of " + m.unified,
			fmt.Sprintf("enable it: echo +cpu > %s/cgroup.subtree_control", m.unified), nil}
	}
	return m, nil
}

func hasWord(dir, file, word string) bool {
	text, err := os.ReadFile(filepath.Join(dir, file))
	return err == nil && slices.Contains(strings.Fields(string(text)), word)
}
