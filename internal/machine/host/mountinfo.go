package host

import (
	"bytes"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Kind says which cgroup versions are mounted.
type Kind uint8

const (
	// None: no cgroups at all.
	None Kind = iota
	// V1: controllers in v1 hierarchies only.
	V1
	// V2: cgroup2 has every controller.
	V2
	// Hybrid: cgroup2 together with v1 hierarchies that have controllers.
	Hybrid
)

func (k Kind) String() string {
	return [...]string{"none", "v1", "v2", "hybrid"}[min(k, Hybrid)]
}

// Layout says where cgroups are mounted, inside the root.
type Layout struct {
	Kind        Kind
	Unified     string            // mount of cgroup2, "" if there is none
	Controllers []string          // those that cgroup2 offers at its top
	V1          map[string]string // controller → mount; several may share one
}

// CPU returns the hierarchy with the cpu controller and whether any has it.
func (l Layout) CPU() (sample.Hierarchy, bool) {
	if _, ok := l.V1["cpu"]; ok {
		return sample.V1CPU, true
	}
	return sample.Unified, slices.Contains(l.Controllers, "cpu")
}

// tree is a mounted hierarchy.
type tree struct {
	dir string // mount point inside the root
	top string // which cgroup of the hierarchy is mounted there
}

// below converts a path from /proc/PID/cgroup to one below the mount. A
// container may see only a part of a hierarchy (mountinfo's root field).
func (t tree) below(p string) (string, bool) {
	if t.top == "/" {
		return p, true
	}
	rest, ok := strings.CutPrefix(p, t.top)
	switch {
	case !ok:
		return "", false
	case rest == "":
		return "/", true
	default:
		return rest, rest[0] == '/'
	}
}

func (h *Host) findLayout() Layout {
	var l Layout
	for name, t := range h.trees {
		if name == "" {
			l.Unified = t.dir
			text, _ := h.ReadValue(t.dir + "/cgroup.controllers")
			l.Controllers = strings.Fields(text)
			continue
		}
		if l.V1 == nil {
			l.V1 = make(map[string]string)
		}
		l.V1[name] = t.dir
	}
	switch {
	case l.Unified != "" && len(l.V1) > 0:
		l.Kind = Hybrid
	case l.Unified != "":
		l.Kind = V2
	case len(l.V1) > 0:
		l.Kind = V1
	}
	return l
}

// isController distinguishes controllers from the other words in a v1
// hierarchy's super options (kernel/cgroup/cgroup-v1.c, cgroup1_show_options).
func isController(word string) bool {
	switch word {
	case "rw", "ro", "noprefix", "clone_children", "xattr", "cpuset_v2_mode", "favordynmods", "none", "":
		return false
	}
	return !strings.Contains(word, "=") // name=systemd, release_agent=…
}

// parseMountinfo finds cgroup mounts in /proc/PID/mountinfo (proc(5)). If a
// hierarchy is mounted more than once, a mount of its top takes precedence, then
// the first; a later mount on the same point hides the earlier. Mount points that
// begin with root count as inside it (the host's /proc seen in a container).
func parseMountinfo(text []byte, root string) map[string]tree {
	type mount struct {
		tree
		names []string
	}
	var mounts []mount
	for line := range bytes.Lines(text) {
		// 31 23 0:28 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu
		left, right, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 {
			continue
		}
		m := mount{tree: tree{dir: unescaper.Replace(l[4]), top: unescaper.Replace(l[3])}}
		if rest, ok := strings.CutPrefix(m.dir, root+"/"); ok {
			m.dir = "/" + rest
		}
		mounts = slices.DeleteFunc(mounts, func(o mount) bool { return o.dir == m.dir })
		switch r[0] {
		case "cgroup2":
			m.names = []string{""}
		case "cgroup":
			for name := range strings.SplitSeq(r[2], ",") {
				if isController(name) {
					m.names = append(m.names, name)
				}
			}
		}
		mounts = append(mounts, m)
	}
	trees := make(map[string]tree)
	for _, m := range mounts {
		for _, name := range m.names {
			if old, ok := trees[name]; !ok || old.top != "/" && m.top == "/" {
				trees[name] = m.tree
			}
		}
	}
	return trees
}

// unescaper decodes what the kernel escapes in mountinfo (fs/proc_namespace.c).
var unescaper = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\043`, "#", `\134`, `\`)
