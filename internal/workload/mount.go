package workload

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// parseMountinfo finds them in the text of /proc/self/mountinfo (proc(5)). Of
// a hierarchy that is mounted more than once, the first mount counts. Lines
// that are not understood are passed over.
func parseMountinfo(text string) mounts {
	var m mounts
	first := func(to *string, path string) {
		if *to == "" {
			*to = path
		}
	}
	for row := range strings.Lines(text) {
		// 31 30 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu
		left, right, found := strings.Cut(row, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !found || len(l) < 6 || len(r) < 3 {
			continue
		}
		path := unescape(l[4])
		controllers := strings.Split(r[2], ",")
		switch {
		case r[0] == "cgroup2":
			first(&m.unified, path)
		case r[0] != "cgroup":
		case slices.Contains(controllers, "cpu"):
			first(&m.cpu, path)
		case slices.Contains(controllers, "cpuacct"):
			first(&m.cpuacct, path)
		}
	}
	return m
}

// unescape undoes the kernel's octal escapes of white space in paths.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}

// all returns the mount points in the order in which processes are placed.
func (m mounts) all() []string {
	return slices.DeleteFunc([]string{m.unified, m.cpu, m.cpuacct}, func(s string) bool { return s == "" })
}

// findMounts reads this process's mounts and checks that one of them can
// limit CPU.
func findMounts() (mounts, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return mounts{}, &EnvError{"no /proc", "mount it: mount -t proc proc /proc", err}
	}
	m := parseMountinfo(string(text))
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
